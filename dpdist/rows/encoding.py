"""Columns as a source holds them -> rows of numbers, as a schema says: each row by itself, whatever is around it.

The claim rests on that (:mod:`dpdist.rows.schema`). So nothing here is counted, compared or remembered over rows, and
what a row becomes does not depend on the piece that it comes in. A value that cannot be used refuses the source; the
refusal names row and column, and never the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpdist._util.frames import as_frame
from dpdist._util.text import counted
from dpdist.errors import DataError, UsageError, quiet
from dpdist.naming import step
from dpdist.rows.columns import LARGEST_WHOLE, SECONDS, Column
from dpdist.rows.schema import Schema
from dpdist.rows.schema_mistakes import NOT_NUMBERS, all_of
from dpdist.rows.units import spelled

Rows = npt.NDArray[np.float64]
_Mask = npt.NDArray[np.bool_]
_PIECE = 8 << 20
# words are made an Arrow array where they are used: to make one, Arrow imports pandas, whoever has no schema
MISSING_WORDS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
"""Cells of text that hold no value, unless a category is called so."""
_TRUE = ("true", "True", "TRUE", "yes", "Yes", "YES", "1", "1.0")
_FALSE = ("false", "False", "FALSE", "no", "No", "NO", "0", "0.0")
_US = 1_000_000
_PLAIN = {
    "%F": "%Y-%m-%d", "%D": "%m/%d/%y", "%T": "%H:%M:%S", "%R": "%H:%M", "%e": "%d", "%h": "%b", "%n": " ", "%t": " ",
}  # fmt: skip
"""What Python does not know of the parts of a date."""
_DIGITS = re.compile(r"\d+")
NO_NUMBER = "the cell is not a number"
_UUID: Any = getattr(pa, "UuidType", ())
"""Arrow has it from version 18 on."""
_TOLD = 20
"""Columns of which a message tells what is wrong."""


class Fault(NamedTuple):
    """A value that cannot be used: its row, from 0, in what was given, its column, and what is wrong, without it."""

    row: int
    column: str
    said: str


class UnfitError(Exception):
    """Values that cannot be used."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*faults)
        self.faults = sorted(faults, key=lambda fault: fault.row)

    def after(self, rows: int) -> UnfitError:
        """Return the same behind so many rows."""
        return UnfitError(*(fault._replace(row=rows + fault.row) for fault in self.faults))

    def told(self, source: str, where: Callable[[int], str], cure: str) -> DataError:
        """Return the refusal of the source, where a row is named by its number."""
        said = [f"{where(row)}, column {column!r}: {what}" for row, column, what in self.faults[:_TOLD]]
        more = len(self.faults) - len(said)
        rest = f"; and of {counted(more, 'other column')}" if more else ""
        hint = ""
        if any(what == NO_NUMBER for _, _, what in self.faults):
            hint = f" (a column that holds no numbers has, in place of kind and range, {NOT_NUMBERS}; "
            hint += 'words for missing values are listed, missing_values = ["?"])'
        shown = f"{source}, {'; '.join(said)}{rest}"
        return DataError(f"{shown}. Correct what the schema says{hint}, or {cure[0].lower()}{cure[1:]}")


def _is_text(kind: Any) -> bool:
    """Say whether it is text, or bytes, as some write text."""
    types = pa.types
    views = types.is_string_view(kind) or types.is_binary_view(kind)
    text = types.is_string(kind) or types.is_large_string(kind)
    return bool(views or text or types.is_binary(kind) or types.is_large_binary(kind))


