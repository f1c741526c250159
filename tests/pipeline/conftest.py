"""What tests of several functions of the pipeline need."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest


class Seeded:
    """The same words in every run: a threshold that an empty bin exceeds one time in a thousand fails no test."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(7)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        return self._rng.integers(0, 2**64, count, dtype=np.uint64)


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the stages of releases in this process by one seed."""
    monkeypatch.setattr("dpdist.release.histogram.SYSTEM", Seeded())
