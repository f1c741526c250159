"""The command covariance: a file of the covariance of a release, for other tools."""

from __future__ import annotations

import io
from typing import Any

import click
import numpy as np

from dpdist._util.text import counted
from dpdist.answers.columns import source_units
from dpdist.answers.covariance import Covariance, covariance, drowned_words, spread_out
from dpdist.answers.partial import Partial, partial_correlation
from dpdist.answers.shrinkage import Shrinkage
from dpdist.cli.options import PLACE, json_option
from dpdist.cli.tables import csv_of, kind_of
from dpdist.cli.words import answer
from dpdist.errors import DataError, UsageError
from dpdist.pca.bias import shortened
from dpdist.privacy.caution import in_words
from dpdist.release.artefact import Release, open_release
from dpdist.release.worth import blindly_scaled_json, blindly_scaled_words
from dpdist.storage.store import AnyStore, replace_own, store_at

_KINDS = (".csv", ".npz")


@click.command("covariance")
@click.argument("release", type=PLACE)
@click.argument("out", type=PLACE)
@click.option(
    "--shrinkage",
    type=click.Choice([each.value for each in Shrinkage]),
    default=Shrinkage.OPTIMAL.value,
    show_default=True,
    help="optimal: by the law of the noise, positive definite; trace: nearest possible one; none: as released.",
)
@json_option
def covariance_command(release: AnyStore, out: AnyStore, shrinkage: str, as_json: bool) -> None:
    """Write OUT, the covariance of RELEASE, shrunk to be near the exact one and positive. Free.

    OUT ends in .csv, a table of the matrix with the names of the columns above it, or in .npz: covariance, correlation,
    partial correlation given all other columns, location, and between which ends each entry lies (low, high) in 95 of
    100 releases. They are in units of the source. Columns that did not stand above the noise are named there, and those
    of which a private scale saw too little; of those that weigh nothing all numbers are nan.
    """
    place = store_at(out)
    kind = kind_of(out, _KINDS)
    opened = open_release(release)
    found = covariance(opened, Shrinkage(shrinkage), source_units(opened))
    partial, told = _partial(opened, found) if kind == ".npz" else (None, "")
    content = csv_of(opened.names, found.matrix.tolist()) if kind == ".csv" else _arrays(found, partial, opened)
    lines, head = content.count(b"\n"), content.partition(b"\n")[0]

    def own(found: bytes) -> bool:
        alike = found.count(b"\n") == lines and found.startswith(head)  # a table of these columns has other rows
        return b"correlation.npy" in found if kind == ".npz" else alike

    replace_own(place, content, "covariance", private=not opened.private_as_claimed, own=own)
    lengths = shortened(opened)
    d = opened.bound.columns
    value = {
        "covariance": str(out),
        "status": opened.status,
        "columns": d,
        "shrinkage": shrinkage,
        "directions_above_noise": found.seen,
        "covariance_error": found.distance,
        "partial_ridge": None if partial is None else partial.ridge,
        "cautions": list(opened.cautions),
        "drowned": [opened.names[i] for i in found.drowned],
        **blindly_scaled_json(opened),
        "shortened": lengths.to_json(),
    }
    seen = "" if found.seen is None else f" {found.seen} of {counted(d, 'direction')} vary more than the noise."
    drowned = " DROWNED: it says little." if found.seen == 0 else ""
    mark = "" if opened.status == "private" else f" {opened.status.upper()}: do not publish it."
    what = f"covariance of {counted(d, 'column')} {lengths.words()}, shrinkage {shrinkage}."
    words = f"{out}: {what}{seen}{drowned}{mark}"
    named = drowned_words(found, opened.names), blindly_scaled_words(opened)
    words = " ".join(filter(None, (f"{words}{in_words(opened.cautions)}", told, *named)))
    answer(as_json, value, f"{words}\n{lengths.warning()}".rstrip())


def _partial(release: Release, found: Covariance) -> tuple[Partial | None, str]:
    """Return partial correlations of the columns that weigh something, or none, and what there is to say of them."""
    try:
        made = partial_correlation(release, found.known)
    except (UsageError, DataError) as error:
        return None, f"No partial correlations: {error}"
    if not made.ridge:
        return made, ""
    return made, (
        f"Partial correlations are those after {made.ridge:.6g} was added to the sum of squares of each column, as not "
        "every direction among them stands clear of the noise: they lie nearer to 0."
    )


def _arrays(found: Covariance, partial: Partial | None, release: Release) -> bytes:
    ends = {"": found.intervals, "correlation_": found.correlation_intervals}
    if partial is not None:
        ends["partial_correlation_"] = spread_out(partial.intervals, found.known, len(found.matrix))
    arrays: dict[str, Any] = {
        f"{what}{end}": both[..., place]
        for what, both in ends.items()
        if both is not None
        for place, end in enumerate(("low", "high"))
    }
    if partial is not None:
        arrays["partial_correlation"] = spread_out(partial.matrix, found.known, len(found.matrix))
        arrays["partial_ridge"] = np.array(partial.ridge)
    arrays |= {
        "covariance": found.matrix,
        "correlation": found.correlation,
        "location": found.location,
        "names": np.array(release.names, dtype=np.str_),
        "drowned": np.array([release.names[i] for i in found.drowned], dtype=np.str_),
        **{what: np.array(names, dtype=np.str_) for what, names in blindly_scaled_json(release).items()},
        "status": np.array(release.status),
        "release_id": np.array(release.release_id),
    }
    written = io.BytesIO()
    np.savez(written, **arrays)
    return written.getvalue()
