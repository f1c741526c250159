"""The commands schema, ingest, register, bound and combine."""

from __future__ import annotations

import json
import shlex
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpdist.cli.options import (
    LOCAL,
    SOURCE,
    STORE,
    budget_location,
    budget_message,
    cluster_options,
    grouped,
    json_option,
    ledger_option,
    options,
)
from dpdist.cli.output import BARS, answer, say, show
from dpdist.core.errors import DataError
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.moment.histograms import NormGrid
from dpdist.core.options import BudgetOptions, IngestOptions, ReleaseOptions, fields_of
from dpdist.core.pipeline import clip_norm
from dpdist.core.pipeline.release import combine_releases
from dpdist.core.privacy.checks import cautions_message
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.parse import norms_request_from
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.draft import blanks_of, write_draft
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage.store import AnyStore, store_at
from dpdist.core.text import NEXT, counted, exactly, rounded_up

if TYPE_CHECKING:
    from dpdist.core.ingest.sources import SourceLocation

_COLUMNS = "Comma-separated names of the columns to keep, in this order."
_BOUND_OPTIONS = {
    "epsilon": {"help": "Epsilon to spend on this choice: a small part of the budget, such as 0.1."},
    "delta": {
        "help": "Privacy loss delta. Above 0, the noise is Gaussian, which costs little alongside other Gaussian "
        "releases. If 0, it is Laplace noise, with pure differential privacy. [default: that of the budget]",
    },
    "centre": {
        "help": "none, or the file with the public centre and scale of the planned release.",
        "metavar": "[none|FILE]",
    },
    "scale": {"help": "none, or the file with the public scale of the planned release.", "metavar": "[none|FILE]"},
}  # fmt: skip


@grouped()
@click.argument("source", type=SOURCE)
@click.argument("rows", type=STORE)
@options(IngestOptions, "ingest_options", changed={"columns": {"metavar": "NAMES", "help": _COLUMNS}})
@ledger_option
@click.option("--compress", is_flag=True, help="Compress the chunks, for slow disks; reading takes more CPU time.")
@cluster_options
@json_option
def ingest(
    source: SourceLocation, rows: AnyStore, ingest_options: IngestOptions, ledger: LedgerAddress | None, compress: bool,
    cluster: Cluster, as_json: bool,
) -> None:  # fmt: skip
    """Copy SOURCE into the Zarr array ROWS. SOURCE is a file, a folder of files or an address (s3://, gs://, https://).

    ROWS is a folder, or an address in an object store (s3://, gs://, az://), where a budget requires --ledger.

    Files may be .npy, .npz, .csv, .csv.gz, .parquet (also in KEY=VALUE folders), .arrow, .feather, .h5ad, .nc and
    .zarr, also of VCF Zarr, where a row is a sample. Existing ROWS are never replaced: if they come from the same
    files, the command does nothing, and an interrupted ingest resumes.

    A SOURCE below 256 MiB is read by this process; a larger one by one worker per core, or by the given cluster.
    """
    budget, fresh = ingest_options.budget, not store_at(rows).exists()
    from dpdist.core.pipeline.sources import ingest_rows  # noqa: PLC0415 - its readers are slow to import

    table = ingest_rows(
        source, rows, budget=budget, ledger=ledger, compress=compress, progress=BARS, say=say, cluster=cluster,
        **ingest_options.parameters,
    )  # fmt: skip
    address = budget_location(rows, table, ledger)
    value = _table_json(rows, table, fresh, str(address) if ingest_options.budget else None)
    message = _table_message(rows, table, "" if fresh else ", unchanged")
    message += budget_message(table, address)
    schema = table.schema
    if schema is not None and schema.clip_norm is not None and not schema.uncentred and not table.together:
        value["norm"] = schema.norm
        clipped = "the numbers of every row" if schema.numbers_norm and schema.whole().columns else "every row"
        message += (
            f" The schema's ranges limit {clipped} to norm {rounded_up(schema.clip_norm)}, so --clip schema clips "
            "nothing. "
        )
        if not schema.whole().columns:  # by default the others release a mean
            message += "Add --centre private, which costs nothing, for answers about the mean."
    answer(as_json, value, message.rstrip())


