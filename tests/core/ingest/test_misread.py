"""Real files that were silently misread, or refused without a working cure.

The correct values are those of the library that the file is made for.
"""

from __future__ import annotations

import json
import shutil
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
import xarray
import zarr
from support.ingest_scene import stored, write_anndata_zarr, write_vcf_zarr

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest.readers.base import Choices
from dpdist.core.ingest.write import ingest
from dpdist.core.moment.arrays import dense
from dpdist.core.pipeline.sources import ingest_rows, register_rows
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Unit

pytestmark = pytest.mark.usefixtures("typed")


def rows_of(path: Path, **choices: Any) -> Any:
    target = path.parent / "rows.zarr"
    shutil.rmtree(target, ignore_errors=True)
    columns = choices.pop("columns", None)
    return np.asarray(zarr.open_array(ingest(path, target, columns=columns, choices=Choices(**choices)).path)[:])


def refused(path: Path, match: str, **choices: Any) -> str:
    with pytest.raises(DataError, match=match) as caught:
        rows_of(path, **choices)
    return str(caught.value).replace(str(path.parent), "")


# --- one person several times -----------------------------------------------------------------------------------------


def test_a_sample_of_two_stores_of_genotypes_is_one_person(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, samples in (("a", ["s1", "s2"]), ("b", ["s1", "s3"])):
        write_vcf_zarr(tmp_path / "in" / f"{name}.zarr", np.array([[0, 1], [2, 1]]), samples=samples)
    told = refused(tmp_path / "in", r"b\.zarr names 1 sample of .*a\.zarr again: one person would have several rows")
    assert "s1" not in told
    shutil.rmtree(tmp_path / "in" / "b.zarr")
    write_vcf_zarr(tmp_path / "in" / "b.zarr", np.array([[0, 1], [2, 2]]), samples=["s4", "s3"])
    assert rows_of(tmp_path / "in").shape == (4, 2)


def test_cells_of_two_samples_may_be_called_alike_where_their_donors_are_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        obs = pd.DataFrame({"donor": [name, name]}, index=["AAAC", "AAAG"])
        anndata.AnnData(np.ones((2, 2), np.float32) + (name == "b"), obs).write_h5ad(tmp_path / "in" / f"{name}.h5ad")
    refused(
        tmp_path / "in", r"names 2 samples of .* declare a privacy unit with --max-rows M and --privacy-unit obs/donor"
    )


@pytest.mark.parametrize(
    ("mark", "part", "kind"),
    [
        ("_delta_log", "year=2020", "Delta Lake"),
        (".hoodie", "p", "Apache Hudi"),
        ("metadata", "data", "Apache Iceberg"),
    ],
)
def test_a_table_of_a_lake_is_no_folder_of_files(tmp_path: Path, mark: str, part: str, kind: str) -> None:
    folder = tmp_path / "in"
    (folder / mark).mkdir(parents=True)
    (folder / part).mkdir()
    pq.write_table(pa.table({"a": [1, 2], "b": [3, 4]}), folder / part / "p0.parquet")
    if mark == "metadata":
        assert len(rows_of(folder / part)) == 2  # a folder of this name alone is no table
        (folder / mark / "v1.metadata.json").write_text("{}")
    refused(folder / part, "also holds files of older versions")
    (folder / part / "p0.parquet").rename(folder / "p0.parquet")
    refused(folder, f"is a {kind} table: it also holds files of older versions.* Export its current rows")


def test_a_part_without_rows_among_others_is_passed_over_and_one_alone_is_not(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    kinds = pa.schema({"a": pa.float64(), "b": pa.float64()})
    for part in (0, 2):
        pq.write_table(kinds.empty_table(), tmp_path / "in" / f"{part}.parquet")
    refused(tmp_path / "in", "No file of .* has rows")
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0]}), tmp_path / "in" / "1.parquet")
    assert rows_of(tmp_path / "in").tolist() == [[1, 3], [2, 4]]
    (tmp_path / "texts").mkdir()
    for name, content in (("a", ""), ("b", "a,b,who\n1,2,7\n3,4,7\n"), ("c", ""), ("d", "a,b,who\n5,6,8\n"), ("e", "")):
        (tmp_path / "texts" / f"{name}.csv").write_text(content)
    ingest_rows(tmp_path / "texts", tmp_path / "texts.zarr", privacy_unit="who", max_rows=1)
    assert stored(tmp_path / "texts.zarr").tolist() == [[1, 2], [5, 6]]


