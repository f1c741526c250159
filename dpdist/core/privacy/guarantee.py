"""Guarantees as data.

Epsilon and delta are integers, so that a budget is a sum of integers and never a sum of rounded floats: epsilon counts
millionths (micro-epsilon), delta counts units of 1e-18. The squared GDP parameter of a Gaussian release is an exact
fraction of integers for the same reason.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TypedDict

from dpdist.core.errors import DataError, UsageError
from dpdist.core.naming import parameter

MICRO = 10**6  # units of epsilon in one
ATTO = 10**18  # units of delta in one


Number = str | int | float | Decimal  # a loss as typed; a float counts by its shortest decimal text


class Neighbours(enum.StrEnum):
    """Pairs of tables that a guarantee makes hard to distinguish.

    Attributes
    ----------
    REPLACE_ONE : str
        ``"replace-one"``: one row exchanged for any other; the number of rows n is public.
    ADD_REMOVE : str
        ``"add-remove"``: one row more or fewer; n is private.

    See Also
    --------
    ReleaseRequest, NormsRequest, Guarantee : Have this parameter.

    References
    ----------
    Dwork, McSherry, Nissim & Smith 2006; Kifer & Machanavajjhala 2011 call them bounded and unbounded.

    Examples
    --------
    >>> import dpdist
    >>> [str(relation) for relation in dpdist.Neighbours]
    ['replace-one', 'add-remove']
    """

    REPLACE_ONE = "replace-one"
    """One row exchanged for any other; the number of rows n is public (the papers' relation, the default)."""
    ADD_REMOVE = "add-remove"  # one row more or fewer; n is private


def neighbours_of(name: str) -> Neighbours:
    """Return the relation of this name."""
    try:
        return Neighbours(name)
    except ValueError:
        raise UsageError(f"{parameter('neighbours')} must be one of {', '.join(Neighbours)}, not {name!r}.") from None


class Arithmetic(enum.StrEnum):
    """The arithmetic of the proof."""

    INTEGER_EXACT = "integer-exact"  # the proof holds for the machine's own integers, low-order bits included
    IDEAL_REAL = "ideal-real"  # the proof is about real numbers; the machine approximates them

    @classmethod
    def of_all(cls, parts: Iterable[Guarantee]) -> Arithmetic:
        """Return the arithmetic of several releases together: integers if each proof is about integers."""
        exact = all(part.arithmetic is cls.INTEGER_EXACT for part in parts)
        return cls.INTEGER_EXACT if exact else cls.IDEAL_REAL


def _counted(number: Number, unit: int, name: str, counted_in: str) -> int:
    text = str(number)  # the shortest digits of a float
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise UsageError(f"{name} must be a number, not {text!r}.") from None
    if not (value.is_finite() and 0 <= value <= 10**12):
        raise DataError(f"{name} must be a non-negative number of reasonable size, not {text}.")
    # a Fraction keeps every digit; the exponent is checked first, because 1e-999999999 has too many
    counted = Fraction(value) * unit if value.adjusted() > -40 else Fraction(1, 2)
    if value and counted.denominator != 1:
        raise DataError(f"{name} must be a whole number of {counted_in}, not {text}. Round it.")
    return int(counted)


@dataclass(frozen=True)
class PrivacyLoss:
    """A pair (epsilon, delta) in exact units: a budget, or the price of one release.

    Parameters
    ----------
    epsilon_micro : int
        Epsilon in millionths, from 1 to 10**12.
    delta_atto : int, default 0
        Delta in units of 1e-18, at least 0 (pure differential privacy) and below 10**18.

    Raises
    ------
    UsageError
        If either is not an int.
    DataError
        If either is out of range.

    See Also
    --------
    PrivacyLoss.parse : Makes a loss from numbers.
    PrivacyLoss.declared : Makes a budget with reserved parts.
    Budget : A budget for fits in memory.

    References
    ----------
    Dwork, McSherry, Nissim & Smith 2006; Dwork, Kenthapadi, McSherry, Mironov & Naor 2006.

    Examples
    --------
    >>> import dpdist
    >>> dpdist.PrivacyLoss.parse(0.5, 1e-6)
    PrivacyLoss(epsilon_micro=500000, delta_atto=1000000000000)
    >>> str(dpdist.PrivacyLoss.parse("1"))
    'epsilon 1, delta 0'
    """

    epsilon_micro: int
    delta_atto: int = 0

    def __post_init__(self) -> None:
        if any(type(value) is not int for value in vars(self).values()):
            raise UsageError(
                "PrivacyLoss takes whole millionths of epsilon and units of 1e-18 of delta. For other numbers, use "
                "PrivacyLoss.parse, such as PrivacyLoss.parse(1, 1e-6)."
            )
        if self.epsilon_micro < 1:
            raise DataError("Epsilon must be positive: at least one millionth.")
        if self.epsilon_micro > 10**6 * MICRO:
            raise DataError("Epsilon must be at most a million: a larger one means no privacy.")
        if not 0 <= self.delta_atto < ATTO:
            raise DataError("Delta must be at least 0 (pure differential privacy) and below 1.")

    @classmethod
    def parse(cls, epsilon: Number, delta: Number = 0) -> PrivacyLoss:
        """Make a loss from numbers, exactly; a value finer than the units is refused, not rounded.

        Parameters
        ----------
        epsilon : str, int, float or Decimal
            A multiple of one millionth. A float counts as it is printed: 0.1 is one tenth.
        delta : str, int, float or Decimal, default 0
            A multiple of 1e-18, below 1. 0: pure differential privacy.

        Returns
        -------
        PrivacyLoss
            The loss in exact units.

        Raises
        ------
        UsageError
            If a value is not a number.
        DataError
            If a value is out of range, or finer than the units.
        """
        return cls(_counted(epsilon, MICRO, "Epsilon", "millionths"), _counted(delta, ATTO, "Delta", "units of 1e-18"))

    @classmethod
    def declared(cls, epsilon: Number, delta: Number = 0, pure: Number = 0, reserve: Number = 0) -> PrivacyLoss:
        """Make a budget with parts reserved for releases that are not Gaussian.

        Parameters
        ----------
        epsilon, delta : str, int, float or Decimal
            The whole budget, as in :meth:`parse`.
        pure : str, int, float or Decimal, default 0
            The part of epsilon for pure releases without Gaussian noise.
        reserve : str, int, float or Decimal, default 0
            The part of delta for releases of positive delta without Gaussian noise.

        Returns
        -------
        PrivacyLoss
            The budget in exact units.

        Raises
        ------
        UsageError
            If a value is not a number, or a part is larger than the whole.
        DataError
            If epsilon or delta is out of range, or finer than the units.
        """
        try:
            parts = (_counted(pure, MICRO, parameter("budget_pure"), "millionths"),
                     _counted(reserve, ATTO, parameter("budget_delta_reserve"), "units of 1e-18"))  # fmt: skip
        except DataError as error:
            raise UsageError(str(error)) from None
        return cls.parse(epsilon, delta).mixed(*parts)

    @property
    def epsilon(self) -> float:
        """Epsilon as a float, for display."""
        return self.epsilon_micro / MICRO

    @property
    def delta(self) -> float:
        """Delta as a float, for display."""
        return self.delta_atto / ATTO

    def within(self, other: PrivacyLoss) -> bool:
        """Whether this loss is at most the other in epsilon and delta."""
        return self.epsilon_micro <= other.epsilon_micro and self.delta_atto <= other.delta_atto

    def less(self, spent: PrivacyLoss) -> PrivacyLoss:
        """Return what is left of a budget, whose reserved parts stay; UsageError if nothing is."""
        epsilon, delta = self.epsilon_micro - spent.epsilon_micro, self.delta_atto - spent.delta_atto
        if epsilon < 1 or delta < 0:
            raise UsageError(f"Of a budget of {self} nothing is left, after {spent} was spent.", parameter="spent")
        return replace(self, epsilon_micro=epsilon, delta_atto=delta)

    def more(self, spent: PrivacyLoss) -> PrivacyLoss:
        """Return the budget of which this is left; the inverse of :meth:`less`."""
        epsilon, delta = self.epsilon_micro + spent.epsilon_micro, self.delta_atto + spent.delta_atto
        return replace(self, epsilon_micro=epsilon, delta_atto=delta)

    def to_json(self) -> dict[str, int]:
        """Return plain JSON values; the inverse of :meth:`from_json`."""
        return {"epsilon_micro": self.epsilon_micro, "delta_atto": self.delta_atto}

    @classmethod
    def from_json(cls, value: dict[str, int]) -> PrivacyLoss:
        """Read what :meth:`to_json` wrote, also for a :class:`MixedBudget`."""
        loss = PrivacyLoss(value["epsilon_micro"], value["delta_atto"])
        return loss.mixed(value.get("pure_micro", 0), value.get("reserve_atto", 0))

    def mixed(self, pure_micro: int, reserve_atto: int) -> PrivacyLoss:
        """Return the budget with parts reserved for other than Gaussian releases; itself if both are 0."""
        if not pure_micro and not reserve_atto:
            return self
        return MixedBudget(self.epsilon_micro, self.delta_atto, pure_micro, reserve_atto)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g}, delta {self.delta:g}"


