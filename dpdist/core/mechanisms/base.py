"""The interface of a mechanism: its public description and its calibration, which yields guarantee and answer.

Most mechanisms are additive on the integer lattice: they release M + E, with M the exact integer moment and E an
independent integer matrix. Others sample a matrix or a subspace whose distribution depends on M. In both cases the
trusted node passes the exact moment to :meth:`Calibrated.answer` once, and only the answer leaves it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Concatenate, Protocol

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.info import MechanismInfo
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.naming import parameter
from dpdist.core.noise.entropy import Entropy
from dpdist.core.privacy.guarantee import ATTO, Arithmetic, Guarantee, PrivacyLoss
from dpdist.core.progress import Steps
from dpdist.core.triangle import Band, Triangle

Matrix = npt.NDArray[np.float64]
Answer = Triangle | Matrix
"""A packed triangle of int64 (a second moment in lattice units) or, 2-D, (k, d) orthonormal rows (a subspace)."""


class ExactMoment(Protocol):
    """The exact second moment in lattice units, computed only as far as a mechanism needs it. Private."""

    def triangle(self) -> Triangle:
        """Return the packed integers."""
        ...

    def matrix(self) -> Matrix:
        """Return the symmetric matrix as float64, (d, d)."""
        ...

    def times(self, vectors: Matrix) -> Matrix:
        """Return the product with (d, k) vectors; on an unformed moment, on the grid of its products only."""
        ...


class BandedMoment(ExactMoment, Protocol):
    """An exact second moment at the trusted node, also available band by band. Private."""

    def bands(self) -> Iterator[tuple[Band, Triangle]]:
        """Yield the packed integers of each band, from the first row to the last."""
        ...


class Calibrated(Protocol):
    """A mechanism fixed for one query, one privacy loss and its options."""

    @property
    def guarantee(self) -> Guarantee | None:
        """The proved guarantee of this release, for the noise as drawn, with rounding; None if nothing is proved."""
        ...

    @property
    def claim(self) -> PrivacyLoss | None:
        """The claim of its authors at these parameters, or None."""
        ...

    @property
    def noise(self) -> Noise:
        """Public description of the noise in lattice units; additive mechanisms state the moments of an entry."""
        ...

    def answer(self, moment: ExactMoment, entropy: Entropy) -> Answer:
        """Draw the release once."""
        ...


class ReportsProgress(ABC):
    """A calibrated mechanism that reports progress, because a draw takes seconds or longer."""

    @abstractmethod
    def answer(self, moment: ExactMoment, entropy: Entropy, progress: Steps | None = None) -> Answer:
        """Draw the release once and report its progress."""


def released(calibrated: Calibrated, moment: ExactMoment, entropy: Entropy, progress: Steps | None) -> Answer:
    """Draw the release once; slow samplers report their progress."""
    if isinstance(calibrated, ReportsProgress):
        return calibrated.answer(moment, entropy, progress)
    return calibrated.answer(moment, entropy)


@dataclass(frozen=True, kw_only=True)
class Proved:
    """A calibrated mechanism whose claim equals its proved guarantee."""

    guarantee: Guarantee

    @property
    def claim(self) -> PrivacyLoss:
        return self.guarantee.loss


class Additive(ABC):
    """A calibrated mechanism that adds noise to the moment."""

    @abstractmethod
    def draw(self, entropy: Entropy) -> Triangle:
        """Draw the noise matrix once, as a packed triangle of int64 in lattice units."""

    def draws(self, count: int, entropy: Entropy) -> Iterator[Triangle]:
        """Yield ``count`` independent draws, for audits; overridden where drawing several at once is faster."""
        for _ in range(count):
            yield self.draw(entropy)

    def answer(self, moment: ExactMoment, entropy: Entropy) -> Answer:
        """Return the moment plus one draw."""
        return moment.triangle() + self.draw(entropy)


class IndependentEntries(Additive):
    """An additive mechanism whose noise has independent entries, so that it can be drawn band by band."""

    # the bands draw each entry once, independently: jointly they are distributed as one draw of the triangle

    size: int

    @abstractmethod
    def draw_band(self, band: Band, entropy: Entropy) -> Triangle:
        """Draw the noise of one band of the triangle once, packed, int64 in lattice units."""

    def draw(self, entropy: Entropy) -> Triangle:
        return self.draw_band(Band.whole(self.size), entropy)


class Mechanism(Protocol):
    """A way to release a second moment or a subspace."""

    @property
    def info(self) -> MechanismInfo:
        """Its public description."""
        ...

    @property
    def calibrate(self) -> Callable[Concatenate[LatticeQuery, PrivacyLoss, ...], Calibrated]:
        """Choose the least noise that keeps the loss, or the published noise; call ``registry.calibrated`` instead."""
        ...


def is_private_as_claimed(calibrated: Calibrated) -> bool:
    """Return whether the proved guarantee is at least as strong as the claim."""
    guarantee, claim = calibrated.guarantee, calibrated.claim
    return guarantee is not None and claim is not None and guarantee.loss.within(claim)


def proved(
    query: LatticeQuery,
    loss: PrivacyLoss,
    module: str,
    arithmetic: Arithmetic = Arithmetic.IDEAL_REAL,
    mu_squared: Fraction | None = None,
    bounded_ranges: Sequence[Fraction] = (),
) -> Guarantee:
    """Return the guarantee proved in the docstring of a module; ledgers store its name, so it never moves."""
    return Guarantee(query.neighbours, loss, mu_squared, arithmetic, module, tuple(bounded_ranges))


def proved_at_delta(
    query: LatticeQuery,
    loss: PrivacyLoss,
    delta: float,
    module: str,
    arithmetic: Arithmetic = Arithmetic.IDEAL_REAL,
    mu_squared: Fraction | None = None,
) -> Guarantee | None:
    """Return the guarantee of published noise: the larger delta at the same epsilon; None if delta is 1 or more."""
    atto = max(loss.delta_atto, math.ceil(Fraction(delta) * ATTO))
    return proved(query, PrivacyLoss(loss.epsilon_micro, atto), module, arithmetic, mu_squared) if atto < ATTO else None


def require_on_lattice(
    query: LatticeQuery,
    loss: PrivacyLoss,
    spread: float | Fraction,
    largest: float,
    *,
    or_else: str = "a larger epsilon",
) -> None:
    """Refuse noise that exceeds 64-bit integers or the range of exact sampling."""
    if not spread <= largest:
        raise UsageError(
            f"At {loss}, {query.size} columns and a norm bound of {query.bound} lattice units, the noise exceeds the "
            f"64-bit lattice. Use fewer grid bits ({parameter('grid_bits')}) or {or_else}."
        )


def require_components(query: LatticeQuery, count: int) -> None:
    """Require between 1 and d components."""
    if not 1 <= count <= query.size:
        raise UsageError(
            f"Cannot compute {count} components: choose between 1 and {query.size}, the number of columns."
        )
