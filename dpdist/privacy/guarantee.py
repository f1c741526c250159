"""What is promised: a guarantee is data, not prose.

Epsilon and delta are integers, so that a budget is a sum of integers and never a sum of rounded floats: epsilon
counts millionths (micro-epsilon), delta counts units of 1e-18. The squared GDP parameter of a Gaussian release
is an exact fraction of integers for the same reason.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import NotRequired, TypedDict

from dpdist.errors import DataError, UsageError
from dpdist.naming import parameter

MICRO = 10**6  # units of epsilon in one
ATTO = 10**18  # units of delta in one


Number = str | int | float | Decimal  # how a loss may be written: a float by its shortest decimal text


class Neighbours(enum.StrEnum):
    """Which two tables a guarantee does not let anybody tell apart.

    Attributes
    ----------
    REPLACE_ONE : str
        ``"replace-one"``: one row exchanged for any other; the number of rows n is public.
    ADD_REMOVE : str
        ``"add-remove"``: one row more or fewer; n is private.

    See Also
    --------
    ReleaseRequest, NormsRequest : Take it.
    Guarantee : Names it.

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
    """Return the relation that a word stands for."""
    try:
        return Neighbours(name)
    except ValueError:
        raise UsageError(f"{parameter('neighbours')} must be one of {', '.join(Neighbours)}, not {name!r}.") from None


class Arithmetic(enum.StrEnum):
    """Which arithmetic the proof is about."""

    INTEGER_EXACT = "integer-exact"  # the proof holds for the machine's own integers, low-order bits included
    IDEAL_REAL = "ideal-real"  # the proof is about real numbers; the machine approximates them

    @classmethod
    def of_all(cls, parts: Iterable[Guarantee]) -> Arithmetic:
        """Return what holds of several releases together: the proof is about integers if each one's is."""
        exact = all(part.arithmetic is cls.INTEGER_EXACT for part in parts)
        return cls.INTEGER_EXACT if exact else cls.IDEAL_REAL


