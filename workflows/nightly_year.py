"""A year of nights that go wrong: one release per period, a constant budget per row, and an error as predicted.

Every night a folder of made-up rows arrives and `dpdist run` is started on a real cluster, except on nights that are
missed; many starts are killed at a random moment, some jobs are started twice at once, and now and then files come
late, change, or repeat another. In several forms: releases of single periods, with `continual`, a square root, banded,
and each of the last three with persons who have rows in several periods. The rows are made up, so the exact total is
known, and the error of the private one is compared with what theory predicts.

    python -m workflows.nightly_year --periods 365 --output workflows/results/nightly_year
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import DpdistError, Ledger, open_release
from dpdist.jobs import job_file
from dpdist.jobs import run as job_runs
from dpdist.ledger.state import State
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.lattice import rounded_normal
from dpdist.release.continual import Tree, levels_for, variance_factor
from dpdist.release.toeplitz import BAND, Toeplitz, banded, square_root
from dpdist.runtime import connection
from faults.nightly import JOB

_COLUMNS = 16
_ROWS, _PERIODS = 2, 7
_PERSONS = f'privacy_unit = "c0"\nmax_rows = {_ROWS}\nmax_periods = {_PERIODS}'
_ENDING = 20.0
"""Seconds for a process of the cluster to end by itself."""
_RESUMABLE = 5
"""Exit code when the cluster was lost, as it may be on a busy machine."""
Floats = npt.NDArray[np.float64]


@dataclass
class Year:
    """One simulated year in a folder, and what happened in it."""

    folder: Path
    random: np.random.Generator
    form: Form
    rows: list[Floats] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    seen: dict[str, str] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    been: Counter[int] = field(default_factory=Counter)
    seconds: float = 1.0

    def arrive(self, number: int) -> None:
        """Let the rows of a period arrive."""
        rows = self.random.normal(size=(int(self.random.integers(50, 150)), _COLUMNS))
        if not self.form.persons:
            self.write(name_of(number), rows)
            self.rows.append(rows)
            return
        who = self.random.integers(400, size=len(rows))
        self.write(name_of(number), np.column_stack([who, rows]))
        first = [list(who[:i]).count(person) < _ROWS for i, person in enumerate(who)]
        self.rows.append(rows[first & np.array([self.been[person] < _PERIODS for person in who])])
        self.been.update(set(who.tolist()))

    def write(self, name: str, rows: npt.NDArray[np.float64]) -> None:
        """Put a period into the source, complete."""
        aside = self.folder / "incoming" / f".{name}.npy"
        np.save(aside, rows)
        aside.rename(aside.with_name(f"{name}.npy"))

    def start(self) -> int:
        """Start the job in a process of its own; return its number."""
        child = os.fork()
        if child == 0:
            os._exit(_run(self.folder / "job.toml"))
        return child

    def run(self) -> int:
        """Run the job once, to its end, again if it says that it can be resumed; return its exit code."""
        code = _RESUMABLE
        while code == _RESUMABLE:
            began = time.monotonic()
            code = self.ended(self.start())
            self.seconds = time.monotonic() - began
        return code

    def ended(self, child: int) -> int:
        """Wait for a process and count how it ended; its exit code, -9 if it was killed."""
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self.happened[f"ended with {code}"] += 1
        return code

    @property
    def ledger(self) -> Ledger:
        """The ledger, opened anew."""
        return Ledger(self.folder / "visits.ledger")

    def night(self, number: int) -> None:
        """Let the rows of a period arrive and one night pass."""
        self.arrive(number)
        luck = self.random.random()
        if luck < 0.1:
            self.happened["nights missed"] += 1
            return
        if luck < 0.4:
            self.killed()
        elif luck < 0.5:
            self.happened["started twice at once"] += 1
            codes = [self.ended(child) for child in [self.start(), self.start()]]
            require({0, _RESUMABLE} >= set(codes), f"two at once ended with {codes}")
        elif luck < 0.6 and number > 2:
            self.wronged(number)
        if luck >= 0.25:
            require(self.run() == 0, f"a run failed: {self.words()}")
        self.look()

    def words(self) -> str:
        """Return the last line that a run printed."""
        return (self.folder / "words").read_text().strip().rpartition("\n")[2]

    def killed(self) -> None:
        """Start a run and kill it at a random moment."""
        child = self.start()
        time.sleep(float(self.random.uniform(0, self.seconds)))
        os.kill(child, signal.SIGKILL)
        if self.ended(child) == -signal.SIGKILL and (self.folder / "visits.ledger").exists():
            records = self.ledger.records
            state = records[-1].state if records else "none"
            self.happened[f"killed, last release {state}"] += 1

    def wronged(self, number: int) -> None:
        """Let a file come late, change, or repeat another: the run is refused and releases nothing of it."""
        require(self.run() == 0, f"a run failed: {self.words()}")
        before = len(self.ledger.records)
        kind = ("late", "changed", "repeated")[int(self.random.integers(3))]
        old, incoming = int(self.random.integers(number)), self.folder / "incoming"
        path = incoming / f"{name_of(old)}.npy"
        match kind:
            case "late":
                path = incoming / f"{name_of(old)}.5.npy"  # sorts before the next day, which is closed
                if old == number - 1:
                    path = incoming / f"{name_of(-1)}.npy"
                np.save(path, self.random.normal(size=(60, _COLUMNS)))
            case "changed":
                kept = path.read_bytes()
                np.save(path, self.random.normal(size=(60, _COLUMNS)))
            case "repeated":
                shutil.copy(path, path := incoming / f"{name_of(number)}.again.npy")
        self.happened[f"files {kind}"] += 1
        require(self.run() == 3, f"files {kind} were not refused")
        require(len(self.ledger.records) == before, f"files {kind} were released")
        if kind == "changed":
            path.write_bytes(kept)
        else:
            path.unlink()

    def look(self, latest: int | None = 20) -> None:
        """Check that what was published never changes, the latest or all, and note what is left of a row's budget."""
        paths = sorted((self.folder / "published").glob("*.zarr"), key=lambda path: path.stat().st_mtime_ns)
        for path in paths[-latest:] if latest else paths:
            files = sorted(p for p in path.rglob("*") if p.is_file())
            digest = hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()
            require(self.seen.setdefault(path.name, digest) == digest, f"{path.name} was published twice")
        self.left.add(str(self.ledger.balance().left_closed))

    def conclude(self) -> dict[str, Any]:
        """Check the whole year, and return what is to be told of it."""
        require(self.run() == 0, "the last run failed")
        self.look(latest=None)
        periods, ledger = len(self.rows), self.ledger
        ledger.verify()
        plan = self.form.plan
        nodes = {(node.start, node.stop) for count in range(1, periods + 1) for node in plan.released(count)}
        require(len(ledger.periods) == periods, "a period is missing")
        require(all(r.state is State.PUBLISHED for r in ledger.records), "a release is unfinished")
        require(len(ledger.records) == len(nodes) == len(self.seen), "a release is missing, or there are too many")
        return {
            "releases": len(nodes),
            "periods": periods,
            "left": sorted(self.left),
            "budget": str(ledger.budget),
            "happened": dict(sorted(self.happened.items())),
            "errors": [self.error(count) for count in range(1, periods + 1)],
        }

    def error(self, count: int) -> dict[str, float]:
        """Compare the private total of so many periods with that of the rows; rounding is little beside its noise."""
        total = self.folder / "published" / "total" / f"{name_of(count - 1)}.zarr"
        if not total.exists():  # a night that was caught up later
            return {}
        release = open_release(total)
        rows = np.vstack(self.rows[:count])
        require(release.rows == len(rows), f"the total of {count} periods is of other rows than are to be kept")
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.maximum(1, norms / release.bound.shortened_norm) * release.bound.unit
        variance = release.noise["variance_off_diagonal"]
        off = (release.lattice - rows.T @ rows)[np.triu_indices(_COLUMNS, 1)]
        return {"periods": count, "rms": float(np.sqrt((off**2).mean())), "predicted": float(np.sqrt(variance))}


