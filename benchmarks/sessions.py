"""Sessions of several sites: captured variance, death at every flush, and times.

    python -m benchmarks.sessions variance benchmarks/results/sessions --data FOLDER
    python -m benchmarks.sessions flushes benchmarks/results/sessions
    python -m benchmarks.sessions times benchmarks/results/sessions

``variance``: the rows of a9a (FOLDER has a9a.npz; public data, so the scores are not private) at 5 and at 20 sites of
equal size, clip norm sqrt(14), which shortens no row, delta 1e-6, replace-one. "one node" is a release of all rows at
one trusted place, "session" the release of a session that allows t colluding sites, "combine" the sum of one release
of each site. All are made by the product, ten times each; scores are of the second moment.

``flushes``: ``dpdist session share`` is killed by SIGKILL just before its first, second, ... ``fsync`` or
``fdatasync``, in SQLite's as in Python's, by a preloaded library (it needs a C compiler). After each the same command
is run again, and once more: it must end well, with the bytes that could be seen before, one charge, and a session that
can be combined.

``times``: whole commands of one of three sites with 1000 rows, and the parts of its draw in one process, in turns with
a release of the same rows; medians of three.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

import dpdist
from dpdist.answers.components import captured_variance
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.masks import KeySet, new_key, public_key

Matrix = npt.NDArray[np.float64]
LOSS, BUDGET = dpdist.PrivacyLoss.parse(1, "1e-6"), dpdist.PrivacyLoss.parse(200, "1e-3")
DRAWS, COMPONENTS = 10, (1, 5, 10, 50)
KILLER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
static atomic_int calls;
static void strike(void) {
    const char *limit = getenv("KILL_AT_FLUSH");
    if (limit && ++calls == atoi(limit)) kill(getpid(), SIGKILL);
}
int fsync(int file) { strike(); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file); }
int fdatasync(int file) { strike(); return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file); }
"""


