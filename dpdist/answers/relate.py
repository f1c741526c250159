"""How two variables of a release relate: strength, a test where there is one, and all pairs in order of strength."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from dpdist.answers.association import (
    Strength,
    Test,
    correlation_of,
    cramers_v,
    eta,
    holm,
    independence,
    no_correlation,
    same_means,
)
from dpdist.answers.bias import clipped_rows
from dpdist.answers.variables import Variables
from dpdist.core.errors import UsageError
from dpdist.core.text import listed

MOST_CELLS = 4096
"""Cells of a table whose covariance is computed, in 128 MiB."""
PERCENT = ("rows", "columns", "all")
"""What a table may be in percent of."""


@dataclass(frozen=True)
class Relation:
    """The association of two variables."""

    first: str
    second: str
    strength: Strength | None  # None: below the noise
    test: Test | None
    no_test: str  # why there is none, as part of a sentence; empty if there is one
    adjusted: float | None = None  # the p-value, adjusted for the number of tests that are shown together
    filled: tuple[str, ...] = ()  # those of which missing values are replaced, which is why there is no test

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        strength, test = self.strength, self.test
        return {
            "first": self.first,
            "second": self.second,
            "measure": None if strength is None else strength.measure,
            "strength": None if strength is None else strength.value,
            "low": None if strength is None else strength.interval[0],
            "high": None if strength is None else strength.interval[1],
            "merged": []
            if strength is None
            else [f"{name}={each}" for name, names in strength.merged for each in names],
            "p_value": None if test is None else test.p_value,
            "adjusted_p_value": self.adjusted,
            "no_test": self.no_test or None,
        }


def relation(held: Variables, first: str, second: str) -> Relation:
    """Return the association of two different variables."""
    first, second = held.named(first), held.named(second)
    if first == second:
        raise UsageError(f"{first!r} was named twice.")
    a, b = held.categorical.get(first), held.categorical.get(second)
    x, y = held.numeric.get(first), held.numeric.get(second)
    filled = _filled(held, (first, second))
    no_test, test = _no_test(held, (first, second), filled), None
    if a is not None and b is not None and (a.size - 1) * (b.size - 1) > MOST_CELLS:
        return Relation(first, second, None, None, f"a table of {a.size * b.size} cells is too large to be tested")
    if a is not None and b is not None:
        strength = cramers_v(held, a, b)
        test = None if no_test else independence(held, a, b)
    elif x is not None and y is not None:
        strength = correlation_of(held, x, y)
        test = None if no_test or strength is None else no_correlation(held, x, y)
    else:
        number, by = (x, b) if x is not None else (y, a)
        if number is None or by is None:
            raise AssertionError("a variable has categories or numbers")
        strength = eta(held, number, by)
        test = None if no_test or strength is None else same_means(held, number, by)
    if strength is None:
        test, no_test = None, "its strength cannot be told in this noise"
    return Relation(first, second, strength, test, no_test, filled=filled if _REPLACED in no_test else ())


def relations(held: Variables, name: str | None = None) -> list[Relation]:
    """Return the associations of a variable with each other one, or of all pairs, the strongest first.

    A number and its bins are no pair.
    """
    pairs: Iterable[tuple[str, str]] = combinations(held.names, 2)
    if name is not None:
        name = held.named(name)
        pairs = [(name, other) for other in held.names if other != name]
    found = [relation(held, *pair) for pair in pairs if not held.of_one_column(*pair)]
    tested = [each for each in found if each.test is not None]
    adjusted = dict(zip(map(id, tested), holm([t.test.p_value for t in tested if t.test is not None]), strict=True))
    found = [replace(each, adjusted=adjusted.get(id(each))) for each in found]
    return sorted(found, key=lambda each: -1.0 if each.strength is None else -abs(each.strength.value) - 1.0)


_REPLACED = "if any, are replaced"


def untested(pairs: Sequence[Relation]) -> list[str]:
    """Return why associations above the noise have no test, each reason once, as parts of sentences."""
    without = [pair for pair in pairs if pair.no_test and pair.strength is not None]
    filled = sorted({name for pair in without for name in pair.filled})
    reasons = sorted({pair.no_test for pair in without if not pair.filled})
    return [*reasons, *([_replaced(filled)] if filled else [])]


def _filled(held: Variables, names: tuple[str, ...]) -> tuple[str, ...]:
    numbers = [name for name in names if name in held.numeric and held.numeric[name].filled]
    return *numbers, *(name for name in names if name in held.categorical and held.categorical[name].limit)


def _replaced(names: Sequence[str]) -> str:
    return f"missing values of {listed(names)}, {_REPLACED}"


def _no_test(held: Variables, names: tuple[str, ...], filled: tuple[str, ...]) -> str:
    """Return why there is no test of some variables, as part of a sentence; empty if there is one."""
    release = held.release
    if release.unit is not None and release.unit.max_rows != 1:
        return f"rows of one {release.unit.column} are not independent"
    if filled:
        return _replaced(filled)
    places = [held.numeric[name].place for name in names if name in held.numeric]
    rows = clipped_rows(release, places) if places else None
    if rows is not None and rows.longest is None and not rows.untouched:
        return "numbers of some rows were clipped"
    return ""
