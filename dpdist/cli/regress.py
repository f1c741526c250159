"""The command regress: one column of a release explained by others."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dpdist._util.text import wrapped
from dpdist.answers.columns import beside, places_of, source_units
from dpdist.answers.regression import Regression, regressions
from dpdist.cli.options import PLACE, count_of, json_option
from dpdist.cli.tables import KINDS, kind_of, write_table
from dpdist.cli.words import answer
from dpdist.errors import UsageError
from dpdist.pca.bias import shortened
from dpdist.privacy.caution import in_words
from dpdist.release.artefact import open_release
from dpdist.release.parse import columns_from
from dpdist.release.worth import blindly_scaled_json, blindly_scaled_words
from dpdist.report.answers import about_intervals, regression
from dpdist.storage.store import AnyStore


@click.command()
@click.argument("release", type=PLACE)
@click.option(
    "--target", required=True, help="Column to explain, or several, comma-separated; a category is all of its own."
)
@click.option("--on", help="Comma-separated columns to explain it by [default: all others].")
@click.option(
    "--ridge",
    default="auto",
    metavar="auto|L",
    help="Added to the sum of squares of each column; auto: 0 where all directions are clear of the noise, else its "
    "edge [default: auto].",
)
@click.option(
    "--components",
    metavar="K|auto",
    help="Regress on K principal components of these columns instead of a ridge; auto: those clear of the noise.",
)
@click.option(
    "--table", "out", type=PLACE, help="Write all coefficients with their ends to this .csv or .parquet file too."
)
@json_option
def regress(
    release: AnyStore, target: str, on: str | None, ridge: str, components: str | None, out: AnyStore | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Explain a column of RELEASE by others: coefficients in the units of the source, with intervals. Free.

    It is a ridge regression of the rows as they were shortened to the clip norm, or a principal component regression. A
    category of a schema stands for the columns of its categories.
    """
    if out is not None:
        kind_of(out, KINDS)
    opened = open_release(release)
    targets = places_of(opened, columns_from(target), "target")
    chosen = beside(opened, targets) if on is None else places_of(opened, columns_from(on), "on")
    number = None if components is None else count_of(components)
    among = components if number is None else number
    found = regressions(opened, targets, chosen, ridge_of(ridge), source_units(opened), components=among)
    if out is not None:
        write_table(out, _columns_of(found), opened, "table of coefficients")
    lengths, blindly = shortened(opened), blindly_scaled_words(opened)
    each = [one.to_json() for one in found]
    value = {
        "release": str(release),
        "status": opened.status,
        "cautions": list(opened.cautions),
        "unit": None if opened.unit is None else opened.unit.to_json(),
        **blindly_scaled_json(opened),
        "shortened": lengths.to_json(),
        **(each[0] if len(each) == 1 else {"regressions": each}),
    }
    mark = "" if opened.status == "private" else f"{opened.status.upper()}: do not publish it.\n"
    tables = "\n\n".join(regression(each, opened) for each in found)
    about = " ".join(filter(None, (about_intervals(opened, found[0]), blindly)))
    if on is None and opened.blindly_scaled[1]:
        about += " They are left out here."
    first = f"{wrapped(warning)}\n" if (warning := lengths.warning()) else ""
    answer(as_json, value, f"{mark}{first}{tables}\n{wrapped((about + in_words(opened.cautions)).rstrip())}")


def _columns_of(found: Sequence[Regression]) -> dict[str, list[object]]:
    """Return all estimates as a table: a row for the intercept of each target, and one for each coefficient."""
    rows = [
        {"target": each.target, "name": name, **estimate.to_json()}
        for each in found
        for name, estimate in (("(intercept)", each.intercept), *zip(each.names, each.coefficients, strict=True))
    ]
    return {name: [row[name] for row in rows] for name in rows[0]}


def ridge_of(text: str) -> float | None:
    """Return a ridge as typed; None for auto."""
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--ridge takes a number or auto, not {text!r}.") from None
