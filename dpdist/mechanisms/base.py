"""What a mechanism is: public information on what it does, and a calibration that yields guarantee and answer.

Most mechanisms here are additive on the integer lattice: given the exact integer moment M they release M + E, E an
independent integer matrix. Others sample a matrix or a subspace whose law depends on M. Either way the exact moment is
handed to :meth:`Calibrated.answer`, once, at the trusted node, and only its answer leaves.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Concatenate, Protocol

import numpy as np
import numpy.typing as npt

from dpdist._util.progress import Steps
from dpdist.errors import UsageError
from dpdist.mechanisms.info import MechanismInfo
from dpdist.mechanisms.noise_law import Noise
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.naming import parameter
from dpdist.noise.entropy import Entropy
from dpdist.privacy.guarantee import ATTO, Arithmetic, Guarantee, PrivacyLoss
from dpdist.triangle import Band, Triangle

Matrix = npt.NDArray[np.float64]
Answer = Triangle | Matrix
"""A packed triangle of int64 (a second moment in lattice units) or, 2-D, (k, d) orthonormal rows (a subspace)."""


LogRatio = Callable[[Matrix], float]
"""A log-likelihood ratio as a function of a release: a (d, d) matrix, or the rows that were seen."""


class ExactMoment(Protocol):
    """The exact second moment in lattice units, as much of it as a mechanism asks for. Private."""

    def triangle(self) -> Triangle:
        """Return the packed integers."""
        ...

    def matrix(self) -> Matrix:
        """Return the symmetric matrix as float64, (d, d)."""
        ...

    def times(self, vectors: Matrix) -> Matrix:
        """Return the product with (d, k) vectors, (d, k) float64.

        Where the moment is not formed, they are those that :func:`dpdist.mechanisms.power.on_grid` returns.
        """
        ...


class BandedMoment(ExactMoment, Protocol):
    """An exact second moment as the trusted node holds it: it may also be asked for band by band. Private."""

    def bands(self) -> Iterator[tuple[Band, Triangle]]:
        """Yield the packed integers of each band, from the first row to the last."""
        ...


class Calibrated(Protocol):
    """A mechanism fixed for one query, one privacy loss and its options."""

    @property
    def guarantee(self) -> Guarantee | None:
        """What is proved of this release, from the noise as it is drawn, roundings included; None: nothing is."""
        ...

    @property
    def claim(self) -> PrivacyLoss | None:
        """What its authors claim at these parameters; None where nothing was claimed."""
        ...

    @property
    def noise(self) -> Noise:
        """Public description of the randomness in lattice units; additive mechanisms state the moments of an entry."""
        ...

    def answer(self, moment: ExactMoment, entropy: Entropy) -> Answer:
        """Draw the release once."""
        ...

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio | None:
        """Return ``log p(release | here) - log p(release | there)`` as a function of the release; None: not known.

        For audits (:mod:`dpdist.mechanisms.ratios`): the guarantee does not rest on it.
        """
        ...


class ReportsProgress(ABC):
    """The part of a calibrated mechanism whose draw takes seconds or more: it says how far it has come."""

    @abstractmethod
    def answer(self, moment: ExactMoment, entropy: Entropy, progress: Steps | None = None) -> Answer:
        """Draw the release once, and report to progress, if there is one."""


def released(calibrated: Calibrated, moment: ExactMoment, entropy: Entropy, progress: Steps | None) -> Answer:
    """Draw the release once; a slow sampler reports to progress, if there is one."""
    if isinstance(calibrated, ReportsProgress):
        return calibrated.answer(moment, entropy, progress)
    return calibrated.answer(moment, entropy)


class Proved:
    """The part of a calibrated mechanism that is the same wherever the claim is what is proved."""

    guarantee: Guarantee

    @property
    def claim(self) -> PrivacyLoss:
        return self.guarantee.loss


class Additive(ABC):
    """The part of a calibrated mechanism that is the same for all additive ones."""

    @abstractmethod
    def draw(self, entropy: Entropy) -> Triangle:
        """Draw the noise matrix once, as a packed triangle of int64 in lattice units."""

    def draws(self, count: int, entropy: Entropy) -> Iterator[Triangle]:
        """Yield so many independent draws, for audits: a law that is drawn faster side by side overrides this."""
        for _ in range(count):
            yield self.draw(entropy)

    def answer(self, moment: ExactMoment, entropy: Entropy) -> Answer:
        """Return the moment plus one draw."""
        return moment.triangle() + self.draw(entropy)


class IndependentEntries(Additive):
    """The part of an additive mechanism whose noise has independent entries: it can be drawn band by band.

    Bands of one moment get independent draws of their entries, each entry once, so together they have the law of one
    draw of the triangle: nothing of the proof is about how many calls made them.
    """

    size: int

    @abstractmethod
    def draw_band(self, band: Band, entropy: Entropy) -> Triangle:
        """Draw the noise of some rows of the triangle once, packed, int64 in lattice units."""

    def draw(self, entropy: Entropy) -> Triangle:
        """Draw E once; packed triangle, int64."""
        return self.draw_band(Band.whole(self.size), entropy)


class Mechanism(Protocol):
    """A way to release a second moment or a subspace."""

    @property
    def info(self) -> MechanismInfo:
        """What is said of it in public."""
        ...

    @property
    def calibrate(self) -> Callable[Concatenate[LatticeQuery, PrivacyLoss, ...], Calibrated]:
        """A method that chooses the least noise that keeps the loss, or the noise as published.

        Call :func:`dpdist.mechanisms.registry.calibrated` instead, which checks delta and fills the options.
        """
        ...


def is_private_as_claimed(calibrated: Calibrated) -> bool:
    """Say whether what is proved is at least as strong as what was claimed."""
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
    """Return what the docstring of a module proves; its name is written into ledgers, so it never moves."""
    return Guarantee(query.neighbours, loss, mu_squared, arithmetic, module, tuple(bounded_ranges))


def proved_at_delta(
    query: LatticeQuery,
    loss: PrivacyLoss,
    delta: float,
    module: str,
    arithmetic: Arithmetic = Arithmetic.IDEAL_REAL,
    mu_squared: Fraction | None = None,
) -> Guarantee | None:
    """Return what noise as published keeps: the larger delta, at the same epsilon; None if nothing."""
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
    """Refuse noise that does not fit into 64-bit integers, or is too large to be drawn exactly."""
    if not spread <= largest:
        raise UsageError(
            f"At {loss}, {query.size} columns and a norm bound of {query.bound} lattice units the noise leaves the "
            f"64-bit lattice: take fewer grid bits ({parameter('grid_bits')}) or {or_else}."
        )


def require_components(query: LatticeQuery, count: int) -> None:
    """Refuse a number of components that the columns do not have."""
    if not 1 <= count <= query.size:
        raise UsageError(f"{count} components were asked for; there are between 1 and {query.size} columns.")
