"""A job with periods in a folder, and rows that arrive for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from faults.nightly import events

from dpdist.jobs import job_file
from dpdist.jobs import run as job_runs
from dpdist.jobs.periodic import PeriodicOutcome
from dpdist.ledger.ledger import Ledger
from dpdist.rows.bounding import RowBound


@dataclass
class Place:
    """A job in a folder, and the rows that arrived."""

    folder: Path
    rows: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    @property
    def job(self) -> Path:
        return self.folder / "job.toml"

    @property
    def incoming(self) -> Path:
        return self.folder / "incoming"

    @property
    def published(self) -> Path:
        return self.folder / "published"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "visits.ledger")

    def arrive(self, *names: str, count: int = 30) -> None:
        for name in names:
            seed = int.from_bytes(name.encode(), "big") % 2**63
            self.rows[name] = np.random.default_rng(seed).normal(size=(count, 3))
            np.save(self.incoming / f"{name}.npy", self.rows[name])

    def run(self, **options: Any) -> PeriodicOutcome:
        outcome = job_runs.run(job_file.read_job(self.job, **options), say=print)
        assert isinstance(outcome, PeriodicOutcome)
        return outcome

    def exact(self, bound: RowBound, *names: str) -> npt.NDArray[np.int64]:
        """Return the moment of some periods, by the bound of their total: rounding is little beside the noise."""
        stacked = np.vstack([self.rows[name] for name in names])
        stacked /= np.maximum(1, np.linalg.norm(stacked, axis=1, keepdims=True) / bound.shortened_norm) * bound.unit
        product = stacked.T @ stacked + len(stacked) / 4 * np.eye(3)
        return np.rint(product).astype(np.int64)

    def files(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.published)): p.read_bytes() for p in self.published.rglob("*") if p.is_file()}

    def events(self) -> Counter[str]:
        return events(self.folder / "visits.ledger")
