"""Commands that run many steps: a job of a file, how it stands, the demonstration."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpdist.cli.options import LOCAL, certificates_of, cluster_options, grouped, json_option, options
from dpdist.cli.output import BARS, answer, say, show
from dpdist.errors import RefusedError
from dpdist.jobs import job_file
from dpdist.jobs import run as job_runs
from dpdist.jobs import status as job_status
from dpdist.jobs.sections import JOB_FILE
from dpdist.naming import naming
from dpdist.options import ClusterOptions
from dpdist.report import status as status_report
from dpdist.runtime.cluster import Cluster
from dpdist.storage.atomic import replace_file


@grouped()
@click.argument("job", type=LOCAL)
@options(
    ClusterOptions, "where", without={"workers", "trusted"},
    changed={"scheduler": {"help": "Address of a Dask scheduler, instead of what JOB.toml names."}},
)  # fmt: skip
@click.option(
    "--continual",
    type=int,
    help="With periods: how many the noise of the total is planned for. It grows with their logarithm.",
)
@click.option("--dry-run", is_flag=True, help="Tell what would be released and spent, and do nothing.")
@json_option
@naming(JOB_FILE)
def run(job: Path, where: ClusterOptions, continual: int | None, dry_run: bool, as_json: bool) -> None:
    """Run a whole job from JOB.toml. Running it again publishes nothing new."""
    read = job_file.read_job(
        job,
        scheduler=where.scheduler,
        certificates=certificates_of(where),
        insecure=where.insecure,
        continual=continual,
    )
    if dry_run:
        preview = job_status.preview(read)
        answer(as_json, preview.to_json(), status_report.preview_words(preview))
        return
    outcome = job_runs.run(read, say=say, progress=BARS)
    if as_json:
        click.echo(json.dumps(outcome.to_json()))


@click.command()
@click.argument("job", type=LOCAL)
@click.option("--textfile", type=LOCAL, help="Also write it for node_exporter's textfile collector (Prometheus).")
@json_option
@naming(JOB_FILE)
def status(job: Path, textfile: Path | None, as_json: bool) -> None:
    """Show where a job stands: its budget, its releases, what is unfinished, and which periods wait."""
    found = job_status.status_of(job_file.read_job(job))
    if textfile is not None:
        replace_file(textfile, status_report.textfile(found).encode(), "metrics")
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        show(status_report.status_words(found))
    if found.refused is not None:
        raise RefusedError(found.refused)


@grouped("demo")
@click.argument("directory", type=LOCAL, default=Path("dpdist-demo"))
@cluster_options
def demo_command(directory: Path, cluster: Cluster) -> None:
    """Do everything on a bundled real data set (1797 handwritten digits), on this machine."""
    from dpdist.cli import demo  # noqa: PLC0415 - scikit-learn, for its data set only, doubles the start-up of every command

    demo.run(directory, cluster)
