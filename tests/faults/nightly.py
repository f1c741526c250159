"""One job as an operator has it, a table, a job file and its ledger, and what must hold however it was run."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpdist.core.ledger.ledger import Ledger
from faults.waiting import PATIENCE

CLUSTER = Path(__file__).resolve().parents[2] / "cluster"
LINGER = Path(__file__).parent / "linger"
JOB = """
[rows]
path = "visits"
source = "incoming"
periods = true
budget_epsilon = 1
budget_delta = 1e-6

[release]
path = "published"
epsilon = 1
delta = 1e-6
clip = 8.0
"""
"""A job file with periods."""


def events(ledger: Path) -> Counter[str]:
    with closing(sqlite3.connect(ledger / "ledger.sqlite")) as connection:
        return Counter(json.loads(entry)["event"] for (entry,) in connection.execute("SELECT entry FROM journal"))


def dpdist(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "dpdist", *words], check=True, capture_output=True, timeout=PATIENCE)


@dataclass(frozen=True)
class Job:
    """A folder with ``rows.zarr``, its ledger, and ``job.toml``."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "job.toml"

    def environment(self, *points: str) -> dict[str, str]:
        """Return the environment of an operator whose processes shall linger at these points."""
        armed = ",".join(f"{point}={self.marker(point)}" for point in points)
        paths = [str(LINGER), str(CLUSTER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "PYTHONPATH": ":".join(paths),
            "PYTHONWARNINGS": "ignore",
            "DASK_DISTRIBUTED__WORKER__PRELOAD": str(LINGER / "sitecustomize.py"),
            "DPDIST_TEST_LINGER": armed,
        }

    def marker(self, point: str) -> Path:
        return self.folder / f"lingers-{point}"

    def lingers(self, point: str) -> str | None:
        """Return the network namespace of the process that came to a point, as the kernel writes it."""
        marker = self.marker(point)
        return str(marker.readlink()) if marker.is_symlink() else None

    def go_on(self, point: str) -> None:
        self.marker(point).with_name(f"{self.marker(point).name}.go").touch()

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "rows.ledger")

    def states(self) -> list[str]:
        return [str(record.state) for record in self.ledger.records]

    def attempts(self) -> int:
        """Return how many attempts at the one release were begun: each drew noise of its own, if it came so far."""
        (record,) = self.ledger.records
        return record.fence

    def spent(self) -> str:
        return f"{self.ledger.balance()}; budget {self.ledger.budget}"

    def published(self) -> dict[str, bytes]:
        """Return the files of the release, after the ledger has confirmed it as its only one."""
        dpdist("ledger", "verify", self.folder / "rows.ledger", "--release", self.folder / "release.zarr")
        assert self.states() == ["published"]
        found = self.folder / "release.zarr"
        return {str(path.relative_to(found)): path.read_bytes() for path in found.rglob("*") if path.is_file()}


def make(folder: Path, *, rows: int = 2000) -> Job:
    """Make a job; only the budget of a single release is declared."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "data.npy", np.random.default_rng(0).normal(size=(rows, 8)))
    (folder / "job.toml").write_text(
        '[rows]\npath = "rows.zarr"\n[release]\npath = "release.zarr"\nepsilon = 1\ndelta = 1e-6\nclip = 8\n'
    )
    budget = ("--budget-epsilon", "1", "--budget-delta", "1e-6")
    dpdist("ingest", folder / "data.npy", folder / "rows.zarr", *budget)
    return Job(folder)
