"""The description of one column of a source; a :class:`dpdist.core.rows.schema.Schema` contains one for each column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from dpdist.core.text import exactly, listed

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
"""Data types of stored rows."""
SECONDS = {
    "seconds": 1, "minutes": 60, "hours": 3600, "days": 86400, "weeks": 7 * 86400, "years": 31556952,
}  # fmt: skip
"""Seconds per unit of a date; a year has 365.2425 days."""
LARGEST_WHOLE = 2.0**53
"""float64 represents every whole number up to this one."""
DIRECTIVES = "YymdejbBhHMSTRIpFDaAznt%"
"""Supported directives of a date format. Others do not determine it (%Z, %U), or depend on the local zone (%s)."""
STORED = frozenset({"number", "integer", "boolean", "category", "date"})
"""Kinds of columns that are stored as numbers."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_NAMED = 10**100
"""Larger whole numbers cannot name a category: Python refuses to write thousands of digits."""


class Whole(NamedTuple):
    """Columns of the rows that are never shortened: those of categories and booleans, and indicators."""

    columns: tuple[int, ...] = ()
    norm: float = 0.0  # of categories and booleans in a row
    longest: float = 0.0  # with the indicators of missing numbers, if all are missing


@dataclass(frozen=True)
class Column:
    """Public description of one column of a source; a :class:`Schema` validates it.

    Parameters
    ----------
    name : str
        Its name in the source.
    kind : str
        ``"number"``, rounded to float64; ``"integer"``, refused from 2^53 on without a range; ``"boolean"``,
        ``"category"``, ``"date"``; ``"ignored"``, excluded; or ``"privacy unit"``, which identifies the owner of a row,
        possibly together with other columns, and is not stored.
    range : pair of float, or of dates, default None
        For a number, an integer or a date: the least and greatest relevant value, from public knowledge. Values outside
        are clipped to it without notice. None: no range.
    categories : sequence of str, default None
        For a category: the list of categories, from public knowledge.
    encoding : str, default None
        For a category: ``"one-hot"``, a column of 0 and 1 for each; or ``"ordinal"``, its index in the list, from 0.
        None: one-hot.
    other : str, default None
        Treatment of unlisted categories, and of text without a digit in a column of numbers: ``"refuse"``;
        ``"missing"``; or ``"column"``, for categories: an additional column of 0 and 1. None: refuse.
    unit : str, default None
        Unit of a date: ``"seconds"``, ``"minutes"``, ``"hours"``, ``"days"``, ``"weeks"`` or ``"years"`` of 365.2425
        days. None: days.
    origin : date or str, default None
        The public date mapped to 0. None: 1970-01-01.
    format : str, default None
        Format of dates in text, such as ``"%d.%m.%Y"``, with the directives of :data:`DIRECTIVES`. None: 2026-01-31 or
        2026-01-31 12:00:00.
    missing : str, default None
        Treatment of a missing value: ``"refuse"``; ``"fill"``, replace it by the constant `fill`; ``"centre"``,
        replace it by the centre of the column in each release, not for one-hot categories; ``"drop"``, count the row
        as the centre of the others; ``"indicator"``, set an additional column to 1, beside which a boolean becomes a
        category of no and yes; or ``"pairwise"``, both of ``"centre"`` and ``"indicator"``, for numbers: covariances
        are then those of the rows that have both values. None: refuse.
    fill : float, str, bool or date, default None
        Public constant for a missing value. None: the middle of the range; with an indicator and no range, 0.
    weight : float, default None
        Positive factor of the numbers. None: 1.
    missing_values : sequence of str or number, default None
        Text and codes that mean a missing value, such as ``["?", -999]``, in addition to :data:`MISSING_WORDS`.
    transform : {"log", "asinh"}, default None
        For a skewed number or integer, x in each row: ``"log"`` is log(1 + x - low), where low is the low end of the
        range or 0, and values below it count as it; ``"asinh"``, for numbers of both signs, is nearly the logarithm of
        2|x|, with the sign of x. The columns of the rows are named after it. None: the number itself.
    bins : sequence of float, or of dates, default None
        Edges, from public knowledge, of a number, an integer or a date: beside it the rows then have a category
        ``NAME_bins``, with a table and means of its own. A bin begins with an edge and ends before the next; the last
        one is open, and so is a bin below the first edge, unless that is the low end of the range. Missing values are a
        category, unless they are refused or drop the row. None: no bins.

    See Also
    --------
    Schema : All columns of a source.

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
    transform: str | None = None
    bins: Any = None

    def __post_init__(self) -> None:
        for key, stored in (
            ("range", _plain), ("categories", _named), ("missing_values", _coded), ("bins", _plain),
        ):  # fmt: skip
            value = getattr(self, key)
            if hasattr(value, "tolist"):  # a NumPy array
                value = value.tolist()
                object.__setattr__(self, key, value)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, key, tuple(map(stored, value)))
        for key in ("origin", "weight"):
            object.__setattr__(self, key, _plain(getattr(self, key)))
        object.__setattr__(self, "fill", _named(self.fill) if self.kind == "category" else _plain(self.fill))

    def __repr__(self) -> str:
        properties = "".join(f", {key}={value!r}" for key, value in self.given.items())
        return f"Column({self.name!r}, {self.kind!r}{properties})"

    @property
    def given(self) -> dict[str, Any]:
        """All properties other than name and kind."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(Column)[2:]}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def words(self) -> str:
        """A readable description."""
        properties = [
            f"{len(value)} categories" if key == "categories" else
            f"{len(value) + 1} bins" if key == "bins" else
            f"missing values {listed(value)}" if key == "missing_values" else
            f"{key} {' to '.join(map(shown, value))}" if key == "range" else f"{key} {shown(value)}"
            for key, value in self.given.items()
        ]  # fmt: skip
        return f"{self.name} ({', '.join([self.kind, *properties])})"

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        properties = {key: list(value) if isinstance(value, tuple) else value for key, value in self.given.items()}
        return {"name": self.name, "kind": self.kind, **properties}

    @property
    def source(self) -> Column:
        """The column of the source that it is read from: itself, except for bins."""
        return self

    @property
    def stored(self) -> bool:
        """Whether its values are stored as numbers."""
        return self.kind in STORED

    @property
    def codes(self) -> list[float]:
        """The numeric codes among the missing values."""
        numbers = []
        for code in self.missing_values or ():
            with suppress(ValueError):
                numbers.append(float(code))
        return numbers

    @property
    def one_hot(self) -> bool:
        """Whether the rows have a column for each category, or for each value of a boolean that may be missing."""
        return (self.kind == "category" and self.encoding != "ordinal") or (
            self.kind == "boolean" and self.missing == "indicator"
        )

    @property
    def values(self) -> tuple[str, ...]:
        """The categories, or the values of a boolean."""
        return ("no", "yes") if self.kind == "boolean" else tuple(self.categories)

    @property
    def whole(self) -> bool:
        """Whether its values in the rows are never shortened: those of a category, or of a boolean."""
        return self.one_hot or self.kind == "boolean"

    @property
    def indicated(self) -> bool:
        """Whether an additional column indicates missing values."""
        return self.missing in {"indicator", "pairwise"}

    @property
    def features(self) -> list[str]:
        """Names of its columns in the rows."""
        if not self.stored:
            return []
        names = [f"{self.name}={value}" for value in self.values] if self.one_hot else [self.value_name]
        names += [f"{self.name}=other"] if self.other == "column" else []
        return names + ([f"{self.name}=missing"] if self.indicated else [])

    @property
    def low(self) -> float:
        """Where the logarithm of a column begins: the low end of its range, or 0."""
        return 0.0 if self.range is None else float(self.range[0])

    @property
    def value_name(self) -> str:
        """Name of the column of its numbers in the rows, with their transform.

        >>> Column("spend", "number", transform="log").value_name
        'log1p(spend)'
        >>> Column("age", "number", range=(18, 99), transform="log").value_name
        'log1p(age - 18)'
        """
        if self.transform is None:
            return self.name
        if self.transform == "asinh":
            return f"asinh({self.name})"
        sign = "-" if self.low > 0 else "+"
        return f"log1p({self.name} {sign} {exactly(abs(self.low))})" if self.low else f"log1p({self.name})"

    @property
    def width(self) -> int:
        """Number of its columns in the rows."""
        count = len(self.categories or ()) if self.kind == "category" and self.one_hot else 1 + self.one_hot
        return count + (self.other == "column") + self.indicated if self.stored else 0

    @property
    def tick(self) -> float:
        """Microseconds per unit of a date."""
        return 1e6 * SECONDS[self.unit or "days"]

    def number_of(self, value: Any) -> float:
        """Return a public value, such as an end of the range, as an unscaled number."""
        if self.kind == "date":
            # as for cells, so that a date on an edge is in its bin
            return float(microseconds(value)) / self.tick - float(microseconds(self.origin or "1970-01-01")) / self.tick
        if self.kind == "category":
            return float(self.categories.index(value))
        return float(value)

    def value_of(self, value: Any) -> float:
        """Return a public value as an unscaled number of the rows: transformed."""
        number = self.number_of(value)
        if self.transform == "log":
            return math.log1p(max(number - self.low, 0.0))
        return math.asinh(number) if self.transform == "asinh" else number

    @property
    def ends(self) -> tuple[float, float] | None:
        """The public range as unscaled numbers of the rows, or None."""
        if self.kind == "boolean":
            return 0.0, 1.0
        if self.kind == "category":
            return (0.0, 1.0) if self.one_hot else (0.0, float(len(self.categories) - 1))
        return None if self.range is None else (self.value_of(self.range[0]), self.value_of(self.range[1]))


