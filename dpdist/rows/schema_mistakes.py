"""What can be wrong in a schema: all of it is found at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, get_args

from dpdist._util.text import counted, has_control, listed, repeated
from dpdist.rows.columns import DIRECTIVES, LARGEST_WHOLE, SECONDS, Column, instant, shown
from dpdist.rows.units import Keep

FORMAT = "dpdist-schema/1"
MOST_FEATURES = 1 << 20
"""Columns of rows at most, as of any source."""
_VALUES = {"missing_values", "missing", "fill", "weight"}
_TAKES = {
    "number": {*_VALUES, "range"},
    "integer": {*_VALUES, "range"},
    "boolean": _VALUES,
    "category": {*_VALUES, "categories", "encoding", "other"},
    "date": {*_VALUES, "range", "unit", "origin", "format"},
    "ignored": set[str](),
    "privacy unit": {"missing_values"},
}
"""Kinds of columns, and the keys that each takes."""
_WORDS = {
    "missing": ("refuse", "fill", "drop", "indicator"),
    "other": ("refuse", "column", "missing"),
    "encoding": ("one-hot", "ordinal"),
    "unit": tuple(SECONDS),
}
OWN: dict[str, Any] = {"scale": "none", "others": "refuse", "max_rows": None, "keep": "first", "missing_values": None}
"""Keys of a schema besides its columns, and their defaults."""
_DIRECTIVE = re.compile(r"%([EO_0^#-]*\d*.?)", re.DOTALL)
_MADE_OF = {"F": "Ymd", "D": "mdy", "T": "HMS", "R": "HM", "n": "", "t": "", "%": ""}
_SAME = {"y": "Y", "e": "d", "b": "m", "B": "m", "h": "m", "A": "a"}
NOT_NUMBERS = (
    'kind = "category" and categories = ["...", "..."], or kind = "date" and range = [2000-01-01, 2030-12-31], or '
    'kind = "ignored"'
)
"""Lines for a column that is drafted as a number and is none. They are examples: they hold nothing of the data."""
_LARGEST = 1e100
"""Of the ends of ranges, of constants and weights: far from the ends of float64."""


class Mistake(NamedTuple):
    """What is wrong in a schema."""

    column: int | None  # its number, from 0; None: it is about the schema as a whole
    key: str | None
    said: str  # without a full stop


class Parts(NamedTuple):
    """What a schema says, right or wrong."""

    columns: Sequence[Column]
    scale: Any
    others: Any
    max_rows: Any
    keep: Any
    missing_values: Any
    lines: Sequence[int]


def all_of(where: str, wrong: Sequence[str], what: str = "cannot be used") -> str:
    """Return a message of all that is wrong."""
    if len(wrong) == 1:
        return f"{where} {what}: {wrong[0]}."
    return f"{where} {what}, for {len(wrong)} reasons. " + " ".join(
        f"({at}) {said}." for at, said in enumerate(wrong, 1)
    )


def said_of(mistake: Mistake, columns: Sequence[Column]) -> str:
    """Return a mistake as part of a sentence, with the column that it is in."""
    return mistake.said if mistake.column is None else f"column {columns[mistake.column].name!r}: {mistake.said}"


def parts_of(content: Mapping[str, Any]) -> tuple[list[Mistake], list[Column]]:
    """Return the columns of parsed content, and what is wrong of its form: keys, and entries that are no columns."""
    wrong = [
        Mistake(None, key, f"there is no key {key!r}: its keys are {', '.join(OWN)} and [[column]]")
        for key in content
        if key not in {*OWN, "format", "columns", "column"}
    ]
    if "column" in content and "columns" in content:
        wrong.append(Mistake(None, "columns", "columns and column are one and the same: write one of them"))
    if content.get("format", FORMAT) != FORMAT:
        wrong.append(Mistake(None, "format", f"its format is not {FORMAT}: another version of dpdist made it"))
    entries = content.get("columns", content.get("column", []))
    columns = []
    keys = [each.name for each in fields(Column)]
    for place, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        said: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
        wrong += [Mistake(place, None, f"it needs {needed!r}") for needed in ("name", "kind") if needed not in said]
        for key in said:
            if key in OWN and key not in keys:
                wrong.append(Mistake(place, key, f"{key} is about all columns: write it above the first of them"))
            elif key not in keys:
                wrong.append(Mistake(place, key, f"there is no key {key!r}: its keys are {', '.join(keys)}"))
        kept = {"name": "?", "kind": "?"} | {key: value for key, value in said.items() if key in keys}
        if not isinstance(kept["name"], str):
            kept["name"] = "?"
            wrong.append(Mistake(place, "name", "its name must be text in quotes"))
        columns.append(Column(**kept))
    return wrong, columns


def mistakes(schema: Parts) -> Iterator[Mistake]:
    """Yield all that is wrong in a schema."""
    if schema.scale not in ("none", "range"):
        yield Mistake(None, "scale", f'scale must be "none" or "range", not {schema.scale!r}')
    if schema.others not in ("refuse", "ignored"):
        yield Mistake(None, "others", f'others must be "refuse" or "ignored", not {schema.others!r}')
    if schema.missing_values is not None and not isinstance(schema.missing_values, list | tuple):
        yield Mistake(None, "missing_values", 'missing_values must be a list, such as ["?", -999]')
    wrong = [
        Mistake(place, key, said)
        for place, column in enumerate(schema.columns)
        for key, said in _mistakes_of(column, schema.scale)
    ]
    yield from wrong
    before: dict[str, int] = {}
    for place, column in enumerate(schema.columns):
        if column.name in before:
            at = f"line {schema.lines[before[column.name]]}" if schema.lines else f"column {before[column.name] + 1}"
            yield Mistake(place, "name", f"there is a column of this name before ({at})")
        before.setdefault(column.name, place)
    yield from _of_units(schema)
    if not wrong:
        yield from _of_features(schema.columns)


def _of_features(columns: Sequence[Column]) -> Iterator[Mistake]:
    width = sum(column.width for column in columns)
    if width > MOST_FEATURES:
        yield Mistake(None, None, f"it makes {width} columns, and rows have at most {MOST_FEATURES}")
    elif width < 2:
        yield Mistake(None, None, f"it makes {counted(width, 'column')}, and a table needs two or more")
    elif twice := repeated(name for column in columns for name in column.features):
        yield Mistake(None, None, f"several columns of the rows would be called {listed(twice)}")


def _of_units(schema: Parts) -> Iterator[Mistake]:
    most, units = schema.max_rows, any(column.kind == "privacy unit" for column in schema.columns)
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= 2**20):
        yield Mistake(None, "max_rows", f"max_rows must be a whole number from 1 to {2**20}")
    if units and most is None:
        yield Mistake(None, None, "a privacy unit needs max_rows, the rows of each that are kept at most")
    if most is not None and not units:
        yield Mistake(None, "max_rows", "max_rows is for a privacy unit, and no column is one")
    if schema.keep not in get_args(Keep):
        yield Mistake(None, "keep", 'keep must be "first" or "random": which rows of a privacy unit are kept')
    elif schema.keep != "first" and not units:
        yield Mistake(None, "keep", "keep is for a privacy unit, and no column is one")


def _mistakes_of(column: Column, scale: str) -> Iterator[tuple[str | None, str]]:
    if not isinstance(column.name, str) or not column.name or has_control(column.name):
        yield "name", "its name must be text without control characters"
    if column.kind not in tuple(_TAKES):  # it may be anything, such as a list
        yield "kind", f"kind must be one of {', '.join(_TAKES)}, not {column.kind!r}"
        return
    given, takes = column.given, _TAKES[column.kind]
    wrong: list[tuple[str | None, str]] = [
        (key, f"{key} is nothing that a column of the kind {column.kind!r} has") for key in given if key not in takes
    ]
    for key in ("range", "unit", "origin", "format", "fill"):
        value = given.get(key)
        values = value if isinstance(value, tuple) else (value,)
        if any(isinstance(each, str) and has_control(each) for each in values):
            wrong.append((key, f"{key} holds a control character"))
    wrong += _wrong_words({key: value for key, value in given.items() if key in takes})
    wrong += _wrong_range(column, scale) if "range" in takes else ()
    wrong += _wrong_categories(column) if "categories" in takes else ()
    yield from wrong or _wrong_fill(column)


def _wrong_words(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, words in _WORDS.items():
        if key in given and given[key] not in words:
            yield key, f"{key} must be one of {', '.join(words)}, not {given[key]!r}"
    words = given.get("missing_values", ("?",))
    sound = isinstance(words, tuple) and all(isinstance(each, str) and each.strip() == each for each in words)
    if not sound or not words:
        yield "missing_values", 'missing_values must be a list of words in quotes, or of numbers, such as ["?", -999]'
    weight = given.get("weight", 1.0)
    if not isinstance(weight, float) or not 0 < weight <= _LARGEST:
        yield "weight", f"weight must be a number above 0, not {weight!r}"
    if "origin" in given and not _is_date(given["origin"]):
        yield "origin", f"origin must be a date such as 2020-01-31, not {given['origin']!r}"
    if "format" in given:
        yield from (("format", said) for said in _wrong_format(given["format"]))


def _wrong_format(found: object) -> Iterator[str]:
    """Yield what is wrong with the format of a date: above all, parts that are read and change no date.

    A weekday is one that the date says too.
    """
    parts = _DIRECTIVE.findall(found) if isinstance(found, str) else []
    made = [_SAME.get(each, each) for part in parts for each in _MADE_OF.get(part, part)]
    said = set(made)
    if not parts:
        yield 'format must say how a date is written, such as "%d.%m.%Y"'
    elif unknown := [f"%{part}" for part in parts if part not in set(DIRECTIVES)]:
        known = ", ".join(f"%{each}" for each in DIRECTIVES)
        yield f"format has {listed(unknown)}, from which no date follows; what it may have is {known}"
    elif twice := repeated(made):
        yield f"format says the same twice: %{', %'.join(twice)}"
    elif "Y" not in said:
        yield "format says no year: %Y, or %y of two digits"
    elif ("j" in said and said & {"m", "d"}) or ("d" in said and "m" not in said):
        yield "format must say the day by its month, %m and %d, or by the year, %j"
    elif "a" in said and not said & {"d", "j"}:
        yield "format says a weekday and no day: %m and %d, or %j"
    elif ("I" in said) != ("p" in said) or {"H", "I"} <= said:
        yield "format must say the hour by 24, %H, or by 12 with its half of the day, %I and %p"


def _is_date(value: object) -> bool:
    try:
        return isinstance(value, str) and instant(value) is not None
    except (ValueError, OverflowError):
        return False


def _is_number(value: object) -> bool:
    return isinstance(value, float) and abs(value) <= _LARGEST


def _wrong_range(column: Column, scale: str) -> Iterator[tuple[str | None, str]]:
    found, dated = column.range, column.kind == "date"
    example = "[2000-01-01, 2030-12-31]" if dated else "[0, 120]"
    if found is None:
        if scale == "range":
            yield None, f'scale = "range" needs its range, such as range = {example}, from public knowledge'
        return
    if found == ():
        or_none = "" if scale == "range" else "; or leave it out"
        yield (
            "range",
            f"range is a blank to fill in from public knowledge, such as {example}, and never from the data{or_none}",
        )
        return
    sound = isinstance(found, tuple) and len(found) == 2 and all(map(_is_date if dated else _is_number, found))
    if not sound:
        yield "range", f"range must be {'two dates' if dated else 'two numbers'}, such as {example}"
    elif (instant(found[0]) >= instant(found[1])) if dated else found[0] >= found[1]:
        yield "range", f"range must have a width: it goes from {shown(found[0])} to {shown(found[1])}"
    elif column.kind == "integer" and max(map(abs, found)) > LARGEST_WHOLE:
        yield "range", "range must end at 2^53 at most: beyond, float64 holds not every whole number"


def _wrong_categories(column: Column) -> Iterator[tuple[str | None, str]]:
    found = column.categories
    if found is None or found == ():
        said = 'categories is a blank to fill in from public knowledge, such as ["yes", "no"], and never from the data'
        yield "categories", said
        return
    if not isinstance(found, tuple) or not all(isinstance(each, str) for each in found):
        yield "categories", "categories must be a list of names in quotes, or of whole numbers"
        return
    if any(each != each.strip() or not each or has_control(each) for each in found):
        yield "categories", "a category is no empty text, begins and ends with no space, and holds no control character"
    if twice := repeated(found):
        yield "categories", f"these are listed twice: {listed(twice)}"
    if column.encoding == "ordinal" and column.other == "column":
        yield "other", 'other = "column" is for one-hot columns; take "refuse" or "missing"'
    if column.encoding == "ordinal" and len(found) < 2:
        yield "categories", "places in a list need two categories or more"


def _wrong_fill(column: Column) -> Iterator[tuple[str | None, str]]:
    if column.fill is None:
        if column.missing == "fill":
            yield "missing", 'missing = "fill" needs fill, the public constant'
        return
    if column.missing not in {"fill", "indicator"}:
        yield "fill", 'fill is for missing = "fill" or "indicator"'
    sound = {
        "boolean": isinstance(column.fill, bool),
        "category": column.fill in (column.categories or ()),
        "date": _is_date(column.fill),
    }.get(column.kind, _is_number(column.fill))
    if not sound:
        words = {"boolean": "true or false", "category": "one of its categories", "date": "a date"}
        yield "fill", f"fill must be {words.get(column.kind, 'a number')}"
        return
    ends = column.ends
    if ends is not None and not column.one_hot and not ends[0] <= column.number_of(column.fill) <= ends[1]:
        yield "fill", "fill must lie within the range"
    if column.kind == "integer" and not (column.fill.is_integer() and abs(column.fill) < LARGEST_WHOLE):
        yield "fill", "fill must be a whole number, below 2^53"