@contextmanager
def scratch() -> Iterator[Path]:
    """Work in a new folder, with a state folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        os.environ["DPDIST_STATE_HOME"] = str(Path(name, "state"))
        yield Path(name)


def ingest(folder: Path, name: str, rows: npt.NDArray[Any], budget: dpdist.PrivacyLoss = BUDGET) -> Path:
    """Store rows and their ledger."""
    np.save(folder / f"{name}.npy", rows)
    return dpdist.ingest_rows(folder / f"{name}.npy", folder / f"{name}.zarr", budget=budget).path


def session_of(folder: Path, sites: dict[str, Path], request: dpdist.ReleaseRequest, colluding: int) -> dpdist.Session:
    """Create a session with the keys of all sites."""
    tables = {name: dpdist.open_rows(rows) for name, rows in sites.items()}
    columns = next(iter(tables.values())).names
    counts = {name: table.rows for name, table in tables.items()}
    dpdist.create_session(folder, counts, request, columns=columns, colluding=colluding)
    for name, rows in sites.items():
        session = dpdist.add_session_key(folder, rows, name)
    return session


def variance(chosen: argparse.Namespace) -> dict[str, Any]:
    """Score releases of all rows at one place, of sessions, and sums of releases."""
    rows = np.random.default_rng(0).permutation(np.load(Path(chosen.data) / "a9a.npz")["X"].astype(np.float64))
    exact, results = rows.T @ rows, dict[str, Any]()
    with scratch() as folder:
        everything = ingest(folder, "all", rows)
        for count in (5, 20):
            parts = np.array_split(rows, count)
            sites = {f"site{number}": ingest(folder, f"{count}-{number}", part) for number, part in enumerate(parts)}
            for epsilon in ("0.1", "1"):
                ways = Ways(everything, sites, dpdist.PrivacyLoss.parse(epsilon, "1e-6"))
                for name, release in ways.named().items():
                    scores = []
                    for draw in range(DRAWS):
                        with tempfile.TemporaryDirectory(dir=folder) as at:
                            scores.append(scores_of(release(Path(at), f"{count} sites, draw {draw}"), exact))
                    mean, deviation = np.mean(scores, axis=0).round(4), np.std(scores, axis=0).round(4)
                    case = f"{count} sites, epsilon {epsilon}, {name}"
                    results[case] = {"mean": mean.tolist(), "deviation": deviation.tolist()}
                    print(case, mean, flush=True)
    return results


@dataclass(frozen=True)
class Ways:
    """The ways to one second moment of the rows of several sites."""

    everything: Path
    sites: dict[str, Path]
    loss: dpdist.PrivacyLoss

    def named(self) -> dict[str, Callable[[Path, str], Matrix]]:
        """Return each by its name; it takes a folder and a name that no other draw has."""
        return {
            "one node": self.one_node, "session, t = 0": partial(self.session, 0),
            "session, t = 1": partial(self.session, 1), "combine": self.combine,
        }  # fmt: skip

    def request(self, draw: str = "") -> dpdist.ReleaseRequest:
        """Return the request; grid bits are those of sums that are added."""
        return dpdist.ReleaseRequest("gaussian", self.loss, 1.01 * 14**0.5, grid_bits=14, period=draw)

    def one_node(self, folder: Path, draw: str) -> Matrix:
        """Release all rows at one trusted place."""
        return dpdist.release_rows(self.everything, folder / "one.zarr", self.request(draw)).release.second_moment

    def session(self, colluding: int, folder: Path, _: str) -> Matrix:
        """Release the rows of a new session."""
        session = session_of(folder / "study", self.sites, self.request(), colluding)
        for name, rows in self.sites.items():
            dpdist.release_share(session.store, rows, name, str(session.fingerprint))
        return dpdist.combine_shares(session.store, folder / "session.zarr").release.second_moment

    def combine(self, folder: Path, draw: str) -> Matrix:
        """Add up one release of each site."""
        releases = [
            dpdist.release_rows(rows, folder / f"{name}.zarr", self.request(draw)).release
            for name, rows in self.sites.items()
        ]
        return dpdist.combine_releases(releases, folder / "sum.zarr", disjoint=True).release.second_moment


def scores_of(moment: Matrix, exact: Matrix) -> list[float]:
    """Return the captured variance of the leading components."""
    values, vectors = np.linalg.eigh(moment)
    leading = vectors[:, np.argsort(values)[::-1]].T
    return [captured_variance(leading[:k], exact) for k in COMPONENTS]


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "dpdist", *map(str, arguments)], env=os.environ | environment, check=False,
        capture_output=True, text=True,
    )  # fmt: skip


def flushes(_: argparse.Namespace) -> dict[str, Any]:
    """Kill a share before each of its flushes."""
    violations, seen_shares, number = list[str](), 0, 1
    with tempfile.TemporaryDirectory() as name:
        library = Path(name, "killer.so")
        Path(name, "killer.c").write_text(KILLER)
        compiler = ["cc", "-shared", "-fPIC", "-o", str(library), str(Path(name, "killer.c")), "-ldl"]
        subprocess.run(compiler, check=True)  # noqa: S603 - the compiler of this machine
        while (problems := struck(library, number)) is not None:
            seen_shares += "seen" in problems
            violations += [f"flush {number}: {problem}" for problem in problems if problem != "seen"]
            print(number, problems, flush=True)
            number += 1
    return {"flushes": number - 1, "seen before the end": seen_shares, "violations": violations}


def struck(library: Path, number: int) -> list[str] | None:
    """Kill a share before one of its flushes; return "seen" if it was there, and all that did not hold."""
    with scratch() as folder:
        random, study = np.random.default_rng(number), folder / "study"
        sites = {site: ingest(folder, site, random.normal(size=(50, 3))) for site in ("a", "b", "c")}
        session = session_of(study, sites, dpdist.ReleaseRequest("gaussian", LOSS, 4.0), 1)
        command, share = ("session", "share", study, sites["a"], *proof_of(session, "a")), study / "a.share"
        code = run(*command, LD_PRELOAD=str(library), KILL_AT_FLUSH=str(number)).returncode
        if code == 0:  # there are fewer
            return None
        seen = share.read_bytes() if share.exists() else None
        problems = ["seen"] if seen is not None else []
        problems += [] if code == -signal.SIGKILL else [f"exit code {code}"]
        done = run(*command)
        problems += [] if done.returncode == 0 else [done.stderr]
        first = share.read_bytes() if share.exists() else b""
        again = run(*command).returncode
        alike = seen in (None, first) and again == 0 and share.read_bytes() == first
        problems += [] if alike else ["two shares"]
        ledger = json.loads(run("ledger", "export", folder / "a.ledger").stdout)
        states = [release["state"] for release in ledger["releases"]]
        problems += [] if states == ["published"] else [f"charges {states}"]
        for site in ("b", "c"):
            dpdist.release_share(study, sites[site], site, str(session.fingerprint))
        try:
            dpdist.combine_shares(study, folder / "release.zarr")
        except dpdist.DpdistError as error:
            problems.append(str(error))
    return problems


@contextmanager
def timed(seconds: dict[str, list[float]], name: str) -> Iterator[None]:
    """Add the time of a block."""
    start = time.perf_counter()
    yield
    seconds.setdefault(name, []).append(time.perf_counter() - start)


def times(_: argparse.Namespace) -> dict[str, Any]:
    """Time whole commands, and the parts of a draw."""
    results = {}
    for columns in (100, 784, 5000):
        rows, seconds = np.random.default_rng(1).normal(size=(1000, columns)), dict[str, list[float]]()
        for _repeat in range(3):
            with scratch() as folder:
                sites = {site: ingest(folder, site, rows) for site in ("a", "b", "c")}
                request = dpdist.ReleaseRequest("gaussian", LOSS, 2 * columns**0.5)
                session = session_of(folder / "study", sites, request, 1)
                for site, table in sites.items():
                    with timed(seconds, "share"):
                        run("session", "share", folder / "study", table, *proof_of(session, site)).check_returncode()
                with timed(seconds, "combine"):
                    run("session", "combine", folder / "study", folder / "sum.zarr").check_returncode()
                options = ("--epsilon", 1, "--delta", "1e-6", "--clip", request.clip_norm, "--anyway")
                with timed(seconds, "release"):
                    run("release", sites["a"], folder / "one.zarr", *options).check_returncode()
                with timed(seconds, "noise of one site"):
                    values = session.terms.share.draw(SYSTEM)
                secrets = [new_key() for _ in sites]
                keys = KeySet(bytes(32), tuple(map(public_key, secrets)))
                with timed(seconds, "masks of three sites"):
                    keys.masks(0, secrets[0]).mask(values)
                size = (folder / "study" / "a.share").stat().st_size
            print(columns, {name: round(median(of_step), 3) for name, of_step in seconds.items()}, flush=True)
        medians = {name: round(median(of_step), 3) for name, of_step in seconds.items()}
        results[str(columns)] = medians | {"megabytes of a share": round(size / 1e6, 2)}
    return results


def proof_of(session: dpdist.Session, site: str) -> tuple[str, ...]:
    """Return the options of a share."""
    return ("--site", site, "--fingerprint", str(session.fingerprint))


def table_of(results: dict[str, Any]) -> Iterator[str]:
    """Yield the page of all results."""
    yield from ("# Sessions of several sites", "", "`python -m benchmarks.sessions`, which says how.", "")
    if "variance" in results:
        yield from ("## Captured variance of a9a, 1 / 5 / 10 / 50 components", "")
        yield from (
            "| sites, epsilon | one node | session, t = 0 | session, t = 1 | combine |",
            "|---|---|---|---|---|",
        )
        found = results["variance"]
        for case in dict.fromkeys(key.rpartition(", ")[0].removesuffix(", session") for key in found):
            ways = ("one node", "session, t = 0", "session, t = 1", "combine")
            cells = (" ".join(f"{mean:.4f}" for mean in found[f"{case}, {way}"]["mean"]) for way in ways)
            yield f"| {case} | {' | '.join(cells)} |"
        largest = max(max(entry["deviation"]) for entry in found.values())
        yield from ("", f"Ten draws each; the standard deviation of one is at most {largest:.4f}.", "")
    if "flushes" in results:
        found = results["flushes"]
        yield from ("## Death before every flush of `dpdist session share`", "")
        yield (
            f"{found['flushes']} flushes, each of which was the last thing that a process came to; violations: "
            f"{len(found['violations'])}. After {found['seen before the end']} of these deaths the share could be seen."
        )
        yield ""
    if "times" in results:
        names = ("share", "combine", "release", "noise of one site", "masks of three sites")
        yield from ("## Seconds, three sites", "", f"{results['machine']}, 1000 rows.", "")
        yield f"| columns | {' | '.join(names)} | MB of a share |"
        yield "|---" * (len(names) + 2) + "|"
        for columns, found in results["times"].items():
            yield f"| {columns} | {' | '.join(f'{found[n]:.2f}' for n in names)} | {found['megabytes of a share']} |"


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return f"{len(names)} cores of {names[0]}" if names else "an unknown machine"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one part, and write all results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["variance", "flushes", "times"])
    parser.add_argument("output")
    parser.add_argument("--data")
    chosen = parser.parse_args(arguments)
    file = Path(f"{chosen.output}.json")
    results = json.loads(file.read_text()) if file.exists() else {}
    results[chosen.part] = {"variance": variance, "flushes": flushes, "times": times}[chosen.part](chosen)
    if chosen.part == "times":
        results["machine"] = _machine()
    file.write_text(json.dumps(results, indent=1) + "\n")
    file.with_suffix(".md").write_text("\n".join(table_of(results)).rstrip() + "\n")


if __name__ == "__main__":
    main()
