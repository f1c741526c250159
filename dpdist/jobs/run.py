"""Runs a job step by step; finished steps are skipped, so a job may be run any number of times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir

from dpdist.answers.bias import described
from dpdist.answers.fitting import fit_components
from dpdist.core.errors import DpdistError, RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ingest.sources import SourceLocation, head_at
from dpdist.core.ingest.survey import kept_columns
from dpdist.core.pipeline import budget, release, sources
from dpdist.core.pipeline.release import Outcome
from dpdist.core.pipeline.scores import project_rows, scores_message
from dpdist.core.progress import Progress
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.units import Unit
from dpdist.core.storage.atomic import make_once
from dpdist.core.storage.store import Store, store_at
from dpdist.core.text import counted, listed
from dpdist.jobs import periodic
from dpdist.jobs.job_file import Job


@dataclass(frozen=True)
class JobOutcome:
    """Result of a job; an omitted step is None."""

    release: Outcome
    model: Path | Store | None
    scores: Path | Store | None


def require_same_rows(job: Job, table: RowsTable) -> None:
    """Refuse existing rows that differ from the job file; without a source, only its given keys are compared."""
    cure = "Change the job file, or change [rows] path to ingest these rows elsewhere."
    schema = job.choices.schema
    if job.source is not None and schema != table.schema:
        actual = "no schema" if table.schema is None else "a schema" if schema is None else "another schema"
        requested = "none" if schema is None else "one" if table.schema is None else "its own"
        raise RefusedError(f"{job.rows} has {actual}, but the job file asks for {requested}. {cure}")
    if job.unit != table.unit and (job.unit is not None or job.source is not None):
        raise RefusedError(
            f"{job.rows} protects {_describe_unit(table.unit)}, but the job file asks for {_describe_unit(job.unit)}. "
            f"{cure}"
        )
    if job.columns is not None and job.columns != table.names:
        raise RefusedError(
            f"{job.rows} has the columns {listed(table.names)}, but the job file asks for {listed(job.columns)}. {cure}"
        )
    if job.budget not in {None, table.budget}:
        raise UsageError(
            f"{job.rows} declares {f'a budget of {table.budget}' if table.budget else 'no budget'}, and the job file "
            f"one of {job.budget}. A budget is declared once. {cure}"
        )


def _describe_unit(unit: Unit | None) -> str:
    return "each row alone" if unit is None else f"{unit.rows} of one {unit.column}"


def run(
    job: Job, *, say: Callable[[str], None], progress: Progress | None = None
) -> JobOutcome | periodic.PeriodicOutcome:
    """Run a job: ingest, release, components, scores."""
    job = replace(job, cluster=replace(job.cluster, progress=progress))
    if job.periodic:
        return periodic.run(job, say=say)
    with job.cluster.kept() as cluster:
        return _run(replace(job, cluster=cluster), say)


def _run(job: Job, say: Callable[[str], None]) -> JobOutcome:
    if (columns := job.known_columns or _columns_of_source(job)) is not None:
        job.require_model(columns)  # before rows are read
    if job.source is not None:
        make_once(store_at(job.rows).exists, partial(_register if job.in_place else _ingest, job, job.source, say))
    require_same_rows(job, open_rows(job.rows))
    table = budget.complete_ingest(job.rows, job.ledger)
    job.require_model(table.columns)
    outcome = release.release_rows(job.rows, job.release, job.request, ledger=job.ledger, cluster=job.cluster, say=say)
    say(described(outcome))
    if job.model is not None:
        model = fit_components(
            job.release, job.model, job.components, correlation=job.correlation, drop_first=job.drop_first,
            cluster=job.cluster,
        ).model  # fmt: skip
        say(f"{job.model}: {counted(len(model.components.components), 'component')}.")
    if job.scores is not None and job.model is not None:
        _, fresh = project_rows(job.rows, job.model, job.scores, cluster=job.cluster)
        say(scores_message(job.scores, fresh=fresh))
    return JobOutcome(outcome, job.model, job.scores)


def _columns_of_source(job: Job) -> int | None:
    """Return the number of columns by the head of the source; None if rows exist, or an ingest says what is wrong."""
    if job.source is None or store_at(job.rows).exists():
        return None
    try:
        names = head_at(job.source, Path(gettempdir()), job.choices).names
        return len(kept_columns(names, job.columns, job.unit))
    except DpdistError:
        return None


def _register(job: Job, source: SourceLocation, say: Callable[[str], None]) -> None:
    table = sources.register_rows(
        source, job.rows, budget=job.budget, ledger=job.ledger, variable=job.choices.variable, cluster=job.cluster,
        say=say,
    )  # fmt: skip
    say(f"{job.rows}: registered, {counted(table.columns, 'column')}. Do not change {source}.")


def _ingest(job: Job, source: SourceLocation, say: Callable[[str], None]) -> None:
    choices = job.choices
    unit = job.unit if choices.schema is None else None  # a schema defines its own
    from dpdist.core.pipeline.sources import ingest_rows  # noqa: PLC0415 - its readers are slow to import

    table = ingest_rows(
        source,
        job.rows,
        budget=job.budget,
        ledger=job.ledger,
        columns=job.columns,
        privacy_unit=None if unit is None else unit.column,
        max_rows=None if unit is None else unit.max_rows,
        keep=None if unit is None else unit.keep,
        variable=choices.variable,
        missing=choices.missing,
        genotypes=None if choices.genotypes is None else choices.genotypes.stated,
        header=choices.header,
        rows_dimension=choices.rows_dimension,
        schema=choices.schema,
        progress=job.cluster.progress,
        say=periodic.of_no_rows(say),
        cluster=job.cluster,
    )
    say(f"{job.rows}: ingested, {counted(table.columns, 'column')}.")  # the number of rows may be private
