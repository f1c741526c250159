"""Schema files: reading, with the lines of mistakes, and drafting, with blanks to fill in.

::

    scale = "range"            # map each range to [-1, 1]; or "none"
    max_rows = 3               # with a privacy unit; without, all its rows are kept
    keep = "random"            # rows kept of each; default: the first ones

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpdist.core.errors import DataError, UsageError
from dpdist.core.paths import AnyPath, is_address, read_plain, text_of
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema_mistakes import NOT_NUMBERS, OWN, WHOSE, Mistake, Parts, all_of, mistakes, parts_of
from dpdist.core.storage.arrays import attributes_of
from dpdist.core.storage.store import store_at
from dpdist.core.text import listed

if TYPE_CHECKING:
    from dpdist.core.rows.schema import Schema

_LARGEST = 64 << 20
_NO_KEY = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}'  # text of several lines
    r'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*',
    re.DOTALL,
)
_BEGINS = re.compile(r"\s*(?:(\[\[)|([A-Za-z0-9_-]+)\s*=)")


class _Lines(NamedTuple):
    """Lines of a file, from 1: of its settings, of the names of its columns, and of the keys of each column."""

    settings: dict[str, int]
    columns: list[int]
    keys: list[dict[str, int]]

    @classmethod
    def of(cls, text: str, count: int) -> _Lines:
        """Find the columns of a TOML file; in an inline list, all are at the start of the list."""
        settings, keys = dict[str, int](), list[dict[str, int]]()
        bare = _NO_KEY.sub(lambda match: "\n" * match[0].count("\n"), text)
        for number, line in enumerate(bare.split("\n"), 1):
            begins = _BEGINS.match(line)
            if begins is not None and begins[1]:
                keys.append({"": number})
            elif begins is not None:
                (keys[-1] if keys else settings).setdefault(begins[2], number)
        if len(keys) != count:
            keys = [{"": settings.get("column", settings.get("columns", 1))}] * count
        return cls(settings, [lines.get("name", lines[""]) for lines in keys], keys)

    def line(self, mistake: Mistake) -> int:
        """Return the line of a mistake, or 0."""
        key, column = mistake.key or "", mistake.column
        return self.settings.get(key, 0) if column is None else self.keys[column].get(key, self.columns[column])


Words = Callable[[Sequence[str]], Collection[str]]
"""Returns those of the given columns of a source that contain a cell that is not a number."""


def read_schema(kind: type[Schema], path: AnyPath, non_numbers: Words | None = None) -> Schema:
    """Implement :meth:`dpdist.Schema.read`."""
    if is_address(text_of(path)) or Path(path).is_dir():
        return _stored(kind, path)
    path = Path(path)
    try:
        text = read_plain(path, _LARGEST).decode()
        content = tomllib.loads(text)
    except OSError as error:
        raise DataError(
            f"The schema {path} cannot be read: {error.strerror}. Correct its path or permissions."
        ) from None
    except (ValueError, RecursionError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise UsageError(f"The schema {path} is not TOML: {reason}.") from None
    wrong, columns = parts_of(content)
    lines = _Lines.of(text, len(columns))
    settings = {key: content.get(key, default) for key, default in OWN.items()}
    parts = Parts(columns, **settings, lines=lines.columns)
    misread = {(mistake.column, mistake.key) for mistake in wrong} | {(mistake.column, None) for mistake in wrong}
    wrong += [mistake for mistake in mistakes(parts) if (mistake.column, mistake.key) not in misread]
    if wrong:
        wrong = _without_ranges(wrong, columns, non_numbers)
        wrong.sort(key=lines.line)
        raise UsageError(all_of(f"The schema {path}", list(_grouped(wrong, lines, columns))))
    return kind(tuple(columns), **settings).read_from(str(path), lines.columns)


def _without_ranges(wrong: list[Mistake], columns: Sequence[Column], non_numbers: Words | None) -> list[Mistake]:
    """Return mistakes that do not ask for the range of a column which is not numeric in the source."""
    drafted = {index for index, each in enumerate(columns) if each.range == () and each.kind in {"number", "integer"}}
    blank = drafted & {mistake.column for mistake in wrong if mistake.key == "range"}
    if non_numbers is None or not blank:
        return wrong
    names = non_numbers([column.name for column in columns])
    words = {index for index in blank if columns[index].name in names}
    reason = f"the source has a cell in it that is not a number: replace kind and range by {NOT_NUMBERS}"
    reason += '; or, if the cell means a missing value, add missing_values = ["?"]'
    return [
        mistake._replace(reason=reason) if mistake.key == "range" and mistake.column in words else mistake
        for mistake in wrong
    ]


def _stored(kind: type[Schema], path: AnyPath) -> Schema:
    store = store_at(path)
    content = (attributes_of(store) or {}).get("schema")
    if content is None:
        raise DataError(
            f"{store} contains no schema: name a schema file, or rows, a release or a model that were created with one."
        )
    try:
        return kind.from_json(content)
    except (UsageError, TypeError, ValueError, AttributeError, KeyError):
        pass
    raise DataError(f"The schema of {store} is damaged. Restore it from a backup.")


def _grouped(wrong: Sequence[Mistake], lines: _Lines, columns: Sequence[Column]) -> Iterator[str]:
    """Yield each reason once, with all its locations."""
    together: dict[str, list[Mistake]] = {}
    for mistake in wrong:
        together.setdefault(mistake.reason, []).append(mistake)
    for reason, alike in together.items():
        numbers = dict.fromkeys(str(lines.line(mistake)) for mistake in alike if lines.line(mistake))
        names = [repr(columns[mistake.column].name) for mistake in alike if mistake.column is not None]
        locations = [f"line{'s' * (len(numbers) > 1)} {listed(numbers)}"] if numbers else []
        locations += [f"column{'s' * (len(names) > 1)} {listed(names)}"] if names else []
        yield f"{', '.join(locations)}: {reason}" if locations else reason


# --- drafts -----------------------------------------------------------------------------------------------------------

_HEAD = """\
# A dpdist schema: the columns of {source}.
#
# This draft was created from names only, as stored types often follow from values: every column is drafted as a
# number; if it is named like an identifier, fill in its kind. Correct the kind of others, and of a number that means
# yes or no ("boolean") or a category, or is an identifier ("ignored"). An index of pandas is left out: describe it if
# it is a column.
# Fill in the blanks, [], from public knowledge: a questionnaire, a manual, physics. NEVER from the data. Noise does
# not protect a range or a category that was taken from the data.
# This file is published with every release. Values outside a range are clipped to it.
#
# kind:        "number", "integer", "boolean", "category", "date", "ignored" or "privacy unit" (the owner of a row)
# range:       [least, greatest] of a number, an integer or a date ([2000-01-01, 2030-12-31])
# categories:  ["red", "green"]; encoding = "one-hot" (default) or "ordinal";
#              other = "refuse" (default), "column" (an additional column) or "missing" for unlisted categories
# missing:     "refuse" (default), "pairwise" (a number that is missing for reasons unrelated to its value: an
#              additional column counts it), "centre" (the cell counts as the centre of its column in a release),
#              "fill" (with fill = a public constant), "indicator" (an additional column is 1), or "drop" (the whole
#              row counts as the centre)
# transform:   "log" or "asinh" of a skewed number, such as money
# bins:        [18, 30, 50, 65], edges that make a category of a number, too: a table of age groups
# missing_values: ["?", -999], text and codes that mean a missing value; at the top, for all columns
# format:      "%d.%m.%Y", the format of a date in text, unless it is 2026-01-31
# weight:      factor of the numbers (default 1)

scale = "range"  # map each range to [-1, 1], so that units do not matter; "none": no range is needed
# max_rows = 1   # with a privacy unit: rows kept of each, without it all; keep = "first" (default) or "random"
"""


def draft_of(source: object, kinds: Mapping[str, str]) -> str:
    """Return the text of a draft schema, from the kind of each column by name."""
    parts = [_HEAD.format(source=json.dumps(str(source), ensure_ascii=False)[1:-1])]
    for name, kind in kinds.items():
        asked = "" if kind else f"  # fill in: {WHOSE}"
        blank = "range = []  # fill in\n" if kind == "number" else ""
        parts.append(f"\n[[column]]\nname = {_quoted(name)}\nkind = {_quoted(kind)}{asked}\n{blank}")
    return "".join(parts)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
