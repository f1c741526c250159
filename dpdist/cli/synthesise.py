"""The command synthesise: a file of normal rows with the mean and the covariance of a release."""

from __future__ import annotations

import io
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from dpdist._util.text import counted, wrapped
from dpdist.answers.columns import source_units
from dpdist.answers.synthetic import Synthetic, synthetic
from dpdist.cli.options import PLACE, json_option
from dpdist.cli.tables import csv_of, kind_of, parquet_of
from dpdist.cli.words import answer
from dpdist.pca.bias import shortened
from dpdist.privacy.caution import in_words
from dpdist.release.artefact import Release, open_release
from dpdist.release.worth import blindly_scaled_json, blindly_scaled_words
from dpdist.storage.arrays import array_options, digest_of_objects
from dpdist.storage.store import AnyStore, Store, store_at

Matrix = npt.NDArray[np.float64]
_KINDS = (".csv", ".parquet", ".npy", ".zarr")


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
    kind = kind_of(out, _KINDS)
    if kind == ".zarr":
        place.require_new("table")
    opened = open_release(release)
    found = synthetic(opened, source_units(opened))
    rows = found.draw(count, np.random.default_rng(seed))
    private = not opened.private_as_claimed
    if kind == ".zarr":
        _write_zarr(place, rows, found, opened)
    else:
        content = {".csv": _csv, ".parquet": _parquet, ".npy": _npy}[kind](rows, found, opened)
        place.parent.replace(name, content, "table", private=private)
    lengths = shortened(opened)
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
    words = f"{out}: {rows_words}, by the moment {lengths.words()}.{mark}"
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


def _csv(rows: Matrix, found: Synthetic, release: Release) -> bytes:  # noqa: ARG001 - as the others
    text = io.StringIO()
    np.savetxt(text, rows, delimiter=",", fmt="%.17g")
    return csv_of(found.names, ()) + text.getvalue().encode()


def _npy(rows: Matrix, found: Synthetic, release: Release) -> bytes:  # noqa: ARG001 - as the others
    written = io.BytesIO()
    np.save(written, rows)
    return written.getvalue()


def _parquet(rows: Matrix, found: Synthetic, release: Release) -> bytes:
    return parquet_of(dict(zip(found.names, rows.T, strict=True)), release)


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