def _counted(number: Number, unit: int, name: str, counted_in: str) -> int:
    text = str(number)  # of a float the digits with which it was written
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise UsageError(f"{name} must be a number, not {text!r}.") from None
    if not (value.is_finite() and 0 <= value <= 10**12):
        raise DataError(f"{name} must be a number that is not negative, and of reasonable size, not {text}.")
    # a Fraction keeps every digit; the exponent is looked at first, because 1e-999999999 has too many of them
    counted = Fraction(value) * unit if value.adjusted() > -40 else Fraction(1, 2)
    if value and counted.denominator != 1:
        raise DataError(f"{name} is counted in {counted_in}, and {text} is not a whole number of them.")
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
        If either is no int.
    DataError
        If either is out of range.

    See Also
    --------
    PrivacyLoss.parse : Make one from numbers.
    PrivacyLoss.declared : Make a budget of which parts are set apart.
    Budget : A budget that fits in memory share.

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
                "PrivacyLoss takes whole millionths of epsilon and units of 1e-18 of delta. Of other numbers make one "
                "with PrivacyLoss.parse(1, 1e-6)."
            )
        if self.epsilon_micro < 1:
            raise DataError("Epsilon must be positive: at least one millionth.")
        if self.epsilon_micro > 10**6 * MICRO:
            raise DataError("Epsilon must be at most a million: beyond that there is no privacy to speak of.")
        if not 0 <= self.delta_atto < ATTO:
            raise DataError("Delta must be at least 0 (pure differential privacy) and below 1.")

    @classmethod
    def parse(cls, epsilon: Number, delta: Number = 0) -> PrivacyLoss:
        """Read numbers exactly; a value finer than the units is refused, not rounded.

        Parameters
        ----------
        epsilon : str, int, float or Decimal
            A number of whole millionths. A float is read as it is printed: 0.1 is one tenth.
        delta : str, int, float or Decimal, default 0
            Likewise, of whole units of 1e-18, below 1. 0: pure differential privacy.

        Returns
        -------
        PrivacyLoss
            In exact units.

        Raises
        ------
        UsageError
            If one is no number.
        DataError
            If one is out of range, or finer than the units.
        """
        return cls(_counted(epsilon, MICRO, "Epsilon", "millionths"), _counted(delta, ATTO, "Delta", "units of 1e-18"))

    @classmethod
    def declared(cls, epsilon: Number, delta: Number = 0, pure: Number = 0, reserve: Number = 0) -> PrivacyLoss:
        """Read a budget of which parts may be set apart for releases that are not Gaussian.

        Parameters
        ----------
        epsilon, delta : str, int, float or Decimal
            The whole budget, as of :meth:`parse`.
        pure : str, int, float or Decimal, default 0
            The part of epsilon for releases without Gaussian noise, beside Gaussian ones.
        reserve : str, int, float or Decimal, default 0
            The part of delta for releases of positive delta without Gaussian noise.

        Returns
        -------
        PrivacyLoss
            In exact units.

        Raises
        ------
        UsageError
            If one is no number, or a part is larger than the whole.
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
        """Say whether this loss is at most the other in both parts."""
        return self.epsilon_micro <= other.epsilon_micro and self.delta_atto <= other.delta_atto

    def to_json(self) -> dict[str, int]:
        """Return plain JSON values; the inverse of :meth:`from_json`."""
        return {"epsilon_micro": self.epsilon_micro, "delta_atto": self.delta_atto}

    @classmethod
    def from_json(cls, value: dict[str, int]) -> PrivacyLoss:
        """Read what :meth:`to_json` wrote, of a :class:`MixedBudget` too."""
        loss = PrivacyLoss(value["epsilon_micro"], value["delta_atto"])
        return loss.mixed(value.get("pure_micro", 0), value.get("reserve_atto", 0))

    def mixed(self, pure_micro: int, reserve_atto: int) -> PrivacyLoss:
        """Return this budget with parts declared for other than Gaussian releases; itself where both are 0."""
        if not pure_micro and not reserve_atto:
            return self
        return MixedBudget(self.epsilon_micro, self.delta_atto, pure_micro, reserve_atto)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g}, delta {self.delta:g}"


@dataclass(frozen=True)
class MixedBudget(PrivacyLoss):
    """A budget of which parts are declared for other than Gaussian releases, before the first release."""

    pure_micro: int = 0
    reserve_atto: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta_atto == 0:
            raise UsageError(
                "A budget without a delta is for pure releases alone: declare no part of it "
                f"({parameter('budget_pure')}, {parameter('budget_delta_reserve')}), or a budget with "
                f"{parameter('budget_delta')}."
            )
        for part, limit, of, name in (
            (self.pure_micro, self.epsilon_micro, f"epsilon of the budget, {self.epsilon:g}", "budget_pure"),
            (self.reserve_atto, self.delta_atto, f"delta of the budget, {self.delta:g}", "budget_delta_reserve"),
        ):
            if not 0 <= part <= limit:
                raise UsageError(
                    f"What is declared for other than Gaussian releases is from 0 to the {of}.", parameter=name
                )

    def to_json(self) -> dict[str, int]:
        """Return plain JSON values; the inverse of :meth:`from_json`."""
        return {**super().to_json(), "pure_micro": self.pure_micro, "reserve_atto": self.reserve_atto}

    def __str__(self) -> str:
        return (
            f"{super().__str__()}, of which epsilon {self.pure_micro / MICRO:g} and delta {self.reserve_atto / ATTO:g} "
            "are for other than Gaussian releases"
        )


Ratio = list[str]  # an exact fraction in JSON: numerator and denominator in decimal digits


def ratio_of(value: Fraction) -> Ratio:
    """Return a fraction for JSON."""
    return [str(value.numerator), str(value.denominator)]


def fraction_of(ratio: Ratio) -> Fraction:
    """Read a fraction from JSON; ValueError or ZeroDivisionError where it is none."""
    numerator, denominator = ratio
    return Fraction(int(numerator), int(denominator))


class GuaranteeJson(TypedDict):
    """A :class:`Guarantee` as JSON values; older versions wrote no ``bounded_ranges``."""

    neighbours: str
    epsilon_micro: int
    delta_atto: int
    mu_squared: Ratio | None
    arithmetic: str
    proof: str
    bounded_ranges: NotRequired[list[Ratio]]


@dataclass(frozen=True)
class Guarantee:
    """What is proved of one release.

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation.
    loss : PrivacyLoss
        (epsilon, delta) of the release on its own.
    mu_squared : Fraction or None
        Square of the parameter mu of Gaussian differential privacy, exact; None where the release is not Gaussian. It
        composes by addition.
    arithmetic : Arithmetic
        Whether the proof is about the machine's integers (``integer-exact``) or real numbers (``ideal-real``).
    proof : str
        The module that the proof stands in.
    bounded_ranges : tuple of Fraction, default ()
        Lengths of the intervals over which the privacy losses of its steps range, one a step, exact, where each step is
        an exponential mechanism, given those before. Empty otherwise.

    See Also
    --------
    Release : Carries one.
    PrivatePCA : Holds one, as ``guarantee_``.

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
    (Guarantee(epsilon=1, delta=1e-06, replace-one), 'dpdist.mechanisms.gaussian')
    """

    neighbours: Neighbours
    loss: PrivacyLoss
    mu_squared: Fraction | None
    arithmetic: Arithmetic
    proof: str
    bounded_ranges: tuple[Fraction, ...] = ()

    def __repr__(self) -> str:
        """Return it in a line.

        Examples
        --------
        >>> Guarantee(Neighbours.REPLACE_ONE, PrivacyLoss.parse("1", "1e-6"), None, Arithmetic.IDEAL_REAL, "a proof")
        Guarantee(epsilon=1, delta=1e-06, replace-one)
        """
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
            # before lists there was one word, which was too good for several draws: such a loss counts as any other
            bounded_ranges=tuple(fraction_of(length) for length in value.get("bounded_ranges", ())),
        )