@dataclass(frozen=True)
class Form:
    """What is released, of rows that count alone or of persons."""

    plan: Tree | Toeplitz
    said: str
    persons: bool = False

    def factor(self, count: int) -> float:
        """Return the deviation of the total of so many periods over that of one release with all of the loss."""
        plan = self.plan
        return (variance_factor(count, plan.levels) if isinstance(plan, Tree) else plan.variance_factor(count)) ** 0.5


def forms_for(periods: int) -> dict[str, Form]:
    """Return the forms by name, for so many periods."""
    tree = Form(Tree(levels_for(periods)), f"continual = {periods}\n")
    root = Form(square_root(periods), f'factorisation = "square-root"\ncontinual = {periods}\n')
    band = Form(banded(BAND), 'factorisation = "banded"\n')
    several = {"continual": tree, "square root": root, "banded": band}
    persons = {f"{name}, persons": replace(form, persons=True) for name, form in several.items()}
    return {"single periods": Form(Tree(1), ""), **several, **persons}


def require(condition: bool, otherwise: str) -> None:
    """Stop when something is not as it must be."""
    if not condition:
        raise RuntimeError(otherwise)


def name_of(number: int) -> str:
    """Return the name of a period."""
    return str(date(2025, 1, 1) + timedelta(days=number))


