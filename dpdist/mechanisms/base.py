"""What a mechanism is: a public statement of what it does, and a calibration that yields guarantee and noise.

A mechanism here is additive on the integer lattice: given the exact integer moment M it releases M + E, E an
independent integer matrix. It never sees M; whoever holds M adds what :meth:`Calibrated.draw` returns, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import Entropy
from dpdist.privacy.guarantee import Arithmetic, Guarantee, PrivacyLoss

Triangle = npt.NDArray[np.int64]
"""Packed upper triangle, row by row: entry (i, j), i <= j, stands at ``i size - i(i-1)/2 + (j - i)``."""


@dataclass(frozen=True)
class Statement:
    """What is said of a mechanism in public, in words; ``dpdist mechanisms`` prints it."""

    name: str
    output: str
    law: str
    sensitivity: str
    claimed: str
    proved: str
    arithmetic: Arithmetic
    cost: str
    reference: str
    needs_delta: bool


class Calibrated(Protocol):
    """A mechanism fixed for one query and one privacy loss."""

    @property
    def guarantee(self) -> Guarantee:
        """What this release guarantees, computed from the noise as it is drawn, roundings included."""
        ...

    @property
    def noise(self) -> dict[str, Any]:
        """Public description of the noise in lattice units, JSON values.

        It holds at least ``law``, ``variance_diagonal`` and ``variance_off_diagonal``.
        """
        ...

    def draw(self, entropy: Entropy) -> Triangle:
        """Draw the noise matrix once, as a packed triangle of int64."""
        ...


class Mechanism(Protocol):
    """A way to release a second moment."""

    @property
    def statement(self) -> Statement:
        """What is said of it in public."""
        ...

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss) -> Calibrated:
        """Choose the least noise that keeps the loss.

        Raises
        ------
        UsageError
            If the mechanism cannot give this loss (a delta for a pure one, none for a Gaussian), or the noise
            would leave the 64-bit lattice.
        """
        ...


def diagonal_positions(size: int) -> npt.NDArray[np.intp]:
    """Positions of the diagonal entries in a packed triangle, shape (size,)."""
    i = np.arange(size, dtype=np.intp)
    return i * size - i * (i - 1) // 2
