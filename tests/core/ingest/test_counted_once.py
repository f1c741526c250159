"""Every person counts once and every number is exact: attacks on the readers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray
import zarr
from pyarrow import feather
from support.ingest_scene import stored

from dpdist import Column, Schema, ingest_rows
from dpdist.core.errors import DataError
from dpdist.core.ingest.readers import columnar

WIDE = 2**53 + 1


# --- one person, one row ---


def test_a_folder_key_is_part_of_what_a_table_was_made_of(tmp_path: Path) -> None:
    for key in (1, 2):
        (tmp_path / "in" / f"y={key}").mkdir(parents=True)
        pq.write_table(pa.table({"a": [1.0 * key], "b": [2.0]}), tmp_path / "in" / f"y={key}" / "p.parquet")
    ingest_rows(tmp_path / "in", tmp_path / "rows.zarr")
    assert stored(tmp_path / "rows.zarr").tolist() == [[1, 2, 1], [2, 2, 2]]
    (tmp_path / "in" / "y=2").rename(tmp_path / "in" / "y=7")
    with pytest.raises(DataError, match="not ingested from these files"):
        ingest_rows(tmp_path / "in", tmp_path / "rows.zarr")


def test_copies_of_a_table_in_a_folder_are_refused_for_all_kinds(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.5, 2], "b": [3.5, 4]})
    for number, names in enumerate((
        ("0.zarr", "1.zarr"), ("t.csv", "t.parquet"), ("t.CSV", "t.csv.gz"), ("people.csv", "people (1).csv"),
    )):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        for path in (folder / name for name in names):
            if path.suffix == ".zarr":
                zarr.create_array(path, data=frame.to_numpy())
            elif path.suffix == ".parquet":
                frame.to_parquet(path)
            else:
                frame.to_csv(path, index=False)
        with pytest.raises(DataError, match="would count twice"):
            ingest_rows(folder, tmp_path / "rows.zarr")
    (folder / "people (1).csv").write_text("a,b\n1,2\n")
    assert ingest_rows(folder, tmp_path / "rows.zarr").rows == 3


def test_whose_the_rows_are_is_told_and_how_many_are_left_out(tmp_path: Path) -> None:
    pq.write_table(pa.table({"who": [1, 1, 2], "a": [1.0, 2, 3], "b": [4.0, 5, 6]}), tmp_path / "t.parquet")
    messages: list[str] = []
    ingest_rows(tmp_path / "t.parquet", tmp_path / "rows.zarr", privacy_unit="who", max_rows=1, say=messages.append)
    assert messages == ["The privacy unit is who, with at most 1 row each.", "Rows left out beyond these: 1."]


# --- every number as it is ---


def wide_parquet(folder: Path) -> Path:
    columns: dict[str, Any] = {f"i{i}": np.array([WIDE, 1]) for i in range(columnar._COLUMNS)}
    pq.write_table(pa.table({**columns, "f": [0.5, 1.0]}), folder / "t.parquet")
    return folder / "t.parquet"


def filled(folder: Path) -> Path:
    data = xarray.Dataset({"v": (("n", "m"), np.array([[WIDE, 1], [2, 3]]))})
    data.to_netcdf(folder / "t.nc", engine="h5netcdf", encoding={"v": {"_FillValue": -1}})
    return folder / "t.nc"


ROUNDED: dict[str, Callable[[Path], Any]] = {
    "pandas": lambda _: pd.DataFrame({"a": [WIDE, 1], "b": [0.5, 1]}),
    "pandas, signed and not": lambda _: pd.DataFrame({"a": [-1, 1], "b": np.array([2**64 - 1, 1], np.uint64)}),
    "Dask": lambda _: dd.from_pandas(pd.DataFrame({"a": [WIDE, 1], "b": [0.5, 1]}), npartitions=2),
    "a Dataset": lambda _: xarray.Dataset({"a": ("n", [WIDE, 1]), "b": ("n", [0.5, 1.0])}),
    "wide Parquet": wide_parquet,
    "NetCDF with a fill": filled,
}


@pytest.mark.parametrize("kind", ROUNDED)
def test_whole_numbers_are_never_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(columnar, "_ROW_GROUP", 1)
    with pytest.raises(DataError, match=r"beyond 2\^53"):
        ingest_rows(ROUNDED[kind](tmp_path), tmp_path / "rows.zarr")


def test_marks_of_zarr_arrays_are_read_or_refused(tmp_path: Path) -> None:
    def array(name: str, values: Any, **marks: Any) -> Path:
        zarr.create_array(tmp_path / name, data=np.asarray(values)).attrs.update(marks)
        return tmp_path / name

    halves = array("halves.zarr", np.array([[1, 2], [0, 4]], "f4"), scale_factor=0.5)
    assert stored(Path(ingest_rows(halves, tmp_path / "h.zarr").path)).tolist() == [[0.5, 1], [0, 2]]
    gaps = array("gaps.zarr", [[1, -9.0, 3], [4, 5, 6]], missing_value=-9.0)
    assert stored(Path(ingest_rows(gaps, tmp_path / "g.zarr", columns=["c0", "c2"]).path)).tolist() == [[1, 3], [4, 6]]
    with pytest.raises(DataError, match="column 'c1': the value is missing"):
        ingest_rows(gaps, tmp_path / "no.zarr")
    with pytest.raises(DataError, match="has the attribute _Unsigned"):
        ingest_rows(array("u.zarr", np.array([[1, -1]], "i1"), _Unsigned="true"), tmp_path / "no.zarr")


def test_no_value_of_a_row_is_told_as_a_place(tmp_path: Path) -> None:
    values = np.ones((2, 2, 2))
    values[1, 1, 0] = np.nan
    other = (("n", "lat"), np.array([[1.0, 2], [779.5, 780.5]]))
    xarray.Dataset({"v": (("n", "lat", "lon"), values), "lat": other}).to_netcdf(tmp_path / "t.nc", engine="h5netcdf")
    with pytest.raises(DataError, match=r"'c2' \(lat 1, lon 0\)") as caught:
        ingest_rows(tmp_path / "t.nc", tmp_path / "rows.zarr", variable="v")
    assert "779" not in str(caught.value)


# --- Arrow's own files ---


@pytest.mark.usefixtures("other_process")
def test_a_length_that_is_not_true_is_refused_in_little_memory(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"a": np.arange(8), "b": np.arange(8)}), tmp_path / "t.arrow", "uncompressed")
    content = (tmp_path / "t.arrow").read_bytes()
    for length in (300, 2**40, 2**47, 2**62):
        (tmp_path / "t.arrow").write_bytes(content.replace(struct.pack("<q", 8), struct.pack("<q", length)))
        with pytest.raises(DataError):
            ingest_rows(tmp_path / "t.arrow", tmp_path / "rows.zarr")
    zarr.create_array(tmp_path / "huge.zarr", shape=(2**50, 2), chunks=(1000, 2), dtype="u1")[:9] = 1
    with pytest.raises(DataError, match="need more than"):
        ingest_rows(tmp_path / "huge.zarr", tmp_path / "rows.zarr")


def test_words_as_polars_stores_them_are_categories(tmp_path: Path) -> None:
    schema = Schema([Column("a", "integer"), Column("c", "category", categories=["u", "v"])])
    for kind in (pl.Categorical, pl.Enum(["u", "v"]), pl.String):
        frame = pl.DataFrame({"a": [1, 2], "c": ["u", "v"]}).with_columns(pl.col("c").cast(kind))
        frame.write_ipc(tmp_path / "t.arrow")
        for number, source in enumerate((tmp_path / "t.arrow", frame, frame.to_arrow())):
            ingest_rows(source, tmp_path / f"{kind}-{number}.zarr", schema=schema)
            assert stored(tmp_path / f"{kind}-{number}.zarr").tolist() == [[1, 1, 0], [2, 0, 1]]


def test_columns_of_frames_are_taken_by_their_places(tmp_path: Path) -> None:
    values = np.arange(9.0).reshape(3, 3)
    multi_index = pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)])
    ingest_rows(pd.DataFrame(values, columns=multi_index), tmp_path / "m.zarr")
    assert stored(tmp_path / "m.zarr").tolist() == values.tolist()
    named = pd.DataFrame(values[:, :2], columns=["b", "c"], index=pd.Index([7.0, 8, 9], name="age"))
    table = pa.Table.from_pandas(named)
    with pytest.raises(DataError, match=r"'age' of the table is a pandas index.*drop_columns\(\['age'\]\)"):
        ingest_rows(table, tmp_path / "no.zarr")
    assert ingest_rows(table.drop_columns(["age"]), tmp_path / "dropped.zarr").names == ("b", "c")
    assert ingest_rows(table.replace_schema_metadata(), tmp_path / "kept.zarr").names == ("b", "c", "age")
