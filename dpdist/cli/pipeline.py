"""The steps up to a release, one command each: ingest, bound, release, combine."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpdist._util.text import NEXT, counted, exactly, rounded_up
from dpdist.cli.options import (
    PLACE,
    SOURCE,
    budget_options,
    budget_words,
    cluster_options,
    grid_options,
    json_option,
    kept_in,
    large_delta_option,
    ledger_option,
    mechanism_option,
    mechanism_options,
    neighbours_option,
    options_of,
    scale_options,
    trusted_option,
)
from dpdist.cli.output import BARS, answer, say
from dpdist.errors import DataError, DpdistError, UsageError
from dpdist.ingest.registered import open_rows
from dpdist.ledger.address import LedgerAddress
from dpdist.moment.histograms import NormGrid
from dpdist.pipeline import clip_norm
from dpdist.pipeline.budget import ingest_rows
from dpdist.pipeline.combine import combine_releases
from dpdist.pipeline.release import release_rows
from dpdist.privacy.caution import in_words
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release.artefact import Release
from dpdist.release.parse import clip_from, columns_from, norms_request_from, options_from, request_from
from dpdist.release.request import Centring
from dpdist.rows.units import Keep
from dpdist.runtime.cluster import Cluster
from dpdist.storage.store import AnyStore, store_at

if TYPE_CHECKING:
    from dpdist.ingest.sources import SourceLocation


@click.command()
@click.argument("source", type=SOURCE)
@click.argument("rows", type=PLACE)
@budget_options
@ledger_option
@click.option("--columns", help="Comma-separated names of the columns to keep, in this order.")
@click.option(
    "--compress", is_flag=True, help="Compress the chunks: for slow disks; reading costs more processor time."
)
@click.option(
    "--privacy-unit",
    help="What says whose row it is, and is not stored: a column of whole numbers, obs/NAME of AnnData, or FID or "
    "FID,IID of a .fam.",
)
@click.option("--max-rows", type=int, help="Rows kept of each privacy unit at most.")
@click.option("--keep", type=click.Choice(["first", "random"]), help="Which of them [default: first].")
@click.option("--variable", help="The array of rows, where .nc, .zarr or .h5ad hold several.")
@click.option("--missing", type=int, help="Alleles to put where a genotype is missing: 0, 1 or 2 [default: refused].")
@click.option(
    "--genotypes",
    "rules",
    multiple=True,
    metavar="RULE=VALUE",
    help="multiallelic=skip or split; haploid=single or double; field=DS; frequencies=FILE, a public one: what is "
    "missing is then 2p; standardise=yes, by these. Each once.",
)
@click.option(
    "--header",
    type=click.Choice(["yes", "no"]),
    help="Whether the first line of a .csv names the columns, or is a row [default: refused where that is in doubt].",
)
@click.option(
    "--rows-dimension",
    metavar="NAME",
    help="The dimension of a .nc or .zarr along which the rows are [default: the first].",
)
@click.option(
    "--schema",
    type=PLACE,
    help="What the columns mean: a TOML file (dpdist schema drafts one), or rows, a release or a model made with it.",
)
@cluster_options
@json_option
def ingest(
    source: SourceLocation,
    rows: AnyStore,
    ledger: LedgerAddress | None,
    budget: PrivacyLoss | None,
    columns: str | None,
    compress: bool,
    privacy_unit: str | None,
    max_rows: int | None,
    keep: Keep | None,
    variable: str | None,
    missing: int | None,
    rules: tuple[str, ...],
    header: str | None,
    rows_dimension: str | None,
    schema: AnyStore | None,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Write ROWS, a Zarr array, from SOURCE: a file, a folder of files, or the address of one (s3://, gs://, https://).

    ROWS is a folder, or a place in an object store (s3://, gs://, az://); then their budget needs --ledger.

    Files may be .npy, .npz, .csv, .csv.gz, .parquet (also in folders KEY=VALUE), .arrow, .feather, .h5ad, .nc, .zarr,
    .bed with .bim and .fam, .pgen with .pvar and .psam, .vcf and .vcf.gz. A row of genotypes is a sample. Rows that
    exist are never replaced. If they were ingested from the same files, the command does nothing. If it died half-way,
    it goes on where it was.

    A small SOURCE is read by this process, one of 256 MiB or more by a worker per core, or by those that are named.
    """
    names = None if columns is None else columns_from(columns)
    fresh = not store_at(rows).exists()
    table = ingest_rows(
        source, rows, budget=budget, ledger=ledger, columns=names, privacy_unit=privacy_unit, max_rows=max_rows,
        keep=keep, variable=variable, missing=missing, genotypes=options_from(rules), header=header,
        rows_dimension=rows_dimension,
        schema=None if schema is None else str(schema),
        compress=compress, progress=BARS, say=say, cluster=cluster,
    )  # fmt: skip
    place = kept_in(rows, table, ledger)
    norm = None if table.schema is None else table.schema.norm
    longest = None if norm is None else rounded_up(norm)
    answer(
        as_json,
        {
            "rows": str(rows), "fresh": fresh, "n": table.rows, "d": table.columns, "dtype": table.dtype,
            "chunks": table.chunks, "dataset_id": table.dataset_id,
            "ledger": str(place) if budget else None, **({} if longest is None else {"norm": norm}),
        },
        f"{rows}: {counted(table.rows, 'row')} of {counted(table.columns, 'column')}, {table.dtype}, "
        f"{counted(table.chunks, 'chunk')}{'' if fresh else ', ingested before from the same files and left alone'}. "
        + budget_words(table, place)
        + ("" if longest is None else f" By the schema no row is longer than {longest}: --clip {longest} shortens none"
           "."),
    )  # fmt: skip


