"""What the columns of a file are, and whose a row is: by a schema, by options, or decided by the software.

A file with words or dates is refused once, with everything that only its owner knows: which columns need a description,
and whether a person may have several rows. The refusal writes a draft of the schema (:mod:`dpdist.core.rows.draft`),
which its owner alone can read, next to the file or in the working folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest.other_kinds import renaming
from dpdist.core.ingest.readers.base import ChoiceRequiredError, Choices, counts_rows
from dpdist.core.ingest.readers.source import Head
from dpdist.core.ingest.sources import KINDS, head_at, table_at
from dpdist.core.naming import parameter
from dpdist.core.pipeline.said import Reading
from dpdist.core.rows.automatic import require_column, require_owner, schema_of_numbers
from dpdist.core.rows.columns import Column
from dpdist.core.rows.draft import SUFFIX, Looks, SchemaNeededError, blanks_of, write_draft
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Owner, Unit, unit_from
from dpdist.core.text import counted, listed, repeated


def rows_next_to(file: Path) -> Path:
    """Return where the rows of a file of a table are stored.

    >>> str(rows_next_to(Path("data/table.csv.gz")))
    'data/table.zarr'
    """
    suffix = max((suffix for suffix in KINDS if file.name.lower().endswith(suffix)), key=len, default="")
    return file.with_name(file.name[: len(file.name) - len(suffix)] + ".zarr")


class Meaning(NamedTuple):
    """What the columns of a file are."""

    schema: Schema | None  # None: they are numbers
    unit: Unit | None  # the privacy unit of a file without a schema
    head: Head | None  # of a file without a given schema
    columns: tuple[str, ...] | None  # to keep of a file without a schema; None: all
    decided: bool  # whether the schema was decided here
    each_row: bool  # whether each row was said to be a person
    mixed: tuple[str, ...] = ()  # columns of numbers with words between them


def meaning_of(file: Path, said: Reading, *, ranged: bool = False) -> Meaning:
    """Return what the columns of a file are; refuse one that only its owner can describe, and draft its schema.

    ``ranged``: the release needs the ranges of numbers.
    """
    if said.schema is None:
        return _decided(file, said, ranged=ranged)
    schema = said.schema if isinstance(said.schema, Schema) else Schema.read(said.schema)
    _require_same_owner(schema, said.owner)
    try:
        head = head_at(file, Path(gettempdir()), Choices(header=said.header, schema=schema))
    except ChoiceRequiredError as error:
        raise DataError(
            f"{error} If it is a header, the schema is of a table with other columns. Add {parameter('header', 'yes')} "
            f"or {parameter('header', 'no')}."
        ) from None
    if schema.unit is None:
        require_owner(file, head.asked, said.owner, schema)
    if said.columns or said.ignore:
        schema = _without(schema, said.kept(file, [column.name for column in schema.sources]))
    return Meaning(schema, None, None, None, False, said.owner.each_row or schema.each_row_is_a_person)


def _decided(file: Path, said: Reading, *, ranged: bool) -> Meaning:
    owner = said.owner
    try:
        head, unclear = table_at(file, Path(gettempdir()), said.header)
    except ChoiceRequiredError as error:
        raise DataError(f"{error} Add {parameter('header', 'yes')} or {parameter('header', 'no')}.") from None
    chosen = said.kept(file, head.names) if said.columns or said.ignore else None
    if unclear is None:
        if owner == Owner():
            require_owner(file, head.asked, owner)
        return Meaning(None, unit_from(owner.column, owner.max_rows, None), head, chosen, False, owner.each_row)
    require_column(file, head.names, owner)
    if twice := repeated(head.names):
        raise DataError(f"{file} has several columns with the same name: {listed(map(repr, twice))}. {renaming(file)}")
    left_out = {head.names[place] for place in head.indexes} | set(filter(counts_rows, head.names))
    if chosen is not None:
        left_out = (left_out - set(said.columns)) | (set(head.names) - set(chosen) - {owner.column})
    try:
        schema = schema_of_numbers(file, head.names, head.kinds, unclear, left_out, owner, chosen, ranged=ranged)
    except SchemaNeededError as error:
        raise drafted(file, error) from None
    mixed = tuple(name for name, look in unclear.items() if look == Looks.MIXED and name not in left_out)
    return Meaning(schema, None, head, None, True, owner.each_row, mixed)


def _require_same_owner(schema: Schema, owner: Owner) -> None:
    """Refuse a privacy unit that contradicts the one of a schema."""
    unit = schema.unit
    named = None if unit is None else (unit.column, owner.max_rows and unit.max_rows)
    if owner.column is not None and named != (owner.column, owner.max_rows):
        raise UsageError(
            f'With a schema, {owner.column} is declared in it: kind = "privacy unit" for its column. Leave '
            f"{parameter('privacy_unit')} and {parameter('max_rows')} out: max_rows = "
            f"{owner.max_rows or 'M'} stands above the first column."
        )
    if owner.each_row and unit is not None:
        raise UsageError(f"The schema declares a privacy unit. Leave {parameter('each_row_is_a_person')} out.")


def _without(schema: Schema, names: Sequence[str]) -> Schema:
    """Return a schema that keeps some of its columns, in this order, and its privacy unit."""
    columns = [
        column if column.name in names or not column.stored else Column(column.name, "ignored")
        for column in schema.sources
    ]
    places = {name: place for place, name in enumerate(names)}
    return replace(schema, columns=sorted(columns, key=lambda column: places.get(column.name, -1)))


def drafted(file: Path, needed: SchemaNeededError) -> SchemaNeededError:
    """Write the draft, unless it is there, and return the refusal with what to do."""
    name = f"{rows_next_to(file).stem}{SUFFIX}"
    for path in (file.with_name(name), Path(name)):
        written = False
        if not path.exists():
            with suppress(DataError):
                write_draft(path, needed.draft)
                written = True
        if path.exists():
            break
    else:
        raise SchemaNeededError(
            f"{needed} A schema must say it, but its draft could not be written to {path}: change to a folder that you "
            "can write to, and repeat the command. No budget was spent.",
            needed.draft,
        )
    draft = f"{path} is there already, and was left as it is: if it is a schema of this file, complete it"
    if written:
        blanks = blanks_of(needed.draft)
        filled = f"fill in its {counted(blanks, 'blank')}, " if blanks else ""
        draft = f"{path} is a draft for you: {filled}check the kinds"
    return SchemaNeededError(
        f"{needed} {draft}, from public knowledge and never from the data, and set confirmed = true. No budget was "
        "spent.",
        needed.draft,
        path,
    )
