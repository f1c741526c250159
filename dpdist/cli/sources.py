"""The commands schema and register: what the columns of a source mean, and a table of rows where they are."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from dpdist._util.text import NEXT, counted
from dpdist.cli.options import (
    LOCAL,
    PLACE,
    SOURCE,
    budget_words,
    cluster_options,
    grouped,
    json_option,
    kept_in,
    ledger_option,
    options,
)
from dpdist.cli.output import answer, show
from dpdist.errors import DataError
from dpdist.ingest.sources import SourceLocation
from dpdist.ledger.address import LedgerAddress
from dpdist.options import BudgetOptions, IngestOptions, fields_of
from dpdist.pipeline.sources import draft_schema, register_rows
from dpdist.runtime.cluster import Cluster
from dpdist.storage.store import AnyStore, store_at


@click.command("schema")
@click.argument("source", type=SOURCE)
@click.argument("draft", type=LOCAL, required=False)
@options(IngestOptions, "asked", names={"header"})
@json_option
def schema_command(source: SourceLocation, draft: Path | None, asked: IngestOptions, as_json: bool) -> None:
    """Write DRAFT, a TOML file that says what the columns of SOURCE mean, for you to complete; without it, print it.

    SOURCE is .csv, .csv.gz, .parquet, .arrow or .feather, or a folder of these. The draft is made of names and stored
    types; no value is looked at, so of a .csv say whether its first line names the columns: --header. Ranges and
    categories are blanks: fill them in from public knowledge, never from the data. A file that exists is not replaced.
    """
    header = asked.header
    text = draft_schema(source, header=header)
    if draft is None:
        show(json.dumps({"draft": text}) if as_json else text.rstrip())
        return
    _write(draft, text)
    columns, blanks = text.count("\n[[column]]"), text.count(" = []  # fill in")
    following = (
        f"dpdist ingest {shlex.quote(str(source))} ROWS --schema {shlex.quote(str(draft))} "
        f"{'' if header is None else f'--header {header} '}--budget-epsilon E --budget-delta D"
    )
    answer(
        as_json,
        {"schema": str(draft), "columns": columns, "blanks": blanks, "next": following},
        f"{draft}: a draft of {counted(columns, 'column')}, with {counted(blanks, 'blank')} to fill in from public "
        'knowledge, never from the data. Its head says how; leave columns out with kind = "ignored".'
        f"\n{NEXT}{following}",
    )


def _write(draft: Path, text: str) -> None:
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        fault = error.strerror
    else:
        return
    raise DataError(f"{draft} cannot be written: {fault}. Choose another name for the draft.")


@grouped()
@click.argument("source", type=SOURCE)
@click.argument("rows", type=PLACE)
@options(IngestOptions, "asked", names={*fields_of(BudgetOptions), "variable"})
@ledger_option
@cluster_options
@json_option
def register(
    source: SourceLocation,
    rows: AnyStore,
    asked: IngestOptions,
    ledger: LedgerAddress | None,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Make ROWS of SOURCE without a copy: .npy, .parquet or .zarr, or a folder of such files.

    The workers read SOURCE once. ROWS is a small private folder that says what every part of it holds, and every later
    step reads SOURCE where it is and holds it against that. So SOURCE must stay as it is, under the same name on every
    worker. ROWS has all columns of SOURCE; to choose columns, ingest it. Rows that were registered from the same source
    are left alone.
    """
    budget, fresh = asked.budget, not store_at(rows).exists()
    table = register_rows(source, rows, budget=budget, ledger=ledger, variable=asked.variable, cluster=cluster)
    place = kept_in(rows, table, ledger)
    answer(
        as_json,
        {
            "rows": str(rows), "fresh": fresh, "n": table.rows, "d": table.columns, "dtype": table.dtype,
            "chunks": table.chunks, "dataset_id": table.dataset_id, "ledger": str(place) if table.budget else None,
        },
        f"{rows}: {counted(table.rows, 'row')} of {counted(table.columns, 'column')}, {table.dtype}, "
        f"{counted(table.chunks, 'chunk')} in place{'' if fresh else ', registered before and left alone'}. "
        f"Do not change {source}. "
        + budget_words(table, place),
    )  # fmt: skip
