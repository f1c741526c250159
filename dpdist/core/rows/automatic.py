"""The schema of a table of numbers, decided by the software if no schema is given.

Columns of numbers are kept, cells without a digit are missing values, and missing values count as the centre of their
column. What words and dates mean, and whose row a row is, cannot be decided: a table with such a column, or with a
column named like an identifier of persons, is refused until a person says so.

**The schema is published, so it follows from the names of columns alone.** Stored types do not: libraries choose them
from values. One missing cell turns whole numbers into floats and booleans into objects, one value turns a column of
nothing into a column of something, and one row left out turns pandas' index into a column. So every column that is kept
has the kind ``number``, an index is left out without being named, and any other column refuses the table. Which tables
are refused depends on types and on all cells, and is reported to the holder of the rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow.compute as pc

from dpdist.core.errors import DataError, UsageError
from dpdist.core.naming import parameter, step
from dpdist.core.rows.columns import Column
from dpdist.core.rows.encoding import DIGIT, UnfitError, holds_numbers, is_number, is_text, plain, values_of_text
from dpdist.core.rows.person_names import person_columns
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Owner
from dpdist.core.text import counted, listed


class TextColumns:
    """Records of text columns, batch by batch, whether they contain numbers, words, or text of other forms."""

    def __init__(self) -> None:
        self._numbers: set[str] = set()
        self._words: set[str] = set()
        self._others: set[str] = set()

    def add(self, name: str, cells: Any) -> None:
        """Read some cells of a text column."""
        try:
            cells = plain(Column(name, "number"), cells)
        except UnfitError:
            self._others.add(name)
            return
        if not is_text(cells.type):
            self._numbers.add(name)
            return
        text = values_of_text(cells)
        digits = pc.fill_null(pc.match_substring_regex(text, DIGIT), False)
        if pc.any(digits).as_py():
            self._numbers.add(name)
            if name not in self._others and not holds_numbers(text.filter(digits)):
                self._others.add(name)
        if text.null_count + pc.sum(digits).as_py() < len(text):
            self._words.add(name)

    @property
    def unclear(self) -> set[str]:
        """The columns of words, or of text with digits that is no number."""
        return self._others | (self._words - self._numbers)


def require_owner(source: object, names: Sequence[str], owner: Owner, schema: Schema | None = None) -> list[str]:
    """Return the columns named like identifiers; refuse a table with one if the owner of a row is not given."""
    owners = person_columns(names)
    if owner.column is not None and owner.column not in names:
        raise UsageError(f"{source} has no column {owner.column!r}. It has: {listed(names)}.", parameter="privacy_unit")
    if owners and owner.column is None and not owner.each_row:
        declared = f"give {parameter('privacy_unit', owners[0])}" if schema is None else in_schema(owners[0])
        raise UsageError(
            f"{source}: {named_like_persons(owners)}. If a person may have several rows, {declared}: all rows of a "
            "person are kept, and protected together. If no person has two, give "
            f"{parameter('each_row_is_a_person')}"
            + (
                ": such columns are then left out, and a schema keeps one that names no persons."
                if schema is None
                else "."
            )
        )
    return owners


def named_like_persons(owners: Sequence[str]) -> str:
    """Return the beginning of a sentence about columns named like persons."""
    return f"{_are(len(owners), 'column')} named like an identifier of persons: {listed(owners)}"


def whose_rows(owner: Owner) -> str:
    """Return the decision about whose the rows of a table are."""
    if owner.column is not None:
        return f"All rows of one {owner.column} are protected together"
    if owner.each_row:
        return "Each row is protected as a person"
    return "No column is named like a person, so each row is taken for another person"


def in_schema(name: str) -> str:
    """Return how to declare the privacy unit in a schema."""
    return f'declare {name} in the schema (kind = "privacy unit")'


def by_option(name: str) -> str:
    """Return how to declare the privacy unit of a file without a schema."""
    return f"declare {name} with {parameter('privacy_unit', name)}, or in a schema if it is text"


def row_is_unit(source: object, names: Sequence[str], declared: Callable[[str], str] = by_option) -> str | None:
    """Return the message that each row is a privacy unit, if a column is named like persons; None otherwise."""
    if not (owners := person_columns(names)):
        return None
    return (
        f"{source}: {named_like_persons(owners)}. The privacy unit is the row: if a person may have several rows, "
        f"{declared(owners[0])}."
    )


def schema_of_numbers(
    source: object, names: Sequence[str], kinds: Sequence[Any] | None, unclear: Iterable[str], indexes: set[str],
    owner: Owner, header: str | None, *, named: bool = True,
) -> Schema:  # fmt: skip
    """Return the schema of a table of numbers; refuse one that needs a person's words."""
    others = {
        name
        for name, kind in zip(names, kinds or (), strict=False)
        if not is_number(kind) and not is_text(kind)  # the cells of text were read
    }
    owners = require_owner(source, names, owner)
    if unclear := sorted(({*unclear} | others) - indexes - {owner.column, *owners}, key=list(names).index):
        asked = {} if kinds is not None else {"header": header or "yes"}
        drafted = step("schema", source if named else "TABLE", "schema.toml", **asked)
        raise DataError(
            f"{source}: {_are(len(unclear), 'column')} not of numbers: {listed(map(repr, unclear))}. A schema says "
            f"what they mean: {drafted} drafts one. Complete it, and give {parameter('schema', 'schema.toml')}."
        )
    columns = []
    for name in names:
        if name == owner.column:
            columns.append(Column(name, "privacy unit"))
        elif name in indexes:
            continue
        elif name in owners:
            columns.append(Column(name, "ignored"))
        else:
            columns.append(Column(name, "number", missing="centre", other="missing"))
    return Schema(columns, others="ignored", max_rows=owner.max_rows)


def _are(count: int, noun: str) -> str:
    return f"{counted(count, noun)} {'is' if count == 1 else 'are'}"
