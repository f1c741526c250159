"""Readers of chunked arrays and genotypes: files of independent writers are exact; invalid ones are refused."""

from __future__ import annotations

import shutil
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import anndata
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import xarray
import zarr
from scipy import sparse
from support.ingest_scene import (
    LAYOUTS,
    VARIANTS,
    Table,
    counts,
    genotypes,
    refused,
    stored,
    write_anndata_zarr,
    write_h5ad,
    write_vcf_zarr,
)

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest.readers import base, chunked, source
from dpdist.core.ingest.readers.base import Choices
from dpdist.core.ingest.readers.source import Entry
from dpdist.core.ingest.sources import Opener
from dpdist.core.ingest.write import ingest
from dpdist.core.rows.units import Unit
from dpdist.formats import anndata as h5ad

pytestmark = pytest.mark.usefixtures("typed")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every reader work in many small pieces, in this process."""
    for module in (chunked, h5ad):
        monkeypatch.setattr(module, "PIECE", 60)
    for module in (chunked, source):
        monkeypatch.setattr(module, "WINDOW", 100)


@pytest.mark.parametrize(("layout", "dtype"), [("csr", "int8"), ("csc", "float64"), ("csc", "bool")])
def test_sparse_values_keep_their_type(tmp_path: Path, layout: str, dtype: str) -> None:
    write_h5ad(tmp_path / "t.h5ad", LAYOUTS[layout](counts().astype(dtype)))
    assert ingest(tmp_path / "t.h5ad", tmp_path / "rows.zarr").dtype == {"bool": "uint8"}.get(dtype, dtype)
    assert np.array_equal(stored(tmp_path / "rows.zarr"), counts().astype(dtype))


def test_layers_and_raw_are_chosen(tmp_path: Path) -> None:
    adata = anndata.AnnData(counts(), layers={"counts": sparse.csr_matrix(counts(seed=1))})
    raw = np.hstack([counts(seed=2)] * 2)
    adata.raw = anndata.AnnData(raw)
    adata.write_h5ad(tmp_path / "t.h5ad")
    chosen = ((None, counts()), ("X", counts()), ("layers/counts", counts(seed=1)), ("raw/X", raw))
    for number, (variable, expected) in enumerate(chosen):
        ingest(tmp_path / "t.h5ad", tmp_path / f"{number}.zarr", choices=Choices(variable))
        assert np.array_equal(stored(tmp_path / f"{number}.zarr"), expected)
    with pytest.raises(DataError, match=r"no matrix 'layers/x'.*--variable: X \(40, 5\); raw/X \(40, 10\); layers/c"):
        ingest(tmp_path / "t.h5ad", tmp_path / "rows.zarr", choices=Choices("layers/x"))


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_a_sparse_matrix_that_points_elsewhere_or_gives_a_cell_twice_is_refused(tmp_path: Path, layout: str) -> None:
    write_h5ad(tmp_path / "t.h5ad", LAYOUTS[layout](np.full((4, 5), 73519.25)))
    content = (tmp_path / "t.h5ad").read_bytes()
    for member, index, value in (  # SciPy would write out of bounds
        ("indices", 3, 99), ("indices", 3, -1), ("indices", 1, 0), ("indptr", 2, 10**6), ("indptr", 2, -5),
        ("indptr", 0, 3),
    ):  # fmt: skip
        with h5py.File(tmp_path / "t.h5ad", "r+") as file:
            file["X"][member][index] = value
        refused(tmp_path / "t.h5ad", "t.h5ad", "damaged")
        (tmp_path / "t.h5ad").write_bytes(content)


def cube(dtype: str = "float32") -> Table:
    """Return 30 rows of 4 times 6 numbers."""
    values: Table = np.arange(30 * 24).reshape(30, 4, 6).astype(dtype)
    return values


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("engine", "chunks"),
    [("scipy", None), *(("h5netcdf", chunks) for chunks in (None, (7, 2, 6), (30, 1, 5)))],
)
def test_a_netcdf_variable_is_laid_out_as_columns(tmp_path: Path, engine: Any, chunks: Any) -> None:
    data = xarray.Dataset({"field": (("time", "lat", "lon"), cube()), "area": (("lat",), np.ones(4))})
    encoding = {"field": {"chunksizes": chunks}} if chunks else {}
    data.to_netcdf(tmp_path / "t.nc", engine=engine, encoding=encoding)
    opened = ingest(tmp_path / "t.nc", tmp_path / "rows.zarr")
    assert (opened.columns, opened.names[:2], opened.dtype) == (24, ("c0", "c1"), "float32")
    assert np.array_equal(stored(tmp_path / "rows.zarr"), cube().reshape(30, 24))


def test_several_netcdf_variables_are_told_and_one_is_chosen(tmp_path: Path) -> None:
    data = xarray.Dataset({"a": (("t", "x"), cube()[:, 0]), "b": (("t", "x"), cube()[:, 1])}, {"x": list("uvwxyz")})
    flat = xarray.Dataset({"a": ("t", np.arange(5.0))})
    sgkit = xarray.Dataset({"a": (("variants", "x"), cube()[:, 0])})
    for dataset, needles in (
        (data, ("several variables", "--variable", "a (30, 6); b (30, 6)")),
        (flat, ("no variable with two or more dimensions",)),
        (sgkit, ("one row per variant",)),
    ):
        dataset.to_netcdf(tmp_path / "t.nc", engine="h5netcdf")
        refused(tmp_path / "t.nc", *needles)
    data.to_netcdf(tmp_path / "t.nc", engine="h5netcdf")
    opened = ingest(tmp_path / "t.nc", tmp_path / "rows.zarr", choices=Choices("b"), columns=["w", "u"])
    assert opened.names == ("w", "u")
    assert np.array_equal(stored(tmp_path / "rows.zarr"), cube()[:, 1][:, [2, 0]])


def test_a_group_of_zarr_arrays_needs_a_choice_where_there_are_several(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "t.zarr")
    group.create_array("call/genotype", data=cube("int8") % 3)
    group.create_array("position", data=np.arange(9))
    ingest(tmp_path / "t.zarr", tmp_path / "one.zarr")
    assert np.array_equal(stored(tmp_path / "one.zarr"), cube("int8").reshape(30, 24) % 3)
    group.create_array("other", data=cube("int8")[:, 0])
    shutil.rmtree(tmp_path / "one.zarr")
    refused(tmp_path / "t.zarr", "several arrays", "call/genotype (30, 4, 6); other (30, 6)", "--variable")
    ingest(tmp_path / "t.zarr", tmp_path / "two.zarr", choices=Choices("other"))
    assert np.array_equal(stored(tmp_path / "two.zarr"), cube("int8")[:, 0])


@pytest.mark.parametrize("said", ["format 2", "format 3", "by its name", "by the store"])
def test_rows_of_a_store_are_never_the_variants(tmp_path: Path, said: str) -> None:
    group = zarr.create_group(tmp_path / "t.zarr", zarr_format=3 if said == "format 3" else 2)
    group.attrs.update({"vcf_zarr_version": "0.4"} if said == "by the store" else {})
    name = "call_DS" if said == "by the store" else "call_genotype"
    rows, dimensions = np.ones((30, 4, 2), dtype=np.int8), ["variants", "samples", "ploidy"]
    array = group.create_array(name, data=rows, dimension_names=dimensions if said == "format 3" else None)
    array.attrs.update({"_ARRAY_DIMENSIONS": dimensions} if said == "format 2" else {})
    refused(tmp_path / "t.zarr", "one row per variant", "one row per sample")
    turned = group.create_array("turned", data=rows[:, :, 0].T.copy())
    turned.attrs["_ARRAY_DIMENSIONS"] = ["samples", "variants"]
    assert ingest(tmp_path / "t.zarr", tmp_path / "rows.zarr", choices=Choices("turned")).rows == 4


def test_chunks_that_fill_the_memory_are_refused(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "t.zarr", shape=(2**20, 2**10), chunks=(2**20, 2**8), dtype="float64")
    refused(tmp_path / "t.zarr", "t.zarr", "chunks of 2048 MiB", "1024 MiB")


def test_a_missing_genotype_is_refused_or_replaced_as_told(tmp_path: Path) -> None:
    values = genotypes()
    values[6, 4] = 127
    write_vcf_zarr(tmp_path / "t.zarr", values)
    refused(tmp_path / "t.zarr", "t.zarr", "sample 7", "'rs4'", "missing", "--missing")
    ingest(tmp_path / "t.zarr", tmp_path / "one.zarr", choices=Choices(missing=1))
    assert np.array_equal(stored(tmp_path / "one.zarr"), np.where(values == 127, 1, values))
    ingest(tmp_path / "t.zarr", tmp_path / "rows.zarr", columns=["rs3", "rs5"])
    assert np.array_equal(stored(tmp_path / "rows.zarr"), values[:, [3, 5]])
    with pytest.raises(UsageError, match="0, 1 or 2"):
        Choices(missing=3)


def test_a_sample_may_be_the_privacy_unit_of_genotypes(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(8, 3) % 3
    write_vcf_zarr(tmp_path / "t.zarr", values, samples=["a", "b", "c", "d"] * 2)
    ingest(tmp_path / "t.zarr", tmp_path / "rows.zarr", unit=Unit("sample", 1))
    assert np.array_equal(stored(tmp_path / "rows.zarr"), values[:4])
    with pytest.raises(DataError, match=r"t.zarr names a sample twice.*--privacy-unit sample"):
        ingest(tmp_path / "t.zarr", tmp_path / "no.zarr")
    with pytest.raises(UsageError, match=r"has no row label SEX. There are: sample "):
        ingest(tmp_path / "t.zarr", tmp_path / "no.zarr", unit=Unit("SEX", 1))
    write_vcf_zarr(tmp_path / "u.zarr", values, names=["sample", "rs1", "rs2"])  # a name does not choose the unit
    with pytest.raises(UsageError, match="both a column and a row label"):
        ingest(tmp_path / "u.zarr", tmp_path / "no.zarr", unit=Unit("sample", 1))


DONORS: dict[str, Any] = {
    "categories": pd.Categorical(["x", "y", "x", "z", "y", "x"]),
    "categories of numbers": pd.Categorical([7, 8, 7, 9, 8, 7]),
    "words": np.array(["x", "y", "x", "z", "y", "x "], dtype=object),
    "numbers that may be missing": pd.array([7, 8, 7, 9, 8, 7], dtype="Int64"),
    "words that may be missing": pd.array(["x", "y", "x", "z", "y", "x"], dtype="string"),
}


@pytest.mark.parametrize(
    ("version", "donors"), [(2, "categories"), (3, "words"), *((None, donors) for donors in DONORS)], ids=str
)
def test_the_donor_may_be_the_privacy_unit(tmp_path: Path, version: Literal[2, 3] | None, donors: str) -> None:
    name = "t.zarr" if version else "t.h5ad"
    values = np.arange(18.0).reshape(6, 3)
    columns = {"donor": DONORS[donors], "sample": ["1", "1", "2", "1", "2", "1"]}
    adata = anndata.AnnData(values, obs=pd.DataFrame(columns, index=[f"c{i}" for i in range(6)]))
    with warnings.catch_warnings(), anndata.settings.override(allow_write_nullable_strings=True):
        warnings.simplefilter("ignore")
        if version:
            write_anndata_zarr(tmp_path / name, adata, version=version)
        else:
            adata.write_h5ad(tmp_path / name)
    for unit, indices in (("obs/donor", [0, 1, 3]), ("obs/donor,obs/sample", [0, 1, 2, 3, 4])):
        ingest(tmp_path / name, tmp_path / f"{len(indices)}.zarr", unit=Unit(unit, 1))
        assert np.array_equal(stored(tmp_path / f"{len(indices)}.zarr"), values[indices])
    with pytest.raises(UsageError, match=r"has no row label obs/age.*obs/donor, obs/sample"):
        ingest(tmp_path / name, tmp_path / "no.zarr", unit=Unit("obs/age", 1))


def test_cells_without_a_privacy_unit_are_refused(tmp_path: Path) -> None:
    for donors in (
        pd.Categorical(["secretword", None, "x"]), pd.array([73519, None, 1], dtype="Int64"),
        np.array([73519.25, 1, 2]), np.array([2.0**24, 1, 2], "f4"),
    ):  # fmt: skip
        adata = anndata.AnnData(np.ones((3, 3)), obs=pd.DataFrame({"donor": donors}, index=["a", "b", "c"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adata.write_h5ad(tmp_path / "t.h5ad")
        with pytest.raises((DataError, UsageError), match="obs/donor") as caught:
            ingest(tmp_path / "t.h5ad", tmp_path / "rows.zarr", unit=Unit("obs/donor", 1))
        assert not any(value in str(caught.value) for value in ("73519", "secretword"))
        assert not (tmp_path / "rows.zarr").exists()


def test_variants_of_one_name_and_allele_are_refused_and_nameless_ones_get_one(tmp_path: Path) -> None:
    write_vcf_zarr(tmp_path / "t.zarr", genotypes(), names=["rs1"] * 2 + [f"v{i}" for i in range(VARIANTS - 2)])
    refused(tmp_path / "t.zarr", "t.zarr", "the same name: rs1:G.")
    write_vcf_zarr(tmp_path / "u.zarr", genotypes(), names=["."] * VARIANTS)
    found = ingest(tmp_path / "u.zarr", tmp_path / "rows.zarr")
    assert found.names == tuple(f"7:{100 + i}:A:G" for i in range(VARIANTS))


def test_a_partitioned_dataset_has_its_keys_as_columns(tmp_path: Path) -> None:
    table = pa.table(
        {"a": np.arange(12.0), "b": np.arange(12) * 3, "year": [2025, 2026] * 6, "region": [1, 1, 1, -2, -2, -2] * 2}
    )
    pads.write_dataset(table, tmp_path / "parts", format="parquet", partitioning=["year", "region"],
                       partitioning_flavor="hive")  # fmt: skip
    expected = pads.dataset(tmp_path / "parts", partitioning="hive").to_table()
    opened = ingest(tmp_path / "parts", tmp_path / "rows.zarr")
    assert opened.names == ("a", "b", "year", "region")
    rows = stored(tmp_path / "rows.zarr")
    columns = [expected[name].to_numpy() for name in opened.names]
    assert np.array_equal(rows[np.lexsort(rows.T)], np.stack(columns, axis=1)[np.lexsort(columns)])
    keys = ingest(tmp_path / "parts", tmp_path / "keys.zarr", columns=["region", "year"])
    assert keys.dtype == "int32"  # of a whole number in a name the narrowest: int8 and uint16
    assert np.array_equal(stored(tmp_path / "keys.zarr"), rows[:, [3, 2]])


def test_a_partition_of_words_is_left_out_by_name(tmp_path: Path) -> None:
    for number, word in enumerate(["secretword", "1_0", "١٢", "nan", "1e999"]):
        (tmp_path / str(number) / f"who={word}").mkdir(parents=True)
        inner = tmp_path / str(number) / f"who={word}" / "t.parquet"
        pq.write_table(pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0]}), inner)
        with pytest.raises(DataError, match=r"column 'who': the value in the folder name is not a number"):
            ingest(tmp_path / str(number), tmp_path / "rows.zarr")
    ingest(tmp_path / "0", tmp_path / "rows.zarr", columns=["b", "a"])
    assert stored(tmp_path / "rows.zarr").tolist() == [[3, 1], [4, 2]]
    inner.rename(inner.with_suffix(".csv"))
    with pytest.raises(DataError, match="only Parquet and Arrow files"):
        ingest(tmp_path / "4", tmp_path / "more.zarr")


def test_a_missing_package_is_told_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_h5ad(tmp_path / "t.h5ad", counts())

    def without(_: str) -> Any:
        raise ImportError

    monkeypatch.setattr(base, "import_module", without)
    with pytest.raises(UsageError, match=r"needs h5py\. .*: pip install '\.\[anndata\]'"):
        ingest(tmp_path / "t.h5ad", tmp_path / "rows.zarr")


@pytest.mark.usefixtures("other_process")
def test_each_file_is_read_though_the_readers_of_others_were_given_up(tmp_path: Path) -> None:
    """One process reads them all, and a reader that is given up may leave its number to the next one."""
    with closing(Opener(tmp_path, Choices())) as opener:
        for number in range(20):
            path = tmp_path / f"{number}.parquet"
            pq.write_table(pa.table({"a": np.full(3, float(number)), "b": np.ones(3)}), path)
            source = opener.opened(Entry(path, str(path)))
            with closing(source.rows((0, 1))) as blocks:
                assert [float(block[0, 0]) for block in blocks] == [number]
            del source