@click.command("release")
@click.argument("rows", type=PLACE)
@click.argument("release", type=PLACE)
@click.option("--epsilon", required=True, help="Privacy loss epsilon, in steps of a millionth.")
@click.option(
    "--delta",
    help="Privacy loss delta. Leave it out for pure differential privacy.",
)
@click.option(
    "--clip",
    help="Required. Public clip norm C, from public knowledge or dpdist bound; never from the data. private: the "
    "release chooses it first, from a private histogram of the norms (of scaled rows, with --scale private). auto: "
    "1.75 sqrt(d), for columns that are divided by a scale, or of those that a private one saw.",
)
@click.option(
    "--components",
    type=int,
    metavar="K",
    help="With --clip private: choose the norm that suits K components. Without it, the 0.95-quantile.",
)
@click.option(
    "--targets",
    metavar="NAMES",
    help="With --scale private: comma-separated columns that regress will explain. Noise hides less of them.",
)
@mechanism_option
@neighbours_option
@click.option(
    "--centre",
    default=Centring.NONE.value,
    show_default=True,
    help="none, private, or a file (.npz, .npy, .json) with a public centre and scale per column, or a release.zarr "
    "whose rows had them.",
)
@scale_options
@grid_options
@mechanism_options
@click.option(
    "--for-reproduction",
    is_flag=True,
    help="Allow a mechanism that is not private as claimed: no ledger, and only of rows that never had a budget.",
)
@large_delta_option
@click.option("--id", "name", help="Release id [default: follows from data set and parameters].")
@ledger_option
@cluster_options
@trusted_option
@json_option
def release_command(
    rows: AnyStore, release: AnyStore, epsilon: str, delta: str | None, clip: str | None, components: int | None,
    targets: str | None, mechanism: str | None, neighbours: str, centre: str, scale: str, scale_share: str | None,
    grid_bits: int | None, rows_at_most: int, options: tuple[str, ...], arithmetic: str | None,
    for_reproduction: bool, accept_large_delta: bool, name: str | None, ledger: LedgerAddress | None,
    cluster: Cluster, trusted: str, as_json: bool,
) -> None:  # fmt: skip
    """Publish RELEASE, one private second moment of ROWS. The same command again publishes the same bytes, free."""
    if clip is None:
        raise UsageError(_without_clip(rows))
    request = request_from(
        epsilon=epsilon, delta=delta, clip=clip_from(clip), mechanism=mechanism, neighbours=neighbours, centre=centre,
        scale=scale, scale_share=scale_share, components=components,
        targets=() if targets is None else tuple(columns_from(targets)), grid_bits=grid_bits,
        rows_at_most=rows_at_most, period="", name=name, folder=Path(), for_reproduction=for_reproduction,
        options=options_of(options, arithmetic), accept_large_delta=accept_large_delta,
    )  # fmt: skip
    cluster = replace(cluster, trusted_worker=trusted == "worker")
    outcome = release_rows(rows, release, request, ledger=ledger, cluster=cluster, say=say)
    answer(as_json, outcome.to_json(), outcome.words())


def _without_clip(rows: AnyStore) -> str:
    """Say what the clip norm may be; of rows with a schema that gives one, which."""
    norm = None
    with suppress(DpdistError):  # no such rows: that is told when there is a clip norm
        schema = open_rows(rows).schema
        norm = None if schema is None else schema.norm
    free = "" if norm is None else f", such as --clip {rounded_up(norm)}, beyond which no row is by its schema"
    return (
        f"A release needs the norm that rows are shortened to: --clip C, from public knowledge{free}; or --clip "
        "private, and it chooses one first, for a part of its budget; or, with a scale, --clip auto."
    )


@click.command()
@click.argument("target", type=PLACE, metavar="SUM")
@click.argument("releases", type=PLACE, nargs=-1, required=True)
@click.option(
    "--disjoint",
    is_flag=True,
    help="No row, or no privacy unit where there is one, is in two of the tables: their owners say so.",
)
@json_option
def combine(target: AnyStore, releases: tuple[AnyStore, ...], disjoint: bool, as_json: bool) -> None:
    """Write SUM, the sum of RELEASES of disjoint rows, with their joint guarantee. Free post-processing."""
    outcome = combine_releases(releases, target, disjoint=disjoint)
    made, fresh = outcome.release, outcome.fresh
    before = "" if fresh else ", written before and left alone"
    value = {"release": str(target), "fresh": fresh, **made.attributes(), "cautions": list(made.cautions)}
    answer(
        as_json,
        value,
        f"{target}: {made.release_id}, the sum of {counted(len(made.releases), 'release')}{before}. "
        f"{made.mechanism}, "
        f"{made.guarantee_words()}{_condition(made, disjoint=disjoint)}. This file is public."
        + in_words(made.cautions),
    )


