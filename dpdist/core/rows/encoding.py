"""Encodes the columns of a source as rows of numbers by a schema, each row independently of all others.

The proof in :mod:`dpdist.core.rows.schema` relies on that. So nothing here is counted, compared or kept across rows,
and the encoding of a row does not depend on its batch. A value that cannot be used refuses the source; the message
names row and column, but never the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.core.errors import DataError, UsageError, quiet
from dpdist.core.frames import as_frame, is_a, type_name
from dpdist.core.naming import step
from dpdist.core.rows.columns import LARGEST_WHOLE, Binned, Column
from dpdist.core.rows.schema_mistakes import NOT_NUMBERS, all_of
from dpdist.core.rows.units import spelled
from dpdist.core.text import counted, visible

if TYPE_CHECKING:
    from dpdist.core.rows.schema import Schema

Rows = npt.NDArray[np.float64]
_Mask = npt.NDArray[np.bool_]
_PIECE = 8 << 20
# converted to Arrow arrays at their use: the conversion imports pandas, which is not needed without a schema
MISSING_WORDS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
"""Text cells that mean a missing value, unless a category has that name."""
_TRUE = ("true", "True", "TRUE", "yes", "Yes", "YES", "1", "1.0")
_FALSE = ("false", "False", "FALSE", "no", "No", "NO", "0", "0.0")
BOOLEANS = _TRUE + _FALSE
_PLAIN = {
    "%F": "%Y-%m-%d", "%D": "%m/%d/%y", "%T": "%H:%M:%S", "%R": "%H:%M", "%e": "%d", "%h": "%b", "%n": " ", "%t": " ",
}  # fmt: skip
"""Directives of Arrow that Python does not support."""
_ZONE = r":\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
"""A time of day with a zone."""
_SPELLED = (
    (r"(:\d\d)[.,](\d{1,6})\d{0,3}", r"\1.\2"), (" ?(UTC|GMT)$", "Z"), (r" (Z|[+-]\d\d:?\d\d)$", r"\1"),
)  # fmt: skip
"""Spellings of the same time that Arrow does not read: nanoseconds, a decimal comma, the name of UTC, a space."""
DIGIT = r"\p{N}"
"""Text with a digit of any script is no missing value, even if it is no number."""
_DIGITS = re.compile(r"\d+")
NO_NUMBER = "the cell is not a number"
_UUID: Any = getattr(pa, "UuidType", ())
"""Available since Arrow 18."""
_MAX_REPORTED = 20
"""Largest number of columns reported in a message."""


class Fault(NamedTuple):
    """A value that cannot be used: its row, counting from 0, its column, and the reason, which does not quote it."""

    row: int
    column: str
    reason: str


class UnfitError(Exception):
    """Values that cannot be used."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*faults)
        self.faults = sorted(faults, key=lambda fault: fault.row)

    def after(self, rows: int) -> UnfitError:
        """Return the error with row numbers increased by ``rows``."""
        return UnfitError(*(fault._replace(row=rows + fault.row) for fault in self.faults))

    def refusal(self, source: str, where: Callable[[int], str], cure: str) -> DataError:
        """Return the refusal of the source; ``where`` names a row by its number."""
        reports = [f"{where(row)}, column {column!r}: {reason}" for row, column, reason in self.faults[:_MAX_REPORTED]]
        more = len(self.faults) - len(reports)
        suffix = f"; and {counted(more, 'more column')}" if more else ""
        hint = ""
        if any(reason == NO_NUMBER for _, _, reason in self.faults):
            hint = (
                f" (for a column without numbers, replace kind by {NOT_NUMBERS}; list text that means a missing value: "
                'missing_values = ["?"]; write numbers with decimal commas, marks of thousands or units as plain ones, '
                "in Python: pandas.read_csv(FILE, decimal=',', thousands='.'), or FRAME[COLUMN].str.strip(' €%'), and "
                ".to_csv(NEW, index=False))"
            )
        shown = f"{source}, {'; '.join(reports)}{suffix}"
        return DataError(f"{shown}. Correct the schema{hint}, or {cure[0].lower()}{cure[1:]}")


def is_text(kind: Any) -> bool:
    """Say whether the type is text, or bytes, which some files use for text."""
    types = pa.types
    views = types.is_string_view(kind) or types.is_binary_view(kind)
    text = types.is_string(kind) or types.is_large_string(kind)
    return bool(views or text or types.is_binary(kind) or types.is_large_binary(kind))


