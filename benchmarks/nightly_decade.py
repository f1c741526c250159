"""What a night costs after 10 to 3650 nights: time, memory, and bytes that are read, of a tree and of a banded series.

The first night is a real one. Those before a measured night are written as a run leaves them, and not lived through:
rows with their seals, source files, the ledger's entries, its witness, and of the releases those that a
later night opens; others are empty folders. Then three nights are run, each by a process of its own, and the median of
three is told. Processor time and bytes are those of the run, after a small one in the same process, which imports the
modules; memory is the largest of the process.

    python -m benchmarks.nightly_decade --output benchmarks/results/nightly_decade
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from faults.nightly import JOB

from dpdist import Ledger
from dpdist.core.ledger.journal import Begun, Closed, Committed, CommitWitnessed, Event, Published, Reserved
from dpdist.core.ledger.witness import FolderWitness, WitnessRecord
from dpdist.core.release import combine
from dpdist.core.release.artefact import Release
from dpdist.core.release.opening import open_release
from dpdist.core.release.plan import plan_of
from dpdist.core.release.series import Toeplitz, Tree, total_of
from dpdist.core.rows.dataset import created, open_ingested
from dpdist.core.rows.periods import PeriodicTable, open_periods, seal_rows
from dpdist.jobs import job_file
from dpdist.jobs import run as job_runs
from dpdist.jobs.series import open_series
from dpdist.jobs.totals import opened

FORMS = {"tree": "continual = 3650\n", "banded": 'factorisation = "banded"\n'}
SIZES = (10, 100, 1000, 3650)
NIGHTS = 3
_ROWS, _COLUMNS = 60, 16
_MEASURED = """
import json, sys, tempfile, time
from pathlib import Path
import numpy as np
from dpdist.jobs import job_file, run
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "incoming").mkdir()
    np.save(Path(folder, "incoming", "night.npy"), np.zeros((9, 2)))
    Path(folder, "job.toml").write_text(Path(sys.argv[1]).read_text())
    run.run(job_file.read_job(Path(folder, "job.toml")), say=lambda _: None)  # modules are imported, tables are made
job = job_file.read_job(sys.argv[1])
count = lambda: int(Path("/proc/self/io").read_text().split()[1])
bytes_read, wall, processor = count(), time.perf_counter(), time.process_time()
run.run(job, say=lambda _: None)
taken = time.process_time() - processor, time.perf_counter() - wall, count() - bytes_read
# not ru_maxrss: what started this process counts there too
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print(json.dumps([*taken, int(peak.split()[1]) / 1024]))
"""


def name_of(number: int) -> str:
    """Return the name of a period, from 0."""
    return f"night-{number:05d}"


class Series:
    """A series in a folder, which grows."""

    def __init__(self, folder: Path, form: str) -> None:
        self.folder = folder
        (folder / "incoming").mkdir(parents=True)
        (folder / "job.toml").write_text(JOB + FORMS[form])
        self.plan = job_file.read_job(folder / "job.toml").plan
        self.random = np.random.default_rng(0)
        self.arrive(0)
        self.run()
        self.first = open_release(folder / "published" / f"{name_of(0)}.zarr")
        self.guarantee = Ledger(folder / "visits.ledger").records[0].guarantee.to_json()

    def run(self) -> None:
        """Run the job."""
        job_runs.run(job_file.read_job(self.folder / "job.toml"), say=lambda _: None)

    def arrive(self, number: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Let the rows of a period arrive, and return them."""
        rows = self.random.normal(size=(_ROWS, _COLUMNS))
        np.save(self.folder / "incoming" / f"{name_of(number)}.npy", rows)
        return rows

    def grow(self, begin: int, end: int) -> None:
        """Write what nights with these numbers leave, from 0; the last one is closed, and released by a real run."""
        ledger, table = Ledger(self.folder / "visits.ledger"), open_periods(self.folder / "visits")
        seals = [self.taken_in(table, number) for number in range(begin, end)]
        with ledger._locked() as (view, transaction):  # noqa: SLF001 - the history is written, and not lived through
            last = Closed(name_of(end - 1), seals[-1])
            ledger._append(view, transaction, *self.entries(begin, end - 1, seals), last)  # noqa: SLF001
        with FolderWitness().locked(ledger.ledger_id) as held, ledger._locked() as (view, _):  # noqa: SLF001
            held.write(WitnessRecord.of(view))
        published, periods = self.folder / "published", [name_of(number) for number in range(end)]
        for count in range(begin + 1, end):
            for node in self.plan.released(count):
                target = published / f"{node.label(periods)}.zarr"
                if count > end - 16 and isinstance(self.plan, Tree):
                    series = open_series(job_file.read_job(self.folder / "job.toml"))
                    span = series.span(node)
                    release_id = plan_of(series.request_for(node, span), span).release_id(span)
                    combine.write_sum(self.of(node.start, node.stop, release_id), target)
                else:
                    target.mkdir()
            if count > end - 80:
                combine.write_sum(self.total(count), published / "total" / f"{periods[count - 1]}.zarr")
        self.run()

    def taken_in(self, table: PeriodicTable, number: int) -> str:
        """Write the rows of a period, and return their seal."""
        values, store = self.arrive(number), table.rows_of(name_of(number))
        names = self.first.names
        with created(
            store, rows=_ROWS, dtype="float64", names=names, budget=None, ledger_id=table.ledger_id,
            period=name_of(number),
        ) as writer:  # fmt: skip
            writer.append(values)
        found = (self.folder / "incoming" / f"{name_of(number)}.npy").stat()
        known = {"name": f"{name_of(number)}.npy", "size": found.st_size, "mtime_ns": found.st_mtime_ns}
        store.replace("sources.json", json.dumps([{**known, "digest": os.urandom(32).hex()}]).encode(), "rows")
        return seal_rows(open_ingested(store))

    def entries(self, begin: int, end: int, seals: list[str]) -> Iterator[Event]:
        """Yield what the ledger has written after nights."""
        for number, seal in zip(range(begin, end), seals, strict=False):
            yield Closed(name_of(number), seal)
            for node in self.plan.released(number + 1):
                release_id = f"r-{sha256(f'{node.start} {node.stop}'.encode()).hexdigest()[:32]}"
                periods = tuple(map(name_of, range(node.start, node.stop)))
                yield Reserved(release_id, {}, self.guarantee, periods, weights=node.weights)
                yield Begun(release_id, "0" * 32)
                yield Committed(release_id, f"{release_id}.1.0", "0" * 64)
                yield CommitWitnessed(release_id)
                yield Published(release_id)

    def of(self, start: int, stop: int, release_id: str, **changes: Any) -> Release:
        """Return a release of some periods, with the matrix of the first one."""
        extent = msgspec.structs.replace(
            self.first.extents[0], start=start, stop=stop, first=name_of(start), last=name_of(stop - 1)
        )
        return replace(self.first, release_id=release_id, extents=(extent,), weights=(), **changes)

    def total(self, count: int) -> Release:
        """Return a total of so many periods: what is said of it is true, its matrix is not."""
        plan, number = self.plan, count
        changes: dict[str, Any] = {}
        if isinstance(plan, Toeplitz):
            guarantee = combine._joint_guarantee(self.first, plan.shares_of(count))  # noqa: SLF001 - as it would be made
            noise = combine._noise_of(plan, self.first, count)  # noqa: SLF001
            changes = {"guarantee": guarantee, "claim": guarantee.loss, "noise": noise}
        else:
            number = sum((2 << node.level) - 1 for node in total_of(count, plan.levels))
        ids = tuple(f"r-{each:032d}" for each in range(number))
        return self.of(0, count, f"c-{count}", releases=ids, ledger_head=None, **changes)

    def measured(self, number: int) -> dict[str, float]:
        """Run one night in a process of its own and return what it took."""
        self.arrive(number)
        command = [sys.executable, "-c", _MEASURED, str(self.folder / "job.toml")]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
        found = zip(("processor_s", "wall_s", "bytes_read", "peak_mib"), json.loads(told.stdout), strict=True)
        return {**dict(found), "opened": opened(self.plan, number + 1, None)}


