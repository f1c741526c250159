"""A whole job, step by step; every step that is done already is left alone, so a job may be run any number of times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpdist import accounts, nightly, pipeline
from dpdist.config import Job
from dpdist.errors import UsageError
from dpdist.store import attributes_at


def scores_words(scores: Path) -> str:
    """Say that scores were written, and what they are."""
    return f"{scores}: written. PRIVATE: scores are private rows in fewer dimensions; do not publish them."


def run(job: Job, *, say: Callable[[str], None], progress: nightly.Progress) -> dict[str, Any]:
    """Run a job: ingest, release, components, scores.

    Parameters
    ----------
    job
        What to do.
    say
        Told a sentence after every step.
    progress
        Opens a progress bar with a label, and gives the function that moves it.

    Returns
    -------
    dict
        JSON values: the release's attributes, and the paths of what was made.

    Raises
    ------
    UsageError
        If more components are asked for than there are columns; nothing is spent then.
    DpdistError
        As the steps of :mod:`dpdist.pipeline`.
    """
    if job.periodic:
        return nightly.run(job, say=say, progress=progress)
    if not job.rows.exists() and job.source is not None:
        with progress("Ingesting") as update:
            table = accounts.ingest_rows(
                job.source,
                job.rows,
                budget=job.budget,
                ledger=job.ledger,
                columns=job.columns,
                progress=update,
                unit=job.unit,
                choices=job.choices,
            )
        say(f"{job.rows}: {table.rows} rows of {table.columns} columns.")
    else:
        table = accounts.complete_ingest(job.rows, job.ledger)
    if job.components is not None and job.components > table.columns:
        raise UsageError(f"{job.components} components were asked for; {job.rows} has {table.columns} columns.")
    outcome = pipeline.release_rows(job.rows, job.release, job.request, ledger=job.ledger, cluster=job.cluster)
    say(outcome.words())
    made: dict[str, Any] = {"release_id": outcome.release.release_id}
    if job.model is not None:
        if job.components is not None:
            made["k"] = job.components
        if not pipeline.made_from(job.model, **made):
            pipeline.fit_components(job.release, job.model, job.components, cluster=job.cluster)
        made["k"] = (attributes_at(job.model) or {})["k"]
        say(f"{job.model}: {made['k']} components.")
    if job.scores is not None and job.model is not None:
        if not pipeline.made_from(job.scores, dataset_id=table.dataset_id, **made):
            pipeline.project_rows(job.rows, job.model, job.scores, cluster=job.cluster)
        say(scores_words(job.scores))
    paths = {"model": job.model, "scores": job.scores}
    return {"release": outcome.to_json(), **{name: path and str(path) for name, path in paths.items()}}
