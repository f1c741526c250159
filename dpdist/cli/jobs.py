"""The commands run, status and demo.

The demonstration uses scikit-learn's 1797 handwritten digits of 8 x 8 pixels. They are public, so it may compare with
the exact answer.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np

from dpdist.answers.components import captured_variance
from dpdist.answers.eigen import top_eigenpairs
from dpdist.answers.fitting import fit_components
from dpdist.answers.model import open_model
from dpdist.cli.options import LOCAL, certificates_of, cluster_options, grouped, json_option, options
from dpdist.cli.output import BARS, answer, say, show
from dpdist.core.errors import RefusedError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.naming import naming
from dpdist.core.options import ClusterOptions
from dpdist.core.pipeline import budget, release
from dpdist.core.pipeline.scores import project_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage.atomic import make_public_folder, replace_file
from dpdist.core.text import fields_as_json, wrapped
from dpdist.jobs import job_file
from dpdist.jobs import run as job_runs
from dpdist.jobs import status as job_status
from dpdist.jobs import text as status_report
from dpdist.jobs.sections import JOB_FILE
from dpdist.report import figures

_CLIP = 64.0
"""Public: pixels are 0..16 by construction, and an image with a quarter of its 64 pixels at 16 has this norm."""
_COMPONENTS = 5
_LOSS = PrivacyLoss.parse("1", "1e-6")
_BUDGET = PrivacyLoss.parse("2", "1e-5")
_BAR = 40


@grouped()
@click.argument("job", type=LOCAL)
@options(
    ClusterOptions, "cluster_settings", without={"workers", "trusted"},
    changed={"scheduler": {"help": "Address of a Dask scheduler, instead of the one in JOB.toml."}},
)  # fmt: skip
@click.option(
    "--continual",
    type=int,
    help="With periods: how many to plan for. The noise of their total grows with the logarithm.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be released and spent, and stop.")
@json_option
@naming(JOB_FILE)
def run(job: Path, cluster_settings: ClusterOptions, continual: int | None, dry_run: bool, as_json: bool) -> None:
    """Run all steps of JOB.toml. Running it again publishes nothing new."""
    parsed = job_file.read_job(
        job,
        scheduler=cluster_settings.scheduler,
        certificates=certificates_of(cluster_settings),
        insecure=cluster_settings.insecure,
        continual=continual,
    )
    if dry_run:
        preview = job_status.preview(parsed)
        answer(as_json, preview.to_json(), status_report.preview_message(preview))
        return
    outcome = job_runs.run(parsed, say=say, progress=BARS)
    if as_json:
        click.echo(json.dumps(fields_as_json(outcome)))
    elif isinstance(outcome, job_runs.JobOutcome) and outcome.model is not None:
        from dpdist.cli.components import Found  # noqa: PLC0415 - a job without components does without

        components, opened = open_model(outcome.model).components, outcome.release.release
        show(Found.of(opened, components, correlation=parsed.correlation).describe(opened, components))


@click.command()
@click.argument("job", type=LOCAL)
@click.option("--textfile", type=LOCAL, help="Also write metrics for node_exporter's textfile collector (Prometheus).")
@json_option
@naming(JOB_FILE)
def status(job: Path, textfile: Path | None, as_json: bool) -> None:
    """Show the state of a job: budget, releases, unfinished work and waiting periods."""
    current = job_status.status_of(job_file.read_job(job))
    if textfile is not None:
        replace_file(textfile, status_report.textfile(current).encode(), "metrics")
    if as_json:
        click.echo(json.dumps(current.to_json()))
    else:
        show(status_report.status_message(current))
    if current.refused is not None:
        raise RefusedError(current.refused)


@grouped("demo")
@click.argument("directory", type=LOCAL, default=Path("dpdist-demo"))
@cluster_options
def demo_command(directory: Path, cluster: Cluster) -> None:
    """Run all steps on a bundled data set (1797 handwritten digits) on this machine."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - it doubles the start-up time

    make_public_folder(directory)
    rows, released = directory / "rows.zarr", directory / "release.zarr"
    model, scores = directory / "model.zarr", directory / "scores.zarr"
    digits = load_digits().data.astype(np.uint8)

    _step(1, "Ingest: rows become a Zarr array with a declared budget", f"dpdist ingest digits.npy {rows}")
    if not rows.exists():
        source = directory / "digits.npy"
        np.save(source, digits)
        from dpdist.core.pipeline.sources import ingest_rows  # noqa: PLC0415 - its readers are slow to import

        ingest_rows(source, rows, budget=_BUDGET)
    budget.complete_ingest(rows)
    click.echo(f"   {digits.shape[0]} rows of {digits.shape[1]} columns, budget {_BUDGET}")

    _step(2, "Release: one private second moment, charged once", f"dpdist release {rows} {released}")
    request = ReleaseRequest(mechanism="gaussian", loss=_LOSS, clip_norm=_CLIP)
    outcome = release.release_rows(rows, released, request, cluster=cluster)
    origin = "computed now" if outcome.fresh else "published before: the same bytes, nothing spent"
    click.echo(f"   {outcome.release.mechanism}, {_LOSS} under {outcome.release.neighbours} ({origin})")
    click.echo(wrapped(str(Ledger(budget.default_ledger(rows)).balance()), "   ", "   "))

    _step(3, "Components: free post-processing of the release", f"dpdist pca {released} {model}")
    components = fit_components(released, model, _COMPONENTS)[0].components

    _step(4, "Scores: every row projected, on every worker (private)", f"dpdist project {rows} {model} {scores}")
    project_rows(rows, model, scores, cluster=cluster)

    _step(5, "What did privacy cost? (evaluation on public data: not private)", "")
    exact = digits.astype(np.float64)
    exact *= np.minimum(1, _CLIP / np.linalg.norm(exact, axis=1, keepdims=True))
    moment = exact.T @ exact
    best, best_vectors = top_eigenpairs(moment / digits.shape[0], _COMPONENTS)
    click.echo("   eigenvalue per row, private and exact:")
    values = components.eigenvalues if components.eigenvalues is not None else best  # gaussian releases them
    for i, (private, true) in enumerate(zip(values, best, strict=True), 1):
        bar = "█" * max(1, round(_BAR * private / values[0]))
        click.echo(f"   {i}  {private:9.1f}  {true:9.1f}  {bar}")
    share = captured_variance(components.components, moment)
    click.echo(f"   The {_COMPONENTS} private components capture {share:.1%} of the variance of the exact ones.")
    picture = directory / "components.svg"
    replace_file(picture, figures.side_by_side(components.components, best_vectors, 8).encode(), "picture")
    click.echo(f"   {picture} shows them as images, private above exact.")
    click.echo(f"Everything is in {directory}. Run the same command again: nothing more is spent.")


def _step(number: int, title: str, command: str) -> None:
    click.echo(click.style(f"{number}. {title}", bold=True))
    if command:
        click.echo(f"   $ {command} ...")
