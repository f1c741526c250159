"""Tables in pieces, nested, or of unusual types: each message has a cure that works when typed."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import xarray
import zarr
from support.cli_scene import Call
from support.ingest_scene import stored

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest.write import ingest
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Unit

NAMES = {"pandas": pd, "pyarrow": pa, "xarray": xarray, "zarr": zarr, "anndata": anndata}
EMBEDDED = pd.DataFrame({"label": [1.0, 2.0], "emb": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "size": [7.0, 8.0]})
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:anndata")


def cured(path: Path, suffix: str, words: str) -> Path:
    """Type what the refusal of a file says, and return what that makes."""
    with pytest.raises(DataError, match=words) as refused:
        ingest(path, path.with_name("none.zarr"))
    code = re.search(r"in Python: (.*)\.$", str(refused.value))
    assert code, refused.value
    new = path.with_name(f"new{suffix}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code[1], {**NAMES, "FILE": str(path), "NEW": str(new)})  # noqa: S102 - the message says that this can be typed
    return new


def rows_of(path: Path, **asked: Any) -> Any:
    return stored(ingest(path, path.with_name("rows.zarr"), **asked).path)


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "h5ad"])
def test_columns_of_the_same_name_are_renamed_by_what_is_typed(tmp_path: Path, kind: str) -> None:
    path, twice = tmp_path / f"t.{kind}", pa.table([[1.0, 2.0], [3.0, 4.0]], names=["a", "a"])
    if kind == "csv":
        path.write_text("a,a\n1,3\n2,4\n")
    elif kind == "parquet":
        pq.write_table(twice, path)
    elif kind == "arrow":
        pa.feather.write_feather(twice, path)
    else:
        cells = anndata.AnnData(np.array([[1.0, 3.0], [2.0, 4.0]]), var=pd.DataFrame(index=["a", "b"]))
        cells.var_names = ["a", "a"]
        with warnings.catch_warnings(action="ignore"):
            cells.write_h5ad(path)
    new = cured(path, path.suffix, "several columns with the same name: a")
    assert rows_of(new).tolist() == [[1, 3], [2, 4]]


def test_columns_of_the_same_name_in_memory_are_renamed_by_what_is_typed(tmp_path: Path) -> None:
    source = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=["a", "a"])
    with pytest.raises(DataError, match="same name") as refused:
        ingest_rows(source, tmp_path / "rows.zarr")
    exec(re.search(r"Rename them: (.*)\.$", str(refused.value))[1], {"source": source})  # type: ignore[index] # noqa: S102
    assert ingest_rows(source, tmp_path / "rows.zarr").names == ("a.0", "a.1")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_column_of_vectors_is_divided_by_what_is_typed(tmp_path: Path, kind: str, *, fixed: bool) -> None:
    table = pa.Table.from_pandas(EMBEDDED)
    if fixed:
        table = table.set_column(1, "emb", table["emb"].cast(pa.list_(pa.float64(), 3)))
    path = tmp_path / f"t.{kind}"
    (pq.write_table if kind == "parquet" else pa.feather.write_feather)(table, path)
    new = cured(path, ".parquet", r"'emb' \(.*list<.*columns=\['label', 'size'\]")
    assert rows_of(new).tolist() == [[1, 7, 1, 2, 3], [2, 8, 4, 5, 6]]


def test_a_record_is_divided_by_what_is_typed(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"s": [{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4.0}]}), path)
    assert rows_of(cured(path, ".parquet", r"'s' \(struct<")).tolist() == [[1, 2], [3, 4]]


def test_columns_that_are_variables_are_joined_by_what_is_typed(tmp_path: Path) -> None:
    columns = xarray.Dataset({"age": ("obs", [30.0, 40.0, 50.0]), "bmi": ("obs", [20.0, 21.0, 22.0])})
    columns.to_netcdf(tmp_path / "t.nc")
    columns.to_zarr(tmp_path / "t.zarr", consolidated=False)
    plain = zarr.open_group(tmp_path / "plain.zarr", mode="w")
    for name in ("age", "bmi"):
        plain[name] = columns[name].to_numpy()
    for name in ("t.nc", "t.zarr", "plain.zarr"):
        new = cured(tmp_path / name, f"-{name}.parquet", "arrays of one dimension are columns")
        found = ingest(new, tmp_path / f"rows-{name}.zarr")  # a folder lists its arrays in any order
        by_name = dict(zip(found.names, stored(found.path).T.tolist(), strict=True))
        assert by_name == {"age": [30, 40, 50], "bmi": [20, 21, 22]}


def test_variables_along_other_dimensions_multiply_no_rows(tmp_path: Path) -> None:
    both = xarray.Dataset({
        "age": ("patient", np.arange(6.0)), "bmi": ("patient", np.arange(6.0) + 20), "beds": ("ward", np.arange(3.0)),
    })  # fmt: skip
    both.to_netcdf(tmp_path / "t.nc")
    both.to_zarr(tmp_path / "t.zarr", consolidated=False)
    for name in ("t.nc", "t.zarr"):
        new = cured(tmp_path / name, f"-{name}.parquet", r"\[\['age', 'bmi'\]\]")
        assert stored(ingest(new, tmp_path / f"rows-{name}.zarr").path).shape == (6, 2)
    xarray.Dataset({"a": ("x", [1.0]), "b": ("y", [1.0, 2.0])}).to_netcdf(tmp_path / "apart.nc")
    with pytest.raises(DataError, match=r"the first being the rows\. Write one"):
        ingest(tmp_path / "apart.nc", tmp_path / "none.zarr")


def test_vectors_stay_beside_their_rows(tmp_path: Path) -> None:
    turned = EMBEDDED.assign(label=[1.0, 4.0]).iloc[::-1]  # pandas stores its index
    turned.to_parquet(tmp_path / "t.parquet")
    new = cured(tmp_path / "t.parquet", ".parquet", "'emb'")
    assert all(row[0] == row[1] for row in rows_of(new, columns=["label", "emb.0"]).tolist())


def test_what_zarr_allows_and_is_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.zarr"
    zarr.create_array(path, data=np.ones((6, 4)))
    known = json.loads((path / "zarr.json").read_text())
    (path / "zarr.json").write_text(json.dumps({**known, "other": {"must_understand": True, "name": "other"}}))
    with pytest.raises(DataError, match="uses the extension 'other' of Zarr"):
        ingest(path, tmp_path / "rows.zarr")
    (path / "zarr.json").write_text(json.dumps({**known, "other": {"must_understand": False}}))
    assert rows_of(path).shape == (6, 4)
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[2, 4], [2, 2]]}}
    (path / "zarr.json").write_text(json.dumps({**known, "chunk_grid": grid}))
    with pytest.raises(DataError, match=r"chunks of several sizes \(rectilinear\)"):
        ingest(path, tmp_path / "other.zarr")


def test_rectilinear_chunks_are_written_anew_by_what_is_typed(tmp_path: Path) -> None:
    if "rectilinear_chunks" not in zarr.config.get("array"):
        pytest.skip("this zarr writes no rectilinear chunks")
    path, rows = tmp_path / "t.zarr", np.arange(24.0).reshape(6, 4)
    chunks: Any = [[2, 4], [2, 2]]  # of a type that an older zarr does not know
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = zarr.create_array(path, shape=rows.shape, dtype=rows.dtype, chunks=chunks)
        array[:] = rows
        new = cured(path, ".zarr", "rectilinear")
    assert np.array_equal(rows_of(new), rows)


@pytest.mark.parametrize(("donors", "kept"), [([1.0, 1.0, 2.0, 3.0], 3), ([True, True, False, False], 2)])
def test_a_donor_is_a_donor_whatever_its_type(tmp_path: Path, call: Call, donors: list[Any], kept: int) -> None:
    path = tmp_path / "t.h5ad"
    cells = anndata.AnnData(np.arange(8.0).reshape(4, 2), pd.DataFrame({"donor": donors}, index=list("abcd")))
    cells.write_h5ad(path)
    assert ingest(path, tmp_path / "rows.zarr", unit=Unit("obs/donor", 1)).rows == kept
    asked = call("release", path, tmp_path / "release.zarr", "--epsilon", 1, "--delta", 1e-6)
    assert (asked.code, "identifier of persons: obs/donor" in asked.message) == (2, True)


def test_a_donor_of_fractions_is_made_text_by_what_is_typed(tmp_path: Path) -> None:
    path = tmp_path / "t.h5ad"
    cells = anndata.AnnData(np.arange(8.0).reshape(4, 2), pd.DataFrame({"donor": [1.5, 1.5, 2, 3]}, index=list("abcd")))
    cells.write_h5ad(path)
    with pytest.raises(DataError, match="donor holds float64") as refused:
        ingest(path, tmp_path / "rows.zarr", unit=Unit("obs/donor", 1))
    code, new = re.search(r"in Python: (.*)\.$", str(refused.value)), tmp_path / "new.h5ad"
    assert code
    exec(code[1], {**NAMES, "FILE": path, "NEW": new})  # noqa: S102 - the message says that this can be typed
    assert ingest(new, tmp_path / "rows.zarr", unit=Unit("obs/donor", 1)).rows == 3


def test_a_privacy_unit_of_several_columns_is_a_schemas(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("pid,site,a,b\n1,1,1,2\n1,2,3,4\n1,1,5,6\n")
    with pytest.raises(UsageError, match='kind = "privacy unit" for each of them'):
        ingest(path, tmp_path / "rows.zarr", unit=Unit("pid,site", 1))
    kinds = {"pid": "privacy unit", "site": "privacy unit", "a": "number", "b": "number"}
    schema = Schema([Column(name, kind) for name, kind in kinds.items()], max_rows=1)
    assert ingest_rows(path, tmp_path / "rows.zarr", schema=schema).rows == 2


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2020-01-02T03:04:05.123456789Z", "2020-01-02T03:04:05.123456"),
        ("2020-01-02 03:04:05.1234567", "2020-01-02T03:04:05.123456"),
        ("2020-01-02 03:04:05,5", "2020-01-02T03:04:05.5"),
        ("2020-01-02 03:04:05 UTC", "2020-01-02T03:04:05"),
        ("2020-01-02 03:04:05.250 +02:00", "2020-01-02T01:04:05.25"),
    ],
)
def test_times_as_other_programs_write_them_are_read(tmp_path: Path, text: str, instant: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f'd,b\n"{text}",1\n2020-01-03,2\n')
    schema = Schema([Column("d", "date"), Column("b", "number")])
    rows = stored(ingest_rows(path, tmp_path / "rows.zarr", schema=schema).path)
    days = (np.datetime64(instant, "us") - np.datetime64("2020-01-03", "us")) / np.timedelta64(1, "D")
    assert rows[0, 0] - rows[1, 0] == pytest.approx(days, abs=1e-9)


def test_a_schema_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    columns = "".join(f'[[column]]\nname = "{name}"\nkind = "number"\n' for name in "ab")
    (tmp_path / "s.toml").write_text(columns, encoding="utf-8-sig")
    assert Schema.read(tmp_path / "s.toml").features == ("a", "b")