def test_a_donor_that_anndata_before_0_8_marks_as_missing_is_no_donor_of_its_own(tmp_path: Path) -> None:
    anndata.AnnData(np.arange(6, dtype=np.float32).reshape(3, 2)).write_h5ad(tmp_path / "t.h5ad")
    with h5py.File(tmp_path / "t.h5ad", "r+") as file:
        file["obs/__categories/donor"] = ["A", "B"]
        file["obs/donor"] = np.array([0, -1, 1], np.int8)
        file["obs/donor"].attrs["categories"] = file["obs/__categories/donor"].ref
    with pytest.raises(DataError, match="obs/donor is missing for some rows"):
        ingest(tmp_path / "t.h5ad", tmp_path / "rows.zarr", unit=Unit("obs/donor", 1))
    with h5py.File(tmp_path / "t.h5ad", "r+") as file:
        file["obs/donor"][1] = 0
    assert ingest(tmp_path / "t.h5ad", tmp_path / "rows.zarr", unit=Unit("obs/donor", 1)).rows == 2


# --- never silently ---------------------------------------------------------------------------------------------------


def test_a_page_of_parquet_with_a_wrong_checksum_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"a": np.arange(8.0), "b": np.arange(100.0, 108)}), path, **options)
    assert rows_of(path)[3].tolist() == [3, 103]
    content = path.read_bytes()
    at = content.index(np.arange(8.0).tobytes()) + 8 * 3
    path.write_bytes(content[:at] + np.float64(6).tobytes() + content[at + 8 :])
    refused(path, "damaged")


def test_consolidated_metadata_of_before_an_append_hides_no_rows(tmp_path: Path) -> None:
    for version in (2, 3):
        store = str(tmp_path / f"{version}.zarr")
        group = zarr.open_group(store, mode="w", zarr_format=version)
        array = group.create_array("X", shape=(4, 3), chunks=(2, 3), dtype="f4", fill_value=0)
        array[:] = 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of format 3 it is no standard yet
            zarr.consolidate_metadata(store)
        array.resize((8, 3))
        array[4:] = 2
        assert rows_of(Path(store))[:, 0].tolist() == [1] * 4 + [2] * 4


def test_whole_numbers_that_float64_does_not_hold_are_refused_by_their_place(tmp_path: Path) -> None:
    text = tmp_path / "t.csv"
    for wide in (f"{2**53 + 1}", f"{2**53 + 1}.00"):  # as databases write decimals
        text.write_text(f"id,b\n{wide},1.5\n7,2.5\n")
        refused(text, r"line 2, column 'id': a whole number beyond 2\^53")
    text.write_text(f"a,b\n1.5e17,1.5\n9007199254740992,2.5\n{2**60}.0,3.5\n")
    assert rows_of(text)[:, 0].tolist() == [1.5e17, 2.0**53, 2.0**60]
    column = pa.array([Decimal(7), Decimal(2**53 + 1)], pa.decimal128(20, 2))
    pq.write_table(pa.table({"id": column, "b": [1.5, 2.5]}), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", r"column 'id': a whole number beyond 2\^53")
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "0.npy", np.array([[2**53 + 1, 1]]))
    np.save(tmp_path / "in" / "1.npy", np.array([[0.5, 1]]))
    refused(tmp_path / "in", r"0\.npy, row 0 .* beyond 2\^53")
    with pytest.raises(DataError, match=r"beyond 2\^53"):
        register_rows(tmp_path / "in", tmp_path / "there.zarr")


