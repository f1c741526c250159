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
from typing import NamedTuple

from dpdist._util.paths import AnyPath, is_address, read_plain
from dpdist._util.text import listed
from dpdist.errors import DataError, UsageError
from dpdist.rows.columns import Column
from dpdist.rows.schema import Schema
from dpdist.rows.schema_mistakes import NOT_NUMBERS, OWN, Mistake, Parts, all_of, mistakes, parts_of
from dpdist.storage.arrays import attributes_of
from dpdist.storage.store import store_at

_LARGEST = 64 << 20
_NO_KEY = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}'  # text of several lines
    r'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*',
    re.DOTALL,
)
_BEGINS = re.compile(r"\s*(?:(\[\[)|([A-Za-z0-9_-]+)\s*=)")


class _Lines(NamedTuple):
    """Lines of a file, from 1: of its own keys; of each column, where its name is; and of the keys of each."""

    own: dict[str, int]
    columns: list[int]
    keys: list[dict[str, int]]

    @classmethod
    def of(cls, text: str, count: int) -> _Lines:
        """Find the columns of a file that is TOML; in a list of tables all are where the list begins."""
        own, keys = dict[str, int](), list[dict[str, int]]()
        bare = _NO_KEY.sub(lambda found: "\n" * found[0].count("\n"), text)
        for number, line in enumerate(bare.split("\n"), 1):
            begins = _BEGINS.match(line)
            if begins is not None and begins[1]:
                keys.append({"": number})
            elif begins is not None:
                (keys[-1] if keys else own).setdefault(begins[2], number)
        if len(keys) != count:
            keys = [{"": own.get("column", own.get("columns", 1))}] * count
        return cls(own, [each.get("name", each[""]) for each in keys], keys)

    def line(self, mistake: Mistake) -> int:
        """Return where a mistake is; 0 if that is nowhere."""
        key, column = mistake.key or "", mistake.column
        return self.own.get(key, 0) if column is None else self.keys[column].get(key, self.columns[column])


Words = Callable[[Sequence[str]], Collection[str]]
"""Says which of some columns of a source hold something that is no number."""


def read_schema(path: AnyPath, words: Words | None = None) -> Schema:
    """Read a schema from a file, or take that of rows, a release or a model: :meth:`dpdist.Schema.read`."""
    if is_address(str(path)) or Path(path).is_dir():
        return _stored(path)
    path = Path(path)
    try:
        text = read_plain(path, _LARGEST).decode()
        content = tomllib.loads(text)
    except OSError as error:
        raise DataError(f"The schema {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        said = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise UsageError(f"The schema {path} is not TOML: {said}.") from None
    wrong, columns = parts_of(content)
    lines = _Lines.of(text, len(columns))
    own = {key: content.get(key, default) for key, default in OWN.items()}
    parts = Parts(columns, **own, lines=lines.columns)
    misread = {(each.column, each.key) for each in wrong} | {(each.column, None) for each in wrong}
    wrong += [each for each in mistakes(parts) if (each.column, each.key) not in misread]
    if wrong:
        wrong = _without_ranges(wrong, columns, words)
        wrong.sort(key=lines.line)
        raise UsageError(all_of(f"The schema {path}", list(_grouped(wrong, lines, columns))))
    return Schema(tuple(columns), **own).read_from(str(path), lines.columns)


def _without_ranges(wrong: list[Mistake], columns: Sequence[Column], words: Words | None) -> list[Mistake]:
    """Return mistakes that ask for no range of a column of the source which holds something that is no number."""
    blank = {
        each.column for each in wrong
        if each.column is not None and each.key == "range" and columns[each.column].range == ()
        and columns[each.column].kind in {"number", "integer"}
    }  # fmt: skip
    if words is None or not blank:
        return wrong
    found = words([column.name for column in columns])
    said = f"the source holds something there that is no number: in place of kind and range write {NOT_NUMBERS}"
    said += '; or, if it stands for a missing value, missing_values = ["?"]'
    return [
        each._replace(said=said)
        if each.column is not None
        and each.column in blank
        and each.key == "range"
        and columns[each.column].name in found
        else each
        for each in wrong
    ]


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


def _grouped(wrong: Sequence[Mistake], lines: _Lines, columns: Sequence[Column]) -> Iterator[str]:
    """Yield what is wrong, once each, with all places where it is."""
    together: dict[str, list[Mistake]] = {}
    for each in wrong:
        together.setdefault(each.said, []).append(each)
    for said, alike in together.items():
        numbers = dict.fromkeys(str(lines.line(each)) for each in alike if lines.line(each))
        names = [repr(columns[each.column].name) for each in alike if each.column is not None]
        where = [f"line{'s' * (len(numbers) > 1)} {listed(numbers)}"] if numbers else []
        where += [f"column{'s' * (len(names) > 1)} {listed(names)}"] if names else []
        yield f"{', '.join(where)}: {said}" if where else said


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
    blanks = {"category": "categories = []  # fill in\n", "boolean": "", "ignored": ""}
    for name, kind in zip(names, kinds or ["number"] * len(names), strict=True):
        blank = blanks.get(kind, "range = []  # fill in\n")
        parts.append(f"\n[[column]]\nname = {_quoted(name)}\nkind = {_quoted(kind)}\n{blank}")
    return "".join(parts)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
