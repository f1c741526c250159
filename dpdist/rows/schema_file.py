r"""A schema as a file: read with the lines of what is wrong, and drafted with its blanks.

::

    scale = "range"            # each range becomes -1 to 1; or "none"
    max_rows = 3               # with a privacy unit
    keep = "random"            # which of its rows; default: the first ones

    [[column]]
    name = "age"
    kind = "integer"
    range = [0, 120]
    missing = "fill"
    fill = 40
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dpdist._util.paths import AnyPath, is_address, read_plain
from dpdist._util.text import listed
from dpdist.errors import DataError, UsageError
from dpdist.rows.columns import Column
from dpdist.rows.schema import Schema
from dpdist.rows.schema_mistakes import NOT_NUMBERS, Mistake, Parts, all_of, mistakes, parts_of
from dpdist.storage.arrays import attributes_of
from dpdist.storage.store import store_at

_LARGEST = 64 << 20
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}'  # text of several lines
    r'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\''
    r"|#[^\n]*|\n|[\[\]{}]|[^\s\"'#\[\]{}]+",
    re.DOTALL,
)
_KEY = re.compile(r"[A-Za-z0-9_-]+")


class _Lines(NamedTuple):
    """Lines of a file, from 1: of its own keys; of each column, where its name is; and of the keys of each."""

    own: dict[str, int]
    columns: list[int]
    keys: list[dict[str, int]]


Words = Callable[[Sequence[str]], Collection[str]]
"""Says which of some columns of a source hold something that is no number."""


def read_schema(path: AnyPath, words: Words | None = None) -> Schema:
    """Read a schema from a file, or take that of rows, a release or a model: :meth:`dpdist.Schema.read`."""
    if is_address(str(path)) or Path(path).is_dir():
        return _stored(path)
    path = Path(path)
    content = None
    try:
        text = read_plain(path, _LARGEST).decode()
        content = tomllib.loads(text)
    except OSError as error:
        raise DataError(f"The schema {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        said = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
    if content is None:
        raise UsageError(f"The schema {path} is not TOML: {said}.")
    wrong, columns = parts_of(content)
    lines = _lines_of(text, content)
    own: Any = {key: content.get(key, default) for key, default in _DEFAULTS.items()}
    parts = Parts(columns, **own, lines=lines.columns)
    misread = {(each.column, each.key) for each in wrong} | {(each.column, None) for each in wrong}
    wrong += [each for each in mistakes(parts) if (each.column, each.key) not in misread]
    if wrong:
        wrong = _without_ranges(wrong, columns, words)
        wrong.sort(key=lambda each: _line(each, lines))
        raise UsageError(all_of(f"The schema {path}", _grouped(wrong, lines, columns)))
    return Schema(tuple(columns), **own).read_from(str(path), lines.columns)


def _without_ranges(wrong: list[Mistake], columns: Sequence[Column], words: Words | None) -> list[Mistake]:
    """Return mistakes that ask for no range of a column of the source which holds something that is no number."""
    if words is None or not any(_is_blank(each, columns) for each in wrong):
        return wrong
    found = words([column.name for column in columns])
    said = f"the source holds something there that is no number: in place of kind and range write {NOT_NUMBERS}"
    said += '; or, if it stands for a missing value, missing_values = ["?"]'
    return [
        each._replace(said=said)
        if each.column is not None and _is_blank(each, columns) and columns[each.column].name in found
        else each
        for each in wrong
    ]


def _is_blank(mistake: Mistake, columns: Sequence[Column]) -> bool:
    """Say whether a mistake is that a number has no range yet."""
    if mistake.column is None or mistake.key != "range":
        return False
    column = columns[mistake.column]
    return column.range == () and column.kind in {"number", "integer"}


_DEFAULTS = {"scale": "none", "others": "refuse", "max_rows": None, "keep": "first", "missing_values": None}


def _stored(path: AnyPath) -> Schema:
    store = store_at(path)
    said = (attributes_of(store) or {}).get("schema")
    if said is None:
        raise DataError(f"{store} has no schema: it is none of rows, a release or a model that were made with one.")
    try:
        return Schema.from_json(said)
    except (UsageError, TypeError, ValueError, AttributeError, KeyError):
        pass
    raise DataError(f"The schema of {store} was damaged.")


def _line(mistake: Mistake, lines: _Lines) -> int:
    if mistake.column is None:
        return lines.own.get(mistake.key or "", 0)
    return lines.keys[mistake.column].get(mistake.key or "", lines.columns[mistake.column])


def _grouped(wrong: Sequence[Mistake], lines: _Lines, columns: Sequence[Column]) -> list[str]:
    """Return what is wrong, once each, with all places where it is."""
    places: dict[str, list[tuple[int, str | None]]] = {}
    for each in wrong:
        name = None if each.column is None else columns[each.column].name
        places.setdefault(each.said, []).append((_line(each, lines), name))
    return [_placed(said, found) for said, found in places.items()]


def _placed(said: str, found: Sequence[tuple[int, str | None]]) -> str:
    numbers, names = [str(line) for line, _ in found if line], [repr(name) for _, name in found if name is not None]
    where = [f"line{'s' * (len(numbers) > 1)} {listed(numbers)}"] if numbers else []
    where += [f"column{'s' * (len(names) > 1)} {listed(names)}"] if names else []
    return f"{', '.join(where)}: {said}" if where else said


def _lines_of(text: str, content: dict[str, Any]) -> _Lines:
    """Return where in a file that is TOML its columns and keys are."""
    own, columns, keys = dict[str, int](), list[int](), list[dict[str, int]]()
    listed_columns: list[int] = []
    for line, words, tables in _statements(text):
        if words[:2] == ["[", "["]:
            columns.append(line)
            keys.append({})
        elif words[0] != "[" and _KEY.fullmatch(words[0]):
            (keys[-1] if keys else own).setdefault(words[0], line)
            listed_columns = tables if words[0] in {"column", "columns"} and not keys else listed_columns
    entries = content.get("columns", content.get("column", []))
    count = len(entries) if isinstance(entries, list) else 1
    if len(listed_columns) == count:  # they are written as a list of tables
        return _Lines(own, listed_columns, [{} for _ in range(count)])
    if len(columns) != count:  # there are other tables
        line = own.get("column", own.get("columns", 1))
        return _Lines(own, [line] * count, [{} for _ in range(count)])
    return _Lines(own, [each.get("name", line) for each, line in zip(keys, columns, strict=True)], keys)


def _statements(text: str) -> Iterator[tuple[int, list[str], list[int]]]:
    """Yield line and words of what begins in a line and outside of brackets, and the lines of tables in its list."""
    line, depth, begun = 1, 0, 1
    words: list[str] = []
    tables: list[int] = []
    for found in _TOKEN.finditer(text):
        word = found[0]
        if word == "\n" and not depth:
            if words:
                yield begun, words, tables
            words, tables = [], []
        elif not word.startswith("#") and word != "\n":
            begun = begun if words else line
            tables += [line] if word == "{" and depth == 1 else []
            depth += (word in "[{") - (word in "]}") if len(word) == 1 else 0
            words += [word] if len(words) < 3 or depth else []
        line += word.count("\n")
    if words:
        yield begun, words, tables


# --- drafts -----------------------------------------------------------------------------------------------------------

_HEAD = """\
# What the columns of {source} mean: a schema of dpdist.
#
# This draft was made of names and stored types alone; no value was looked at. {types}
# Fill in the blanks, [], from public knowledge: a questionnaire, a manual, physics. NEVER from the data. A range
# that was looked up in the data, or a category that was found there, gives away what no noise protects any more.
# Everything in this file is published with every release. Values beyond a range are clipped to it.
#
# kind:        "number", "integer", "boolean", "category", "date", "ignored" or "privacy unit" (says whose row it is)
# range:       [least, greatest] of a number, an integer or a date ([2000-01-01, 2030-12-31])
# categories:  ["red", "green"]; encoding = "one-hot" (default) or "ordinal";
#              other = "refuse" (default), "column" (one more column) or "missing" for what is not listed
# missing:     "refuse" (default), "fill" (with fill = a public constant), "indicator" (one more column is 1),
#              or "drop" (the row counts as the centre of the others)
# missing_values: ["?", -999], words and codes for a missing value; at the top, of all columns
# format:      "%d.%m.%Y", as a date in text is written where it is not 2026-01-31
# weight:      what the numbers are multiplied by (default 1)

scale = "range"  # each range becomes -1 to 1, so that no column counts more for its unit; "none": as they are
# max_rows = 1   # with a privacy unit: rows of each that are kept at most; keep = "first" (default) or "random"
"""
_UNTYPED = "A text file stores\n# no types: every column is drafted as a number. Correct the others."
_TYPED = 'Correct kinds where\n# a number stands for a category, or is an index or an identifier ("ignored").'


def draft_of(source: object, names: Sequence[str], kinds: Sequence[str] | None) -> str:
    """Return the text of a draft."""
    shown = json.dumps(str(source), ensure_ascii=False)[1:-1]
    parts = [_HEAD.format(source=shown, types=_UNTYPED if kinds is None else _TYPED)]
    for name, kind in zip(names, kinds or ["number"] * len(names), strict=True):
        blank = {"category": "categories = []  # fill in", "boolean": None, "ignored": None}.get(
            kind, "range = []  # fill in"
        )
        said = f"\n[[column]]\nname = {_quoted(name)}\nkind = {_quoted(kind)}\n"
        parts.append(said + (f"{blank}\n" if blank else ""))
    return "".join(parts)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
