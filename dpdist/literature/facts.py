"""What :func:`dpdist.inspect_path` says of a released matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpdist.core.pipeline.facts import Facts, Lines
from dpdist.core.storage.store import Store
from dpdist.literature.matrix import open_matrix


@dataclass(frozen=True, kw_only=True)
class MatrixFacts(Facts):
    """Description of a released matrix of declared sensitivity."""

    kind: ClassVar[str] = "matrix"
    title: ClassVar[str] = "private symmetric matrix, of declared sensitivity"
    release_id: str
    mechanism: str
    d: int
    guarantee: str
    declared_sensitivity: str
    noise_deviation: float

    def _lines(self) -> Lines:
        return [
            ("release", f"{self.release_id}, {self.mechanism}"),
            ("guarantee", self.guarantee),
            ("sensitivity", self.declared_sensitivity),
            ("matrix", f"{self.d} x {self.d}, noise off the diagonal of standard deviation {self.noise_deviation:.3g}"),
        ]


def facts(store: Store) -> MatrixFacts:
    """Describe a released matrix."""
    release = open_matrix(store)
    return MatrixFacts(
        path=str(store), private=False, damaged=(), release_id=release.release_id, mechanism=release.mechanism,
        d=len(release.lattice), guarantee=release.guarantee_message, declared_sensitivity=release.sensitivity_message,
        noise_deviation=release.deviation,
    )  # fmt: skip
