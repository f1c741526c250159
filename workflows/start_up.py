"""What short commands take beside Python's own start: seconds, processor seconds, and the packages that they import.

A small table is mostly start-up: 2000 rows of 50 columns are summed in a hundredth of a second. ``--before`` names a
checkout of another version to compare with, run by the same interpreter.
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


def main() -> None:
    """Take the times, and write a JSON file and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True, help="without suffix: a .json and a .md are written")
    arguments = parser.parse_args()
    versions = {"before": arguments.before, "now": ROOT} if arguments.before else {"now": ROOT}
    found = {name: costs(checkout, arguments.repeats) for name, checkout in versions.items()}
    arguments.output.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")
    lines = ["| version | command | seconds | processor seconds | packages |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {cost['command']} | {cost['seconds']:.2f} | {cost['cpu_seconds']:.2f} | {cost['packages']} |"
        for name, each in found.items()
        for cost in each
    ]
    arguments.output.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
