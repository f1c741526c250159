"""The command synthesise: free post-processing of a release."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from dpdist.answers.bias import clipped_rows
from dpdist.answers.block import source_units
from dpdist.answers.synthetic import Synthetic, synthetic
from dpdist.answers.tree import Tree, tree
from dpdist.answers.variables import variables
from dpdist.cli.options import STORE, json_option
from dpdist.cli.output import answer
from dpdist.cli.tables import csv_of, kind_of, parquet_of
from dpdist.core.errors import BelowNoiseError, DataError, UsageError
from dpdist.core.privacy.checks import cautions_message
from dpdist.core.release.advice import blindly_scaled_json, blindly_scaled_message
from dpdist.core.release.artefact import Release
from dpdist.core.release.opening import open_release
from dpdist.core.storage.arrays import array_options, digest_of_objects
from dpdist.core.storage.store import AnyStore, Store, store_at
from dpdist.core.text import counted, listed, wrapped
from dpdist.report.pairs import about_variables

Values = npt.NDArray[Any]
Matrix = npt.NDArray[np.float64]
_ROW_KINDS = (".csv", ".parquet", ".npy", ".zarr")


@click.command("synthesise")
@click.argument("release", type=STORE)
@click.argument("out", type=STORE)
@click.option("--rows", "count", required=True, type=click.IntRange(min=1), metavar="N", help="Number of rows to draw.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Seed, to draw the same rows again; never from private data [default: from the operating system].",
)
@json_option
def synthesise(release: AnyStore, out: AnyStore, count: int, seed: int | None, as_json: bool) -> None:
    """Write OUT, rows drawn from a distribution that RELEASE determines. Free.

    OUT ends in .csv, .parquet, .npy or .zarr. By a schema with categories, rows have its categories, and numbers in
    its ranges, as in the source; in .npy and .zarr a category has a column of 0 and 1 per value. Otherwise rows are
    normal, with the mean and shrunk covariance of the release. Columns without weight in the release are omitted. An
    existing OUT is not replaced.
    """
    store = store_at(out)
    name = str(store).rpartition("/")[2]
    kind = kind_of(out, _ROW_KINDS)
    store.require_new("table")
    opened = open_release(release)
    normal = synthetic(opened, source_units(opened))
    by_categories = _tree(opened)
    generator = np.random.default_rng(seed)
    columns: Mapping[str, Values]
    if by_categories is None:
        columns = dict(zip(normal.names, normal.draw(count, generator).T, strict=True))
    elif kind in {".npy", ".zarr"}:
        columns = by_categories.draw_coded(count, generator)
    else:
        columns = by_categories.draw(count, generator)
    if kind == ".zarr":
        _write_zarr(store, columns, opened)
    else:
        store.parent.replace(name, _file(kind, columns, opened), "table", private=not opened.private_as_claimed)
    lengths = clipped_rows(opened)
    value = {
        "table": str(out), "status": opened.status, "rows": count, "columns": list(columns), "seed": seed,
        "covariance_error": normal.distance if by_categories is None else None, "cautions": list(opened.cautions),
        **blindly_scaled_json(opened), "shortened": lengths.to_json(),
    }  # fmt: skip
    mark = "" if opened.status == "private" else f" {opened.status.upper()}: do not publish it."
    shape = f"{counted(count, 'synthetic row')} of {counted(len(columns), 'column')}"
    message = f"{out}: {shape}, by the moment {lengths.describe()}.{mark}{cautions_message(opened.cautions)}"
    about = about_rows(normal, opened) if by_categories is None else about_tree(by_categories)
    caveat = lengths.caveat("means, variances and correlations")
    parts = (about, normal.drowned, blindly_scaled_message(opened), lengths.alarm(), caveat)
    answer(as_json, value, "\n".join((message, wrapped(" ".join(filter(None, parts))))))


def _tree(release: Release) -> Tree | None:
    """Return the distribution of rows with valid categories; None where the release has none about their middles."""
    try:
        held = variables(release)
        return tree(held) if held.categorical else None
    except (UsageError, DataError, BelowNoiseError):
        return None


def about_tree(model: Tree) -> str:
    """Describe what rows drawn along a tree share with the rows."""
    pairs = [f"{step.given} and {step.name}" for step in model.steps if step.given is not None]
    tables = (
        f" The tables of {listed(pairs)} are those of the release; others only as far as these imply them."
        if pairs
        else ""
    )
    numbers = " Numbers are normal given the categories; those beyond a range stand at its end." * bool(
        model.held.numeric
    )
    return (
        f"They have valid categories and ranges.{tables}{numbers} Fit models to the release itself (dpdist regress), "
        f"which knows more than these rows. {about_variables(model.held)}"
    ).rstrip()


def about_rows(model: Synthetic, release: Release) -> str:
    """Describe what normal rows share with the rows, and the error."""
    message = (
        f"They reproduce means, variances and correlations of the {'weighted ' * bool(release.bound.unit_norm)}rows, "
    )
    if any(model.transformed):
        message += "of a column with a transform those of its transformed numbers, "
    message += "and nothing else."
    if model.distance is not None:
        message += (
            f" The noise puts their covariance about {100 * model.distance:.2g} % off (Frobenius norm, units of the "
            "clip norm); their sampling error comes on top."
        )
    kinds = set() if release.schema is None else {column.kind for column in release.schema.columns}
    if kinds & {"category", "boolean"}:
        message += " Columns of categories and booleans contain real numbers around the share of ones, not 0 and 1."
    return message


def _file(kind: str, columns: Mapping[str, Values], release: Release) -> bytes:
    if kind == ".parquet":
        return parquet_of({name: _cells(values) for name, values in columns.items()}, release)
    if kind == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, np.column_stack(list(columns.values())).astype(np.float64))
        return buffer.getvalue()
    return csv_of(list(columns), list(zip(*map(_cells, columns.values()), strict=True)))


def _cells(values: Values) -> list[object]:
    """Return values of Python, None where one is missing."""
    return [None if value != value else value for value in values.tolist()]  # noqa: PLR0124 - NaN


def _write_zarr(store: Store, columns: Mapping[str, Matrix], release: Release) -> None:
    import zarr  # noqa: PLC0415
    from zarr.core.buffer import Buffer  # noqa: PLC0415
    from zarr.storage import MemoryStore  # noqa: PLC0415

    rows = np.column_stack(list(columns.values())).astype(np.float64)
    objects: dict[str, Buffer] = {}
    attributes: dict[str, Any] = {
        "columns": list(columns),
        "status": release.status,
        "release_id": release.release_id,
    }
    high = max(1, min(len(rows), (16 << 20) // rows[:1].nbytes))
    array = zarr.create_array(
        MemoryStore(objects), shape=rows.shape, chunks=(high, rows.shape[1]), attributes=attributes, zarr_format=3,
        **array_options(rows.dtype),
    )  # fmt: skip
    array[...] = rows

    def identity() -> str:
        return digest_of_objects(objects)

    with store.staged("table", private=not release.private_as_claimed, identity=identity, keys=objects.keys) as staging:
        for key, content in objects.items():
            staging.put(key, content.to_bytes())