def main() -> None:
    """Measure, and write JSON and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--output", type=Path, required=True, help="Without suffix: .json and .md are written.")
    parser.add_argument("--form", choices=FORMS, action="append", help="One of them only; what there is stays.")
    options = parser.parse_args()
    path = options.output.with_suffix(".json")
    every: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    for form in options.form or FORMS:
        with (
            tempfile.TemporaryDirectory() as state,
            tempfile.TemporaryDirectory() as folder,
            mock.patch.dict(os.environ, {"DPDIST_STATE_HOME": state}),
        ):
            series, count = Series(Path(folder) / form, form), 1
            for size in options.sizes:
                series.grow(count, size - 1)
                nights = [series.measured(number) for number in range(size - 1, size - 1 + NIGHTS)]
                count = size - 1 + NIGHTS
                every.setdefault(form, {})[str(size)] = {key: median(n[key] for n in nights) for key in nights[0]}
                print(form, size, every[form][str(size)], flush=True)
                path.write_text(json.dumps(every, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(report(every))


def report(every: dict[str, dict[str, Any]]) -> str:
    """Return the table."""
    lines = [
        "# What a night costs after many",
        "",
        f"{_ROWS} rows of {_COLUMNS} columns a night; medians of three nights, each run by a process of its own.",
        "`python -m benchmarks.nightly_decade` says what is measured. Opened: published releases and totals.",
        "",
        "| form | night | processor, s | wall, s | read, MB | peak memory, MiB | opened for the total |",
        "|---" * 7 + "|",
    ]
    for form, by_size in every.items():
        for size, found in by_size.items():
            lines.append(
                f"| {form} | {size} | {found['processor_s']:.2f} | {found['wall_s']:.2f} "
                f"| {found['bytes_read'] / 1e6:.1f} | {found['peak_mib']:.0f} | {found['opened']:.0f} |"
            )
    lines += [
        "",
        "What is opened for the total is flat. Time and memory are not: each earlier night adds what is looked up of",
        "it. Of its source, which may have changed or come twice, and of its rows, which are counted for delta, small",
        "files are read; of its releases the witness of the ledger says a line, read and written anew.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
