"""Drafts of schemas: files with blanks that the owner of a table fills in from public knowledge.

A draft says of each column what its cells look like, if they were read: numbers, words, yes and no, or dates. Kinds and
blanks follow from that, and nothing else comes from cells: no category, range, date format or missing value. One cell
can change what a column looks like, so a draft is private: its owner alone can read it. The schema is published, and
what is published must not follow from rows. So a draft cannot be used before its owner has confirmed its kinds by
public knowledge (``confirmed = true``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path

from dpdist.core.errors import DataError
from dpdist.core.rows.schema_mistakes import WHOSE
from dpdist.core.rows.units import Owner
from dpdist.core.storage.atomic import write_new
from dpdist.core.text import printable


class SchemaNeededError(DataError):
    """A table has columns of which only its owner knows what they are; the draft is a schema with blanks."""

    def __init__(self, message: str, draft: str, path: Path | None = None) -> None:
        super().__init__(message)
        self.draft = draft
        self.path = path  # where it was written


class Looks(StrEnum):
    """What the cells of a column look like, as the comment in a draft; the value names such columns in a message."""

    NUMBERS = "numbers"
    MIXED = "numbers, with words between them that would count as missing"
    WORDS = "words"
    BOOLEANS = "yes or no"
    DATES = "dates"
    OTHER_DATES = "dates not written as 2026-01-31"
    NEITHER = "of a type that no schema can describe"


_RANGE = "range = []  # fill in, such as [0, 120]"
_DATES = "range = []  # fill in, such as [2000-01-01, 2030-12-31]"  # far from 0, where a private scale sees little
_KINDS = {
    Looks.NUMBERS: 'kind = "number"  # looks like numbers\nother = "missing"  # words, if any, count as missing',
    Looks.MIXED: 'kind = "number"  # looks like numbers, with words between them\nother = "missing"',
    Looks.WORDS: 'kind = "category"  # looks like words\n'
    'categories = []  # fill in, such as ["basic", "premium"]\nother = "column"  # counts all categories not listed',
    Looks.BOOLEANS: 'kind = "boolean"  # looks like yes and no',
    Looks.DATES: f'kind = "date"  # looks like dates\n{_DATES}',
    Looks.OTHER_DATES: f'kind = "date"  # looks like dates\nformat = ""  # fill in, such as "%d.%m.%Y"\n{_DATES}',
    Looks.NEITHER: 'kind = "ignored"  # of another type; dpdist ingest says how to divide vectors and records',
}
_UNREAD = 'kind = "number"  # not read: correct it'
_OWNER = 'kind = "ignored"  # named like a person, and not stored'
_HEAD = """\
# A dpdist schema: what the columns of {source} are. It is published with every release.
#
# Complete it from public knowledge: a form, a manual, the way the table was made. NEVER from the data: noise does not
# protect a category, a range or a date format that was taken from them.
#   1. Fill in each blank, [] or "".
#   2. Check the kind of each column. {suggested} Codes are a
#      "category", even if they are numbers; free text is "ignored". Numbers with a unit (12 EUR, 5 %) look like words:
#      write them as plain numbers, and draft again.
#   3. Give money and other skewed numbers transform = "log", and numbers far from 0, such as years, a range: a budget
#      that is spent has no second try.
#   4. Set confirmed = true.

confirmed = false
"""
_KEYS = """\
#
# Further keys of a column, all optional:
# range       = [0, 120] of a number, an integer or a date ([2000-01-01, 2030-12-31]): values outside are clipped to it
# transform   = "log" or "asinh" of a skewed number, such as money: means and slopes are then those of the logarithm
# bins        = [18, 30, 50, 65], edges that make a category of a number, too: a table of age groups
# missing_values = ["?", -999], text and codes that mean a missing value; above the first column, of all columns
# missing     = "refuse", "centre", "pairwise" (a number that is missing for reasons unrelated to its value: a column
#               counts it), "indicator", "drop" (the row counts as the centre), or "fill" (as fill = a public constant,
#               or else as the middle of the range)
# other       = "refuse", "missing", or for categories "column": of categories that are not listed, of words in numbers
# encoding    = "ordinal" of a category: its place in the list; weight = 2: a factor of the numbers
# Kinds: "number", "integer", "boolean", "category", "date", "ignored" and "privacy unit" (whose a row is; with
# max_rows = 3 above the first column at most three rows of each are kept).
"""


def draft_of(
    source: object,
    looks: Mapping[str, Looks | None],
    owners: Collection[str] = (),
    left_out: Collection[str] = (),
    *,
    owner: Owner = Owner(),  # noqa: B008 - frozen
    ranged: bool = False,
) -> str:
    """Return the text of a draft schema, by what the cells of each column look like; None: they were not read.

    ``owners`` are named like persons; ``owner``: what was said of whose a row is. ``left_out`` are ignored.
    ``ranged``: numbers need a range.
    """
    name = _quoted(printable(str(source).replace("The table", "the table")))[1:-1]
    suggested = "What its cells look like only suggests it."
    if None in looks.values():
        suggested = "No cell was read, so every column is drafted as a number."
    head = _HEAD.format(source=name, suggested=suggested) + _whose(owner, asked=bool(owners))
    if ranged:
        head += 'scale = "range"  # maps each range to [-1, 1]\n'
    missing = "pairwise" if ranged else "centre"
    head += f'missing = "{missing}"  # of numbers and dates; a missing category or boolean is a category of its own\n'
    columns = []
    for column, look in looks.items():
        if column == owner.column:
            kind = 'kind = "privacy unit"'
        elif column in owners:
            kind = _OWNER
        elif column in left_out:
            kind = 'kind = "ignored"'
        else:
            kind = _kind(look, ranged=ranged)
        columns.append(f"\n[[column]]\nname = {_quoted(column)}\n{kind}\n")
    return "".join([head, _KEYS, *columns])


def _whose(owner: Owner, *, asked: bool) -> str:
    """Return the lines of a draft about whose a row is."""
    if owner.each_row:
        return "each_row_is_a_person = true\n"
    if owner.column is not None:
        return "" if owner.max_rows is None else f"max_rows = {owner.max_rows}\n"
    return f'each_row_is_a_person = ""  # fill in: {WHOSE}\n' if asked else ""


def _kind(look: Looks | None, *, ranged: bool) -> str:
    """Return the lines about a column."""
    kind = _UNREAD if look is None else _KINDS[look]
    return f"{kind}\n{_RANGE}" if ranged and look in {Looks.NUMBERS, Looks.MIXED, None} else kind


SUFFIX = ".schema.toml"
"""How the name of a draft ends; such files are passed over in the folder of a source."""


def blanks_of(draft: str) -> int:
    """Return the number of blanks of a draft."""
    return draft.count("  # fill in")


def write_draft(path: Path, draft: str) -> None:
    """Write a draft that its owner alone can read; DataError if it cannot be written, or is there."""
    try:
        write_new(path, draft.encode())
    except FileExistsError:
        raise DataError(f"{path} exists already. Choose another name for the draft.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}. Choose another name for the draft.") from None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
