"""What is said of one column of a source; all of them together are a :class:`dpdist.rows.schema.Schema`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from dpdist._util.text import listed

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
"""What a stored row may be made of."""
SECONDS = {
    "seconds": 1, "minutes": 60, "hours": 3600, "days": 86400, "weeks": 7 * 86400, "years": 31556952,
}  # fmt: skip
"""Seconds in a unit of a date; a year is 365.2425 days."""
LARGEST_WHOLE = 2.0**53
"""Up to it float64 holds every whole number."""
DIRECTIVES = "YymdejbBhHMSTRIpFDaAznt%"
"""What a format may hold behind a %. Others are read and say nothing of the date (%Z, %U, %s is of the local zone)."""
STORED = frozenset({"number", "integer", "boolean", "category", "date"})
"""Kinds of which rows have numbers."""
_MOST_NAMED = 10**100
"""Whole numbers from here on name no category: Python refuses to write thousands of digits."""


@dataclass(frozen=True)
class Column:
    """What is publicly known of one column of a source; a :class:`Schema` checks it.

    Parameters
    ----------
    name : str
        As the source calls it.
    kind : str
        ``"number"``, which is rounded to float64; ``"integer"``, which is refused from 2^53 on without a range;
        ``"boolean"``, ``"category"``, ``"date"``; ``"ignored"`` for one that is left out; ``"privacy unit"`` for one
        that says whose row it is, or says it together with others, and is not stored.
    range : pair of float, or of dates, default None
        Of a number, an integer or a date: the least and the greatest value that matter, from public knowledge. Values
        beyond are clipped to it, which is told nowhere. None: there is none.
    categories : sequence of str, default None
        Of a category: all of them, from public knowledge.
    encoding : str, default None
        Of a category: ``"one-hot"``, a column of 0 and 1 for each; or ``"ordinal"``, its place in the list, from 0.
        None: one-hot.
    other : str, default None
        What becomes of a category that is not listed: ``"refuse"``, ``"column"``, one more column of 0 and 1; or
        ``"missing"``. None: refuse.
    unit : str, default None
        What a date is counted in: ``"seconds"``, ``"minutes"``, ``"hours"``, ``"days"``, ``"weeks"`` or ``"years"`` of
        365.2425 days. None: days.
    origin : date or str, default None
        The public date that counts as 0. None: 1970-01-01.
    format : str, default None
        How text writes a date, such as ``"%d.%m.%Y"``, in the directives of :data:`DIRECTIVES`. None: as 2026-01-31, or
        2026-01-31 12:00:00.
    missing : str, default None
        What becomes of a missing value: ``"refuse"``; ``"fill"``, the constant `fill` stands for it; ``"drop"``, the
        row becomes a row of zeros, and counts; or ``"indicator"``, one more column is 1. None: refuse.
    fill : float, str, bool or date, default None
        The public constant for a missing value. With an indicator, None stands for the middle of the range, or 0.
    weight : float, default None
        What the numbers are multiplied by, above 0. None: 1.
    missing_values : sequence of str or number, default None
        Words and codes that stand for a missing value, such as ``["?", -999]``, besides those of :data:`MISSING_WORDS`.

    See Also
    --------
    Schema : All columns together.

    Examples
    --------
    >>> import dpdist
    >>> dpdist.Column("age", "integer", range=(0, 120), missing="indicator")
    Column('age', 'integer', range=(0.0, 120.0), missing='indicator')
    """

    name: str
    kind: str
    range: Any = None
    categories: Any = None
    encoding: str | None = None
    other: str | None = None
    unit: str | None = None
    origin: Any = None
    format: str | None = None
    missing: str | None = None
    fill: Any = None
    weight: Any = None
    missing_values: Any = None

    def __post_init__(self) -> None:
        for key, stored in (("range", _plain), ("categories", _named), ("missing_values", _coded)):
            value = getattr(self, key)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, key, tuple(map(stored, value)))
        for key in ("origin", "weight"):
            object.__setattr__(self, key, _plain(getattr(self, key)))
        object.__setattr__(self, "fill", _named(self.fill) if self.kind == "category" else _plain(self.fill))

    def __repr__(self) -> str:
        more = "".join(f", {key}={value!r}" for key, value in self.given.items())
        return f"Column({self.name!r}, {self.kind!r}{more})"

    @property
    def given(self) -> dict[str, Any]:
        """What is said besides name and kind."""
        said = {each.name: getattr(self, each.name) for each in fields(self)[2:]}
        return {key: value for key, value in said.items() if value is not None}

    @property
    def words(self) -> str:
        """What is said, for people."""
        more = [
            f"{len(value)} categories" if key == "categories" else
            f"missing values {listed(value)}" if key == "missing_values" else
            f"{key} {' to '.join(map(shown, value))}" if key == "range" else f"{key} {shown(value)}"
            for key, value in self.given.items()
        ]  # fmt: skip
        return f"{self.name} ({', '.join([self.kind, *more])})"

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        said = {key: list(value) if isinstance(value, tuple) else value for key, value in self.given.items()}
        return {"name": self.name, "kind": self.kind, **said}

    @property
    def stored(self) -> bool:
        """Whether rows have numbers of it."""
        return self.kind in STORED

    @property
    def codes(self) -> list[float]:
        """The missing values that are numbers."""
        found = []
        for each in self.missing_values or ():
            with suppress(ValueError):
                found.append(float(each))
        return found

    @property
    def one_hot(self) -> bool:
        """Whether it has a column of rows for each category."""
        return self.kind == "category" and self.encoding != "ordinal"

    @property
    def indicated(self) -> bool:
        """Whether one more column of rows says where it is missing."""
        return self.missing == "indicator"

    @property
    def features(self) -> list[str]:
        """Names of the columns of rows that it gives."""
        if not self.stored:
            return []
        names = [f"{self.name}={each}" for each in self.categories] if self.one_hot else [self.name]
        names += [f"{self.name}=other"] if self.other == "column" else []
        return names + ([f"{self.name}=missing"] if self.indicated else [])

    @property
    def width(self) -> int:
        """How many these are."""
        own = len(self.categories or ()) if self.one_hot else 1
        return own + (self.other == "column") + self.indicated if self.stored else 0

    def number_of(self, value: Any) -> float:
        """Return a public value, such as an end of the range, as the number that stands for it before any scale."""
        if self.kind == "date":
            seconds = (instant(value) - instant(self.origin or "1970-01-01")).total_seconds()
            return seconds / SECONDS[self.unit or "days"]
        if self.kind == "category":
            return float(self.categories.index(value))
        return float(value)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The public range as numbers, or None."""
        if self.kind == "boolean":
            return 0.0, 1.0
        if self.kind == "category":
            return (0.0, 1.0) if self.one_hot else (0.0, float(len(self.categories) - 1))
        return None if self.range is None else (self.number_of(self.range[0]), self.number_of(self.range[1]))


def shown(value: object) -> str:
    """Return a value as messages have it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """Return a value as it is stored: numbers as float, dates as text."""
    if isinstance(value, date):  # a datetime is one
        return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    return value


def _named(value: Any) -> Any:
    """Return a category as text; whole numbers are names too, with every digit."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < _MOST_NAMED else value
    return f"{value + 0.0:.0f}" if isinstance(value, float) and value.is_integer() else _plain(value)


def _coded(value: Any) -> Any:
    """Return a word or code for a missing value as text."""
    found = _named(value)
    return repr(found) if isinstance(found, float) else found


def instant(text: str) -> datetime:
    """Return the time of a date as it is stored; one without a zone is of UTC."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
