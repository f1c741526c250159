"""Pairs of tables that differ in one row, through every reader: nothing that is published but noise tells them apart.

Two lists: pairs whose releases have the same public content, and tables that are refused, which is reported to the
holder of the rows only.
"""

from __future__ import annotations

import datetime as dt
import json
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from pyarrow import feather

import dpdist
from dpdist.core.errors import BelowNoiseWarning, DpdistError

ROWS = 3000
LOSS = dpdist.PrivacyLoss.parse(1, 1e-6)
NAMES = ("age", "smokes", "empty", "weight")


def column(kind: str) -> Any:
    random = np.random.default_rng(7)
    return {
        "age": [int(value) for value in random.integers(20, 90, ROWS)],
        "smokes": [bool(value) for value in random.integers(0, 2, ROWS)],
        "empty": [None] * ROWS,
        "weight": [float(value) for value in random.normal(70, 9, ROWS)],
    }[kind]


def frame(**cells: Any) -> pd.DataFrame:
    """Return a table whose first row has the given cells, stored in the types that pandas chooses."""
    columns = {name: [*([cells[name]] if name in cells else values[:1]), *values[1:]] for name, values in BASE.items()}
    return pd.DataFrame(columns)


BASE = {name: column(name) for name in NAMES}
CELLS: dict[str, dict[str, Any]] = {
    "a whole number is missing": {"age": None},
    "a whole number has decimals": {"age": 41.5},
    "a whole number is negative": {"age": -1},
    "a whole number needs 64 bits": {"age": 2**40},
    "a truth value is missing": {"smokes": None},
    "a cell of an empty column is a whole number": {"empty": 3},
    "a cell of an empty column is a fraction": {"empty": 0.5},
    "a cell of an empty column is true": {"empty": True},
    "a number is missing": {"weight": None},
    "a number is huge": {"weight": 1e300},
}
"""The cells of one row that are exchanged; all of these tables are released."""


def as_arrow(table: pd.DataFrame) -> Any:
    return pa.Table.from_pandas(table, preserve_index=False)


def decimals(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(weight=[None if pd.isna(value) else Decimal(f"{value:.2f}") for value in table["weight"]])


def as_text(table: pd.DataFrame, path: Path) -> None:
    table.assign(smokes=table["smokes"].map({True: 1, False: 0})).to_csv(path, index=False)


WRITERS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "t.csv": as_text,
    "t.csv.gz": as_text,
    "t.parquet": lambda table, path: table.to_parquet(path),
    "t.arrow": lambda table, path: feather.write_feather(as_arrow(table), path, compression="uncompressed"),
    "t.feather": lambda table, path: feather.write_feather(as_arrow(table), path),
}
"""Files of columns, each with a type of its own."""


def anndata_of(rows: Any) -> anndata.AnnData:
    return anndata.AnnData(np.asarray(rows, np.float32), var=pd.DataFrame(index=list(NAMES)))


ARRAYS: dict[str, Callable[[Any, Path], Any]] = {
    "t.npy": lambda rows, path: np.save(path, rows),
    "t.npz": lambda rows, path: np.savez(path, X=rows, feature_names=np.array(NAMES)),
    "t.nc": lambda rows, path: xr.Dataset({"X": labelled(rows)}).to_netcdf(path, engine="h5netcdf"),
    "t.zarr": lambda rows, path: zarr.save_array(path, rows, zarr_format=3),
    "t.h5ad": lambda rows, path: anndata_of(rows).write_h5ad(path),
}
"""Files of one type for all columns."""
ROW_OF_ARRAY: dict[str, list[float]] = {
    "zeros": [0, 0, 0, 0], "negative numbers": [-1, -2, -3, -4], "more bits": [2**40, 1, 2, 3],
    "fractions": [0.5, 1.5, 2.5, 3.5], "a huge number": [1e30, 0, 0, 0],
}  # fmt: skip


def labelled(rows: Any) -> xr.DataArray:
    return xr.DataArray(rows, dims=("row", "column"), coords={"column": list(NAMES)})


def array(first: list[float] | None = None) -> Any:
    """Return whole numbers in the smallest type that holds all of them and the first row."""
    rows = np.random.default_rng(7).integers(0, 200, (ROWS, 4)).astype(np.float64)
    if first is not None:
        rows[0] = first
    whole = bool((rows == np.trunc(rows)).all() and np.abs(rows).max() < 2**62)
    kinds = [
        kind
        for kind in (np.uint8, np.int64)
        if whole and np.iinfo(kind).min <= rows.min() <= rows.max() <= np.iinfo(kind).max
    ]
    return rows.astype(kinds[0]) if kinds else rows


def published(release: dpdist.Release) -> object:
    """Return the public content of a release: structure, text and whole numbers, without noise and random names."""
    secret = {"release_id", "dataset", "ledger_head", "answer", "chosen"}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(entry) for key, entry in value.items() if key not in secret}
        if isinstance(value, list):
            return [plain(entry) for entry in value]
        return None if isinstance(value, float) else value

    content = plain(json.loads(json.dumps(release.attributes())))
    return content | {
        "bound": {key: value for key, value in content["bound"].items() if key not in {"centre", "scale"}}
    }


def released(table: Any, **parameters: Any) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BelowNoiseWarning)  # of the empty column, by its noisy counts
        pca = dpdist.private_pca(
            table, n_components=1, epsilon=1, delta=1e-6, correlation=False, say=lambda _: None, **parameters
        )
    return published(pca.release_)