def _condition(made: Release, *, disjoint: bool) -> str:
    """Say what the guarantee of a sum rests on, as part of a sentence."""
    if not disjoint or len({extent.dataset for extent in made.extents}) == 1:
        return ""
    return f", provided that, as you say, no {made.unit.column if made.unit else 'row'} is in two of the tables"


@click.command()
@click.argument("rows", type=PLACE)
@click.option(
    "--epsilon", required=True, help="Privacy loss epsilon to spend on the choice: a small part, such as 0.1."
)
@click.option(
    "--delta",
    help="Privacy loss delta. Above 0 the noise is Gaussian, and costs little beside other Gaussian releases. With 0 "
    "it is Laplace noise, and purely private. [default: that of the budget]",
)
@click.option(
    "--quantile",
    help="Share of the rows that are at most as long as the clip norm. [default: 0.95, or what --components asks for]",
)
@click.option(
    "--components",
    type=click.IntRange(min=1),
    metavar="K",
    help="Take the quantile that suits K components: noise and shortening together cost these least. Where the whole "
    "matrix counts, leave it out.",
)
@click.option("--release-epsilon", metavar="E", help="With --components, the epsilon of the release to come.")
@click.option(
    "--grid",
    default=str(NormGrid()),
    metavar="LOW:HIGH:PER_OCTAVE",
    help="The norms to choose from, PER_OCTAVE of them from one to its double. Public, never from the data. A shorter "
    "grid gets less noise. [default: 1/1024 to 2^20, 2 per octave]",
)
@neighbours_option
@click.option(
    "--centre",
    default="none",
    show_default=True,
    help="none, or the file with a public centre and scale that the release will take.",
)
@click.option(
    "--scale", default="none", show_default=True, help="none, or the file with a public scale that it will take."
)
@large_delta_option
@ledger_option
@cluster_options
@trusted_option
@json_option
def bound(
    rows: AnyStore, epsilon: str, delta: str | None, quantile: str | None, components: int | None,
    release_epsilon: str | None, grid: str, neighbours: str, centre: str, scale: str,
    accept_large_delta: bool, ledger: LedgerAddress | None, cluster: Cluster, trusted: str, as_json: bool,
) -> None:  # fmt: skip
    """Choose the clip norm of ROWS privately: a quantile of the norms of its rows, for a small epsilon.

    The noisy histogram of the norms is charged to the ledger, once: the same command again, or with another --quantile
    or --components, costs nothing. Exit code 4 if the quantile may lie beyond the grid.
    """
    request = norms_request_from(
        epsilon=epsilon, delta=delta, grid=grid, neighbours=neighbours, centre=centre, scale=scale,
        accept_large_delta=accept_large_delta,
    )  # fmt: skip
    where = replace(cluster, trusted_worker=trusted == "worker")
    choice = clip_norm.choose_clip_norm(
        rows, request, quantile, components=components, release_epsilon=release_epsilon, ledger=ledger, cluster=where,
        budget_delta=delta is None, say=say,
    )  # fmt: skip
    following = next_command(rows, choice, centre, scale)
    words = choice.words()
    answer(
        as_json, {**choice.to_json(), "next": following}, words if following is None else f"{words}\n{NEXT}{following}"
    )
    if following is None:
        click.get_current_context().exit(DataError.exit_code)


def next_command(rows: AnyStore, choice: clip_norm.ClipChoice, centre: str, scale: str) -> str | None:
    """Return the command that releases with the chosen clip norm, to be completed; None where none was chosen."""
    if choice.clip is None:
        return None
    neighbours, loss = choice.histogram.guarantee.neighbours, choice.histogram.guarantee.loss
    files = {"centre": centre, "scale": scale}
    more = "".join(f" --{word} {shlex.quote(file)}" for word, file in files.items() if file != "none")
    more += f" --delta {_delta(loss)}" if loss.delta_atto else ""
    more += "" if neighbours is Neighbours.REPLACE_ONE else f" --neighbours {neighbours}"
    epsilon = "E" if choice.purpose is None else f"{choice.purpose.loss.epsilon:.12g}"
    return f"dpdist release {shlex.quote(str(rows))} RELEASE --epsilon {epsilon} --clip {exactly(choice.clip)}{more}"


def _delta(loss: PrivacyLoss) -> str:
    """Write a delta short where that is exact, as 1e-06, and else with every digit."""
    short = f"{loss.delta:g}"
    exact = Decimal(loss.delta_atto).scaleb(-18).normalize()
    return short if Decimal(short) == exact else str(exact)
