"""Rows of one file of a table, next to it, with a budget: the decisions of a release by one command.

``table.csv`` becomes ``table.zarr`` with the ledger ``table.ledger``. The identity of these rows follows from the bytes
of the file, so a copy of the file is charged to the same ledger; other contents are other rows. The digest stays in the
state folder (:mod:`dpdist.ledger.state_folder`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from dpdist._util.progress import Progress
from dpdist._util.text import counted, listed
from dpdist.errors import DataError, UsageError
from dpdist.ingest.readers.base import UNNAMED, ChoiceRequiredError
from dpdist.ingest.sources import KINDS, table_at
from dpdist.ledger import state_folder
from dpdist.ledger.ledger import Ledger
from dpdist.naming import parameter, step
from dpdist.pipeline.budget import create_ledger, default_ledger, ingest_rows
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows.automatic import schema_of_numbers
from dpdist.rows.dataset import RowsTable
from dpdist.rows.schema import Schema
from dpdist.rows.units import Owner
from dpdist.runtime.cluster import Cluster
from dpdist.storage.arrays import set_attributes
from dpdist.storage.store import AnyStore, store_at


def rows_next_to(file: Path) -> Path:
    """Return where the rows of a file of a table are stored.

    >>> str(rows_next_to(Path("data/table.csv.gz")))
    'data/table.zarr'
    """
    suffix = max((suffix for suffix in KINDS if file.name.lower().endswith(suffix)), key=len, default="")
    return file.with_name(file.name[: len(file.name) - len(suffix)] + ".zarr")


def rows_of_file(
    file: Path,
    budget: PrivacyLoss,
    *,
    target: AnyStore | None = None,
    schema: Schema | Any = None,
    header: str | None = None,
    owner: Owner = Owner(),  # noqa: B008 - frozen
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
    cluster: Cluster | None = None,
) -> RowsTable:
    """Ingest a file next to it, declare the budget if there is none yet, and report every decision."""
    rows = rows_next_to(file)
    if target is not None and store_at(target).absolute() == store_at(rows).absolute():
        raise UsageError(f"The rows of {file} are stored in {rows}. Choose another name for the release.")
    described = schema if schema is not None else automatic_schema(file, header, owner)
    existed = rows.exists()
    try:
        table = ingest_rows(file, rows, schema=described, header=header, progress=progress, cluster=cluster)
    except DataError as error:
        if not existed:
            raise
        raise DataError(
            f"{error} To release the rows there, name them: {step('release', rows, 'RELEASE', epsilon='E', delta='D')}."
        ) from None
    if table.budget is None:
        with store_at(rows).locked():
            identity = state_folder.identity_of(_content_of(file), str(rows.absolute()))
            set_attributes(store_at(rows), "rows", lambda head: head.get("ledger_id") is None, dataset_id=identity)
        create_ledger(default_ledger(rows), rows, budget)
        table = ingest_rows(file, rows, schema=described, header=header)
    say(_decisions(file, table))
    return table


def _content_of(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _decisions(file: Path, table: RowsTable) -> str:
    """Return a sentence for each decision about a table."""
    whole, place = table.schema, default_ledger(rows_next_to(file))
    left_out = [column.name for column in whole.columns if column.kind == "ignored"] if whole else []
    unit = table.unit
    sentences = [
        f"{file}: {counted(table.rows, 'row')} of {counted(table.columns, 'column')}"
        + (f", without {listed(left_out)}" if left_out else ""),
        "Each row is protected as a person" if unit is None else
        f"Persons are told by {unit.column}, and at most {counted(unit.max_rows, 'row')} of each are kept",
        f"The budget of the table is {Ledger(place).budget}, in {place}",
    ]  # fmt: skip
    if whole is not None and whole.centring:
        sentences.append("Cells without a number count as the centre of their column")
    return ". ".join(sentences) + "."


def automatic_schema(file: Path, header: str | None, owner: Owner) -> Schema | None:
    """Return the schema of a table of numbers; None for a file that contains nothing else."""
    try:
        found = table_at(file, Path(gettempdir()), header)
    except ChoiceRequiredError as error:
        raise DataError(f"{error} Add {parameter('header', 'yes')} or {parameter('header', 'no')}.") from None
    if found is None:
        return None
    head, unclear = found
    indexes = {head.names[place] for place in head.indexes} | UNNAMED.intersection(head.names)
    return schema_of_numbers(file, head.names, head.kinds, unclear, indexes, owner, header)