def _is_numeric(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_time(kind: Any) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def takes(column: Column, kind: Any) -> bool:
    """Say whether a column of a stored type, as Arrow calls it, can be of the kind that the schema says."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if _is_text(kind) or pa.types.is_null(kind) or column.kind == "ignored":
        return True
    if column.kind == "date":
        return _is_time(kind)
    if isinstance(kind, _UUID):
        return column.kind in {"privacy unit", "category"}
    if column.kind == "privacy unit":
        return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale <= 0))
    return bool(_is_numeric(kind) or pa.types.is_boolean(kind))


def require_types(schema: Schema, kinds: Mapping[str, Any]) -> None:
    """Refuse a source whose stored types are not of the kinds that a schema says."""
    wrong = [
        f"{schema.where(place)}: it is stored as {kinds[column.name]}, which cannot be of the kind {column.kind!r}"
        for place, column in enumerate(schema.columns)
        if column.name in kinds and not takes(column, kinds[column.name])
    ]
    if wrong:
        raise UsageError(all_of("The schema", wrong, "does not fit the source"))


def kind_of(stored: Any) -> str:
    """Return the kind of column that a stored type suggests."""
    stored = stored.value_type if pa.types.is_dictionary(stored) else stored
    if pa.types.is_boolean(stored):
        return "boolean"
    if pa.types.is_integer(stored):
        return "integer"
    if _is_numeric(stored):
        return "number"
    if _is_time(stored):
        return "date"
    return "category" if _is_text(stored) else "ignored"


def encoded(schema: Schema, columns: Mapping[str, Any], rows: int) -> Iterator[Rows]:
    """Yield the rows of numbers, in pieces of about 8 MiB, C-ordered float64 of shape (r, d)."""
    step = max(1, _PIECE // (8 * len(schema.features)))
    for start in range(0, rows, step):
        piece = {name: column.slice(start, step) for name, column in columns.items()}
        try:
            encoded_piece = _piece(schema, piece, min(step, rows - start))
        except UnfitError as error:
            raise error.after(start) from None
        yield encoded_piece


def _piece(schema: Schema, columns: Mapping[str, Any], rows: int) -> Rows:
    out = np.zeros((rows, len(schema.features)))
    dropped = np.zeros(rows, dtype=np.bool_)
    wrong: list[Fault] = []
    place = 0
    for column in schema.columns:
        if not column.stored:
            continue
        try:
            lacking = _fill(schema, column, columns[column.name], out[:, place : place + column.width])
        except UnfitError as error:
            wrong += error.faults
        else:
            if column.missing == "drop":
                dropped |= lacking
        place += column.width
    if wrong:
        raise UnfitError(*wrong)
    out[dropped] = np.nan  # a release takes it for the centre of the others, and no histogram counts it
    return out


def _fill(schema: Schema, column: Column, found: Any, out: Rows) -> _Mask:
    """Write what a column gives, and return where it is missing."""
    values, lacking = _READ[column.kind](column, _plain(column, found))
    if lacking.any() and column.missing in {None, "refuse"}:
        raise _unfit(
            lacking, column, 'the value is missing: say what becomes of it (missing = "fill", "indicator" or "drop")'
        )
    low, high, shift, factor = schema.affine(column)
    values = np.where(lacking, schema.filled(column), values)
    if column.one_hot:
        known = values >= 0
        out[known, values[known].astype(np.int64)] = factor
    else:
        finite = np.isfinite(np.clip(values, low, high))
        if not finite.all():
            raise _unfit(~finite, column, "the value is not finite, and the schema says no range to clip it to")
        out[:, 0] = (np.clip(values, low, high) - shift) * factor
    if column.indicated:
        out[lacking, -1] = column.weight or 1.0
    return lacking


def _plain(column: Column, found: Any) -> Any:
    """Return a column without its dictionary, of a type that its kind can have."""
    if pa.types.is_dictionary(found.type):  # Arrow decodes none of views of strings
        words = found.dictionary
        found = (words.cast(pa.string()) if pa.types.is_string_view(words.type) else words).take(found.indices)
    if not takes(column, found.type):
        raise UnfitError(Fault(0, column.name, f"from here on there is {found.type}, which is no {column.kind}"))
    if isinstance(found.type, _UUID):
        found = pa.array([None if each is None else str(each) for each in found.to_pylist()], pa.string())
    if not _is_text(found.type):
        codes = _codes(column, found.type) if column.missing_values else []
        return pc.if_else(pc.is_in(found, pa.array(codes, found.type)), None, found) if codes else found
    text = _parsed(column, found, _valid, "the cell is not UTF-8 text")
    if column.missing_values:
        lacking = pc.is_in(_without_point(pc.utf8_trim_whitespace(text)), pa.array(column.missing_values))
        text = pc.if_else(lacking, pa.scalar(None, text.type), text)
    return text


def _codes(column: Column, kind: Any) -> list[Any]:
    """Return the missing values of a column that its stored type can hold."""
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return []
    dates = column.kind == "date"
    found = []
    for code in column.missing_values if dates else column.codes:
        with suppress(pa.ArrowException):
            value = _iso(pa.array([code])) if dates else pa.array([code])
            found += pc.cast(value, kind).to_pylist()
    return found


def _valid(text: Any) -> Any:
    """Return text; ArrowInvalid if it is not UTF-8, which Parquet files need not hold."""
    text = text.cast(pa.large_string() if pa.types.is_large_binary(text.type) else pa.string())
    text.validate(full=True)
    return text


def _unfit(wrong: _Mask, column: Column, said: str) -> UnfitError:
    return UnfitError(Fault(int(np.argmax(wrong)), column.name, said))


def _text(found: Any) -> tuple[Any, Any]:
    """Return text without spaces around it, and where no value is, as Arrow arrays."""
    text = pc.utf8_trim_whitespace(found)
    return text, pc.or_kleene(pc.is_null(text), pc.fill_null(pc.is_in(text, pa.array(MISSING_WORDS)), True))


def _values_of_text(found: Any) -> Any:
    """Return text without spaces around it, null where no value is."""
    text, absent = _text(found)
    return pc.if_else(absent, pa.scalar(None, text.type), text)


def _without_point(text: Any) -> Any:
    """Return 1.0 as 1: so do tables write whole numbers of a column with gaps."""
    return pc.replace_substring_regex(text, r"^([+-]?\d+)\.0+$", r"\1")


def _flags(found: Any) -> _Mask:
    flags: _Mask = found.to_numpy(zero_copy_only=False)
    return flags


def _parsed(column: Column, text: Any, parse: Callable[[Any], Any], said: str) -> Any:
    """Return text as numbers or times; UnfitError names the first that is none."""

    def attempted(part: Any) -> Any:
        with quiet(), suppress(pa.ArrowException):  # it quotes the cell
            return parse(part)
        return None

    found = attempted(text)
    if found is not None:
        return found
    low, high = 0, len(text) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if attempted(text.slice(low, middle + 1 - low)) is None else (middle + 1, high)
    raise UnfitError(Fault(low, column.name, said))


def _numbers(column: Column, found: Any) -> tuple[Rows, _Mask]:
    if _is_text(found.type):
        found = _parsed(column, _values_of_text(found), lambda part: pc.cast(part, pa.float64()), NO_NUMBER)
    elif pa.types.is_boolean(found.type):
        found = found.cast(pa.uint8())
    values = floats(found).to_numpy(zero_copy_only=False)
    if codes := column.codes:
        values = np.where(np.isin(values, codes), np.nan, values)
    lacking = np.isnan(values)  # nulls are NaN there
    if column.kind == "integer":
        whole = lacking | (values == np.trunc(values))
        if not whole.all():
            raise _unfit(~whole, column, "the value is not a whole number")
        # a range ends where float64 holds every whole number, and what is beyond is clipped to it
        large = (column.range is None) & np.isfinite(values) & (np.abs(values) >= LARGEST_WHOLE)
        if large.any():
            said = "the value is 2^53 or beyond, where float64 holds not every whole number: give the column a range"
            raise _unfit(large, column, f'{said}, or make it a "number", which is rounded, or a "privacy unit"')
    return values, lacking


def floats(found: Any) -> Any:
    """Return numbers as float64; decimals by their text, because Arrow itself rounds 15.000000000 to another number."""
    if pa.types.is_decimal(found.type):
        found = pc.cast(found, pa.string())
    return pc.cast(found, pa.float64(), safe=False)


def holds_numbers(found: Any) -> bool:
    """Say whether a column of text holds numbers, or nothing, in each cell."""
    try:
        _numbers(Column("", "number"), found)
    except UnfitError:
        return False
    return True


def _booleans(column: Column, found: Any) -> tuple[Rows, _Mask]:
    if not _is_text(found.type):
        values, lacking = _numbers(column, found)
        sound = lacking | (values == 0) | (values == 1)
    else:
        text, absent = _text(found)
        lacking, true = _flags(absent), _flags(pc.is_in(text, pa.array(_TRUE)))
        values = true.astype(np.float64)
        sound = lacking | true | _flags(pc.is_in(text, pa.array(_FALSE)))
    if not sound.all():
        raise _unfit(
            ~sound, column, "the value is neither true nor false, yes nor no, 1 nor 0: make the column a category"
        )
    return values, lacking


def _names(found: Any) -> Any:
    """Return values as the text by which categories are listed: whole numbers without a point."""
    if pa.types.is_null(found.type):
        return found.cast(pa.string())
    if pa.types.is_decimal(found.type) or pa.types.is_floating(found.type):
        if pa.types.is_floating(found.type):
            found = pc.add(pc.cast(found, pa.float64(), safe=False), 0.0)  # -0 is 0
        values = found.to_pylist()  # every digit of a decimal names
        return pa.array([None if each is None else _name_of(each) for each in values], pa.string())
    return found if _is_text(found.type) else found.cast(pa.string())


def _name_of(value: float | Decimal) -> str | None:
    if not math.isfinite(value):
        return None
    return f"{value:.0f}" if value == math.trunc(value) else repr(float(value))


def _categories(column: Column, found: Any) -> tuple[Rows, _Mask]:
    text, absent = _text(_names(found))
    names = pa.array(column.categories, text.type)
    places = pc.coalesce(pc.index_in(text, names), pc.index_in(_without_point(text), names))
    lacking = _flags(pc.and_(absent, pc.is_null(places)))  # of a category that is called like nothing it is the name
    values = pc.fill_null(places, -1).to_numpy(zero_copy_only=False).astype(np.float64)
    unknown = (values < 0) & ~lacking
    if unknown.any() and column.other in {None, "refuse"}:
        said = "the value is none of the categories that the schema lists, nor does it provide for others (other)"
        raise _unfit(unknown, column, said)
    values[unknown] = len(column.categories)
    return values, lacking | unknown if column.other == "missing" else lacking


def _dates(column: Column, found: Any) -> tuple[Rows, _Mask]:
    said = "the cell is not a date of the form " + (
        '2026-01-31, or 2026-01-31 12:00:00; a column that writes it otherwise says how, such as format = "%d.%m.%Y"'
        if column.format is None
        else column.format
    )
    if pa.types.is_null(found.type):
        found = found.cast(pa.string())
    if _is_text(found.type):
        text = _values_of_text(found)
        if column.format is None:
            found = _parsed(column, text, _iso, said)
        else:
            found = _parsed(column, text, lambda part: pc.strptime(part, format=column.format, unit="us"), said)
            _require_days(column, column.format, text, found, said)
    else:
        given = found
        found = pc.cast(given, pa.timestamp("us", getattr(given.type, "tz", None)), safe=False)
        finer = pa.types.is_timestamp(given.type) and given.type.unit == "ns"
        if not finer and not (back := pc.cast(found, given.type, safe=False)).equals(given):
            wrong = _flags(pc.fill_null(pc.not_equal(back, given), False))
            raise _unfit(wrong, column, "the date is more than 290,000 years away; is it a mark of a missing value?")
    instants = pc.cast(found, pa.int64())
    lacking = _flags(pc.is_null(instants))
    values = pc.fill_null(instants, 0).to_numpy(zero_copy_only=False).astype(np.float64)
    first = column.number_of("1970-01-01")  # before any scale
    return values / (_US * SECONDS[column.unit or "days"]) + first, lacking


def _iso(text: Any) -> Any:
    """Return dates of ISO 8601 as times of UTC; those that say no zone are of UTC."""
    try:
        return pc.cast(text, pa.timestamp("us"))
    except pa.ArrowInvalid:
        return pc.cast(pc.cast(text, pa.timestamp("us", "UTC")), pa.timestamp("us"))


def _require_days(column: Column, form: str, text: Any, found: Any, said: str) -> None:
    """Refuse a day that its month or year does not have: Arrow reads 31 February as 3 March, or day 366 as 1 January.

    Such a day is found at the start of a month, or, with an offset from UTC, the day before. The texts of these are
    read again by Python, which counts days.
    """
    day = pc.day(found)
    early = pc.or_(pc.less_equal(day, 3), pc.greater_equal(day, 28)) if "%z" in form else pc.less_equal(day, 3)
    for parts, plain in _PLAIN.items():
        form = form.replace(parts, plain)
    with quiet():  # it quotes the cell
        for each in pc.unique(pc.drop_null(text.filter(early))).to_pylist():
            try:
                read = datetime.strptime(each, form)  # noqa: DTZ007 - only whether there is such a day
                sound = "%j" not in form or "366" not in _DIGITS.findall(each) or f"{read:%j}" == "366"
            except ValueError:
                sound = False
            if not sound:
                raise _unfit(_flags(pc.equal(text, each)), column, said)


_READ: dict[str, Callable[[Column, Any], tuple[Rows, _Mask]]] = {
    "number": _numbers, "integer": _numbers, "boolean": _booleans, "category": _categories, "date": _dates,
}  # fmt: skip


def units_of(schema: Schema, columns: Mapping[str, Any], key: bytes) -> npt.NDArray[np.uint64]:
    """Return the privacy unit of every row: keyed digests of 128 bits, shape (r, 2).

    Several columns say together whose row it is. Text counts as :func:`dpdist.rows.units.spelled`.
    """
    parts = []
    for column in schema.columns:
        if column.kind != "privacy unit":
            continue
        text, absent = _text(_names(_plain(column, columns[column.name])))
        if (lacking := _flags(absent)).any():
            raise _unfit(lacking, column, "the privacy unit is missing: it is not said whose row it is")
        coded = pc.cast(text, pa.string()).dictionary_encode()
        text = pa.array([spelled(name) for name in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)
        parts += [pc.cast(pc.binary_length(text), pa.string()), text]
    # with its length before each part, no two units are written alike
    whole = pc.binary_join_element_wise(*parts, ":").dictionary_encode()
    names = whole.dictionary.to_pylist()
    digests = b"".join(blake2b(name.encode(), digest_size=16, key=key).digest() for name in names)
    places: npt.NDArray[np.int32] = whole.indices.to_numpy(zero_copy_only=False)
    return np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)[places]


# --- tables in memory -------------------------------------------------------------------------------------------------


def columns_of(frame: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return columns of a pandas DataFrame as Arrow arrays, by name."""
    found = {}
    labels = list(map(str, frame.columns))
    for name in names:
        column = None
        with quiet(), suppress(pa.ArrowException, TypeError, ValueError, OverflowError):  # they quote a cell
            given = frame.iloc[:, labels.index(name)]
            column = pa.Array.from_pandas(given)
        days = column is not None and pa.types.is_date(column.type) and given.dtype == object
        if column is None or (days and any(isinstance(each, datetime) for each in given)):  # Arrow cuts hours off
            raise UnfitError(Fault(0, name, "from here on there are values of several types"))
        found[name] = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return found


def types_of(frame: Any) -> dict[str, Any]:
    """Return the Arrow types of the columns of a pandas DataFrame, of text where only the values tell; none is read."""
    return {str(name): _type_of(kind) for name, kind in zip(frame.columns, frame.dtypes, strict=True)}


def _type_of(kind: Any) -> Any:
    name = str(kind).lower()
    none = pa.duration("us")  # no kind of column takes it
    for words, stored in (
        ("datetime64", pa.timestamp("us")), (("complex", "timedelta", "period", "interval"), none),
        ("bool", pa.bool_()), (("int", "uint"), pa.int64()), ("float", pa.float64()),
    ):  # fmt: skip
        if name.startswith(words):
            return stored
    return pa.string()


def transformed(schema: Schema, frame: Any) -> Any:
    """Return what :meth:`dpdist.Schema.transform` does."""
    frame = as_frame(frame)
    if not (hasattr(frame, "iloc") and hasattr(frame, "columns")):
        raise UsageError(
            "A schema transforms a DataFrame of pandas or polars, or a table of Arrow, not a value of type "
            f"{type(frame).__name__}."
        )
    if schema.unit is not None:
        raise UsageError(
            "The schema has a privacy unit, and rows of numbers do not tell whose they are: what is fitted to them "
            f"would protect each row by itself. Write the DataFrame with {step('ingest')} and the schema, and fit the "
            "rows."
        )
    schema.places(list(map(str, frame.columns)))
    require_types(schema, types_of(frame))
    wanted = [column.name for column in schema.columns if column.stored]
    try:
        blocks = list(encoded(schema, columns_of(frame, wanted), len(frame)))
    except UnfitError as error:
        raise error.told("The DataFrame", lambda row: f"row {row} (counting from 0)", "Mend it there.") from None
    rows = np.concatenate(blocks) if blocks else np.empty((0, len(schema.features)))
    return type(frame)(rows, index=frame.index, columns=list(schema.features))
