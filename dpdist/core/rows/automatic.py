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

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dpdist.core.errors import UsageError
from dpdist.core.naming import parameter
from dpdist.core.rows.columns import Column
from dpdist.core.rows.draft import Looks, SchemaNeededError, draft_of
from dpdist.core.rows.encoding import (
    BOOLEANS,
    DIGIT,
    UnfitError,
    holds_numbers,
    is_number,
    is_text,
    plain,
    takes,
    values_of_text,
)
from dpdist.core.rows.person_names import person_columns
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Owner, no_column
from dpdist.core.text import counted, listed

_DATE = r"^\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T]\d.*)?$"
_ISO_DATE = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?$"


class TextColumns:
    """Records of text columns, batch by batch, what their cells look like."""

    def __init__(self) -> None:
        self._numbers = Counter[str]()
        self._words = Counter[str]()
        self._others: set[str] = set()  # text with digits that is no number
        self._unread: set[str] = set()
        self._not: dict[Looks, set[str]] = {look: set() for look in (Looks.BOOLEANS, Looks.DATES, Looks.OTHER_DATES)}

    def add(self, name: str, cells: Any) -> None:
        """Read some cells of a text column."""
        try:
            cells = plain(Column(name, "number"), cells)
        except UnfitError:
            self._unread.add(name)
            return
        if not is_text(cells.type):
            self._numbers[name] += len(cells)
            return
        text = values_of_text(cells)
        digits = pc.fill_null(pc.match_substring_regex(text, DIGIT), False)
        count = pc.sum(digits).as_py() or 0
        if count and name not in self._others and not holds_numbers(text.filter(digits)):
            self._others.add(name)
        self._numbers[name] += count
        self._words[name] += len(text) - text.null_count - count
        kinds = {
            Looks.BOOLEANS: pc.is_in(text, pa.array(BOOLEANS, text.type)),
            Looks.DATES: pc.match_substring_regex(text, _ISO_DATE),
            Looks.OTHER_DATES: pc.match_substring_regex(text, _DATE),
        }
        for look, alike in kinds.items():
            if not pc.all(pc.or_kleene(alike, pc.is_null(text))).as_py():
                self._not[look].add(name)

    @property
    def unclear(self) -> dict[str, Looks]:
        """What columns of words look like, and of text with digits that is no number, and of numbers between words."""
        looks = dict.fromkeys(self._unread, Looks.NEITHER)
        mixed = {name for name, count in self._words.items() if 0 < count <= self._numbers[name]} - self._others
        looks |= dict.fromkeys(mixed, Looks.MIXED)
        for name in self._others | {name for name, count in self._words.items() if count > self._numbers[name]}:
            alike = (look for look, others in self._not.items() if name not in others)
            looks.setdefault(name, next(alike, Looks.WORDS))
        return looks


def require_column(source: object, names: Sequence[str], owner: Owner) -> None:
    """Refuse a privacy unit that is no column of a table."""
    if owner.column is not None and owner.column not in names:
        raise no_column(owner.column, names, f"{source}: ")


