"""The commands covariance, synthesise and regress: what follows from a release, at no cost."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from dpdist._util.text import counted, wrapped
from dpdist.answers.block import beside, places_of, source_units
from dpdist.answers.covariance import Covariance, covariance, drowned_words, spread_out
from dpdist.answers.design import Partial, partial_correlation
from dpdist.answers.regression import Regression, regressions
from dpdist.answers.shrinkage import Shrinkage
from dpdist.answers.synthetic import Synthetic, synthetic
from dpdist.cli.options import PLACE, count_of, json_option
from dpdist.cli.output import answer
from dpdist.cli.tables import KINDS, csv_of, kind_of, parquet_of, write_table
from dpdist.errors import DataError, UsageError
from dpdist.pca.bias import clipped_rows
from dpdist.privacy.checks import in_words
from dpdist.release.advice import blindly_scaled_json, blindly_scaled_words
from dpdist.release.artefact import Release, open_release
from dpdist.release.parse import columns_from
from dpdist.report.answers import about_intervals, regression
from dpdist.storage.arrays import array_options, digest_of_objects
from dpdist.storage.store import AnyStore, Store, replace_own, store_at

_MATRIX_KINDS = (".csv", ".npz")


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
    kind = kind_of(out, _MATRIX_KINDS)
    opened = open_release(release)
    found = covariance(opened, Shrinkage(shrinkage), source_units(opened))
    partial, told = _partial(opened, found) if kind == ".npz" else (None, "")
    content = csv_of(opened.names, found.matrix.tolist()) if kind == ".csv" else _arrays(found, partial, opened)
    lines, head = content.count(b"\n"), content.partition(b"\n")[0]

    def own(found: bytes) -> bool:
        alike = found.count(b"\n") == lines and found.startswith(head)  # a table of these columns has other rows
        return b"correlation.npy" in found if kind == ".npz" else alike

    replace_own(place, content, "covariance", private=not opened.private_as_claimed, own=own)
    lengths = clipped_rows(opened)
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
    what = f"covariance of {counted(d, 'column')} {lengths.describe()}, shrinkage {shrinkage}."
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
    arrays: dict[str, Any] = {}
    for what, pairs in ends.items():
        if pairs is not None:
            arrays |= {f"{what}low": pairs[..., 0], f"{what}high": pairs[..., 1]}
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


Matrix = npt.NDArray[np.float64]
_ROW_KINDS = (".csv", ".parquet", ".npy", ".zarr")


@click.command("synthesise")
@click.argument("release", type=PLACE)
@click.argument("out", type=PLACE)
@click.option("--rows", "count", required=True, type=click.IntRange(min=1), metavar="N", help="How many to draw.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Of the generator, to draw the same rows again; never from private data [default: the operating system's].",
)
@json_option
def synthesise(release: AnyStore, out: AnyStore, count: int, seed: int | None, as_json: bool) -> None:
    """Write OUT, rows drawn from a normal law with the mean and the shrunk covariance of RELEASE. Free.

    OUT ends in .csv, .parquet, .npy or .zarr. Its columns are those of the release, in units of the source: of a
    category one for each of its values. All hold real numbers, and nothing but means, variances and correlations of
    the rows. Columns that weigh nothing in the release are left out. A file that is there is replaced, a .zarr is not.
    """
    place = store_at(out)
    name = str(place).rpartition("/")[2]
    kind = kind_of(out, _ROW_KINDS)
    if kind == ".zarr":
        place.require_new("table")
    opened = open_release(release)
    found = synthetic(opened, source_units(opened))
    rows = found.draw(count, np.random.default_rng(seed))
    private = not opened.private_as_claimed
    if kind == ".zarr":
        _write_zarr(place, rows, found, opened)
    else:
        content = _file(kind, rows, found, opened)
        place.parent.replace(name, content, "table", private=private)
    lengths = clipped_rows(opened)
    value = {
        "table": str(out),
        "status": opened.status,
        "rows": count,
        "columns": list(found.names),
        "seed": seed,
        "covariance_error": found.distance,
        "cautions": list(opened.cautions),
        **blindly_scaled_json(opened),
        "shortened": lengths.to_json(),
    }
    mark = "" if opened.status == "private" else f" {opened.status.upper()}: do not publish it."
    rows_words = f"{counted(count, 'synthetic row')} of {counted(len(found.names), 'column')}"
    words = f"{out}: {rows_words}, by the moment {lengths.describe()}.{mark}"
    words += in_words(opened.cautions)
    parts = (about(found, opened), found.drowned, blindly_scaled_words(opened), lengths.warning())
    answer(as_json, value, "\n".join((words, wrapped(" ".join(filter(None, parts))))))


def about(found: Synthetic, release: Release) -> str:
    """Say what synthetic rows have of the rows, and how far that is off."""
    said = "They have means, variances and correlations of the rows, and nothing else of them."
    if found.distance is not None:
        said += (
            f" The covariance that they are drawn from is about {100 * found.distance:.2g} % off by the noise "
            "(Frobenius norm, units of the clip norm); their own sampling error comes on top."
        )
    kinds = set() if release.schema is None else {column.kind for column in release.schema.columns}
    if kinds & {"category", "boolean"}:
        said += " Columns of categories and booleans hold numbers about the share of their ones, not 0 and 1."
    return said


def _file(kind: str, rows: Matrix, found: Synthetic, release: Release) -> bytes:
    if kind == ".parquet":
        return parquet_of(dict(zip(found.names, rows.T, strict=True)), release)
    written = io.BytesIO()
    if kind == ".npy":
        np.save(written, rows)
    else:
        written.write(csv_of(found.names, ()))
        np.savetxt(written, rows, delimiter=",", fmt="%.17g")
    return written.getvalue()


def _write_zarr(place: Store, rows: Matrix, found: Synthetic, release: Release) -> None:
    import zarr  # noqa: PLC0415
    from zarr.core.buffer import Buffer  # noqa: PLC0415
    from zarr.storage import MemoryStore  # noqa: PLC0415

    objects: dict[str, Buffer] = {}
    told: dict[str, Any] = {"columns": list(found.names), "status": release.status, "release_id": release.release_id}
    high = max(1, min(len(rows), (16 << 20) // rows[:1].nbytes))
    array = zarr.create_array(
        MemoryStore(objects), shape=rows.shape, chunks=(high, rows.shape[1]), attributes=told, zarr_format=3,
        **array_options(rows.dtype),
    )  # fmt: skip
    array[...] = rows

    def identity() -> str:
        return digest_of_objects(objects)

    with place.staged("table", private=not release.private_as_claimed, identity=identity, keys=objects.keys) as aside:
        for key, content in objects.items():
            aside.put(key, content.to_bytes())


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
    lengths, blindly = clipped_rows(opened), blindly_scaled_words(opened)
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