def _table_json(rows: AnyStore, table: RowsTable, fresh: bool, ledger: str | None) -> dict[str, object]:
    return {
        "rows": str(rows), "fresh": fresh, "n": table.rows, "d": table.columns, "dtype": table.dtype,
        "chunks": table.chunks, "dataset_id": table.dataset_id, "ledger": ledger,
    }  # fmt: skip


def _table_message(rows: AnyStore, table: RowsTable, remark: str) -> str:
    shape = f"{counted(table.rows, 'row')} of {counted(table.columns, 'column')}, {table.dtype}"
    return f"{rows}: {shape}, {counted(table.chunks, 'chunk')}{remark}. "


@click.command("schema")
@click.argument("source", type=SOURCE)
@click.argument("draft", type=LOCAL, required=False)
@options(IngestOptions, "ingest_options", names={"header"})
@json_option
def schema_command(source: SourceLocation, draft: Path | None, ingest_options: IngestOptions, as_json: bool) -> None:
    """Write DRAFT, a schema of SOURCE in TOML for you to complete, or print it.

    SOURCE is .csv, .csv.gz, .parquet, .arrow or .feather, or a folder of these. No cell is read, so the draft contains
    column names only, and every column is drafted as a number; a .csv needs --header to say whether its first line
    names the columns. dpdist release of a file with words drafts one by what its cells look like. Correct the kinds,
    and fill in categories, from public knowledge, never from the data. An existing file is not replaced.
    """
    from dpdist.core.pipeline.sources import draft_schema  # noqa: PLC0415 - its readers are slow to import

    header = ingest_options.header
    text = draft_schema(source, header=header)
    if draft is None:
        show(json.dumps({"draft": text}) if as_json else text.rstrip())
        return
    write_draft(draft, text)
    columns, blanks = text.count("\n[[column]]"), blanks_of(text)
    asked = "" if header is None else f" --header {header}"
    following = f"dpdist ingest {shlex.quote(str(source))} ROWS --budget-epsilon E --budget-delta D"
    if isinstance(source, Path) and source.is_file():
        following = f"dpdist release {shlex.quote(str(source))} RELEASE --epsilon E --delta D"
    following += f" --schema {shlex.quote(str(draft))}{asked}"
    answer(
        as_json,
        {"schema": str(draft), "columns": columns, "blanks": blanks, "next": following},
        f"{draft}: a draft of {counted(columns, 'column')}. Correct the kinds and fill in the blanks from public "
        f"knowledge, never from the data, and set confirmed = true.\n{NEXT}{following}",
    )


@grouped()
@click.argument("source", type=SOURCE)
@click.argument("rows", type=STORE)
@options(IngestOptions, "ingest_options", names={*fields_of(BudgetOptions), "variable"})
@ledger_option
@cluster_options
@json_option
def register(
    source: SourceLocation, rows: AnyStore, ingest_options: IngestOptions, ledger: LedgerAddress | None,
    cluster: Cluster, as_json: bool,
) -> None:  # fmt: skip
    """Make ROWS from SOURCE without copying it: .npy, .parquet or .zarr, or a folder of such files.

    The workers read SOURCE once. ROWS is a small private folder with checksums of its parts. Later steps read SOURCE in
    place and verify it, so it must not change, and must have the same path on every worker. ROWS has all columns of
    SOURCE; to choose columns, ingest it. Existing ROWS of the same SOURCE are left as they are.
    """
    from dpdist.core.pipeline.sources import register_rows  # noqa: PLC0415 - its readers are slow to import

    budget, fresh = ingest_options.budget, not store_at(rows).exists()
    table = register_rows(
        source, rows, budget=budget, ledger=ledger, variable=ingest_options.variable, cluster=cluster, say=say
    )
    address = budget_location(rows, table, ledger)
    message = _table_message(rows, table, f" in place{'' if fresh else ', unchanged'}")
    value = _table_json(rows, table, fresh, str(address) if table.budget else None)
    answer(as_json, value, f"{message}Do not change {source}. {budget_message(table, address)}")


