"""Rows of one file of a table, next to it, with a budget: the decisions of a release by one command.

``table.csv`` becomes ``table.zarr`` with the ledger ``table.ledger``. The identity of these rows follows from the bytes
of the file, so a copy of the file is charged to the same ledger; other contents are other rows. With another schema the
same file has other rows, ``table-0a1b2c3d.zarr``, with the same ledger; their digest is part of the ids of releases.
The digest of the file stays in the state folder (:mod:`dpdist.core.ledger.state_folder`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any, NamedTuple

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ingest.readers.base import Choices
from dpdist.core.ingest.sources import opened_sources
from dpdist.core.ingest.survey import Job, size_of, survey_source
from dpdist.core.ingest.workers import Workers
from dpdist.core.ingest.write import ingest
from dpdist.core.ledger import state_folder
from dpdist.core.ledger.address import LedgerAddress, parse_address
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.naming import parameter, step
from dpdist.core.pipeline.budget import charges_add_remove, create_ledger, default_ledger, has_private_count
from dpdist.core.pipeline.reading import Meaning, meaning_of, rows_next_to
from dpdist.core.pipeline.release import require_releasable
from dpdist.core.pipeline.said import Reading
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.progress import Progress, steps
from dpdist.core.release.plan import Plan
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.automatic import whose_rows
from dpdist.core.rows.dataset import RowsTable, open_ingested
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Owner, Unit
from dpdist.core.runtime.cluster import AnyCluster
from dpdist.core.storage.atomic import make_once
from dpdist.core.storage.store import AnyStore, store_at
from dpdist.core.text import canonical, counted, listed


class FileRows(NamedTuple):
    """The rows of a file, and the ledger of its budget."""

    table: RowsTable
    ledger: LedgerAddress


def rows_of_file(
    file: Path,
    request: ReleaseRequest,
    *,
    budget: PrivacyLoss | None = None,
    target: AnyStore | None = None,
    said: Reading = Reading(),  # noqa: B008 - frozen
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
    cluster: AnyCluster | None = None,
    review: Callable[[Plan], object] = lambda _: None,
) -> FileRows:
    """Ingest a file next to it, with a budget of ``budget`` or of the request, and report every decision.

    ``review`` is called with the plan of the release before the budget is declared, and may refuse it.
    """
    if not file.is_file():
        raise DataError(f"{file} is not a file. Check its name.")
    first = rows_next_to(file)
    if target is not None and store_at(target).absolute() == store_at(first).absolute():
        raise UsageError(f"The rows of {file} are stored in {first}. Choose another name for the release.")
    _require_writable(file, first, budget or request.loss)
    content, meaning = _content_of(file), _meaning(file, request, said)
    schema, unit, head = meaning.schema, meaning.unit, meaning.head
    choices = Choices(header=said.header, schema=schema)
    identity = state_folder.identity_of(content, str(first.absolute()))
    # the names of the columns say whether the first line is a header, however that was decided
    names = None if head is None or schema else list(head.names if meaning.columns is None else meaning.columns)
    meant = replace(choices, header=None).to_json(), names
    described = canonical([*meant, None if unit is None else unit.to_json()])
    variant = hashlib.sha256(described.encode()).hexdigest()

    def unchanged() -> tuple[str, str]:
        if _content_of(file) != content:
            raise DataError(f"{file} changed while it was read. Run the same command again when it is complete.")
        return identity, variant

    def make(rows: Path) -> None:
        ingest(
            file, rows, columns=meaning.columns, unit=unit, choices=choices, identity=unchanged,
            progress=steps(progress, "Ingesting in this process"), elsewhere=Workers(cluster, progress),
        )  # fmt: skip

    table, rows = _made(file, first, (identity, variant), make)
    place = state_folder.seen(identity).place
    ledger = default_ledger(first) if place is None else _moved(first, parse_address(place))
    if table.ledger_id is None:
        if place is None:
            try:
                require_releasable(table, request, budget or request.loss, review)  # before it is declared for good
            except RefusedError as error:
                raise RefusedError(f"{error} The rows of {file} were copied to {rows}.") from None
        create_ledger(ledger, rows, budget or (request.loss if place is None else None))
        table = open_ingested(rows)
    elif budget is not None and budget != Ledger(ledger).budget:
        raise UsageError(
            f"The budget of {file} is {Ledger(ledger).budget}, in {ledger}. Leave {parameter('budget_epsilon')} out; "
            f"{step('ledger raise')} raises it."
        )
    Ledger(ledger).require_relation(request.neighbours)  # a private n is printed nowhere
    public = request.neighbours is Neighbours.REPLACE_ONE
    say(f"{_decisions(file, table, ledger, meaning, rows=table.rows if public else None)} Its rows are in {rows}.")
    return FileRows(table, ledger)


class FileShape(NamedTuple):
    """What a forecast uses of a file: the rows that its release would have."""

    columns: int
    rows: int  # 0 if it is private, or decided by the limit of rows of a unit
    schema: Schema | None
    unit: Unit | None


def shape_of_file(file: Path, request: ReleaseRequest, said: Reading) -> FileShape:
    """Return the shape of the rows of a file, as :func:`rows_of_file` would store them; nothing is stored."""
    meaning = _meaning(file, request, said)
    schema, unit = meaning.schema, meaning.unit
    with opened_sources(file, Path(gettempdir()), Choices(header=said.header, schema=schema)) as sources:

        def here(job: Job, tasks: Sequence[Any]) -> list[Any]:
            return [job(sources.opener, task, lambda _: None) for task in tasks]

        kept, sizes = (
            meaning.columns if schema is None else schema.features,
            [size_of(entry) for entry in sources.entries],
        )
        found = survey_source(file, sources, kept, here, sizes=sizes, unit=unit)
    unit = unit if schema is None else schema.unit
    stated = _counts(file, request) and (unit is None or unit.max_rows is None)
    return FileShape(len(found.names), found.rows if stated else 0, schema, unit)


def _counts(file: Path, request: ReleaseRequest) -> bool:
    """Whether the number of rows of a file is public: neither here nor before was a release under add-remove."""
    first = rows_next_to(file)
    if first.exists() and has_private_count(open_ingested(first)):  # also of another version of the file
        return False
    place = state_folder.ledger_of(_content_of(file))
    charged = place is not None and charges_add_remove(_moved(first, parse_address(place)))
    return not charged and request.neighbours is Neighbours.REPLACE_ONE


def _meaning(file: Path, request: ReleaseRequest, said: Reading) -> Meaning:
    """Return what the columns of a file are; refuse a release that would not know the centre of missing numbers."""
    scaled = "scale" in request.chooses
    meaning = meaning_of(file, said, ranged=not scaled and request.scale is None)
    if meaning.decided and request.centre is None and not scaled:
        raise UsageError(
            "Without a schema, cells of a file without a number count as the centre of their column, which must be "
            f"known before rows are summed. Add {parameter('scale', 'private')}, with a clip norm in scaled units; or "
            f"ingest the file ({step('ingest', file, 'ROWS')}), and release its rows."
        )
    return meaning


def _made(
    file: Path, first: Path, identity: tuple[str, str], make: Callable[[Path], None]
) -> tuple[RowsTable, Path]:  # fmt: skip
    """Return the rows of a file and where they are; make them if there are none."""
    for _ in range(2):  # again if another process was faster, with another schema
        rows = _place(file, first, *identity)
        make_once(rows.exists, partial(make, rows))
        table = open_ingested(rows)
        if (table.dataset_id, table.variant) == identity:
            return table, rows
    raise DataError(f"{rows} exists already, with other rows than {file}. Rename it, or give {file} another name.")


def _place(file: Path, first: Path, identity: str, variant: str) -> Path:
    """Return where the rows are or will be: next to the file, under another name for another schema."""
    if not first.exists():
        return first
    table = open_ingested(first)
    if table.dataset_id != identity:
        if table.variant is not None:
            raise DataError(
                f"{first} has other rows than {file} now. Either the file was changed: give the new one another name. "
                f"Or the state folder was lost: restore it ({state_folder.state_home()}), because another name would "
                "be a second budget of the same people."
            )
        raise DataError(
            f"{first} exists already, with other rows than {file}, or from another command. To release the rows there: "
            f"{step('release', first, 'RELEASE', epsilon='E', delta='D')}. To release {file}, give it another name."
        )
    return first if table.variant == variant else first.with_name(f"{first.stem}-{variant[:8]}.zarr")


def _moved(first: Path, place: LedgerAddress) -> LedgerAddress:
    """Return where the recorded ledger is: its place or, if the folder was moved, next to the rows."""
    if Ledger.stands_at(place):
        return place
    if Ledger.stands_at(default_ledger(first)):
        return default_ledger(first)  # whether it is the recorded one is verified at the charge, as for every ledger
    raise DataError(
        f"The ledger {place} is missing. Restore it from a copy, or move it to {default_ledger(first)}; nothing was "
        "read or spent."
    )


def _content_of(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _left_out(meaning: Meaning) -> list[str]:
    """Return the columns of a source that are neither summed nor a privacy unit; those of a schema without a head."""
    columns = () if meaning.schema is None else meaning.schema.columns
    names = [column.name for column in columns] if meaning.head is None else meaning.head.names
    kept = {column.name for column in columns if column.kind != "ignored"}
    if meaning.schema is None:
        kept = {*(names if meaning.columns is None else meaning.columns)}
        kept |= set() if meaning.unit is None else {meaning.unit.column}
    return [name for name in names if name not in kept]


def _require_writable(file: Path, first: Path, budget: PrivacyLoss) -> None:
    """Refuse a file in a folder that is read-only, next to which no rows can be stored."""
    if not (first.exists() or os.access(first.absolute().parent, os.W_OK)):
        rows = first.name
        limits = {"budget_epsilon": f"{budget.epsilon:g}", "budget_delta": f"{budget.delta:g}"}
        raise DataError(
            f"The folder of {file} is not writable, and its rows would be stored there. Store them here: "
            f"{step('ingest', file, rows, **limits)}; and release these: {step('release', rows, 'RELEASE')}, with your "
            "other options."
        )


def _decisions(file: Path, table: RowsTable, ledger: LedgerAddress, meaning: Meaning, *, rows: int | None) -> str:
    """Return a sentence for each decision about a table, without its number of rows if that is private."""
    schema, unit, left_out = table.schema, table.unit, _left_out(meaning)
    size = "" if rows is None else f"{counted(rows, 'row')} of "
    sentences = [
        f"{file}: {size}{counted(table.columns, 'column')}"
        + (f", without {listed(left_out)}" if left_out else ""),
        whose_rows(Owner(each_row=meaning.each_row)) if unit is None else
        f"All rows of one {unit.column} are protected together"
        + ("" if unit.max_rows is None else f", and at most {unit.max_rows} of them are kept"),
        f"The budget of the table is {Ledger(ledger).budget}, in {ledger}",
    ]  # fmt: skip
    if meaning.mixed:
        sentences.append(f"Words between the numbers of {listed(meaning.mixed)} count as missing")
    if schema is not None and len(schema.centring) > len(schema.pairwise):
        sentences.append(
            "Missing cells, if any, are replaced by the centre of their column, which weakens its correlations"
        )
    return ". ".join(sentences) + "."
