"""The commands run and status."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpdist.answers.model import open_model
from dpdist.cli.options import LOCAL, certificates_of, grouped, json_option, options
from dpdist.cli.output import BARS, answer, say, show
from dpdist.core.errors import RefusedError
from dpdist.core.naming import naming
from dpdist.core.options import ClusterOptions
from dpdist.core.storage.atomic import replace_file
from dpdist.core.text import fields_as_json
from dpdist.jobs import job_file
from dpdist.jobs import run as job_runs
from dpdist.jobs import status as job_status
from dpdist.jobs import text as status_report
from dpdist.jobs.last_run import noted
from dpdist.jobs.sections import JOB_FILE


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
    with noted(parsed.rows):
        outcome = job_runs.run(parsed, say=say, progress=BARS)
    if as_json:
        click.echo(json.dumps(fields_as_json(outcome)))
    elif isinstance(outcome, job_runs.JobOutcome) and outcome.model is not None:
        from dpdist.cli.components import Found  # noqa: PLC0415 - a job without components does without

        model, opened = open_model(outcome.model), outcome.release.release
        show(Found.of(opened, model, drop_first=parsed.drop_first).describe(opened, model.components))


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
