"""Validates a schema and reports all its mistakes together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, NamedTuple, get_args

from dpdist.core.rows.columns import DIRECTIVES, LARGEST_WHOLE, SECONDS, Column, instant, shown
from dpdist.core.rows.units import Keep
from dpdist.core.text import counted, has_control, listed, repeated, visible

FORMAT = "dpdist-schema/1"
MOST_FEATURES = 1 << 20
"""Largest number of columns of rows, as for any source."""
_VALUES = {"missing_values", "missing", "fill", "weight"}
_TAKES = {
    "number": {*_VALUES, "range", "other", "transform", "bins"},
    "integer": {*_VALUES, "range", "other", "transform", "bins"},
    "boolean": _VALUES,
    "category": {*_VALUES, "categories", "encoding", "other"},
    "date": {*_VALUES, "range", "unit", "origin", "format", "bins"},
    "ignored": set[str](),
    "privacy unit": {"missing_values"},
}
"""Kinds of columns and the keys that each permits."""
_WORDS = {
    "missing": ("refuse", "fill", "centre", "drop", "indicator", "pairwise"),
    "other": ("refuse", "column", "missing"),
    "encoding": ("one-hot", "ordinal"),
    "unit": tuple(SECONDS),
    "transform": ("log", "asinh"),
}
OWN: dict[str, Any] = {
    "scale": "none", "others": "refuse", "max_rows": None, "keep": "first", "missing_values": None, "missing": None,
    "each_row_is_a_person": False,
}  # fmt: skip
"""Keys of a schema, other than its columns, and their defaults."""
_DIRECTIVE = re.compile(r"%([EO_0^#-]*\d*.?)", re.DOTALL)
_MADE_OF = {"F": "Ymd", "D": "mdy", "T": "HMS", "R": "HM", "n": "", "t": "", "%": ""}
_SAME = {"y": "Y", "e": "d", "b": "m", "B": "m", "h": "m", "A": "a"}
NOT_NUMBERS = (
    'kind = "boolean", or kind = "category" and categories = ["...", "..."], or kind = "date" and range = [2000-01-01, '
    '2030-12-31], or kind = "ignored"'
)
"""Example lines for a column that is not numeric but was drafted as a number; they contain no data."""
WHOSE = 'true if no person has two rows; else false, and kind = "privacy unit" for the column that names the person'
"""How to complete whether each row is a person."""
_LARGEST = 1e100
"""Largest magnitude of ends of ranges and constants: far below the limits of float64."""
_HEAVIEST = 1e6
"""Largest weight; the least one is its inverse. A column so light or heavy hides, or is hidden by, all others."""


class Mistake(NamedTuple):
    """A mistake in a schema."""

    column: int | None  # its index, from 0; None: the schema itself
    key: str | None
    reason: str  # without a final full stop


class Parts(NamedTuple):
    """The content of a schema, possibly with mistakes."""

    columns: Sequence[Column]
    scale: Any
    others: Any
    max_rows: Any
    keep: Any
    missing_values: Any
    missing: Any
    each_row_is_a_person: Any
    lines: Sequence[int]


def all_of(subject: str, wrong: Sequence[str], problem: str = "cannot be used") -> str:
    """Return a message with all reasons."""
    if len(wrong) == 1:
        return f"{subject} {problem}: {wrong[0]}."
    return f"{subject} {problem}, for {len(wrong)} reasons. " + " ".join(
        f"({number}) {reason}." for number, reason in enumerate(wrong, 1)
    )


def in_sentence(mistake: Mistake, columns: Sequence[Column]) -> str:
    """Return a mistake as part of a sentence, with the name of its column."""
    return mistake.reason if mistake.column is None else f"column {columns[mistake.column].name!r}: {mistake.reason}"


def parts_of(content: Mapping[str, Any]) -> tuple[list[Mistake], list[Column]]:
    """Return the columns of parsed content, and the mistakes in its structure."""
    wrong = [
        Mistake(None, key, f"there is no key {key!r}: the keys are {', '.join(OWN)} and [[column]]")
        for key in content
        if key not in {*OWN, "format", "columns", "column"}
    ]
    if "column" in content and "columns" in content:
        wrong.append(Mistake(None, "columns", "columns and column have the same meaning: use one of them"))
    if content.get("format", FORMAT) != FORMAT:
        wrong.append(
            Mistake(None, "format", f"the format is not {FORMAT}: it was written by another version of dpdist")
        )
    entries = content.get("columns", content.get("column", []))
    columns = []
    keys = [key.name for key in fields(Column)]
    for index, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        table: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
        wrong += [Mistake(index, None, f"it lacks {needed!r}") for needed in ("name", "kind") if needed not in table]
        for key in table:
            if key in OWN and key not in keys:
                wrong.append(Mistake(index, key, f"{key} applies to all columns: move it above the first column"))
            elif key not in keys:
                wrong.append(Mistake(index, key, f"there is no key {key!r}: the keys are {', '.join(keys)}"))
        valid = {"name": "?", "kind": "?"} | {key: value for key, value in table.items() if key in keys}
        if not isinstance(valid["name"], str):
            valid["name"] = "?"
            wrong.append(Mistake(index, "name", "the name must be text in quotes"))
        columns.append(Column(**valid))
    return wrong, columns


def mistakes(schema: Parts) -> Iterator[Mistake]:
    """Yield all mistakes of a schema."""
    if schema.scale not in ("none", "range"):
        yield Mistake(None, "scale", f'scale must be "none" or "range", not {schema.scale!r}')
    if schema.others not in ("refuse", "ignored"):
        yield Mistake(None, "others", f'others must be "refuse" or "ignored", not {schema.others!r}')
    if schema.missing_values is not None and not isinstance(schema.missing_values, list | tuple):
        yield Mistake(None, "missing_values", 'missing_values must be a list, such as ["?", -999]')
    if schema.missing not in (None, "centre", "fill", "pairwise"):
        reason = f'missing, of all columns, must be "centre", "fill" or "pairwise", not {schema.missing!r}'
        yield Mistake(None, "missing", reason)
    wrong = [
        Mistake(index, key, reason)
        for index, column in enumerate(schema.columns)
        for key, reason in _mistakes_of(column, schema.scale)
    ]
    yield from wrong
    before: dict[str, int] = {}
    for index, column in enumerate(schema.columns):
        if column.name in before:
            location = (
                f"line {schema.lines[before[column.name]]}" if schema.lines else f"column {before[column.name] + 1}"
            )
            reason = f"an earlier column has the same name ({location})"
            if column.source is not column:
                reason = f"the bins of {column.source.name!r} have this name, and so has another column: rename that"
            yield Mistake(index, "name", reason)
        before.setdefault(column.name, index)
    yield from _of_units(schema)
    if not wrong:
        yield from _of_features(schema.columns)


def _of_features(columns: Sequence[Column]) -> Iterator[Mistake]:
    width = sum(column.width for column in columns)
    if width > MOST_FEATURES:
        yield Mistake(None, None, f"it describes {width} columns of rows, and the limit is {MOST_FEATURES}")
    elif width < 2 and not any(column.bins for column in columns):  # whose category is derived next
        yield Mistake(None, None, f"it describes {counted(width, 'column')} of rows, and a table needs at least two")
    elif twice := repeated(visible(name) for column in columns for name in column.features):
        yield Mistake(None, None, f"several columns of the rows would have the name {listed(twice)}")


def _of_units(schema: Parts) -> Iterator[Mistake]:
    max_rows, units = schema.max_rows, any(column.kind == "privacy unit" for column in schema.columns)
    own, each_row = "each_row_is_a_person", schema.each_row_is_a_person
    if each_row == "" and not units:
        yield Mistake(None, own, f"{own} is blank: {WHOSE}")
    elif each_row != "" and not isinstance(each_row, bool):
        yield Mistake(None, own, f"{own} must be true or false")
    elif each_row and units:
        yield Mistake(None, own, f"{own} contradicts the privacy unit: a person may have several rows, or not")
    if max_rows is not None and (
        not isinstance(max_rows, int) or isinstance(max_rows, bool) or not 1 <= max_rows <= 2**20
    ):
        yield Mistake(None, "max_rows", f"max_rows must be a whole number from 1 to {2**20}")
    if max_rows is not None and not units:
        yield Mistake(None, "max_rows", "max_rows needs a privacy unit, and no column has this kind")
    if schema.keep not in get_args(Keep):
        yield Mistake(None, "keep", 'keep must be "first" or "random": it selects the rows kept of a privacy unit')
    elif schema.keep != "first" and not units:
        yield Mistake(None, "keep", "keep needs a privacy unit, and no column has this kind")


def _mistakes_of(column: Column, scale: str) -> Iterator[tuple[str | None, str]]:
    if not isinstance(column.name, str) or not column.name or has_control(column.name):
        yield "name", "the name must be text without control or invisible characters"
    if column.kind not in tuple(_TAKES):  # it may have any type, such as list
        yield "kind", f"kind must be one of {', '.join(_TAKES)}, not {column.kind!r}"
        return
    properties, takes = column.given, _TAKES[column.kind]
    wrong: list[tuple[str | None, str]] = [
        (key, f"{key} is not permitted for a column of the kind {column.kind!r}")
        for key in properties
        if key not in takes
    ]
    for key in ("range", "unit", "origin", "format", "fill", "bins"):
        value = properties.get(key)
        values = value if isinstance(value, tuple) else (value,)
        if any(isinstance(entry, str) and has_control(entry) for entry in values):
            wrong.append((key, f"{key} contains a control or invisible character"))
    wrong += _wrong_words({key: value for key, value in properties.items() if key in takes})
    wrong += _wrong_range(column, scale) if "range" in takes else ()
    wrong += _wrong_bins(column) if column.bins is not None and "bins" in takes and not wrong else ()
    wrong += _wrong_categories(column) if "categories" in takes else ()
    yield from wrong or _wrong_fill(column)


def _wrong_words(properties: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, choices in _WORDS.items():
        if key in properties and properties[key] not in choices:
            yield key, f"{key} must be one of {', '.join(choices)}, not {properties[key]!r}"
    codes = properties.get("missing_values", ("?",))
    sound = isinstance(codes, tuple) and all(isinstance(code, str) and code.strip() == code for code in codes)
    if not sound or not codes:
        yield "missing_values", 'missing_values must be a list of text in quotes, or of numbers, such as ["?", -999]'
    weight = properties.get("weight", 1.0)
    if not isinstance(weight, float) or not 1 / _HEAVIEST <= weight <= _HEAVIEST:
        yield "weight", f"weight must be a number from {1 / _HEAVIEST:g} to {_HEAVIEST:g}, not {weight!r}"
    if "origin" in properties and not _is_date(properties["origin"]):
        yield "origin", f"origin must be a date such as 2020-01-31, not {properties['origin']!r}"
    if "format" in properties:
        yield from (("format", reason) for reason in _wrong_format(properties["format"]))


def _wrong_format(text: object) -> Iterator[str]:
    """Yield mistakes in the format of a date, such as directives that are parsed but do not determine it."""
    parts = _DIRECTIVE.findall(text) if isinstance(text, str) else []
    components = [_SAME.get(letter, letter) for part in parts for letter in _MADE_OF.get(part, part)]
    present = set(components)
    if not parts:
        yield 'format must be the format of a date, such as "%d.%m.%Y"'
    elif unknown := [f"%{part}" for part in parts if part not in set(DIRECTIVES)]:
        directives = ", ".join(f"%{letter}" for letter in DIRECTIVES)
        yield f"format contains {listed(unknown)}, which does not determine a date: use only {directives}"
    elif twice := repeated(components):
        yield f"format contains the same value twice: %{', %'.join(twice)}"
    elif "Y" not in present:
        yield "format contains no year: add %Y, or %y for two digits"
    elif ("j" in present and present & {"m", "d"}) or ("d" in present and "m" not in present):
        yield "format must contain the day of the month, %m and %d, or of the year, %j"
    elif "a" in present and not present & {"d", "j"}:
        yield "format contains a weekday but no day: add %m and %d, or %j"
    elif ("I" in present) != ("p" in present) or {"H", "I"} <= present:
        yield "format must contain the hour as %H, or as %I with %p"


def _is_date(value: object) -> bool:
    try:
        return isinstance(value, str) and instant(value) is not None
    except (ValueError, OverflowError):
        return False


def _is_number(value: object) -> bool:
    return isinstance(value, float) and abs(value) <= _LARGEST


def _wrong_range(column: Column, scale: str) -> Iterator[tuple[str | None, str]]:
    if column.other == "column":
        yield "other", 'other = "column" is for categories: use "refuse" or "missing"'
    ends, dated = column.range, column.kind == "date"
    example = "[2000-01-01, 2030-12-31]" if dated else "[0, 120]"
    if ends is None:
        if scale == "range":
            yield None, f'scale = "range" needs a range, such as range = {example}, from public knowledge'
        return
    if ends == ():
        or_none = "" if scale == "range" else "; or remove it"
        yield (
            "range",
            f"range is blank: fill it in from public knowledge, such as {example}, never from the data{or_none}",
        )
        return
    sound = isinstance(ends, tuple) and len(ends) == 2 and all(map(_is_date if dated else _is_number, ends))
    if not sound:
        yield "range", f"range must be {'two dates' if dated else 'two numbers'}, such as {example}"
    elif (instant(ends[0]) >= instant(ends[1])) if dated else ends[0] >= ends[1]:
        yield "range", f"range must have a positive width, not {shown(ends[0])} to {shown(ends[1])}"
    elif column.kind == "integer" and max(map(abs, ends)) > LARGEST_WHOLE:
        yield "range", "range must be within 2^53: float64 does not represent larger whole numbers exactly"


def _wrong_bins(column: Column) -> Iterator[tuple[str, str]]:
    """Yield mistakes in the edges of bins; the range is sound."""
    edges, dated = column.bins, column.kind == "date"
    example = "[2010-01-01, 2020-01-01]" if dated else "[18, 30, 50, 65]"
    if edges == ():
        yield "bins", f"bins is blank: fill it in from public knowledge, such as {example}, never from the data"
        return
    if not isinstance(edges, tuple) or not all(map(_is_date if dated else _is_number, edges)):
        yield "bins", f"bins must be a list of {'dates' if dated else 'numbers'}, such as {example}"
        return
    numbers = [column.number_of(edge) for edge in edges]
    if any(low >= high for low, high in pairwise(numbers)):
        yield "bins", "bins must be in increasing order, each edge once"
    if column.kind == "integer" and any(not edge.is_integer() for edge in numbers):
        yield "bins", "the bins of whole numbers must begin with whole numbers"
    if column.range is not None:
        low, high = map(column.number_of, column.range)
        if not low <= numbers[0] <= numbers[-1] <= high:
            yield "bins", f"bins must begin within the range, {shown(column.range[0])} to {shown(column.range[1])}"
    if len(numbers) < 2 and column.range is not None and numbers[0] == column.number_of(column.range[0]):
        yield "bins", "bins has only the low end of the range, and needs an edge between two bins"


def _wrong_categories(column: Column) -> Iterator[tuple[str | None, str]]:
    categories = column.categories
    if categories is None or categories == ():
        reason = 'categories is blank: fill it in from public knowledge, such as ["yes", "no"], never from the data'
        yield "categories", reason
        return
    if not isinstance(categories, tuple) or not all(isinstance(name, str) for name in categories):
        yield "categories", "categories must be a list of names in quotes, or of whole numbers"
        return
    if any(name != name.strip() or not name or has_control(name) for name in categories):
        yield (
            "categories",
            "a category must not be empty, have outer spaces, or contain control or invisible characters",
        )
    if twice := repeated(map(visible, categories)):
        yield "categories", f"duplicate categories: {listed(twice)}"
    if column.encoding == "ordinal" and column.other == "column":
        yield "other", 'other = "column" is for one-hot columns: use "refuse" or "missing"'
    if column.encoding == "ordinal" and len(categories) < 2:
        yield "categories", "ordinal encoding needs at least two categories"


def _wrong_fill(column: Column) -> Iterator[tuple[str | None, str]]:
    if column.one_hot and column.missing in {"centre", "pairwise"}:
        reason = f'missing = "{column.missing}" is for numbers: use "indicator", which counts missing as a category'
        yield "missing", reason
    if column.kind == "boolean" and column.missing == "centre":  # its public middle is not where its values are
        yield "missing", 'missing = "centre" is for numbers: use "indicator", which counts missing as a category'
    if column.fill is None:
        if column.missing == "fill" and (column.ends is None or column.kind not in {"number", "integer", "date"}):
            yield "missing", 'missing = "fill" needs fill, a public constant, or a range, whose middle it then is'
        return
    if column.missing not in {"fill", "indicator"}:
        yield "fill", 'fill is for missing = "fill" or "indicator"'
    sound = {
        "boolean": isinstance(column.fill, bool),
        "category": column.fill in (column.categories or ()),
        "date": _is_date(column.fill),
    }.get(column.kind, _is_number(column.fill))
    if not sound:
        forms = {"boolean": "true or false", "category": "one of its categories", "date": "a date"}
        yield "fill", f"fill must be {forms.get(column.kind, 'a number')}"
        return
    ends = column.ends
    if ends is not None and not column.one_hot and not ends[0] <= column.value_of(column.fill) <= ends[1]:
        yield "fill", "fill must be within the range"
    if column.transform == "log" and column.number_of(column.fill) < column.low:
        yield "fill", f"fill must be at least {shown(column.low)}, where the logarithm begins"
    if column.kind == "integer" and not (column.fill.is_integer() and abs(column.fill) < LARGEST_WHOLE):
        yield "fill", "fill must be a whole number, below 2^53"
