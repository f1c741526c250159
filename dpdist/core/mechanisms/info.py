"""The public description of a mechanism and its options, printed by ``dpdist mechanisms``."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.sensitivity import UnitNorm
from dpdist.core.naming import parameter
from dpdist.core.privacy.guarantee import Arithmetic, PrivacyLoss

Options = Mapping[str, object]
"""Public parameters of one mechanism by name: JSON values, checked by :class:`Option`."""
OptionValue = int | float | str | tuple[float, ...] | tuple[tuple[float, ...], ...]
"""A checked value of an option; its :class:`Kind` determines the type."""


class Output(enum.StrEnum):
    """The kind of release of a mechanism."""

    SECOND_MOMENT = "second moment"
    COMPONENTS = "components"


class DeltaUse(enum.StrEnum):
    """Whether a mechanism takes a delta."""

    REQUIRED = "required"
    NONE = "none"
    OPTIONAL = "optional"


class Kind(enum.StrEnum):
    """The type of an option; all values are public and JSON."""

    INTEGER = "integer"
    NUMBER = "number"
    WORD = "word"
    NUMBERS = "numbers"  # a tuple of finite floats
    MATRIX = "matrix"  # a tuple of rows of equal length, each a tuple of finite floats


@dataclass(frozen=True)
class Option:
    """A public parameter of one mechanism, in addition to those of all mechanisms."""

    name: str
    kind: Kind
    meaning: str
    default: OptionValue | None = None
    choices: tuple[str, ...] = ()

    def checked(self, value: object) -> OptionValue:
        """Return the value converted to its kind."""
        try:
            return self._as_kind(value)
        except (TypeError, ValueError):
            allowed = f"one of {', '.join(self.choices)}" if self.choices else f"of the kind {self.kind}"
            message = f"The option {self.name} must be {allowed}: {self.meaning}."
            raise UsageError(message, parameter="options") from None

    def _as_kind(self, value: Any) -> OptionValue:
        if isinstance(value, bool):
            raise TypeError
        match self.kind:
            case Kind.INTEGER:
                if int(value) != value:
                    raise ValueError
                return int(value)
            case Kind.NUMBER:
                return _finite(value)
            case Kind.WORD:
                if value not in self.choices:
                    raise ValueError
                return str(value)
            case Kind.NUMBERS:
                return tuple(_finite(v) for v in value)
            case Kind.MATRIX:
                rows = tuple(tuple(_finite(v) for v in row) for row in value)
                if len({len(row) for row in rows}) > 1:
                    raise ValueError
                return rows


def _finite(value: Any) -> float:
    number = float(value)
    if isinstance(value, str | bytes) or not np.isfinite(number):
        raise ValueError
    return number


COMPONENTS = Option("components", Kind.INTEGER, "number k of components, between 1 and the number of columns")
"""The option of mechanisms that release a subspace."""


@dataclass(frozen=True, kw_only=True)
class MechanismInfo:
    """The public description of a mechanism, printed by ``dpdist mechanisms``."""

    name: str
    output: Output = Output.SECOND_MOMENT
    additive: bool = True
    law: str
    sensitivity: str
    claimed: str
    proved: str
    arithmetic: Arithmetic = Arithmetic.IDEAL_REAL
    cost: str
    reference: str
    delta: DeltaUse = DeltaUse.NONE
    options: tuple[Option, ...] = ()
    replacement: str = ""
    advice: str = ""
    gap: float | None = None
    """Gap between the first two eigenvalues, over d times the nuclear sensitivity over epsilon, up to which one vector
    captures more than `two-sided-wishart`; None if that was not measured."""
    units: bool = False
    unit_norm: UnitNorm = "trace"
    """Norm of the moment of a privacy unit that its guarantee needs, if all rows of the unit are kept."""
    semidefinite: bool = False

    def filled(self, options: Options) -> dict[str, OptionValue]:
        """Return checked values of all options, with defaults filled in."""
        declared = {option.name: option for option in self.options}
        for name in options:
            if name not in declared:
                listed = ", ".join(declared) or "none"
                raise UsageError(f"{self.name} has no option {name!r}. Its options: {listed}.", parameter="options")
        values = {}
        for name, option in declared.items():
            value = options.get(name, option.default)
            if value is None:
                raise UsageError(
                    f"{self.name} needs the option {name}: {option.meaning} ({parameter(f'options.{name}')})."
                )
            values[name] = option.checked(value)
        return values

    def require_delta_use(self, loss: PrivacyLoss) -> None:
        """Require a delta, or its absence, as the mechanism does."""
        if self.delta is DeltaUse.REQUIRED and not loss.delta_atto:
            raise UsageError(
                f"{self.name} needs a positive delta: pass {parameter('delta')}, or use "
                f"{parameter('mechanism', 'two-sided-wishart')}, which is purely private."
            )
        if self.delta is DeltaUse.NONE and loss.delta_atto:
            raise UsageError(
                f"{self.name} takes no delta: omit {parameter('delta')}, or use "
                f"{parameter('mechanism', 'gaussian')}, which adds less noise if a delta is allowed."
            )
