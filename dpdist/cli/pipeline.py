"""The commands that do the work: ingest, release, pca, project, run and demo."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from dpdist._util.text import counted
from dpdist.cli.options import (
    LEDGER,
    PATH,
    READ,
    SOURCE,
    answer,
    budget_options,
    cluster_options,
    count_of,
    json_option,
    large_delta_option,
    ledger_option,
    mechanism_option,
    mechanism_options,
    neighbours_option,
    options_of,
    say,
    show,
    tls_options,
    trusted_option,
)
from dpdist.errors import RefusedError
from dpdist.ingest.sources import Choices
from dpdist.ingest.sources import Place as SourcePlace
from dpdist.jobs import job_file
from dpdist.jobs import run as job_runs
from dpdist.jobs import status as job_status
from dpdist.ledger.address import Place
from dpdist.ledger.ledger import Ledger
from dpdist.pca.scree import require_scree, scree
from dpdist.pca.shortened import shortened
from dpdist.pipeline.budget import default_ledger, ingest_rows
from dpdist.pipeline.release import Cluster, fit_components, project_rows, release_rows
from dpdist.privacy.caution import in_words
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release.artefact import Release, open_release
from dpdist.release.combine import combined, write_sum
from dpdist.release.request import Centring
from dpdist.report import text
from dpdist.report.figures import draw_scree
from dpdist.runtime.engine import progress_bar
from dpdist.runtime.tls import Certificates
from dpdist.storage.atomic import replace_file


@click.command()
@click.argument("source", type=SOURCE)
@click.argument("rows", type=PATH)
@budget_options
@click.option("--columns", help="Comma-separated names of the columns to keep, in this order.")
@click.option(
    "--compress", is_flag=True, help="Compress the chunks: for slow disks; reading costs more processor time."
)
@click.option("--privacy-unit", help="Column that says whose row it is: a whole number; it is not stored.")
@click.option("--max-rows", type=int, help="Rows kept of each privacy unit at most, the first ones.")
@click.option("--variable", help="The array of rows, where .nc, .zarr or .h5ad hold several.")
@click.option("--missing", type=int, help="Alleles to put where a genotype is missing: 0, 1 or 2 [default: refused].")
@click.option(
    "--header",
    type=click.Choice(["yes", "no"]),
    help="Whether the first line of a .csv names the columns, or is a row [default: refused where that is in doubt].",
)
@json_option
def ingest(
    source: SourcePlace,
    rows: Path,
    budget: PrivacyLoss | None,
    columns: str | None,
    compress: bool,
    privacy_unit: str | None,
    max_rows: int | None,
    variable: str | None,
    missing: int | None,
    header: str | None,
    as_json: bool,
) -> None:
    """Write ROWS, a Zarr array, from SOURCE: a file, a folder of files, or the address of one (s3://, gs://, https://).

    Read are .npy, .npz, .csv, .csv.gz, .parquet (also in folders KEY=VALUE), .h5ad, .nc, .zarr, .bed with .bim and
    .fam, .vcf and .vcf.gz. Of genotypes the rows are the samples. Rows that were ingested from the same files are left
    alone, others never replaced.
    """
    choices = Choices(variable, missing, header)
    names = None if columns is None else job_file.columns_from(columns)
    unit = job_file.unit_from(privacy_unit, max_rows)
    fresh = not rows.exists()
    with progress_bar("Ingesting") as progress:
        table = ingest_rows(
            source, rows, budget=budget, columns=names, compress=compress, progress=progress, unit=unit,
            choices=choices, say=say,
        )  # fmt: skip
    answer(
        as_json,
        {
            "rows": str(rows), "fresh": fresh, "n": table.rows, "d": table.columns, "dtype": table.dtype,
            "chunks": table.chunks, "dataset_id": table.dataset_id,
            "ledger": str(default_ledger(rows)) if budget else None,
        },
        f"{rows}: {counted(table.rows, 'row')} of {counted(table.columns, 'column')}, {table.dtype}, "
        f"{counted(table.chunks, 'chunk')}{'' if fresh else ', ingested before from the same files and left alone'}. "
        + (f"Budget {budget} in {default_ledger(rows)}." if budget else "No budget declared yet."),
    )  # fmt: skip


@click.command("release")
@click.argument("rows", type=READ)
@click.argument("release", type=PATH)
@click.option("--epsilon", required=True, help="Privacy loss epsilon, in steps of a millionth.")
@click.option(
    "--delta",
    help="What may be added to a probability besides the factor e^epsilon; leave out for pure differential privacy.",
)
@click.option(
    "--clip", required=True, type=float, help="Public clip norm C: from dpdist bound, or else never from the data."
)
@mechanism_option
@neighbours_option
@click.option(
    "--centre",
    default=Centring.NONE.value,
    show_default=True,
    help="none, private, or a file (.npz, .npy, .json) with a public centre and scale per column.",
)
@click.option("--grid-bits", type=int, default=16, show_default=True, help="The clip norm is 2^B grid steps.")
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
    rows: Path, release: Path, epsilon: str, delta: str | None, clip: float, mechanism: str | None, neighbours: str,
    centre: str, grid_bits: int, options: tuple[str, ...], arithmetic: str | None, for_reproduction: bool,
    accept_large_delta: bool, name: str | None, ledger: Place | None, cluster: Cluster, trusted: str, as_json: bool,
) -> None:  # fmt: skip
    """Publish RELEASE, one private second moment of ROWS. The same command again publishes the same bytes, free."""
    request = job_file.request_from(
        epsilon=epsilon, delta=delta, clip=clip, mechanism=mechanism, neighbours=neighbours, centre=centre,
        grid_bits=grid_bits, period="", name=name, folder=Path(), for_reproduction=for_reproduction,
        options=options_of(options, arithmetic), accept_large_delta=accept_large_delta,
    )  # fmt: skip
    cluster = replace(cluster, trusted_worker=trusted == "worker")
    outcome = release_rows(rows, release, request, ledger=ledger, cluster=cluster)
    answer(as_json, outcome.to_json(), outcome.words())


@click.command()
@click.argument("release", type=READ)
@click.argument("model", type=PATH)
@click.option(
    "--components",
    required=True,
    metavar="K|auto",
    help="Number of principal components, or auto: those that stand above the noise at confidence 0.95.",
)
@click.option("--plot", type=PATH, help="Draw the eigenvalues over the edge of the noise to this picture.")
@cluster_options
@json_option
def pca(release: Path, model: Path, components: str, plot: Path | None, cluster: Cluster, as_json: bool) -> None:
    """Write MODEL, the top principal components of RELEASE, and say how far each one is signal. Free.

    A release of thousands of columns is multiplied from the disk, on the cluster if --scheduler or --workers is given.
    As many components of the same release that stand there already are left alone; nothing else is replaced.
    """
    fitted, opened, fresh = fit_components(release, model, count_of(components), cluster=cluster)
    found = fitted.components
    seen = None if found.eigenvalues is None else scree(opened, found.eigenvalues)
    lengths = shortened(opened)
    if plot is not None:
        draw_scree(require_scree(opened, found.eigenvalues), plot)
    value = {
        "model": str(model),
        "fresh": fresh,
        "components": len(found.components),
        "status": opened.status,
        "eigenvalues": None if found.eigenvalues is None else found.eigenvalues.tolist(),
        "eigenvalues_per_row": found.per_row,
        "cautions": list(opened.cautions),
        "shortened": lengths.to_json(),
        **({} if seen is None else seen.to_json()),
    }
    largest = "" if found.eigenvalues is None else f", largest eigenvalue {found.eigenvalues[0]:.6g}"
    warning = in_words(opened.cautions)
    if opened.status != "private":
        warning = f" {opened.status.upper()}: do not publish it."
    before = "" if fresh else ", written before and left alone"
    words = f"{model}: {counted(len(found.components), 'component')}{largest}{before}.{warning}"
    table = "" if seen is None else f"\n{text.above_noise(seen)}"
    answer(as_json, value, f"{words}{table}\n{lengths.words()} {lengths.warning()}".rstrip())


@click.command("report")
@click.argument("release", type=READ)
@click.argument("out", type=PATH)
@click.option("--components", default="auto", metavar="K|auto", help="How many to show [default: auto].")
@click.option("--image", metavar="HxW", help="Draw components as images of this shape, such as 28x28.")
@click.option("--ledger", type=LEDGER, help="The ledger that was charged, to show what is left of the budget.")
@json_option
def report_command(
    release: Path, out: Path, components: str, image: str | None, ledger: Place | None, as_json: bool
) -> None:
    """Write OUT, one HTML page about RELEASE for people: guarantee, budget, noise and components. Free."""
    from dpdist.report import html  # noqa: PLC0415 - scipy.special and templates, only needed here

    html.write(
        open_release(release),
        out,
        count=count_of(components),
        image=html.Shape.parse(image) if image else None,
        ledger=Ledger(ledger) if ledger else None,
    )
    answer(as_json, {"report": str(out)}, f"{out}: open it in a browser. It loads nothing from anywhere.")


@click.command()
@click.argument("rows", type=READ)
@click.argument("model", type=READ)
@click.argument("scores", type=PATH)
@cluster_options
@json_option
def project(rows: Path, model: Path, scores: Path, cluster: Cluster, as_json: bool) -> None:
    """Write SCORES, the rows projected on MODEL's components. Scores are as private as the rows.

    Run again, it leaves them alone; what was made from other rows or another model is not replaced.
    """
    count, fresh = project_rows(rows, model, scores, cluster=cluster)
    value = {"scores": str(scores), "fresh": fresh, "n": count, "private": True}
    answer(as_json, value, job_runs.scores_words(scores, fresh=fresh))


@click.command()
@click.argument("job", type=READ)
@click.option("--scheduler", help="Address of a Dask scheduler, instead of what JOB.toml names.")
@click.option("--continual", type=int, help="With periods: keep the noise of the total logarithmic for so many.")
@click.option("--dry-run", is_flag=True, help="Tell what would be released and spent, and do nothing.")
@tls_options
@json_option
def run(
    job: Path,
    scheduler: str | None,
    continual: int | None,
    dry_run: bool,
    certificates: Certificates | None,
    insecure: bool,
    as_json: bool,
) -> None:
    """Run a whole job from JOB.toml. Running it again publishes nothing new."""
    read = job_file.read_job(
        job, scheduler=scheduler, certificates=certificates, insecure=insecure, continual=continual
    )
    if dry_run:
        found = job_status.preview(read)
        answer(as_json, found, job_status.preview_words(found))
        return
    outcome = job_runs.run(read, say=say, progress=progress_bar)
    if as_json:
        click.echo(json.dumps(outcome))


@click.command()
@click.argument("job", type=READ)
@click.option("--textfile", type=PATH, help="Also write it for node_exporter's textfile collector (Prometheus).")
@json_option
def status(job: Path, textfile: Path | None, as_json: bool) -> None:
    """Show where a job stands: its budget, its releases, what is unfinished, and which periods wait."""
    found = job_status.standing(job_file.read_job(job))
    if textfile is not None:
        replace_file(textfile, job_status.textfile(found).encode(), "metrics")
    if as_json:
        click.echo(json.dumps(found))
    else:
        show(job_status.standing_words(found))
    if found["refused"] is not None:
        raise RefusedError(found["refused"])


@click.command()
@click.argument("target", type=PATH, metavar="SUM")
@click.argument("releases", type=READ, nargs=-1, required=True)
@click.option(
    "--disjoint",
    is_flag=True,
    help="No row, or no privacy unit where there is one, is in two of the tables: their owners say so.",
)
@json_option
def combine(target: Path, releases: tuple[Path, ...], disjoint: bool, as_json: bool) -> None:
    """Write SUM, the sum of RELEASES of disjoint rows, with their joint guarantee. Free post-processing."""
    made = combined([open_release(path) for path in releases], disjoint=disjoint)
    fresh = write_sum(made, target)
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


@click.command("demo")
@click.argument("directory", type=PATH, default=Path("dpdist-demo"))
@cluster_options
def demo_command(directory: Path, cluster: Cluster) -> None:
    """Do everything on a bundled real data set (1797 handwritten digits), on this machine."""
    from dpdist.cli import demo  # noqa: PLC0415 - scikit-learn, for its data set only, doubles the start-up of every command

    demo.run(directory, cluster)
