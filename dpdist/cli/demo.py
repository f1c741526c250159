"""`dpdist demo`: the whole pipeline on a bundled real data set, with what privacy cost beside it.

The data are scikit-learn's 1797 handwritten digits of 8 x 8 pixels, which are public: only therefore may the demo
compare with the exact answer.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from sklearn.datasets import load_digits

from dpdist._util.text import wrapped
from dpdist.ledger.ledger import Ledger
from dpdist.pca.components import captured_variance
from dpdist.pca.eigen import top_eigenpairs
from dpdist.pipeline import budget, release
from dpdist.pipeline.components import fit_components, project_rows
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release.request import ReleaseRequest
from dpdist.report import figures
from dpdist.runtime.cluster import Cluster
from dpdist.storage.atomic import make_public_folder, replace_file

_CLIP = 64.0
"""Public: a pixel is 0..16 by construction, and a quarter of the 64 pixels at full ink has this norm."""
_COMPONENTS = 5
_LOSS = PrivacyLoss.parse("1", "1e-6")
_BUDGET = PrivacyLoss.parse("2", "1e-5")
_BAR = 40


def run(directory: Path, cluster: Cluster) -> None:
    """Ingest, release, components, scores in a folder; run again, it finds everything there and spends nothing."""
    make_public_folder(directory)
    rows, released = directory / "rows.zarr", directory / "release.zarr"
    model, scores = directory / "model.zarr", directory / "scores.zarr"
    digits = load_digits().data.astype(np.uint8)

    _step(1, "Ingest: rows become a Zarr array with a declared budget", f"dpdist ingest digits.npy {rows}")
    if not rows.exists():
        source = directory / "digits.npy"
        np.save(source, digits)
        budget.ingest_rows(source, rows, budget=_BUDGET)
    budget.complete_ingest(rows)
    click.echo(f"   {digits.shape[0]} rows of {digits.shape[1]} columns, budget {_BUDGET}")

    _step(2, "Release: one private second moment, charged once", f"dpdist release {rows} {released}")
    request = ReleaseRequest(mechanism="gaussian", loss=_LOSS, clip_norm=_CLIP)
    outcome = release.release_rows(rows, released, request, cluster=cluster)
    how = "computed now" if outcome.fresh else "published before: the same bytes, nothing spent"
    click.echo(f"   {outcome.release.mechanism}, {_LOSS} under {outcome.release.neighbours} ({how})")
    click.echo(wrapped(str(Ledger(budget.default_ledger(rows)).balance()), "   ", "   "))

    _step(3, "Components: free post-processing of the release", f"dpdist pca {released} {model}")
    found = fit_components(released, model, _COMPONENTS)[0].components

    _step(4, "Scores: every row projected, on every worker (private)", f"dpdist project {rows} {model} {scores}")
    project_rows(rows, model, scores, cluster=cluster)

    _step(5, "What did privacy cost? (evaluation on public data: not private)", "")
    exact = digits.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1, keepdims=True)
    moment = (exact * np.minimum(1, _CLIP / norms)).T @ (exact * np.minimum(1, _CLIP / norms))
    best, best_vectors = top_eigenpairs(moment / digits.shape[0], _COMPONENTS)
    click.echo("   eigenvalue per row, private and exact:")
    values = found.eigenvalues if found.eigenvalues is not None else best  # gaussian releases them
    for i, (private, true) in enumerate(zip(values, best, strict=True), 1):
        bar = "█" * max(1, round(_BAR * private / values[0]))
        click.echo(f"   {i}  {private:9.1f}  {true:9.1f}  {bar}")
    share = captured_variance(found.components, moment)
    click.echo(f"   The {_COMPONENTS} private components capture {share:.1%} of what the best {_COMPONENTS} capture.")
    picture = directory / "components.svg"
    replace_file(picture, figures.side_by_side(found.components, best_vectors, 8).encode(), "picture")
    click.echo(f"   {picture} shows them as images, private above exact.")
    click.echo(f"Everything is in {directory}. Run the same command again: nothing more is spent.")


def _step(number: int, title: str, command: str) -> None:
    click.echo(click.style(f"{number}. {title}", bold=True))
    if command:
        click.echo(f"   $ {command} ...")
