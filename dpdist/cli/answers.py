"""The commands covariance and regress: free post-processing of a release."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from dpdist.answers.bias import clipped_rows
from dpdist.answers.block import beside, column_indices, source_units
from dpdist.answers.correlation import drowned
from dpdist.answers.covariance import Covariance, below_noise_message, covariance, expanded
from dpdist.answers.design import Partial, partial_correlation
from dpdist.answers.feasible import nearest
from dpdist.answers.logistic import logistic
from dpdist.answers.regression import Regression, regressions
from dpdist.answers.shrinkage import Shrinkage
from dpdist.answers.variables import variables
from dpdist.cli.options import STORE, count_of, feasible_option, json_option
from dpdist.cli.output import BARS, answer
from dpdist.cli.tables import KINDS, csv_of, kind_of, write_table
from dpdist.core.errors import DataError, UsageError
from dpdist.core.privacy.checks import cautions_message
from dpdist.core.release.advice import blindly_scaled_json, blindly_scaled_message
from dpdist.core.release.artefact import Release
from dpdist.core.release.opening import open_release
from dpdist.core.release.parse import columns_from
from dpdist.core.storage.store import AnyStore, replace_own, store_at
from dpdist.core.text import counted, listed, wrapped
from dpdist.report.answers import about_intervals, regression
from dpdist.report.pairs import about_variables, odds_text

_MATRIX_KINDS = (".csv", ".npz")


@click.command("covariance")
@click.argument("release", type=STORE)
@click.argument("out", type=STORE)
@click.option(
    "--shrinkage",
    type=click.Choice([method.value for method in Shrinkage]),
    default=Shrinkage.OPTIMAL.value,
    show_default=True,
    help="optimal: positive definite, by the noise distribution; feasible: the nearest that rows of a schema can have; "
    "trace: nearest semidefinite; none: as released.",
)
@json_option
def covariance_command(release: AnyStore, out: AnyStore, shrinkage: str, as_json: bool) -> None:
    """Write OUT, the covariance matrix of RELEASE, shrunk towards the exact one. Free.

    OUT ends in .csv, for the matrix under a header of column names, or in .npz, for covariance, correlation, partial
    correlation given all other columns, location, and 95 % intervals (low, high) of each entry, all in units of the
    source. The .npz also names the columns below the noise and those with too few values for a private scale. Columns
    without weight are nan.
    """
    store = store_at(out)
    kind = kind_of(out, _MATRIX_KINDS)
    opened = open_release(release)
    result = covariance(opened, Shrinkage(shrinkage), source_units(opened))
    partial, remark = _partial(opened, result) if kind == ".npz" else (None, "")
    content = csv_of(opened.names, result.matrix.tolist()) if kind == ".csv" else _arrays(result, partial, opened)
    lines, head = content.count(b"\n"), content.partition(b"\n")[0]

    def own(content: bytes) -> bool:
        same_table = content.count(b"\n") == lines and content.startswith(head)  # not a data table with these columns
        return b"correlation.npy" in content if kind == ".npz" else same_table

    replace_own(store, content, "covariance", private=not opened.private_as_claimed, own=own)
    lengths = clipped_rows(opened)
    d = opened.bound.columns
    value = {
        "covariance": str(out),
        "status": opened.status,
        "columns": d,
        "shrinkage": shrinkage,
        "directions_above_noise": result.seen,
        "covariance_error": result.distance,
        "partial_ridge": None if partial is None else partial.ridge,
        "cautions": list(opened.cautions),
        "drowned": [opened.names[i] for i in result.drowned],
        **blindly_scaled_json(opened),
        "shortened": lengths.to_json(),
    }
    above_noise = "" if result.seen is None else f" {result.seen} of {counted(d, 'direction')} above the noise."
    noise_mark = " BELOW THE NOISE: it contains little information." if result.seen == 0 else ""
    mark = "" if opened.status == "private" else f" {opened.status.upper()}: do not publish it."
    summary = f"covariance of {counted(d, 'column')} {lengths.describe()}, shrinkage {shrinkage}."
    message = f"{out}: {summary}{above_noise}{noise_mark}{mark}"
    column_remarks = below_noise_message(result, opened.names), blindly_scaled_message(opened)
    message = " ".join(filter(None, (f"{message}{cautions_message(opened.cautions)}", remark, *column_remarks)))
    about = " ".join(filter(None, (lengths.alarm(), lengths.caveat("means, variances and correlations"))))
    answer(as_json, value, f"{message}\n{wrapped(about)}".rstrip())


def _partial(release: Release, estimate: Covariance) -> tuple[Partial | None, str]:
    """Return the partial correlations, or None, and a remark on them."""
    try:
        partial = partial_correlation(release, estimate.known)
    except (UsageError, DataError) as error:
        return None, f"No partial correlations: {error}"
    if not partial.ridge:
        return partial, ""
    return partial, (
        f"Partial correlations are shrunk towards 0: {partial.ridge:.6g} was added to the sum of squares of each "
        "column, as some directions are not clear of the noise."
    )


def _arrays(estimate: Covariance, partial: Partial | None, release: Release) -> bytes:
    ends = {"": estimate.intervals, "correlation_": estimate.correlation_intervals}
    if partial is not None:
        ends["partial_correlation_"] = expanded(partial.intervals, estimate.known, len(estimate.matrix))
    arrays: dict[str, Any] = {}
    for prefix, pairs in ends.items():
        if pairs is not None:
            arrays |= {f"{prefix}low": pairs[..., 0], f"{prefix}high": pairs[..., 1]}
    if partial is not None:
        arrays["partial_correlation"] = expanded(partial.matrix, estimate.known, len(estimate.matrix))
        arrays["partial_ridge"] = np.array(partial.ridge)
    arrays |= {
        "covariance": estimate.matrix,
        "correlation": estimate.correlation,
        "location": estimate.location,
        "names": np.array(release.names, dtype=np.str_),
        "drowned": np.array([release.names[i] for i in estimate.drowned], dtype=np.str_),
        **{prefix: np.array(names, dtype=np.str_) for prefix, names in blindly_scaled_json(release).items()},
        "status": np.array(release.status),
        "release_id": np.array(release.release_id),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@click.command()
@click.argument("release", type=STORE)
@click.option(
    "--target",
    required=True,
    help="Comma-separated columns to explain; a category means all of its columns.",
)
@click.option("--on", help="Comma-separated columns to explain it by [default: all others].")
@click.option(
    "--ridge",
    default="auto",
    metavar="auto|L",
    help="Added to the sum of squares of each column; auto: 0 if all directions are clear of the noise, else the "
    "noise edge [default: auto].",
)
@click.option(
    "--components",
    metavar="K|auto",
    help="Regress on K principal components instead of using a ridge; auto: those clear of the noise.",
)
@click.option(
    "--logistic", "of_odds", is_flag=True, help="Logistic regression of a variable with categories, with odds ratios."
)
@click.option(
    "--table", "out", type=STORE, help="Also write all coefficients with their intervals to this .csv or .parquet file."
)
@feasible_option
@json_option
def regress(
    release: AnyStore, target: str, on: str | None, ridge: str, components: str | None, of_odds: bool,
    out: AnyStore | None, feasible: bool, as_json: bool,
) -> None:  # fmt: skip
    """Regress a column of RELEASE on others: coefficients in units of the source, with intervals. Free.

    It is a ridge regression, or a principal component regression, of the rows clipped to the clip norm. A category of a
    schema means the columns of its values. With --logistic, --target and --on name variables of the schema.
    """
    if out is not None:
        kind_of(out, KINDS)
    opened = open_release(release)
    if of_odds:
        if components is not None or ridge != "auto" or feasible:
            raise UsageError(
                "A logistic regression chooses its ridge, and starts from the nearest moment that rows can have. Leave "
                "--ridge, --components and --feasible out."
            )
        _answer_odds(release, opened, columns_from(target), None if on is None else columns_from(on), out, as_json)
        return
    targets = column_indices(opened, columns_from(target), "target")
    chosen = beside(opened, targets) if on is None else column_indices(opened, columns_from(on), "on")
    # of a category the values above the noise, unless a value is named
    rarely = {*opened.bound.whole} & {*drowned(opened)}
    kept = [i for i in targets if opened.names[i] in columns_from(target) or i not in rarely]
    rare = [opened.names[i] for i in targets if kept and i not in kept]
    number = None if components is None else count_of(components)
    component_count = components if number is None else number
    basis, remark = nearest(opened, BARS) if feasible else (opened, "")
    fits = regressions(
        basis, kept or targets, chosen, ridge_of(ridge), source_units(opened), components=component_count
    )
    if out is not None:
        write_table(out, _columns_of(fits), opened, "table of coefficients")
    lengths, blindly = clipped_rows(opened), blindly_scaled_message(opened)
    tables_json = [fit.to_json() for fit in fits]
    value = {
        "release": str(release),
        "status": opened.status,
        "cautions": list(opened.cautions),
        "unit": None if opened.unit is None else opened.unit.to_json(),
        **blindly_scaled_json(opened),
        "shortened": lengths.to_json(),
        **({"left_out": rare} if rare else {}),
        **({"feasible": remark} if feasible else {}),
        **(tables_json[0] if len(tables_json) == 1 else {"regressions": tables_json}),
    }
    mark = "" if opened.status == "private" else f"{opened.status.upper()}: do not publish it.\n"
    tables = "\n\n".join(regression(tables_json, opened) for tables_json in fits)
    left_out = f"Not above the noise, and left out as a target: {listed(rare)}." if rare else ""
    remarks = " ".join(filter(None, (remark, left_out, about_intervals(opened, fits), blindly)))
    if on is None and opened.blindly_scaled[1]:
        remarks += " They are omitted here."
    first = f"{wrapped(alarm)}\n" if (alarm := lengths.alarm()) else ""
    answer(as_json, value, f"{mark}{first}{tables}\n{wrapped((remarks + cautions_message(opened.cautions)).rstrip())}")


def _answer_odds(
    release: AnyStore, opened: Release, targets: Sequence[str], on: Sequence[str] | None, out: AnyStore | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Answer with logistic regressions."""
    held = variables(opened)
    fits = [fit for target in targets for fit in logistic(held, target, on)]
    if out is not None:
        rows: list[dict[str, object]] = [
            {"target": fit.target, "name": each.name, **each.to_json()} for fit in fits for each in fit.effects
        ]
        write_table(out, {name: [row[name] for row in rows] for name in rows[0]}, opened, "table of coefficients")
    lengths, found = clipped_rows(opened), [fit.to_json() for fit in fits]
    value = {
        "release": str(release), "status": opened.status, "cautions": list(opened.cautions),
        "unit": None if opened.unit is None else opened.unit.to_json(), "shortened": lengths.to_json(),
        "left_out": held.left_out, **(found[0] if len(found) == 1 else {"regressions": found}),
    }  # fmt: skip
    mark = "" if opened.status == "private" else f"{opened.status.upper()}: do not publish it.\n"
    body = "\n\n".join(odds_text(fit, lengths.describe()) for fit in fits)
    remarks = (
        lengths.alarm(), lengths.caveat("odds ratios"), about_variables(held), cautions_message(opened.cautions).strip()
    )  # fmt: skip
    answer(as_json, value, f"{mark}{body}\n{wrapped(' '.join(filter(None, remarks)))}".rstrip())


def _columns_of(fits: Sequence[Regression]) -> dict[str, list[object]]:
    """Return all estimates as a table: one row per intercept and coefficient."""
    rows = [
        {"target": fit.target, "name": name, **estimate.to_json()}
        for fit in fits
        for name, estimate in (("(intercept)", fit.intercept), *zip(fit.names, fit.coefficients, strict=True))
    ]
    return {name: [row[name] for row in rows] for name in rows[0]}


def ridge_of(text: str) -> float | None:
    """Parse a ridge; None for auto."""
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--ridge takes a number or auto, not {text!r}.") from None