@pytest.fixture
def scene(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001 - its own state
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of_file(name: str, table: pd.DataFrame, folder: str, **parameters: Any) -> object:
    path = Path(folder) / name
    path.parent.mkdir()
    WRITERS[name](table, path)
    return released(path, **parameters)


@pytest.mark.parametrize("name", WRITERS)
def test_what_a_file_publishes_does_not_depend_on_a_cell(scene: Path, name: str) -> None:  # noqa: ARG001
    expected = of_file(name, frame(), "base")
    pairs = list(CELLS.values())
    if "csv" in name:  # a word among numbers is missing; in an empty column it is refused
        pairs = [{"weight": "heavy"}, *(cells for cells in pairs if cells != {"empty": True})]
    for number, cells in enumerate(pairs[:3] if name in {"t.csv.gz", "t.arrow"} else pairs):  # read like another
        assert of_file(name, frame(**cells), f"pair{number}") == expected


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, as_arrow])
def test_what_a_table_in_memory_publishes_does_not_depend_on_a_cell(scene: Path, kind: Any) -> None:  # noqa: ARG001
    def of(table: pd.DataFrame) -> object:
        return released(table if kind is pd.DataFrame else kind(table), budget=budget)

    budget = dpdist.Budget(100, 1e-4)
    expected = of(frame())
    for cells in CELLS.values():
        assert of(frame(**cells)) == expected


@pytest.mark.parametrize("name", ARRAYS)
def test_what_an_array_publishes_does_not_depend_on_a_row(scene: Path, name: str) -> None:
    def of(rows: Any, folder: str) -> object:
        (scene / folder).mkdir()
        ARRAYS[name](rows, scene / folder / name)
        if name != "t.zarr":
            return released(f"{folder}/{name}")
        table = dpdist.ingest_rows(f"{folder}/{name}", f"{folder}/rows.zarr", budget=LOSS)
        release = scene / f"{folder}.release.zarr"
        request = dpdist.ReleaseRequest("gaussian", LOSS, "auto", scale="private")
        return published(dpdist.release_rows(table.path, release, request).release)

    expected = of(array(), "base")
    for number, first in enumerate(ROW_OF_ARRAY.values()):
        assert of(array(first), f"pair{number}") == expected


def test_decimals_are_numbers_too(scene: Path) -> None:  # noqa: ARG001
    expected = of_file("t.parquet", frame(), "base")
    assert of_file("t.parquet", decimals(frame()), "decimals") == expected
    assert of_file("t.parquet", decimals(frame(weight=None)), "gap") == expected


def draft(path: str) -> str:
    return dpdist.draft_schema(path).partition("\n")[2]  # the first line names the file


def test_a_draft_does_not_depend_on_a_cell(scene: Path) -> None:
    frame().to_parquet("base.parquet")
    for cells in [*CELLS.values(), {"empty": "word"}, {"empty": dt.date(2026, 1, 1)}]:
        frame(**cells).to_parquet("pair.parquet")
        assert draft("pair.parquet") == draft("base.parquet")
    assert list(scene.glob("*.zarr")) == []


@pytest.mark.parametrize("name", ["id", "k"])
def test_a_named_index_is_not_shown_whether_it_is_stored_or_not(scene: Path, name: str) -> None:  # noqa: ARG001
    table = frame().rename_axis(name)
    other = table.copy()
    other.index = pd.Index([7000, *range(1, ROWS)], name=name)
    asked: dict[str, Any] = {"each_row_is_a_person": True}
    assert of_file("t.parquet", other, "other", **asked) == of_file("t.parquet", table, "base", **asked)
    assert draft("other/t.parquet") == draft("base/t.parquet")


def test_a_draft_of_a_table_in_memory_follows_from_its_names(scene: Path) -> None:  # noqa: ARG001
    rows = frame()
    odd = [[None, *rows["smokes"][1:]], [2**70, *rows["age"][1:]], ["word", *rows["empty"][1:]]]
    for name, cells in zip(("smokes", "age", "empty"), odd, strict=True):
        assert dpdist.draft_schema(rows.assign(**{name: cells})) == dpdist.draft_schema(rows)


def test_a_row_left_out_shows_no_index(scene: Path) -> None:  # noqa: ARG001
    whole = of_file("t.parquet", frame(), "whole", neighbours="add-remove")
    assert of_file("t.parquet", frame().drop(index=5), "less", neighbours="add-remove") == whole
    assert draft("less/t.parquet") == draft("whole/t.parquet")
    Path("schema.toml").write_text(
        dpdist.draft_schema("whole/t.parquet").replace("confirmed = false", "confirmed = true")
    )
    frame().drop(index=5).to_parquet("schema.parquet")
    assert len(dpdist.ingest_rows("schema.parquet", "rows.zarr", schema="schema.toml").names) == len(NAMES)


REFUSED: dict[str, dict[str, Any]] = {
    "a date": {"empty": dt.date(2026, 1, 1)},
    "a time": {"empty": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
    "a duration": {"empty": dt.timedelta(1)},
    "a list": {"empty": [1, 2]},
    "a record": {"empty": {"a": 1}},
    "bytes": {"empty": b"\x00\xff"},
    "a complex number": {"empty": 1j},
}
"""Reported to the holder of the rows only: refusals that depend on a cell."""


@pytest.mark.parametrize("cells", REFUSED.values(), ids=REFUSED)
def test_a_cell_that_is_no_number_refuses_the_table_and_publishes_nothing(scene: Path, cells: dict[str, Any]) -> None:
    for name in ("t.csv", "t.parquet", "t.feather"):
        try:
            WRITERS[name](frame(**cells), scene / name)
        except (pa.ArrowException, TypeError, ValueError):
            continue  # this file cannot hold such a cell
        with pytest.raises(DpdistError):
            released(scene / name)
        (scene / name).unlink()
    with pytest.raises(DpdistError):
        released(frame(**cells))
    assert not list(scene.glob("*.zarr"))
