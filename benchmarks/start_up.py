"""What short commands take beside Python's own start: seconds, processor seconds, and the packages that they import.

A small table is mostly start-up: 2000 rows of 50 columns are summed in a hundredth of a second. A profile says what
their release spends its time with. ``--before`` names a checkout of another version to compare with, run by the same
interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TypedDict

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ("--epsilon", "1", "--delta", "1e-6", "--clip", "10")
COMMANDS = {
    "--version": ("--version",),
    "--help": ("--help",),
    "release": ("release", "rows.zarr", "release-{}.zarr", *RELEASE, "--id", "r{}"),
    "project": ("project", "rows.zarr", "model.zarr", "scores-{}.zarr"),
    "demo": ("demo", "demo-{}"),
}


PROFILE = """
import cProfile, json, pstats, sys
from dpdist.__main__ import main
profile = cProfile.Profile()
try:
    profile.runcall(main)
except SystemExit:
    pass
stats = pstats.Stats(profile).stats
json.dump([[file, name, each[3]] for (file, _, name), each in stats.items()], sys.stderr)
"""
SECTIONS = {
    "all of it": ("dpdist/__main__.py", "main"),
    "imports, wherever they happen": ("<frozen importlib._bootstrap>", "_find_and_load"),
    "rows opened": ("core/ingest/registered.py", "open_rows"),
    "charged": ("core/release/transaction.py", "charge"),
    "workers": ("core/runtime/cluster.py", "connected"),
    "rows summed": ("core/moment/total.py", "partition_moment"),
    "noise drawn and committed": ("core/release/transaction.py", "commit_once"),
    "published": ("core/release/trusted.py", "publish"),
}
"""What a release spends its time with: the function that a section is, imports that it makes included."""


class Cost(TypedDict):
    """What a command took: the least of several runs, beside Python's own start."""

    command: str
    seconds: float
    cpu_seconds: float
    packages: int


def run(checkout: Path, folder: Path, *arguments: str) -> tuple[float, float, str]:
    """Run Python once; return seconds, processor seconds of it and its children, and its standard error."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "DPDIST_STATE_HOME": str(folder / "state")}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(  # noqa: S603 - our own commands
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    spent, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stderr


def prepared(checkout: Path, folder: Path) -> None:
    """Ingest 2000 rows of 50 columns, release them once, and take components."""
    np.save(folder / "table.npy", np.random.default_rng(0).normal(size=(2000, 50)))
    run(checkout, folder, "-m", "dpdist", "ingest", "table.npy", "rows.zarr", "--budget-epsilon", "100",
        "--budget-delta", "1e-3")  # fmt: skip
    run(checkout, folder, "-m", "dpdist", "release", "rows.zarr", "first.zarr", *RELEASE)
    run(checkout, folder, "-m", "dpdist", "pca", "first.zarr", "model.zarr", "--components", "3")


def costs(checkout: Path, repeats: int) -> list[Cost]:
    """Return what each command takes."""
    found: list[Cost] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared(checkout, folder)
        bare = [run(checkout, folder, "-c", "pass")[:2] for _ in range(repeats)]
        for command, words in COMMANDS.items():
            runs = [
                run(checkout, folder, "-m", "dpdist", *(word.format(number) for word in words))
                for number in range(repeats)
            ]
            told = run(checkout, folder, "-X", "importtime", "-m", "dpdist", *(word.format("x") for word in words))[2]
            modules = [line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")]
            found.append(
                Cost(
                    command=command,
                    seconds=round(min(spent for spent, *_ in runs) - min(spent for spent, _ in bare), 2),
                    cpu_seconds=round(min(cpu for _, cpu, _ in runs) - min(cpu for _, cpu in bare), 2),
                    packages=len({module.partition(".")[0] for module in modules} - sys.stdlib_module_names),
                )
            )
    return found


def sections(checkout: Path, repeats: int) -> dict[str, float]:
    """Return the seconds of each section of a release of 2000 rows, of the fastest run, under a profiler."""
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared(checkout, folder)
        for number in range(repeats):
            words = (word.format(number) for word in COMMANDS["release"])
            told = run(checkout, folder, "-c", PROFILE, *words)[2]
            calls = json.loads(told[told.rindex("[[") :])
            found.append(
                {
                    section: round(
                        max((s for at, what, s in calls if what == of and at.endswith(file)), default=0.0), 3
                    )
                    for section, (file, of) in SECTIONS.items()
                }
            )
    return min(found, key=lambda each: each["all of it"])


def main() -> None:
    """Take the times, and write a JSON file and two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True, help="without suffix: a .json and a .md are written")
    arguments = parser.parse_args()
    versions = {"before": arguments.before, "now": ROOT} if arguments.before else {"now": ROOT}
    found = {name: costs(checkout, arguments.repeats) for name, checkout in versions.items()}
    parts = {name: sections(checkout, arguments.repeats) for name, checkout in versions.items()}
    arguments.output.with_suffix(".json").write_text(json.dumps({"costs": found, "sections": parts}, indent=2) + "\n")
    lines = ["| version | command | seconds | processor seconds | packages |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {cost['command']} | {cost['seconds']:.2f} | {cost['cpu_seconds']:.2f} | {cost['packages']} |"
        for name, each in found.items()
        for cost in each
    ]
    lines += ["", f"| section of a release, seconds | {' | '.join(parts)} |", "|---" * (1 + len(parts)) + "|"]
    lines += [f"| {each} | {' | '.join(f'{found[each]:.3f}' for found in parts.values())} |" for each in SECTIONS]
    arguments.output.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