def test_anndata_before_0_8_in_zarr_is_its_matrix_and_not_what_was_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "t.zarr"
    adata = anndata.AnnData(scipy.sparse.csr_matrix(np.eye(4, 3, dtype=np.float32)))
    adata.obsm["X_pca"] = np.arange(8.0).reshape(4, 2)
    write_anndata_zarr(path, adata, version=2)
    for mark in (path / ".zattrs", path / "zarr.json"):
        if mark.exists():
            attributes = json.loads(mark.read_text())
            attributes.pop("encoding-type", None)
            attributes.pop("encoding-version", None)
            attributes.get("attributes", {}).pop("encoding-type", None)
            mark.write_text(json.dumps(attributes))
    assert rows_of(path).tolist() == np.eye(4, 3).tolist()


@pytest.mark.parametrize(("name", "version", "kind"), [("t.nc", None, "i2"), ("t.zarr", 2, "i2"), ("t.zarr", 3, "f4")])
def test_packed_values_are_what_their_attributes_say(tmp_path: Path, name: str, version: Any, kind: str) -> None:
    for last, path in ((8, tmp_path / name), (-9999, tmp_path / f"gap-{name}")):
        data = xarray.Dataset({"t": (("person", "site"), np.array([[-4, 0], [6, last]], kind))})
        data["t"].attrs |= {"scale_factor": 0.5, "add_offset": 10.0}
        data["t"].encoding["_FillValue"] = np.asarray(-9999, kind)[()]
        if name == "t.nc":
            data.to_netcdf(path, engine="h5netcdf")
        else:
            data.to_zarr(path, zarr_format=version, consolidated=False)
    assert rows_of(tmp_path / name).tolist() == [[8, 10], [13, 14]]
    refused(tmp_path / f"gap-{name}", r"row 1 \(counting from 0\), column 'c1': the value is")


@pytest.mark.parametrize(("kind", "fill"), [("i2", -32767), ("u4", 4294967295), ("f8", 9.969209968386869e36)])
def test_what_netcdf_knows_for_missing_is_missing(tmp_path: Path, kind: str, fill: float) -> None:
    def write(last: float, **attributes: Any) -> Path:
        data = xarray.Dataset({"t": (("person", "m"), np.array([[1, 2], [3, last]], kind))})
        data["t"].attrs |= attributes
        data["t"].encoding["_FillValue"] = None
        data.to_netcdf(tmp_path / "t.nc", engine="scipy" if kind != "u4" else "h5netcdf")
        return tmp_path / "t.nc"

    for path in (write(fill), write(99, valid_max=50.0), write(99, valid_range=[0.0, 50.0])):
        refused(path, r"row 1 .*'c1': the value is missing according to the attributes")
    rows = rows_of(write(50, valid_range=[0.0, 50.0]))
    assert (rows.tolist(), rows.dtype.str[1:]) == ([[1, 2], [3, 50]], kind)


# --- refused with a cure that works -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "cell"), [("2020", 2020), ("01", 1), ("1.50", 1.5), ("1e16", 1e16), ("1.5", Decimal("1.50")), ("1", True)]
)
def test_a_key_of_a_folder_may_be_in_the_file_too_and_says_the_same(tmp_path: Path, key: str, cell: Any) -> None:
    assert rows_of(_in_folder(tmp_path, f"year={key}", x=[1.5], year=[cell])).tolist() == [[1.5, float(cell)]]
    other = _in_folder(tmp_path / "other", f"year={key}", x=[1.5, 1.5], year=[cell, type(cell)(0)])
    refused(other, "a column named like its folder, with other values")