def require_owner(source: object, names: Sequence[str], owner: Owner, schema: Schema | None = None) -> list[str]:
    """Return the columns named like identifiers; refuse a table with one if the owner of a row is not given."""
    require_column(source, names, owner)
    owners = person_columns(names)
    each_row = owner.each_row or (schema is not None and schema.each_row_is_a_person)
    if owners and owner.column is None and not each_row:
        declared = f"give {parameter('privacy_unit', owners[0])}" if schema is None else in_schema(owners[0])
        raise UsageError(
            f"{source}: {named_like_persons(owners)}. If a person may have several rows, {declared}: all rows of a "
            "person are kept, and protected together. If no person has two, give "
            f"{parameter('each_row_is_a_person')}"
            + (
                ": such columns are then left out; to keep one that names no persons, use a schema."
                if schema is None
                else ", or write each_row_is_a_person = true in the schema."
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
    return "No column is named like a person, so each row is assumed to be a different person"


def in_schema(name: str) -> str:
    """Return how to declare the privacy unit in a schema."""
    return f'declare {name} in the schema (kind = "privacy unit")'


def by_option(name: str) -> str:
    """Return how to declare the privacy unit of a file without a schema."""
    return f"declare {name} with {parameter('privacy_unit', name)}, or in a schema if it is text"


def row_is_unit(
    source: object, names: Sequence[str], declared: Callable[[str], str] = by_option, schema: Schema | None = None
) -> str | None:
    """Return the message that each row is a privacy unit, if a column is named like persons; None if that was said."""
    if not (owners := person_columns(names)) or (schema is not None and schema.each_row_is_a_person):
        return None
    return (
        f"{source}: {named_like_persons(owners)}. The privacy unit is the row: if a person may have several rows, "
        f"{declared(owners[0])}."
    )


def schema_of_numbers(
    source: object, names: Sequence[str], kinds: Sequence[Any] | None, unclear: Mapping[str, Looks],
    left_out: Collection[str], owner: Owner, order: Sequence[str] | None = None, *, ranged: bool = False,
) -> Schema:  # fmt: skip
    """Return the schema of a table of numbers; refuse one that needs a person's words, and draft a schema of it.

    ``left_out`` are an index, and columns that were not asked for; ``order``: of the others, default as they are.
    """
    require_column(source, names, owner)
    owners = person_columns(names)
    looks = _looks(names, kinds, unclear)
    whose = {owner.column, *owners}
    described = {n: look for n, look in looks.items() if n not in left_out and n not in whose}
    unknown = [n for n, look in described.items() if look != Looks.MIXED and (n in unclear or look not in _CLEAR)]
    if unknown:
        mixed = [n for n, look in described.items() if look == Looks.MIXED]
        raise SchemaNeededError(
            f"{source}: {_are(len(unknown), 'column')} not numeric, and only you know what "
            f"{'it means' if len(unknown) == 1 else 'they mean'}: "
            f"{_by_look([*unknown, *mixed], looks)}.{_asking(owners, owner)}",
            draft_of(source, looks, owners, left_out, owner=owner, ranged=ranged),
        )
    require_owner(source, names, owner)
    columns, chosen = [], list(order or names)
    if owner.column is not None and owner.column not in chosen:
        chosen.insert(0, owner.column)
    for name in chosen:
        if name == owner.column:
            columns.append(Column(name, "privacy unit"))
        elif name in left_out:
            continue
        elif name in owners:
            columns.append(Column(name, "ignored"))
        else:
            columns.append(Column(name, "number", missing="centre", other="missing"))
    return Schema(columns, others="ignored", max_rows=owner.max_rows)


_CLEAR = frozenset({Looks.NUMBERS, Looks.BOOLEANS})


def _looks(names: Sequence[str], kinds: Sequence[Any] | None, unclear: Mapping[str, Looks]) -> dict[str, Looks]:
    """Return what each column looks like, by its cells or, where it is no text, by its stored type."""
    looks = dict.fromkeys(names, Looks.NUMBERS)
    for name, kind in zip(names, kinds or (), strict=False):
        if pa.types.is_boolean(kind):
            looks[name] = Looks.BOOLEANS
        elif not is_number(kind) and not is_text(kind):
            fitting = {Looks.WORDS: "category", Looks.DATES: "date"}.items()
            alike = (look for look, word in fitting if takes(Column(name, word), kind))
            looks[name] = next(alike, Looks.NEITHER)
    return looks | dict(unclear)


def _by_look(names: Sequence[str], looks: Mapping[str, Looks]) -> str:
    together: dict[Looks, list[str]] = {}
    for name in names:
        together.setdefault(looks[name], []).append(repr(name))
    return "; ".join(f"{listed(alike)} ({look})" for look, alike in together.items())


def _asking(owners: Sequence[str], owner: Owner) -> str:
    """Return the question whose a row is, if a column is named like persons and nothing was said of it."""
    if not owners or owner.column is not None or owner.each_row:
        return ""
    return f" {named_like_persons(owners)}, so you must also say whether a person can have several rows."


def _are(count: int, noun: str) -> str:
    return f"{counted(count, noun)} {'is' if count == 1 else 'are'}"