@dataclass(frozen=True)
class MixedBudget(PrivacyLoss):
    """A budget with parts that were reserved for other than Gaussian releases before the first release."""

    pure_micro: int = 0
    reserve_atto: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta_atto == 0:
            raise UsageError(
                "A budget without a delta is for pure releases only: leave out "
                f"{parameter('budget_pure')} and {parameter('budget_delta_reserve')}, or add "
                f"{parameter('budget_delta')}."
            )
        for part, limit, of, name in (
            (self.pure_micro, self.epsilon_micro, f"epsilon of the budget, {self.epsilon:g}", "budget_pure"),
            (self.reserve_atto, self.delta_atto, f"delta of the budget, {self.delta:g}", "budget_delta_reserve"),
        ):
            if not 0 <= part <= limit:
                raise UsageError(
                    f"The part for other than Gaussian releases must be from 0 to the {of}.", parameter=name
                )

    def to_json(self) -> dict[str, int]:
        """Return plain JSON values; the inverse of :meth:`from_json`."""
        return {**super().to_json(), "pure_micro": self.pure_micro, "reserve_atto": self.reserve_atto}

    def __str__(self) -> str:
        return (
            f"{super().__str__()}, with epsilon {self.pure_micro / MICRO:g} and delta {self.reserve_atto / ATTO:g} "
            "reserved for other than Gaussian releases"
        )