def test_arrays_of_scipy_of_python_objects_and_in_groups_are_told_as_that(tmp_path: Path) -> None:
    scipy.sparse.save_npz(tmp_path / "t.npz", scipy.sparse.csr_matrix(np.eye(3)))
    refused(tmp_path / "t.npz", r"sparse matrix of SciPy.*load_npz\(FILE\)\.toarray\(\)")
    np.savez(tmp_path / "o.npz", X=np.ones((2, 2)), feature_names=np.array(["age", "sex"], dtype=object))
    refused(tmp_path / "o.npz", r"feature_names\.astype\(str\)")
    inner = xarray.Dataset({"t2m": (("time", "s"), np.ones((3, 2)))})
    inner.to_netcdf(tmp_path / "t.nc", group="data", engine="h5netcdf")
    refused(tmp_path / "t.nc", r"Choose with --variable: data/t2m \(3, 2\)")
    assert rows_of(tmp_path / "t.nc", variable="data/t2m").shape == (3, 2)


def test_no_advice_removes_foreign_files_and_swapped_paths_are_recognised(tmp_path: Path) -> None:
    table, rows = tmp_path / "table.csv", tmp_path / "rows.zarr"
    table.write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "notes").mkdir()
    with pytest.raises(UsageError, match=rf"seem to be swapped.*ingest {table} {rows}"):
        ingest_rows(rows, table)
    for target in (table, tmp_path / "notes"):
        with pytest.raises(DataError, match=r"is not a table of dpdist\. Choose another path") as caught:
            ingest_rows(table, target)
        assert "Remove" not in str(caught.value)
    ingested = ingest_rows(table, rows)
    table.unlink()
    with pytest.raises(DataError, match="No such file"):  # its source is gone, and nothing was swapped
        ingest_rows(table, rows)
    assert ingested.path.exists()


# --- a folder whose files do not mean the same ------------------------------------------------------------------------


def test_variants_that_are_called_alike_and_count_other_alleles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, alleles in (("a", ("A", "G")), ("b", ("G", "A"))):
        samples = [f"{name}1", f"{name}2"]
        write_vcf_zarr(tmp_path / "in" / f"{name}.zarr", np.array([[1, 2], [1, 2]]), samples=samples, alleles=alleles)
    refused(tmp_path / "in", r"b\.zarr has other columns than .*a\.zarr under the same names")


# --- cells and names --------------------------------------------------------------------------------------------------

NUMBERS = Schema([Column("a", "number"), Column("b", "number")], others="ignored")


def _in_folder(tmp_path: Path, key: str, **columns: Any) -> Path:
    (tmp_path / "in" / key).mkdir(parents=True)
    pq.write_table(pa.table(columns), tmp_path / "in" / key / "p.parquet")
    return tmp_path / "in"


def test_a_folder_key_that_floats_would_round_or_that_contradicts_its_file_is_refused(tmp_path: Path) -> None:
    refused(_in_folder(tmp_path / "wide", f"id={2**53 + 1}", x=[1.0, 2], y=[1.0, 2]), r"column 'id'")
    schema = Schema([Column("id", "privacy unit"), *NUMBERS.columns], max_rows=1)
    refused(_in_folder(tmp_path, "id=7", id=["8", "9"], a=[1.0, 2], b=[1.0, 2]), "like its folder", schema=schema)
    assert len(rows_of(_in_folder(tmp_path / "same", "id=7", id=[7, 7], a=[1.0, 2], b=[1.0, 2]), schema=schema)) == 1


def test_a_missing_unit_is_not_one_person(tmp_path: Path) -> None:
    null = _in_folder(tmp_path, "id=__HIVE_DEFAULT_PARTITION__", a=[1.0, 2], b=[1.0, 2])
    schema = Schema([Column("id", "privacy unit"), *NUMBERS.columns], max_rows=1)
    refused(null, "the owner of the row is unknown", schema=schema)
    filled = Schema([Column("id", "number", missing="fill", fill=5), *NUMBERS.columns])
    assert rows_of(null, schema=filled).tolist() == [[5, 1, 1], [5, 2, 2]]
    for lacking in ("", "nan"):
        obs = pd.DataFrame({"donor": ["d1", lacking, lacking]}, index=list("xyz"))
        anndata.AnnData(np.ones((3, 2), "f4"), obs).write_h5ad(tmp_path / "c.h5ad")
        with pytest.raises(DataError, match=r"row 1 .*obs/donor is missing, so the row"):
            ingest_rows(tmp_path / "c.h5ad", tmp_path / "never.zarr", privacy_unit="obs/donor", max_rows=1)


