"""A job with periods in a folder, and rows that arrive for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from faults.nightly import JOB, events

from dpdist.core.errors import DpdistError, RefusedError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.runtime.cluster import Cluster
from dpdist.jobs import job_file, status
from dpdist.jobs import run as job_runs
from dpdist.jobs.periodic import PeriodicOutcome
from dpdist.jobs.status import Preview


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

    def run(self, job: str = "", **options: Any) -> PeriodicOutcome:
        """Run the job as it is, or from now on as this text."""
        if job:
            self.job.write_text(job)
        outcome = job_runs.run(job_file.read_job(self.job, **options), say=print)
        assert isinstance(outcome, PeriodicOutcome)
        return outcome

    def refused(self, match: str, kind: type[DpdistError] = RefusedError, job: str = "", **options: Any) -> str:
        """Run a job that is refused; return the message."""
        with pytest.raises(kind, match=match) as caught:
            self.run(job, **options)
        return str(caught.value)

    def preview(self) -> Preview:
        return status.preview(job_file.read_job(self.job))

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


def place_in(folder: Path, patch: pytest.MonkeyPatch) -> Place:
    """Return a job whose runs compute in this process."""
    patch.setattr(Cluster, "named", False)
    (folder / "incoming").mkdir()
    (folder / "job.toml").write_text(JOB)
    return Place(folder)


def noted_chunks(patch: pytest.MonkeyPatch) -> list[str]:
    """Return every chunk that is read from now on, as the period it is of."""
    seen: list[str] = []
    original = ChunkReader._checked

    def noted(self: ChunkReader, part: Any, index: int, digest: Any) -> Any:
        seen.append(f"{part.period}/{index}")
        return original(self, part, index, digest)

    patch.setattr(ChunkReader, "_checked", noted)
    return seen
