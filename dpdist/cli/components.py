"""The steps that follow a release: pca and project."""

from __future__ import annotations

from pathlib import Path

import click

from dpdist._util.text import counted, wrapped
from dpdist.answers.captured import WIDE, captured
from dpdist.cli.options import LOCAL, PLACE, cluster_options, grouped, json_option, options, share_of
from dpdist.cli.output import answer
from dpdist.cli.tables import KINDS, kind_of, write_table
from dpdist.errors import UsageError
from dpdist.options import ComponentsOptions
from dpdist.pca.alignment import alignment, loadings_json, loadings_table, require_alignment
from dpdist.pca.bias import clipped_rows
from dpdist.pca.correlation import correlation as correlation_of
from dpdist.pipeline.components import fit_components, project_rows, scores_words
from dpdist.privacy.checks import in_words
from dpdist.release.advice import blindly_scaled_json, blindly_scaled_words
from dpdist.report import text
from dpdist.report.figures import draw_scree
from dpdist.runtime.cluster import Cluster
from dpdist.storage.store import AnyStore


@grouped()
@click.argument("release", type=PLACE)
@click.argument("model", type=PLACE)
@options(ComponentsOptions, "asked")
@click.option(
    "--drop-first",
    is_flag=True,
    help="With --correlation: leave out the first column of each categorical variable, which the others determine.",
)
@click.option("--plot", type=LOCAL, help="Draw the eigenvalues, and what noise alone stays below, to this picture.")
@click.option(
    "--table", "out", type=PLACE, help="Write all loadings with their ends to this .csv or .parquet file too."
)
@cluster_options
@json_option
def pca(
    release: AnyStore, model: AnyStore, asked: ComponentsOptions, drop_first: bool, plot: Path | None,
    out: AnyStore | None, cluster: Cluster, as_json: bool,
) -> None:  # fmt: skip
    """Write MODEL, the top principal components of RELEASE, and say how far each one is signal. Free.

    A release of thousands of columns is multiplied from the disk, on the cluster if --scheduler or --workers is given.
    As many components of the same release that stand there already are left alone; nothing else is replaced.
    """
    correlation = asked.correlation
    if correlation and plot is not None:
        raise UsageError("--plot shows eigenvalues over the noise of the second moment: leave it or --correlation out.")
    if out is not None:
        kind_of(out, KINDS)
    fitted, opened, fresh = fit_components(
        release, model, share_of(asked.components), correlation=correlation, drop_first=drop_first, cluster=cluster
    )
    found = fitted.components
    standardised = correlation_of(opened, len(found.components), drop_first=drop_first) if correlation else None
    told = standardised.alignment if standardised else alignment(opened, found)
    ends = None if told is None else told.loadings
    held = None if correlation or told is None or len(opened.names) > WIDE else captured(opened, found)
    lengths = clipped_rows(opened)
    if plot is not None:
        draw_scree(require_alignment(opened, found), plot)
    if out is not None:
        write_table(out, loadings_table(found, ends, opened.names), opened, "table of loadings")
    value = {
        "model": str(model),
        "fresh": fresh,
        "components": len(found.components),
        "status": opened.status,
        "eigenvalues": None if found.eigenvalues is None else found.eigenvalues.tolist(),
        "eigenvalues_per_row": found.per_row,
        "cautions": list(opened.cautions),
        "shortened": lengths.to_json(),
        **({} if told is None else told.to_json()),
        **({} if held is None else held.to_json()),
        **({} if standardised is None else standardised.to_json()),
        **loadings_json(found.components, ends, opened.names),
        **blindly_scaled_json(opened),
    }
    largest = "" if found.eigenvalues is None else f", largest eigenvalue {found.eigenvalues[0]:.6g}"
    warning = in_words(opened.cautions)
    if opened.status != "private":
        warning = f" {opened.status.upper()}: do not publish it."
    before = "" if fresh else ", written before and left alone"
    words = f"{model}: {counted(len(found.components), 'component')} {lengths.describe()}{largest}{before}.{warning}"
    table = "" if told is None else f"\n{text.alignment(told)}"
    if told is not None and (largest := text.loadings(found.components, told, opened.names)):
        table += f"\n{largest}"
    table += "" if held is None else f"\n{wrapped(held.describe())}"
    if standardised is not None:
        table = f"\n{text.standardised(standardised, opened.names)}"
    table += f"\n{blindly}" if (blindly := blindly_scaled_words(opened)) else ""
    answer(as_json, value, f"{wrapped(words)}{table}\n{wrapped(lengths.warning())}".rstrip())


@grouped()
@click.argument("rows", type=PLACE)
@click.argument("model", type=PLACE)
@click.argument("scores", type=PLACE)
@cluster_options
@json_option
def project(rows: AnyStore, model: AnyStore, scores: AnyStore, cluster: Cluster, as_json: bool) -> None:
    """Write SCORES, the rows projected on MODEL's components. Scores are as private as the rows.

    Run again, it leaves them alone; what was made from other rows or another model is not replaced.
    """
    count, fresh = project_rows(rows, model, scores, cluster=cluster)
    value = {"scores": str(scores), "fresh": fresh, "n": count, "private": True}
    answer(as_json, value, scores_words(scores, fresh=fresh))
