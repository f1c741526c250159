"""The command that makes a table of rows where they are."""

from __future__ import annotations

import click

from dpdist._util.text import counted
from dpdist.cli.options import (
    PLACE,
    SOURCE,
    budget_options,
    budget_words,
    cluster_options,
    json_option,
    kept_in,
    ledger_option,
)
from dpdist.cli.words import answer
from dpdist.ingest.sources import SourceLocation
from dpdist.ledger.address import LedgerAddress
from dpdist.pipeline.register import register_rows
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.runtime.cluster import Cluster
from dpdist.storage.store import AnyStore, store_at


@click.command()
@click.argument("source", type=SOURCE)
@click.argument("rows", type=PLACE)
@budget_options
@ledger_option
@click.option("--variable", help="The array of rows, where a Zarr group holds several.")
@cluster_options
@json_option
def register(
    source: SourceLocation,
    rows: AnyStore,
    budget: PrivacyLoss | None,
    ledger: LedgerAddress | None,
    variable: str | None,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Make ROWS of SOURCE without a copy: .npy, .parquet or .zarr, or a folder of such files.

    The workers read SOURCE once. ROWS is a small private folder that says what every part of it holds, and every later
    step reads SOURCE where it is and holds it against that. So SOURCE must stay as it is, under the same name on every
    worker. ROWS has all columns of SOURCE; to choose columns, ingest it. Rows that were registered from the same source
    are left alone.
    """
    fresh = not store_at(rows).exists()
    table = register_rows(source, rows, budget=budget, ledger=ledger, variable=variable, cluster=cluster)
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