def _is_numeric(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_time(kind: Any) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def takes(column: Column, kind: Any) -> bool:
    """Say whether a stored Arrow type is compatible with the kind of a column."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_text(kind) or pa.types.is_null(kind) or column.kind == "ignored":
        return True
    if column.kind == "date":
        return _is_time(kind)
    if isinstance(kind, _UUID):
        return column.kind in {"privacy unit", "category"}
    if column.kind == "privacy unit":
        return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale <= 0))
    return bool(_is_numeric(kind) or pa.types.is_boolean(kind))


def require_types(schema: Schema, kinds: Mapping[str, Any]) -> None:
    """Refuse a source whose stored types do not match the kinds of a schema."""
    wrong = [
        f"{schema.where(index)}: its stored type {kinds[column.name]} does not match the kind {column.kind!r}"
        for index, column in enumerate(schema.sources)
        if column.name in kinds and not takes(column, kinds[column.name])
    ]
    if wrong:
        raise UsageError(all_of("The schema", wrong, "does not fit the source"))


def is_number(stored: Any) -> bool:
    """Say whether a stored type is of numbers; which of them, libraries choose from values (automatic.py)."""
    stored = stored.value_type if pa.types.is_dictionary(stored) else stored
    return bool(_is_numeric(stored) or pa.types.is_boolean(stored) or pa.types.is_null(stored))


def encoded(
    schema: Schema, columns: Mapping[str, Any], rows: int, only: Sequence[Column] | None = None
) -> Iterator[Rows]:
    """Yield rows of numbers in batches of about 8 MiB, C-ordered float64 of shape (r, d).

    ``only``: the columns to encode, d those of the rows that they have. None: all of the schema.
    """
    kept = [column for column in (schema.columns if only is None else only) if column.stored]
    step = max(1, _PIECE // (8 * sum(column.width for column in kept)))
    for start in range(0, rows, step):
        batch = {name: column.slice(start, step) for name, column in columns.items()}
        try:
            encoded_batch = _encoded_batch(schema, kept, batch, min(step, rows - start))
        except UnfitError as error:
            raise error.after(start) from None
        yield encoded_batch


def _encoded_batch(schema: Schema, kept: Sequence[Column], columns: Mapping[str, Any], rows: int) -> Rows:
    out = np.zeros((rows, sum(column.width for column in kept)))
    dropped = np.zeros(rows, dtype=np.bool_)
    wrong: list[Fault] = []
    read: dict[str, tuple[Rows, _Mask]] = {}  # numbers with bins, for these
    start = 0
    for column in kept:
        source = column.source
        try:
            cells = read.get(source.name) or _READ[source.kind](source, plain(source, columns[source.name]))
            if source.bins is not None:
                read[source.name] = cells
            lacking = _fill(schema, column, cells, out[:, start : start + column.width])
        except UnfitError as error:
            # a number that is encoded beside its bins has the same fault
            wrong += () if isinstance(column, Binned) and source in kept else error.faults
        else:
            if column.missing == "drop":
                dropped |= lacking
        start += column.width
    if wrong:
        raise UnfitError(*wrong)
    out[dropped] = np.nan  # a release counts it as the centre of the others; histograms skip it
    return out


def _fill(schema: Schema, column: Column, read: tuple[Rows, _Mask], out: Rows) -> _Mask:
    """Write the encoding of a column to out, and return a mask of its missing values."""
    values, lacking = read
    if isinstance(column, Binned):  # the end bins are open
        values = np.searchsorted(column.edges, values, side="right").astype(np.float64)
    if lacking.any() and column.missing in {None, "refuse"}:
        of_numbers = [] if column.whole else ["centre", "pairwise"]
        named = ", ".join(f'"{word}"' for word in [*of_numbers, "fill", "indicator"])
        reason = f'the value is missing: choose a treatment (missing = {named} or "drop")'
        raise _unfit(lacking, column, reason)
    low, high, shift, factor = schema.affine(column)
    values = np.where(lacking, schema.filled(column), _transformed(column, values))
    if column.one_hot:
        coded = values >= 0
        out[coded, values[coded].astype(np.int64)] = factor
    else:
        finite = np.isfinite(np.clip(values, low, high))
        if not finite.all():
            raise _unfit(~finite, column, "the value is not finite, and the column has no range to clip it to")
        out[:, 0] = (np.clip(values, low, high) - shift) * factor
    if column.indicated:
        out[lacking, -1] = column.weight or 1.0
    if column.missing in {"centre", "pairwise"}:
        out[lacking, 0] = np.nan  # a release replaces it by its centre
    return lacking


def plain(column: Column, cells: Any) -> Any:
    """Return a column without its dictionary encoding, with a type that matches its kind."""
    if pa.types.is_dictionary(cells.type):  # Arrow cannot decode dictionaries of string views
        dictionary = cells.dictionary
        cells = (dictionary.cast(pa.string()) if pa.types.is_string_view(dictionary.type) else dictionary).take(
            cells.indices
        )
    if not takes(column, cells.type):
        reason = f"from this row on the type is {cells.type}, which does not match the kind {column.kind!r}"
        raise UnfitError(Fault(0, column.name, reason))
    if isinstance(cells.type, _UUID):
        cells = pa.array([None if value is None else str(value) for value in cells.to_pylist()], pa.string())
    if not is_text(cells.type):
        codes = _codes(column, cells.type) if column.missing_values else []
        return pc.if_else(pc.is_in(cells, pa.array(codes, cells.type)), None, cells) if codes else cells
    text = _parsed(column, cells, _valid, "the cell is not UTF-8 text")
    # printable ASCII is seen as it is, but for outer spaces, so what a cell is seen as depends on that cell alone
    if column.kind in {"category", "privacy unit"} and pc.any(pc.match_substring_regex(text, r"[^ -~]")).as_py():
        coded = text.dictionary_encode()
        text = pa.array(map(visible, coded.dictionary.to_pylist()), text.type).take(coded.indices)
    if column.missing_values:
        lacking = pc.is_in(_without_point(pc.utf8_trim_whitespace(text)), pa.array(column.missing_values))
        text = pc.if_else(lacking, pa.scalar(None, text.type), text)
    return text


def _codes(column: Column, kind: Any) -> list[Any]:
    """Return the missing values of a column that its stored type can represent."""
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return []
    dates = column.kind == "date"
    codes = []
    for code in column.missing_values if dates else column.codes:
        with suppress(pa.ArrowException):
            value = _iso(pa.array([code])) if dates else pa.array([code])
            codes += pc.cast(value, kind).to_pylist()
    return codes


def _valid(text: Any) -> Any:
    """Return text; ArrowInvalid if it is not UTF-8, which Parquet does not enforce."""
    text = text.cast(pa.large_string() if pa.types.is_large_binary(text.type) else pa.string())
    text.validate(full=True)
    return text


def _transformed(column: Column, values: Rows) -> Rows:
    """Return numbers by the transform of their column; infinite ones unchanged."""
    if column.transform is None:
        return values
    with np.errstate(over="ignore"):
        moved = np.log1p(np.maximum(values - column.low, 0)) if column.transform == "log" else np.arcsinh(values)
    return np.where(np.isfinite(values), moved, values)


def _unfit(wrong: _Mask, column: Column, reason: str) -> UnfitError:
    return UnfitError(Fault(int(np.argmax(wrong)), column.name, reason))


def _text(cells: Any) -> tuple[Any, Any]:
    """Return stripped text and a mask of missing values, as Arrow arrays."""
    text = pc.utf8_trim_whitespace(cells)
    return text, pc.or_kleene(pc.is_null(text), pc.fill_null(pc.is_in(text, pa.array(MISSING_WORDS)), True))


def values_of_text(cells: Any) -> Any:
    """Return stripped text, null where a value is missing."""
    text, absent = _text(cells)
    return pc.if_else(absent, pa.scalar(None, text.type), text)


def _without_point(text: Any) -> Any:
    """Return 1.0 as 1: tables write whole numbers of a column with gaps like that."""
    return pc.replace_substring_regex(text, r"^([+-]?\d+)\.0+$", r"\1")


def _flags(mask: Any) -> _Mask:
    flags: _Mask = mask.to_numpy(zero_copy_only=False)
    return flags


def _parsed(column: Column, text: Any, parse: Callable[[Any], Any], reason: str) -> Any:
    """Return text as numbers or times; UnfitError reports the first cell that cannot be parsed."""

    def attempted(part: Any) -> Any:
        with quiet(), suppress(pa.ArrowException):  # its text quotes the cell
            return parse(part)
        return None

    values = attempted(text)
    if values is not None:
        return values
    low, high = 0, len(text) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if attempted(text.slice(low, middle + 1 - low)) is None else (middle + 1, high)
    raise UnfitError(Fault(low, column.name, reason))


def _numbers(column: Column, cells: Any) -> tuple[Rows, _Mask]:
    if is_text(cells.type):
        text = values_of_text(cells)
        if column.other == "missing":
            text = pc.if_else(pc.match_substring_regex(text, DIGIT), text, pa.scalar(None, text.type))
        cells = _parsed(column, text, lambda part: pc.cast(part, pa.float64()), NO_NUMBER)
    elif pa.types.is_boolean(cells.type):
        cells = cells.cast(pa.uint8())
    values = floats(cells).to_numpy(zero_copy_only=False)
    if codes := column.codes:
        values = np.where(np.isin(values, codes), np.nan, values)
    lacking = np.isnan(values)  # nulls are NaN
    if column.kind == "integer":
        integral = lacking | (values == np.trunc(values))
        if not integral.all():
            raise _unfit(~integral, column, "the value is not a whole number")
        # a range ends below 2^53, and values outside are clipped to it
        large = (column.range is None) & np.isfinite(values) & (np.abs(values) >= LARGEST_WHOLE)
        if large.any():
            reason = "the value is 2^53 or larger, which float64 does not represent exactly: give the column a range"
            raise _unfit(large, column, f'{reason}, or the kind "number", which is rounded, or "privacy unit"')
    return values, lacking


def floats(numbers: Any) -> Any:
    """Return numbers as float64; decimals by way of text, as Arrow rounds 15.000000000 to another number."""
    if pa.types.is_decimal(numbers.type):
        numbers = pc.cast(numbers, pa.string())
    return pc.cast(numbers, pa.float64(), safe=False)


def holds_numbers(cells: Any) -> bool:
    """Say whether every cell of a text column is a number or missing."""
    try:
        _numbers(Column("", "number"), cells)
    except UnfitError:
        return False
    return True


def _booleans(column: Column, cells: Any) -> tuple[Rows, _Mask]:
    if not is_text(cells.type):
        values, lacking = _numbers(column, cells)
        sound = lacking | (values == 0) | (values == 1)
    else:
        text, absent = _text(cells)
        lacking, true = _flags(absent), _flags(pc.is_in(text, pa.array(_TRUE)))
        values = true.astype(np.float64)
        sound = lacking | true | _flags(pc.is_in(text, pa.array(_FALSE)))
    if not sound.all():
        raise _unfit(~sound, column, 'the value is not true or false, yes or no, 1 or 0: use the kind "category"')
    return values, lacking


def _names(cells: Any) -> Any:
    """Return values as names of categories: whole numbers without a point."""
    if pa.types.is_null(cells.type):
        return cells.cast(pa.string())
    if pa.types.is_decimal(cells.type) or pa.types.is_floating(cells.type):
        if pa.types.is_floating(cells.type):
            cells = pc.add(pc.cast(cells, pa.float64(), safe=False), 0.0)  # -0 is 0
        values = cells.to_pylist()  # a decimal keeps all digits
        return pa.array([None if value is None else _name_of(value) for value in values], pa.string())
    return cells if is_text(cells.type) else cells.cast(pa.string())


def _name_of(value: float | Decimal) -> str | None:
    if not math.isfinite(value):
        return None
    return f"{value:.0f}" if value == math.trunc(value) else repr(float(value))


def _categories(column: Column, cells: Any) -> tuple[Rows, _Mask]:
    text, absent = _text(_names(cells))
    names = pa.array(map(visible, column.categories), text.type)
    indices = pc.coalesce(pc.index_in(text, names), pc.index_in(_without_point(text), names))
    lacking = _flags(pc.and_(absent, pc.is_null(indices)))  # unless a category has that name
    values = pc.fill_null(indices, -1).to_numpy(zero_copy_only=False).astype(np.float64)
    unknown = (values < 0) & ~lacking
    if unknown.any() and column.other in {None, "refuse"}:
        reason = "the value is not among the categories of the schema: add it, or choose a treatment of others (other)"
        raise _unfit(unknown, column, reason)
    values[unknown] = len(column.categories)
    return values, lacking | unknown if column.other == "missing" else lacking


def _dates(column: Column, times: Any) -> tuple[Rows, _Mask]:
    reason = "the cell is not a date of the form " + (
        '2026-01-31 or 2026-01-31 12:00:00: for another form, add for example format = "%d.%m.%Y"'
        if column.format is None
        else column.format
    )
    if pa.types.is_null(times.type):
        times = times.cast(pa.string())
    if is_text(times.type):
        text = values_of_text(times)
        if column.format is None:
            times = _parsed(column, text, _iso, reason)
        else:
            times = _parsed(column, text, lambda part: pc.strptime(part, format=column.format, unit="us"), reason)
            _require_days(column, column.format, text, times, reason)
    else:
        stored = times
        times = pc.cast(stored, pa.timestamp("us", getattr(stored.type, "tz", None)), safe=False)
        finer = pa.types.is_timestamp(stored.type) and stored.type.unit == "ns"
        if not finer and not (back := pc.cast(times, stored.type, safe=False)).equals(stored):
            reason = "the date is more than 290,000 years away: if it means a missing value, add it to missing_values"
            raise _unfit(_flags(pc.fill_null(pc.not_equal(back, stored), False)), column, reason)
    instants = pc.cast(times, pa.int64())
    lacking = _flags(pc.is_null(instants))
    values = pc.fill_null(instants, 0).to_numpy(zero_copy_only=False).astype(np.float64)
    first = column.number_of("1970-01-01")  # before any scale
    return values / column.tick + first, lacking


def _iso(text: Any) -> Any:
    """Return ISO 8601 dates as UTC times; dates without a zone are UTC, and digits below a microsecond are cut off."""
    for pattern, replacement in _SPELLED:
        text = pc.replace_substring_regex(text, pattern, replacement)
    zoned, none = pc.match_substring_regex(text, _ZONE), pa.scalar(None, text.type)
    if not pc.any(zoned).as_py():
        return pc.cast(text, pa.timestamp("us"))
    utc = pc.cast(pc.if_else(zoned, text, none), pa.timestamp("us", "UTC"))
    return pc.coalesce(pc.cast(utc, pa.timestamp("us")), pc.cast(pc.if_else(zoned, none, text), pa.timestamp("us")))


def _require_days(column: Column, form: str, text: Any, times: Any, reason: str) -> None:
    """Refuse days that do not exist: Arrow reads 31 February as 3 March, and day 366 as 1 January."""
    # such a day is read as the start of a month, or the day before with an offset from UTC; Python checks these
    day = pc.day(times)
    early = pc.or_(pc.less_equal(day, 3), pc.greater_equal(day, 28)) if "%z" in form else pc.less_equal(day, 3)
    for parts, plain in _PLAIN.items():
        form = form.replace(parts, plain)
    with quiet():  # its text quotes the cell
        for cell in pc.unique(pc.drop_null(text.filter(early))).to_pylist():
            try:
                read = datetime.strptime(cell, form)  # noqa: DTZ007 - only to check the day
                sound = "%j" not in form or "366" not in _DIGITS.findall(cell) or f"{read:%j}" == "366"
            except ValueError:
                sound = False
            if not sound:
                raise _unfit(_flags(pc.equal(text, cell)), column, reason)


_READ: dict[str, Callable[[Column, Any], tuple[Rows, _Mask]]] = {
    "number": _numbers, "integer": _numbers, "boolean": _booleans, "category": _categories, "date": _dates,
}  # fmt: skip


def units_of(schema: Schema, columns: Mapping[str, Any], key: bytes) -> npt.NDArray[np.uint64]:
    """Return the privacy unit of every row: keyed digests of 128 bits, shape (r, 2), as by :func:`named_units`."""
    parts = []
    for column in schema.columns:
        if column.kind != "privacy unit":
            continue
        text, absent = _text(_names(plain(column, columns[column.name])))
        if (lacking := _flags(absent)).any():
            raise _unfit(lacking, column, "the privacy unit is missing, so the owner of the row is unknown")
        coded = pc.cast(text, pa.string()).dictionary_encode()
        text = pa.array([spelled(name) for name in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)
        parts += [pc.cast(pc.binary_length(text), pa.string()), text]
    # each part is preceded by its length, so that two units never have the same text
    units = pc.binary_join_element_wise(*parts, ":").dictionary_encode()
    names = units.dictionary.to_pylist()
    digests = b"".join(blake2b(name.encode(), digest_size=16, key=key).digest() for name in names)
    indices: npt.NDArray[np.int32] = units.indices.to_numpy(zero_copy_only=False)
    return np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)[indices]


# --- tables in memory -------------------------------------------------------------------------------------------------


def columns_of(frame: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return columns of a pandas DataFrame as Arrow arrays by name."""
    columns = {}
    places = {str(label): place for place, label in enumerate(frame.columns)}
    for name in names:
        column = None
        with quiet(), suppress(pa.ArrowException, TypeError, ValueError, OverflowError):  # their texts quote a cell
            values = frame.iloc[:, places[name]]
            if values.dtype != object:
                column = pa.Array.from_pandas(values)
            elif len(_kinds_of(values)) < 2:  # else Arrow chooses a type for all cells, which changes some
                objects = np.empty(len(values), dtype=object)  # from which pandas chooses no type
                objects[:] = [_python(cell) for cell in values]
                column = pa.Array.from_pandas(objects)
        days = column is not None and pa.types.is_date(column.type) and values.dtype == object
        if column is None or (days and any(isinstance(value, datetime) for value in values)):  # Arrow drops hours
            raise UnfitError(Fault(0, name, "from this row on there are values of several types"))
        columns[name] = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return columns


def _kinds_of(values: Any) -> set[str]:
    """Return the kinds of the cells of a column of objects that Arrow would convert into one another."""
    found = set()
    for cell in set(map(type, values)):
        if issubclass(cell, bool | np.bool_):
            found.add("boolean")
        elif issubclass(cell, int | np.integer):
            found.add("number")
        elif issubclass(cell, float | np.floating):
            missing = all(value != value for value in values if type(value) is cell)  # noqa: PLR0124 - NaN
            found |= set() if missing else {"number"}
        elif issubclass(cell, Decimal) or cell.__name__ == "UUID":
            found.add(cell.__name__)
    return found


def _python(cell: Any) -> Any:
    """Return a number of NumPy as that of Python, as Arrow takes half floats for integers beside one; NaN as None."""
    cell = cell.item() if isinstance(cell, np.generic) else cell
    return None if isinstance(cell, float) and math.isnan(cell) else cell


def types_of(frame: Any) -> dict[str, Any]:
    """Return Arrow types of the columns of a pandas DataFrame without reading values; text where they are undefined."""
    return {str(name): _type_of(kind) for name, kind in zip(frame.columns, frame.dtypes, strict=True)}


def _type_of(kind: Any) -> Any:
    name = str(kind).lower()
    none = pa.duration("us")  # matches no kind of column
    for prefixes, stored in (
        ("datetime64", pa.timestamp("us")), (("complex", "timedelta", "period", "interval"), none),
        ("bool", pa.bool_()), (("int", "uint"), pa.int64()), ("float", pa.float64()),
    ):  # fmt: skip
        if name.startswith(prefixes):
            return stored
    return pa.string()


def transformed(schema: Schema, frame: Any, only: Sequence[Column] | None = None) -> Any:
    """Implement :meth:`dpdist.Schema.transform`, for some columns of the schema or all."""
    frame = as_frame(frame)
    if not is_a(frame, "pandas", "DataFrame"):
        raise UsageError(
            "Schema.transform needs a pandas or polars DataFrame or an Arrow table, not a value of type "
            f"{type_name(frame)}."
        )
    if schema.unit is not None and only is None:
        raise UsageError(
            "The schema has a privacy unit, which is not in the transformed rows: a fit to them would protect each row "
            f"separately. Write the DataFrame with {step('ingest')} and the schema, and fit the ingested rows."
        )
    if only is None:
        schema.places(list(map(str, frame.columns)))
        only = schema.columns
    require_types(schema, types_of(frame))
    names = [*dict.fromkeys(column.source.name for column in only if column.stored)]
    features = [name for column in only for name in column.features]
    try:
        blocks = list(encoded(schema, columns_of(frame, names), len(frame), only))
    except UnfitError as error:
        raise error.refusal("The DataFrame", lambda row: f"row {row} (counting from 0)", "Correct it there.") from None
    rows = np.concatenate(blocks) if blocks else np.empty((0, len(features)))
    return type(frame)(rows, index=frame.index, columns=features)