@dataclass(frozen=True, repr=False)
class Binned(Column):
    """The category that a :class:`Schema` derives from a number with bins."""

    number: Column | None = None

    @classmethod
    def of(cls, number: Column) -> Binned:
        """Return the category of a column with sound bins."""
        missing = {None: None, "refuse": None, "drop": "drop"}.get(number.missing, "indicator")
        return cls(
            f"{number.name}_bins", "category", categories=_names_of_bins(number), missing=missing,
            weight=number.weight, number=number,
        )  # fmt: skip

    @property
    def source(self) -> Column:
        """The number that it is read from."""
        return self.number or self

    @property
    def edges(self) -> list[float]:
        """Where its bins begin, but for the first, as unscaled numbers."""
        return [self.source.number_of(edge) for edge in _inner(self.source)]


def _inner(number: Column) -> tuple[Any, ...]:
    """Return the edges between bins: not the first one, if it is the low end of the range, as no value is below."""
    first = number.number_of(number.bins[0])
    at_end = number.range is not None and first == number.number_of(number.range[0])
    return tuple(number.bins[at_end:])


def _names_of_bins(number: Column) -> tuple[str, ...]:
    """Return the names of bins; those of whole numbers end with the last one that is in them."""
    dated, whole = number.kind == "date", number.kind == "integer"
    edges = list(number.bins) if dated else [exactly(edge) for edge in number.bins]
    before = "before" if dated else "below"
    ends = [exactly(edge - 1) for edge in number.bins] if whole else [f"{before} {edge}" for edge in edges]
    inner = [low if low == high else f"{low} to {high}" for low, high in zip(edges[:-1], ends[1:], strict=True)]
    first = [f"{before} {edges[0]}"] if len(_inner(number)) == len(edges) else []
    return *first, *inner, f"{edges[-1]} or {'later' if dated else 'more'}"


def shown(value: object) -> str:
    """Return a value as text for messages."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """Return a value in stored form: numbers as float, dates as text."""
    if hasattr(value, "item"):  # a number of NumPy
        value = value.item()
    if isinstance(value, date):  # a datetime is one
        return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    return value


def _named(value: Any) -> Any:
    """Return a category as text; a whole number becomes a name with all its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < _MOST_NAMED else value
    return f"{value + 0.0:.0f}" if isinstance(value, float) and value.is_integer() else _plain(value)


def _coded(value: Any) -> Any:
    """Return a missing-value text or code as text."""
    name = _named(value)
    return repr(name) if isinstance(name, float) else name


def microseconds(text: str) -> int:
    """Return the microseconds from 1970 to a stored date."""
    return (instant(text) - _EPOCH) // timedelta(microseconds=1)


def instant(text: str) -> datetime:
    """Return the time of a stored date; without a zone it is UTC."""
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
