"""Schema files: reading, with the lines of mistakes. :mod:`dpdist.core.rows.draft` drafts them.

::

    confirmed = true           # of a draft: its kinds are right by public knowledge
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpdist.core.errors import DataError, UsageError
from dpdist.core.paths import AnyPath, is_address, read_plain, text_of
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema_mistakes import OWN, Mistake, Parts, all_of, mistakes, parts_of
from dpdist.core.storage.arrays import SESSION_FILE, attributes_of
from dpdist.core.storage.store import Store, store_at
from dpdist.core.text import listed

if TYPE_CHECKING:
    from dpdist.core.rows.schema import Schema

_LARGEST = 64 << 20
_UNCONFIRMED = (
    "this draft is not confirmed: check the kind of each column by public knowledge, and then set confirmed = true"
)
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


def read_schema(kind: type[Schema], path: AnyPath) -> Schema:
    """Implement :meth:`dpdist.Schema.read`."""
    if is_address(text_of(path)) or Path(path).is_dir():
        return _stored(kind, path)
    path = Path(path)
    try:
        text = read_plain(path, _LARGEST).decode("utf-8-sig")
        content = tomllib.loads(text)
    except OSError as error:
        raise DataError(
            f"The schema {path} cannot be read: {error.strerror}. Correct its path or permissions."
        ) from None
    except (ValueError, RecursionError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise UsageError(f"The schema {path} is not TOML: {reason}.") from None
    confirmed = content.pop("confirmed", True)
    wrong, columns = parts_of(content)
    if confirmed is not True:
        wrong.append(Mistake(None, "confirmed", _UNCONFIRMED))
    lines = _Lines.of(text, len(columns))
    settings = {key: content.get(key, default) for key, default in OWN.items()}
    parts = Parts(columns, **settings, lines=lines.columns)
    misread = {(mistake.column, mistake.key) for mistake in wrong} | {(mistake.column, None) for mistake in wrong}
    wrong += [mistake for mistake in mistakes(parts) if (mistake.column, mistake.key) not in misread]
    if wrong:
        wrong.sort(key=lines.line)
        raise UsageError(all_of(f"The schema {path}", list(_grouped(wrong, lines, columns))))
    return kind(tuple(columns), **settings).read_from(str(path), lines.columns)


def _stored(kind: type[Schema], path: AnyPath) -> Schema:
    store = store_at(path)
    content = (attributes_of(store) or _session_at(store)).get("schema")
    if content is None:
        raise DataError(
            f"{store} contains no schema: name a schema file, or rows, a release, a model or a session that were "
            "created with one."
        )
    try:
        return kind.from_json(content)
    except (UsageError, TypeError, ValueError, AttributeError, KeyError):
        pass
    raise DataError(f"The schema of {store} is damaged. Restore it from a backup.")


def _session_at(store: Store) -> dict[str, Any]:
    """Return the terms of the session of several sites in a folder; empty without one."""
    try:
        terms = json.loads(store.get(SESSION_FILE, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return terms if isinstance(terms, dict) else {}


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