Ratio = list[str]  # an exact fraction in JSON: numerator and denominator in decimal digits


def ratio_of(value: Fraction) -> Ratio:
    """Return a fraction for JSON."""
    return [str(value.numerator), str(value.denominator)]


def fraction_of(ratio: Ratio) -> Fraction:
    """Read a fraction from JSON; ValueError or ZeroDivisionError if it is invalid."""
    numerator, denominator = ratio
    return Fraction(int(numerator), int(denominator))


class GuaranteeJson(TypedDict):
    """A :class:`Guarantee` as JSON values."""

    neighbours: str
    epsilon_micro: int
    delta_atto: int
    mu_squared: Ratio | None
    arithmetic: str
    proof: str
    bounded_ranges: list[Ratio]


@dataclass(frozen=True)
class Guarantee:
    """The proved guarantee of one release.

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation.
    loss : PrivacyLoss
        (epsilon, delta) of the release on its own.
    mu_squared : Fraction or None
        Square of the parameter mu of Gaussian differential privacy, exact; None if the release is not Gaussian. It
        composes by addition.
    arithmetic : Arithmetic
        Whether the proof is about the machine's integers (``integer-exact``) or real numbers (``ideal-real``).
    proof : str
        The module that contains the proof.
    bounded_ranges : tuple of Fraction, default ()
        Exact lengths of the privacy loss ranges of its steps, if each step is an exponential mechanism given the
        earlier ones. Empty otherwise.

    See Also
    --------
    Release : Has a guarantee.
    PrivatePCA : Has one as ``guarantee_``.

    References
    ----------
    Dong, Roth & Su 2022 (Gaussian differential privacy); Dong, Durfee & Rogers 2020 (bounded ranges).

    Examples
    --------
    >>> import numpy as np
    >>> import dpdist
    >>> rows = np.random.default_rng(3).normal(size=(413, 3))
    >>> fitted = dpdist.PrivateCovariance(epsilon=1, delta=1e-6, clip=4).fit(rows)
    >>> fitted.guarantee_, fitted.guarantee_.proof
    (Guarantee(epsilon=1, delta=1e-06, replace-one), 'dpdist.core.mechanisms.gaussian')
    """

    neighbours: Neighbours
    loss: PrivacyLoss
    mu_squared: Fraction | None
    arithmetic: Arithmetic
    proof: str
    bounded_ranges: tuple[Fraction, ...] = ()

    def __repr__(self) -> str:
        return f"Guarantee(epsilon={self.loss.epsilon:.12g}, delta={self.loss.delta:.12g}, {self.neighbours})"

    def to_json(self) -> GuaranteeJson:
        """Return plain JSON values; the inverse of :meth:`from_json`."""
        return {
            "neighbours": self.neighbours.value,
            "epsilon_micro": self.loss.epsilon_micro,
            "delta_atto": self.loss.delta_atto,
            "mu_squared": None if self.mu_squared is None else ratio_of(self.mu_squared),
            "arithmetic": self.arithmetic.value,
            "proof": self.proof,
            "bounded_ranges": [ratio_of(length) for length in self.bounded_ranges],
        }

    @classmethod
    def from_json(cls, value: GuaranteeJson) -> Guarantee:
        """Read what :meth:`to_json` wrote."""
        squared = value["mu_squared"]
        return cls(
            neighbours=Neighbours(value["neighbours"]),
            loss=PrivacyLoss(value["epsilon_micro"], value["delta_atto"]),
            mu_squared=None if squared is None else fraction_of(squared),
            arithmetic=Arithmetic(value["arithmetic"]),
            proof=value["proof"],
            bounded_ranges=tuple(fraction_of(length) for length in value["bounded_ranges"]),
        )