def _run(job: Path) -> int:
    """Run a job as `dpdist run` does, its words in a file; return the exit code."""
    words = os.open(job.parent / "words", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(words, 1)
    os.dup2(words, 2)
    try:
        job_runs.run(job_file.read_job(job), say=print)
    except DpdistError as error:
        print(error, flush=True)
        return error.exit_code
    except BaseException as error:  # noqa: BLE001 - it is told, and the year stops
        print(repr(error), flush=True)
        return 1
    return 0


def simulate(folder: Path, periods: int, form: Form, seed: int, cluster: str) -> dict[str, Any]:
    """Simulate so many nights in an empty folder and return what happened.

    RuntimeError tells what was not as it must be.

    Parameters
    ----------
    folder
        Where everything is kept.
    periods, form
        Nights, and what is released.
    seed
        Of the rows and of what goes wrong; the noise has none.
    cluster
        The line of the job file's [cluster].
    """
    (folder / "incoming").mkdir(parents=True)
    job = JOB.replace("periods = true", f"periods = true\n{_PERSONS}") if form.persons else JOB
    (folder / "job.toml").write_text(f"{job}{form.said}\n[cluster]\n{cluster}\n")
    year = Year(folder, np.random.default_rng(seed), form)
    for number in range(periods):
        year.night(number)
        if number % 10 == 0:
            print(folder.name, number, dict(year.happened), flush=True)
    return year.conclude()


@contextmanager
def cluster_of(workers: int) -> Iterator[str]:
    """Run a scheduler and workers on the loopback interface; give the line of [cluster]."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    base = [sys.executable, "-m", "distributed.cli."]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    settings = {
        "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "False",
        "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    local = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    _, _, port = address.rpartition(":")
    commands = [[*base[:2], base[2] + "dask_scheduler", "--port", port, *local]]
    commands += [[*base[:2], base[2] + "dask_worker", address, "--nthreads", "1", *local] for _ in range(workers)]
    connection.CONNECT_SECONDS = 300  # a busy machine is no failure
    started = [
        subprocess.Popen(command, env={**os.environ, **settings}, **quiet)  # type: ignore[call-overload]  # noqa: S603
        for command in commands
    ]
    try:
        while started[0].poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), timeout=1):
                break
            time.sleep(0.1)
        yield f'scheduler = "{address}"'
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(_ENDING)
            except subprocess.TimeoutExpired:  # a worker that never met its scheduler waits for it, asked to end or not
                process.kill()
                process.wait()


def main() -> None:
    """Simulate a year in every form; write a table of all as JSON and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--periods", type=int, default=365)
    parser.add_argument("--output", type=Path, required=True, help="Without suffix: .json and .md are written.")
    parser.add_argument("--form", action="append", help="One of them only; may be repeated.")
    chosen = parser.parse_args()
    rounded_normal(1, 1, SYSTEM)  # its tables take most of a second, and every start is forked from here
    forms = {name: form for name, form in forms_for(chosen.periods).items() if name in (chosen.form or [name])}
    with (
        cluster_of(workers=1) as cluster,
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(len(forms), mp_context=get_context("fork")) as pool,
    ):
        years = {
            name: pool.submit(simulate, Path(folder) / str(seed), chosen.periods, form, seed, cluster)
            for seed, (name, form) in enumerate(forms.items())
        }
        found = {name: year.result() for name, year in years.items()}
    chosen.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    chosen.output.with_suffix(".md").write_text(report(found, forms))


def report(found: dict[str, Any], forms: dict[str, Form]) -> str:
    """Return the table."""
    lines = ["# A year of nights that go wrong", ""]
    for name, year in found.items():
        whose = "person" if forms[name].persons else "row"
        told = f"**{name}**: {year['releases']} releases of {year['periods']} periods, each published once. "
        told += f"Budget per {whose}: {year['budget']}; what was left of the periods released, night after night: "
        lines += [
            told + f"{_left(year['left'])}.",
            "",
            *(f"* {what}: {count}" for what, count in year["happened"].items()),
            "",
        ]
    told = "Root mean square error of an off-diagonal entry of the total (120 entries), in standard deviations of one "
    lines += [
        told + "release that has all of the loss:",
        "",
        "| periods | " + " | ".join(f"{n}, measured | {n}, predicted" for n in found) + " |",
        "|---" * (1 + 2 * len(found)) + "|",
    ]
    by_count = {n: {e["periods"]: e for e in year["errors"] if e} for n, year in found.items()}
    unit = {n: first_of(by_count[n], forms[n]) for n in found}
    for count in sorted(set.intersection(*(set(counts) for counts in by_count.values()))):
        if count % 30 == 0 or count == max(map(max, by_count.values())):
            cells = [f"{by_count[n][count]['rms'] / unit[n]:.2f} | {forms[n].factor(count):.2f}" for n in found]
            lines.append(f"| {count} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "The last total, measured over predicted, and how many standard errors (sqrt(1/240)) that is from 1:",
        "",
    ]
    for name, counts in by_count.items():
        last = counts[max(counts)]
        ratio = last["rms"] / last["predicted"]
        lines.append(f"* {name}, {last['periods']} periods: {ratio:.3f}, {(ratio - 1) * 240**0.5:+.1f}")
    return "\n".join(lines) + "\n"


def _left(left: list[str]) -> str:
    """Return what was left on some night or other; of more than nine amounts the least and the largest."""
    return "; ".join(left) if len(left) < 10 else f"{len(left)} amounts, from {left[0]} to {left[-1]}"


def first_of(errors: dict[int, dict[str, float]], form: Form) -> float:
    """Return the standard deviation that one release with all of the loss would have."""
    count, error = next(iter(errors.items()))
    return float(error["predicted"] / form.factor(count))


if __name__ == "__main__":
    main()