def test_entries_of_a_sparse_matrix_are_added_up_or_refused(tmp_path: Path) -> None:
    where = ([0, 0, 1], [0, 0, 1])
    ingest_rows(scipy.sparse.coo_array((np.array([100, 100, 1], "u1"), where)), tmp_path / "rows.zarr")
    assert stored(tmp_path / "rows.zarr").tolist() == [[200, 0], [0, 1]]
    wide = scipy.sparse.coo_array((np.array([200, 100, 1], "u1"), where))
    with pytest.raises(DataError, match="overflows uint8"):
        ingest_rows(wide, tmp_path / "never.zarr")
    with pytest.raises(DataError, match="overflows uint8"):
        dense(wide)


# --- arrays with named dimensions -------------------------------------------------------------------------------------


def dataset(values: Any, dims: tuple[str, ...] = ("sample", "gene"), **coords: Any) -> Any:
    return xarray.Dataset({"x": (dims, np.asarray(values))}, coords=coords)


def written(folder: Path, kind: str, **datasets: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in datasets.items():
        if kind == ".nc":
            data.to_netcdf(folder / f"{name}.nc", engine="h5netcdf")
        else:
            data.to_zarr(folder / f"{name}.zarr", zarr_format=2)
    return folder


@pytest.mark.parametrize("kind", [".nc", ".zarr"])
def test_arrays_along_other_coordinates_are_not_joined(tmp_path: Path, kind: str) -> None:
    one, two, deep = [[1.0, 2], [3, 4]], [[5.0, 6], [7, 8]], np.arange(8.0).reshape(2, 2, 2)
    genes: dict[str, Any] = {"gene": ["g1", "g2"]}
    days = [np.datetime64(at, "ns") + np.array([0, 86400], "m8[s]") for at in ("2020-01-01", "2021-06-01")]
    dims = ("sample", "gene", "day")
    for number, (a, b, message) in enumerate([
        (dataset(one, **genes), dataset(two, gene=["g2", "g1"]), "has other columns"),
        (dataset(deep, dims, **genes), dataset(deep + 1, dims, gene=["g2", "g1"]), "has other columns"),
        (dataset(deep, dims), dataset(deep + 1, dims).transpose("sample", "day", "gene"), "under the same names"),
        (dataset(one), dataset(two).rename(x="other"), "under the same names"),
        (*(dataset(one, ("s", "time"), time=times) for times in days), "coordinate or unit"),
        (*(dataset([times]) for times in days), "coordinate or unit"),
    ]):  # fmt: skip
        refused(written(tmp_path / str(number), kind, a=a, b=b), message)
    alike = written(tmp_path / "alike", kind, a=dataset(one, **genes), b=dataset(two, **genes))
    assert rows_of(alike).tolist() == [*one, *two]


@pytest.mark.parametrize("kind", [".nc", ".zarr"])
def test_rows_that_an_array_names_are_there_once(tmp_path: Path, kind: str) -> None:
    twice = written(
        tmp_path / "a", kind, a=dataset(np.eye(2), sample=["s1", "s2"]), b=dataset(np.eye(2) + 1, sample=["s2", "s3"])
    )
    refused(twice, "1 sample of .* again")
    refused(written(tmp_path / "b", kind, a=dataset(np.eye(3, 2), sample=["s", "t", "s"])), "a sample twice")


@pytest.mark.parametrize("kind", [".nc", ".zarr"])
def test_a_time_that_is_none_is_missing_and_bounds_are_no_rows(tmp_path: Path, kind: str) -> None:
    when = dataset(np.array([["2020-01-01", "NaT"], ["2020-01-02", "2020-03-01"]], "M8[ns]"))
    refused(written(tmp_path / "a", kind, a=when), "missing|not finite")
    edges = dataset(np.arange(8.0).reshape(4, 2), ("time", "bnds"), time=np.arange(4)).rename(x="time_bnds")
    edges["time"].attrs["bounds"] = "time_bnds"
    refused(written(tmp_path / "b", kind, a=edges), "holds no (array|variable) with two or more dimensions")


def test_gaps_of_a_grid_are_left_out_as_the_message_says(tmp_path: Path) -> None:
    values = np.arange(12.0).reshape(3, 2, 2)
    values[:, 0, 1] = np.nan
    dataset(values, ("time", "lat", "lon")).to_netcdf(tmp_path / "t.nc", engine="h5netcdf")
    with pytest.raises(DataError, match="in Python") as caught:
        rows_of(tmp_path / "t.nc")
    line = str(caught.value).split("in Python: ")[1].removesuffix(".")
    eval(line, {"xarray": xarray}, {"FILE": tmp_path / "t.nc", "NEW": tmp_path / "new.nc"})  # noqa: S307
    assert rows_of(tmp_path / "new.nc").tolist() == [[0, 2, 3], [4, 6, 7], [8, 10, 11]]


def test_names_and_arrays_of_an_npz(tmp_path: Path) -> None:
    path, rows = tmp_path / "t.npz", np.arange(6.0).reshape(3, 2)
    np.savez(path, X=rows, feature_names=np.array([b"a", b"b"]))
    assert ingest(path, tmp_path / "bytes.zarr").names == ("a", "b")
    np.savez(path, X=rows, feature_names=np.array(["a"]))
    refused(path, "feature_names does not hold 2 texts")
    np.savez(path, train=rows, test=rows + 1)
    refused(path, r"Choose with .*variable.*: train \(3, 2\); test \(3, 2\)")
    assert rows_of(path, variable="test").tolist() == (rows + 1).tolist()
    np.savez(path, X=rows, Z=np.ones((3, 4)), feature_names=np.array(["a", "b"]))
    assert rows_of(path).tolist() == rows.tolist()
    assert ingest(path, tmp_path / "z.zarr", choices=Choices("Z")).names == ("c0", "c1", "c2", "c3")


def test_chunks_that_are_not_stored_are_counted_aloud(tmp_path: Path) -> None:
    said: list[str] = []
    values = np.arange(1.0, 25).reshape(6, 4)
    for number, lost in enumerate((False, True)):
        path = tmp_path / f"{number}.zarr"
        zarr.create_array(path, data=values, chunks=(3, 2), config={"write_empty_chunks": True})
        if lost:
            (path / "c" / "1" / "1").unlink()
        ingest_rows(path, tmp_path / f"rows{number}.zarr", say=said.append)
    with h5py.File(tmp_path / "t.nc", "w") as file:
        made = file.create_dataset("x", (6, 4), chunks=(3, 2), dtype="f8")
        made[:3] = values[:3]
    ingest_rows(tmp_path / "t.nc", tmp_path / "rows2.zarr", say=said.append)
    told = [text for text in said if "not stored" in text]
    assert ["1 of 4 chunks" in told[0], "2 of 4 chunks" in told[1], len(told)] == [True, True, 2]


@pytest.mark.parametrize("inside", ["", "base_0000005", "delta_0000006_0000006", "base_0000005/bucket_00000.parquet"])
def test_no_part_of_a_transactional_table_is_taken_for_the_table(tmp_path: Path, inside: str) -> None:
    for folder in ("base_0000005", "delta_0000006_0000006", "delete_delta_0000007_0000007_0000"):
        (tmp_path / "t" / folder).mkdir(parents=True)
        pd.DataFrame({"a": [1, 2], "b": [3, 4]}).to_parquet(tmp_path / "t" / folder / "bucket_00000.parquet")
    with pytest.raises(DataError, match="transactional table of Hive"):
        ingest_rows(tmp_path / "t" / inside, tmp_path / "rows.zarr")
