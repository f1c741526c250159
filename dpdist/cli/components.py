"""The commands pca and project."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from dpdist.answers.alignment import Alignment, alignment, loadings_json, loadings_table, require_alignment
from dpdist.answers.bias import clipped_rows
from dpdist.answers.captured import WIDE, Captured, captured
from dpdist.answers.components import Components
from dpdist.answers.correlation import Correlation
from dpdist.answers.correlation import correlation as correlation_of
from dpdist.answers.fitting import fit_components
from dpdist.answers.model import Model
from dpdist.cli.options import LOCAL, STORE, cluster_options, feasible_option, grouped, json_option, options, share_of
from dpdist.cli.output import BARS, answer
from dpdist.cli.tables import KINDS, kind_of, write_table
from dpdist.core.options import ComponentsOptions
from dpdist.core.pipeline.scores import project_rows, scores_message
from dpdist.core.privacy.checks import cautions_message
from dpdist.core.release.advice import blindly_scaled_json, blindly_scaled_message
from dpdist.core.release.artefact import Release
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage.store import AnyStore
from dpdist.core.text import counted, wrapped
from dpdist.report import components_text
from dpdist.report.figures import draw_scree, draw_scree_of_correlations


class Found(NamedTuple):
    """Alignment, shares and correlations of components of a release."""

    alignment: Alignment | None
    share: Captured | None  # of the variance; None for correlations and wide releases
    standardised: Correlation | None

    @classmethod
    def of(cls, release: Release, model: Model, *, drop_first: bool = True) -> Found:
        """Return it for components of the second moment or of the correlations."""
        components = model.components
        if model.correlation:
            standardised = correlation_of(release, len(components.components), drop_first=drop_first)
            return cls(standardised.alignment, None, standardised)
        aligned = alignment(release, components)
        return cls(
            aligned, None if aligned is None or len(release.names) > WIDE else captured(release, components), None
        )

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return {name: value for part in self if part is not None for name, value in part.to_json().items()}

    def describe(self, release: Release, components: Components) -> str:
        """Return tables and their legend."""
        if self.standardised is not None:
            parts = [components_text.standardised(self.standardised, release)]
        else:
            aligned = self.alignment
            parts = [] if aligned is None else [
                components_text.alignment(aligned, clipped_rows(release)),
                components_text.loadings(components.components, aligned, release.names),
            ]  # fmt: skip
            parts += [] if self.share is None else [wrapped(self.share.describe())]
        return "\n".join(filter(None, [*parts, blindly_scaled_message(release)]))


@grouped()
@click.argument("release", type=STORE)
@click.argument("model", type=STORE)
@options(
    ComponentsOptions, "components_options",
    changed={"components": {"required": False, "default": "auto", "show_default": True, "group": ""}},
)  # fmt: skip
@feasible_option
@click.option("--plot", type=LOCAL, help="Draw the eigenvalues and the noise edge to this image file.")
@click.option(
    "--table", "out", type=STORE, help="Also write all loadings with their intervals to this .csv or .parquet file."
)
@cluster_options
@json_option
def pca(
    release: AnyStore, model: AnyStore, components_options: ComponentsOptions, feasible: bool, plot: Path | None,
    out: AnyStore | None, cluster: Cluster, as_json: bool,
) -> None:  # fmt: skip
    """Write MODEL, the top principal components of RELEASE, and print how far each is above the noise. Free.

    A release with thousands of columns is processed from disk, on the cluster if --scheduler or --workers is given.
    An existing MODEL is kept if it has the same release and number of components; otherwise the command is refused.
    """
    if out is not None:
        kind_of(out, KINDS)
    made = fit_components(
        release, model, share_of(components_options.components), correlation=components_options.correlation,
        drop_first=components_options.drop_first, feasible=feasible, cluster=cluster, progress=BARS,
    )  # fmt: skip
    components, opened, fresh = made.model.components, made.basis, made.fresh
    found = Found.of(opened, made.model, drop_first=components_options.drop_first)
    ends = None if found.alignment is None else found.alignment.loadings
    lengths = clipped_rows(opened) if made.model.correlation else clipped_rows(opened).filled
    if plot is not None and found.standardised is not None:
        draw_scree_of_correlations(found.standardised, plot)
    elif plot is not None:
        draw_scree(require_alignment(opened, components), plot)
    if out is not None:
        write_table(out, loadings_table(components, ends, opened.names), opened, "table of loadings")
    value = {
        "model": str(model),
        "fresh": fresh,
        "components": len(components.components),
        "status": opened.status,
        "eigenvalues": None if components.eigenvalues is None else components.eigenvalues.tolist(),
        "eigenvalues_per_row": components.per_row,
        "cautions": list(opened.cautions),
        "shortened": lengths.to_json(),
        **({"feasible": made.remark} if feasible else {}),
        **found.to_json(),
        **loadings_json(components.components, ends, opened.names),
        **blindly_scaled_json(opened),
    }
    largest = "" if components.eigenvalues is None else f", largest eigenvalue {components.eigenvalues[0]:.6g}"
    warning = cautions_message(opened.cautions)
    if opened.status != "private":
        warning = f" {opened.status.upper()}: do not publish it."
    before = "" if fresh else ", unchanged"
    message = (
        f"{model}: {counted(len(components.components), 'component')} {lengths.describe()}{largest}{before}.{warning}"
    )
    table = f"\n{found.describe(opened, components)}".rstrip()
    remarks = wrapped(" ".join(filter(None, (made.remark, lengths.warning()))))
    answer(as_json, value, f"{wrapped(message)}{table}\n{remarks}".rstrip())


@grouped()
@click.argument("rows", type=STORE)
@click.argument("model", type=STORE)
@click.argument("scores", type=STORE)
@cluster_options
@json_option
def project(rows: AnyStore, model: AnyStore, scores: AnyStore, cluster: Cluster, as_json: bool) -> None:
    """Write SCORES, the rows projected on MODEL's components. Scores are as private as the rows.

    Existing SCORES of the same rows and model are left as they are; any others are refused.
    """
    count, fresh = project_rows(rows, model, scores, cluster=cluster)
    value = {"scores": str(scores), "fresh": fresh, "n": count, "private": True}
    answer(as_json, value, scores_message(scores, fresh=fresh))
