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

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow.compute as pc

from dpdist._util.text import counted, listed
from dpdist.errors import DataError, UsageError
from dpdist.naming import parameter, step
from dpdist.rows.columns import Column
from dpdist.rows.encoding import DIGIT, UnfitError, holds_numbers, is_text, kind_of, plain, values_of_text
from dpdist.rows.schema import Schema
from dpdist.rows.units import Owner

_OWNERS = frozenset({
    "account", "applicant", "card", "child", "citizen", "client", "cust", "customer", "donor", "email", "employee",
    "family", "household", "individual", "member", "mrn", "nhs", "participant", "passenger", "pat", "patient",
    "person", "phone", "player", "pt", "pupil", "record", "resident", "respondent", "ssn", "student", "subj", "subject",
    "taxpayer", "user", "usubj", "visitor", "voter", "worker",
})  # fmt: skip
_NUMBERED = frozenset({"code", "id", "identifier", "key", "no", "nr", "num", "number", "uid"})
_ALONE = frozenset({"eid", "id", "identifier", "uid"})  # eid: of the UK Biobank
_JOINED = re.compile(f"s?(?:{'|'.join(sorted(_NUMBERED))})?$")  # a plural, a number written in one word
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def names_person(name: str) -> bool:
    """Return whether a column is named like an identifier of persons.

    >>> [name for name in ("person_id", "id", "USUBJID", "obs/donor", "income", "customer_age") if names_person(name)]
    ['person_id', 'id', 'USUBJID', 'obs/donor']
    """
    parts = {part.lower() for part in _PARTS.findall(name.rpartition("/")[2])}
    owners = {part for part in parts if not _OWNERS.isdisjoint({part, _JOINED.sub("", part)})}
    return parts <= owners | _NUMBERED | _ALONE and bool(owners or (parts and parts <= _ALONE))


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


def require_owner(source: object, names: Sequence[str], owner: Owner) -> list[str]:
    """Return the columns named like identifiers; refuse a table with one if the owner of a row is not given."""
    owners = [name for name in names if names_person(name)]
    if owner.column is not None and owner.column not in names:
        raise UsageError(f"{source} has no column {owner.column!r}. It has: {listed(names)}.", parameter="person")
    if owners and owner.column is None and not owner.each_row:
        raise UsageError(
            f"{source}: {_are(len(owners), 'column')} named like an identifier of persons: {listed(owners)}. If a "
            f"person may have several rows, give {parameter('person', owners[0])} "
            f"{parameter('max_rows', 'M')}, where M is how many of them to keep: all are protected together. If no "
            f"person has two, give {parameter('each_row_is_a_person')}."
        )
    return owners


def schema_of_numbers(
    source: object, names: Sequence[str], kinds: Sequence[Any] | None, unclear: Iterable[str], indexes: set[str],
    owner: Owner, header: str | None, *, named: bool = True,
) -> Schema:  # fmt: skip
    """Return the schema of a table of numbers; refuse one that needs a person's words."""
    others = {
        name
        for name, kind in zip(names, kinds or (), strict=False)
        if kind_of(kind) != "number" and not is_text(kind)  # the cells of text were read
    }
    if unclear := sorted(({*unclear} | others) - indexes - {owner.column}, key=list(names).index):
        asked = {} if kinds is not None else {"header": header or "yes"}
        drafted = step("schema", source if named else "TABLE", **asked)
        raise DataError(
            f"{source}: {_are(len(unclear), 'column')} not of numbers: {listed(map(repr, unclear))}. A schema says "
            f"what they mean: {drafted} drafts one. Complete it, save it, and give "
            f"{parameter('schema', 'schema.toml')}."
        )
    owners = require_owner(source, names, owner)
    columns = []
    for name in names:
        if name == owner.column:
            columns.append(Column(name, "privacy unit"))
        elif name in owners:
            columns.append(Column(name, "ignored"))
        elif name not in indexes:
            columns.append(Column(name, "number", missing="centre", other="missing"))
    return Schema(columns, others="ignored", max_rows=owner.max_rows)


def _are(count: int, noun: str) -> str:
    return f"{counted(count, noun)} {'is' if count == 1 else 'are'}"