@click.command()
@click.argument("target", type=STORE, metavar="SUM")
@click.argument("releases", type=STORE, nargs=-1, required=True)
@click.option(
    "--disjoint",
    is_flag=True,
    help="State that no row, or no privacy unit if declared, is in two of the tables.",
)
@json_option
def combine(target: AnyStore, releases: tuple[AnyStore, ...], disjoint: bool, as_json: bool) -> None:
    """Write SUM, the sum of RELEASES of disjoint rows, with their joint guarantee. Free post-processing."""
    outcome = combine_releases(releases, target, disjoint=disjoint)
    total, fresh = outcome.release, outcome.fresh
    before = "" if fresh else ", unchanged"
    value = {"release": str(target), "fresh": fresh, **total.attributes(), "cautions": list(total.cautions)}
    message = (
        f"{target}: {total.release_id}, the sum of {counted(len(total.releases), 'release')}{before}. "
        f"{total.mechanism}, {total.guarantee_words()}. This file is public."
    )
    answer(as_json, value, message + cautions_message(total.cautions))


@grouped()
@click.argument("rows", type=STORE)
@options(
    ReleaseOptions, "release_options",
    names={"epsilon", "delta", "neighbours", "centre", "scale", "accept_large_delta"}, changed=_BOUND_OPTIONS, clip="",
)  # fmt: skip
@click.option(
    "--quantile",
    help="Share of rows that the clip norm should leave unchanged. [default: 0.95, or chosen by --clip-components]",
)
@click.option(
    "--clip-components",
    type=click.IntRange(min=1),
    metavar="K",
    help="Choose the quantile that minimises the total error of K components from noise and clipping. Omit it if you "
    "need the whole matrix.",
)
@click.option("--release-epsilon", metavar="E", help="With --clip-components: the epsilon of the planned release.")
@click.option(
    "--grid",
    default=str(NormGrid()),
    metavar="LOW:HIGH:PER_OCTAVE",
    help="Candidate norms, PER_OCTAVE values per doubling. Public, never taken from the data. With fewer values the "
    "choice is less noisy. [default: 1/1024 to 2^20, 2 per octave]",
)
@ledger_option
@partial(cluster_options, trusted=True)
@json_option
def bound(
    rows: AnyStore, release_options: ReleaseOptions, quantile: str | None, clip_components: int | None,
    release_epsilon: str | None, grid: str, ledger: LedgerAddress | None, cluster: Cluster, as_json: bool,
) -> None:  # fmt: skip
    """Choose the clip norm of ROWS privately: a quantile of the row norms, for a small epsilon.

    The ledger is charged once, for a noisy histogram of the norms. Repeating the command is free, even with a
    different --quantile or --clip-components. The exit code is 4 if the quantile may lie outside the grid.
    """
    choice = clip_norm.choose_clip_norm(
        rows, norms_request_from(release_options, grid), quantile, clip_components=clip_components,
        release_epsilon=release_epsilon, ledger=ledger, cluster=cluster,
        budget_delta=release_options.delta is None, say=say,
    )  # fmt: skip
    following = next_command(rows, choice, release_options.centre, release_options.scale)
    message = choice.describe() if following is None else f"{choice.describe()}\n{NEXT}{following}"
    answer(as_json, {**choice.to_json(), "next": following}, message)
    if following is None:
        click.get_current_context().exit(DataError.exit_code)


def next_command(rows: AnyStore, choice: clip_norm.ClipChoice, centre: str | None, scale: str | None) -> str | None:
    """Return the release command to complete, or None if no clip norm was chosen."""
    if choice.clip is None:
        return None
    neighbours, loss = choice.histogram.guarantee.neighbours, choice.histogram.guarantee.loss
    files = {"centre": centre, "scale": scale}
    arguments = "".join(
        f" --{option} {shlex.quote(file)}" for option, file in files.items() if file not in {None, "none"}
    )
    arguments += f" --delta {_delta(loss)}" if loss.delta_atto else ""
    arguments += "" if neighbours is Neighbours.REPLACE_ONE else f" --neighbours {neighbours}"
    epsilon = "E" if choice.purpose is None else f"{choice.purpose.loss.epsilon:.12g}"
    return (
        f"dpdist release {shlex.quote(str(rows))} RELEASE --epsilon {epsilon} --clip {exactly(choice.clip)}{arguments}"
    )


def _delta(loss: PrivacyLoss) -> str:
    """Write a delta as 1e-06 if that is exact, else with all digits."""
    short = f"{loss.delta:g}"
    exact = Decimal(loss.delta_atto).scaleb(-18).normalize()
    return short if Decimal(short) == exact else str(exact)
