"""Files as people have them that were read wrong without a word, and those that were refused without a cure that works.

Each stands for a kind. The right values are those of the library that the file is made for.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import re
import shutil
import warnings
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import partial
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
from bed_reader import to_bed
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather
from support.cli_scene import Call

from dpdist.errors import DataError, UsageError
from dpdist.estimators.in_memory import dense
from dpdist.ingest.readers.base import Choices
from dpdist.ingest.readers.dialect import otherwise
from dpdist.ingest.write import ingest
from dpdist.pipeline.budget import ingest_rows
from dpdist.rows.columns import Column
from dpdist.rows.encoding import floats
from dpdist.rows.schema import Schema

pytestmark = pytest.mark.usefixtures("typed")

VCF = "##fileformat=VCFv4.4\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\ts1\ts2\n"


def rows_of(path: Path, **choices: Any) -> Any:
    target = path.parent / "rows.zarr"
    shutil.rmtree(target, ignore_errors=True)
    columns = choices.pop("columns", None)
    return np.asarray(zarr.open_array(ingest(path, target, columns=columns, choices=Choices(**choices)).path)[:])


def refused(path: Path, match: str, **choices: Any) -> None:
    with pytest.raises(DataError, match=match):
        rows_of(path, **choices)


# --- one person several times -----------------------------------------------------------------------------------------


def test_a_sample_of_two_files_is_one_person(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    site = "1\t100\trs1\tA\tG\t.\t.\t.\tGT\t0/1\t1/1\n1\t200\trs2\tA\tG\t.\t.\t.\tGT\t0/0\t1/1\n"
    (tmp_path / "in" / "a.vcf").write_text(VCF + site)
    (tmp_path / "in" / "b.vcf").write_text(VCF.replace("s2", "s3") + site)
    refused(tmp_path / "in", r"b\.vcf names 1 sample that .*a\.vcf names, too: one person would have several rows")
    (tmp_path / "in" / "b.vcf").write_text(VCF.replace("s1", "s4").replace("s2", "s3") + site)
    assert rows_of(tmp_path / "in").shape == (4, 2)


def test_cells_of_two_samples_may_be_called_alike_where_their_donors_are_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        obs = pd.DataFrame({"donor": [name, name]}, index=["AAAC", "AAAG"])
        anndata.AnnData(np.ones((2, 2), np.float32) + (name == "b"), obs).write_h5ad(tmp_path / "in" / f"{name}.h5ad")
    refused(
        tmp_path / "in", r"names 2 samples that .* say whose each row is, by --max-rows and --privacy-unit obs/donor"
    )


def test_files_of_the_same_content_are_one_table(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "people.csv").write_text("age,pay\n41,100\n52,200\n")
    (tmp_path / "in" / "people (1).csv").write_text("age,pay\n41,100\n52,200\n")
    refused(tmp_path / "in", "hold the same, and each of their rows would count twice. Leave one out")
    (tmp_path / "in" / "people (1).csv").write_text("age,pay\n42,100\n52,200\n")
    assert len(rows_of(tmp_path / "in")) == 4
    (tmp_path / "in" / "people.csv.gz").write_bytes(gzip.compress(b"age,pay\n1,2\n"))
    refused(tmp_path / "in", "have one name, as a table and its copy have")


@pytest.mark.parametrize(
    ("mark", "said"), [("_delta_log", "Delta Lake"), (".hoodie", "Apache Hudi"), ("metadata", "Apache Iceberg")]
)
def test_a_table_of_a_lake_is_no_folder_of_files(tmp_path: Path, mark: str, said: str) -> None:
    (tmp_path / "in" / mark).mkdir(parents=True)
    pq.write_table(pa.table({"a": [1.0], "b": [2.0]}), tmp_path / "in" / "part-0.parquet")
    refused(tmp_path / "in", f"is a table of {said}: files of older versions .* Write its rows of today")


def test_a_part_without_rows_among_others_is_passed_over_and_one_alone_is_not(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    kinds = pa.schema({"a": pa.float64(), "b": pa.float64()})
    for part in (0, 2):
        pq.write_table(kinds.empty_table(), tmp_path / "in" / f"{part}.parquet")
    refused(tmp_path / "in", "No file of .* has rows")
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0]}), tmp_path / "in" / "1.parquet")
    assert rows_of(tmp_path / "in").tolist() == [[1, 3], [2, 4]]


def old_donors(path: Path, codes: list[int]) -> None:
    """Write donors as versions of AnnData before 0.8 did."""
    anndata.AnnData(np.arange(6, dtype=np.float32).reshape(3, 2)).write_h5ad(path)
    with h5py.File(path, "r+") as file:
        file["obs/__categories/donor"] = ["A", "B"]
        file["obs/donor"] = np.array(codes, np.int8)
        file["obs/donor"].attrs["categories"] = file["obs/__categories/donor"].ref


def test_a_donor_that_is_missing_is_no_donor_of_its_own(tmp_path: Path) -> None:
    from dpdist.rows.units import Unit

    old_donors(tmp_path / "t.h5ad", [0, -1, 1])
    with pytest.raises(DataError, match="obs/donor is missing for some rows"):
        ingest(tmp_path / "t.h5ad", tmp_path / "rows.zarr", unit=Unit("obs/donor", 1))
    old_donors(tmp_path / "t.h5ad", [0, 0, 1])
    assert ingest(tmp_path / "t.h5ad", tmp_path / "rows.zarr", unit=Unit("obs/donor", 1)).rows == 2


# --- never silently ---------------------------------------------------------------------------------------------------


def test_an_index_with_gaps_is_asked_about(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"age": [20, 30, 40, 50], "height": [1.6, 1.7, 1.8, 1.9]}).drop(index=2)
    frame.to_csv("t.csv")
    frame.to_parquet("t.parquet")
    frame.rename_axis("person").to_parquet("named.parquet")
    for name, index in (("t.csv", "c0"), ("t.parquet", "__index_level_0__"), ("named.parquet", "person")):
        said = call("ingest", name, "rows.zarr").message
        assert f"{index!r} is without a name, or the index of a data frame" in said
        assert "--columns age,height (leaves it out)" in said
        call("ingest", name, "rows.zarr", "--columns", "age,height")
        assert zarr.open_array("rows.zarr").shape == (3, 2)
        shutil.rmtree("rows.zarr")


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


def test_whole_numbers_that_float64_does_not_hold_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"id,b\n{2**53 + 1},1.5\n7,2.5\n")
    refused(tmp_path / "t.csv", r"line 2, column 'id': a whole number beyond 2\^53")
    pq.write_table(pa.table({"id": [7, 2**53 + 1], "b": [1.5, 2.5]}), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", r"row 1 \(counting from 0\), column 'id': a whole number beyond 2\^53")
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "0.npy", np.array([[2**53 + 1, 1]]))
    np.save(tmp_path / "in" / "1.npy", np.array([[0.5, 1]]))
    refused(tmp_path / "in", r"0\.npy, row 0 .* beyond 2\^53")
    (tmp_path / "t.csv").write_text(f"a,b\n{2**53 + 1}.00,1.5\n7,2.5\n")  # as databases write decimals
    refused(tmp_path / "t.csv", r"line 2, column 'a': a whole number beyond 2\^53")
    decimals = pa.array([Decimal(7), Decimal(2**53 + 1)], pa.decimal128(20, 2))
    pq.write_table(pa.table({"a": decimals, "b": [1.5, 2.5]}), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", r"column 'a': a whole number beyond 2\^53")
    (tmp_path / "t.csv").write_text(f"a,b\n1.5e17,1.5\n9007199254740992,2.5\n{2**60}.0,3.5\n")
    assert rows_of(tmp_path / "t.csv")[:, 0].tolist() == [1.5e17, 2.0**53, 2.0**60]


def test_anndata_before_0_8_in_zarr_is_its_matrix_and_not_what_was_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "t.zarr"
    found = anndata.AnnData(scipy.sparse.csr_matrix(np.eye(4, 3, dtype=np.float32)))
    found.obsm["X_pca"] = np.arange(8.0).reshape(4, 2)
    found.write_zarr(path)
    for mark in (path / ".zattrs", path / "zarr.json"):
        if mark.exists():
            said = json.loads(mark.read_text())
            said.pop("encoding-type", None)
            said.pop("encoding-version", None)
            said.get("attributes", {}).pop("encoding-type", None)
            mark.write_text(json.dumps(said))
    assert rows_of(path).tolist() == np.eye(4, 3).tolist()


def scaled(path: Path, values: list[list[int]]) -> None:
    data = xarray.Dataset({"t": (("person", "site"), np.array(values, np.int16))})
    data["t"].attrs |= {"scale_factor": 0.5, "add_offset": 10.0}
    data["t"].encoding["_FillValue"] = np.int16(-9999)
    if path.suffix == ".nc":
        data.to_netcdf(path, engine="h5netcdf")
    else:
        data.to_zarr(path, zarr_format=2, consolidated=False)


@pytest.mark.parametrize("name", ["t.nc", "t.zarr"])
def test_packed_values_are_what_their_attributes_say(tmp_path: Path, name: str) -> None:
    scaled(tmp_path / name, [[-4, 2], [6, 8]])
    assert rows_of(tmp_path / name).tolist() == [[8, 11], [13, 14]]
    shutil.rmtree(tmp_path / name) if name == "t.zarr" else (tmp_path / name).unlink()
    scaled(tmp_path / name, [[-4, 2], [6, -9999]])
    refused(tmp_path / name, r"row 1 \(counting from 0\), column 'c1': the value is")


@pytest.mark.parametrize("kind", ["i2", "i4", "u4", "f4", "f8"])
def test_what_netcdf_knows_for_missing_is_missing(tmp_path: Path, kind: str) -> None:
    def write(values: list[list[float]], **said: Any) -> Path:
        data = xarray.Dataset({"t": (("person", "m"), np.array(values, kind))})
        data["t"].attrs |= said
        data["t"].encoding["_FillValue"] = None
        data.to_netcdf(tmp_path / "t.nc", engine="h5netcdf")
        return tmp_path / "t.nc"

    fills = {"i2": -32767, "i4": -2147483647, "u4": 4294967295, "f4": 9.969209968386869e36, "f8": 9.969209968386869e36}
    refused(write([[1, 2], [3, fills[kind]]]), r"row 1 .*'c1': the value is missing, as the attributes")
    refused(write([[1, 2], [3, 99]], valid_max=50.0), r"row 1 .*'c1': the value is missing, as the attributes")
    refused(write([[1, 2], [3, 99]], valid_range=[0.0, 50.0]), "the value is missing")
    found = rows_of(write([[1, 2], [3, 50]], valid_range=[0.0, 50.0]))
    assert (found.tolist(), found.dtype.str[1:]) == ([[1, 2], [3, 50]], kind)


def test_it_is_told_which_dimension_the_rows_are_and_which_cell_has_a_gap(tmp_path: Path) -> None:
    values = np.ones((2, 2, 2))
    values[1, 0, 1] = np.nan
    places = {"lat": [10.0, 20.0], "lon": [1.0, 2.0]}
    xarray.Dataset({"t": (("time", "lat", "lon"), values)}, places).to_netcdf(tmp_path / "t.nc", engine="h5netcdf")
    said: list[str] = []
    with pytest.raises(DataError, match=r"row 1 .*column 'c1' \(lat 10\.0, lon 2\.0\): .* Fill it by a public rule"):
        ingest(tmp_path / "t.nc", tmp_path / "rows.zarr", say=said.append)
    told = f"{tmp_path / 't.nc'}: each row is of one 'time', and its columns are along 'lat', 'lon'."
    assert said == [f"{told} Another dimension is chosen by --rows-dimension."]


# --- refused with a cure that works -----------------------------------------------------------------------------------


def cured(path: Path, **options: Any) -> list[list[float]]:
    """Run the Python that a refusal prints, and return the rows of what it wrote."""
    with pytest.raises(DataError, match="in Python") as caught:
        rows_of(path, **options)
    line = re.search(r"in Python(?:, if [^:]*)?: (.*\))\.", str(caught.value))
    assert line is not None
    new = path.with_name("new.csv")
    eval(line[1], {"pandas": pd, "pathlib": pathlib}, {"FILE": path, "NEW": new})  # noqa: S307 - it is the product's
    found: list[list[float]] = rows_of(new, **options).tolist()
    return found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a|b\n1.5|2\n3.25|4\n", [[1.5, 2], [3.25, 4]]),
        ("x (a, b);y\n11,5;2\n12,5;3\n", [[11.5, 2], [12.5, 3]]),
        ("# made by a machine\na,b\n1,2\n", [[1, 2]]),
        ("# made by a machine, on Monday\na,b,c\n1,2,3\n", [[1, 2, 3]]),
        ("# made by a machine\na;b\n1,5;2\n", [[1.5, 2]]),
        ("sep=;\na;b\n1,5;2\n", [[1.5, 2]]),
        ("pH_0,5m;pH_1,5m\n6,5;7,1\n5,9;6,4\n", [[6.5, 7.1], [5.9, 6.4]]),
        ("sep=,\na,b\n1.5,2\n", [[1.5, 2]]),
        ("a\tb\n0,250\t2\n1,500\t3\n", [[0.25, 2], [1.5, 3]]),
        ("# c\n#a,b\n1,2\n3,4\n", [[1, 2], [3, 4]]),
        ("# c\n\n# d\na;b\n1,5;2\n", [[1.5, 2]]),
        ('"x";"a";"b"\n7;1,5;2\n8;3,5;4\n', [[7, 1.5, 2], [8, 3.5, 4]]),
        ('"a" "b"\n1.5 2\n3.5 4\n', [[1.5, 2], [3.5, 4]]),
        ("  a   b\n  1   2\n  3   4\n", [[1, 2], [3, 4]]),
        ("id;y2019;2020\n1;1,5;2,5\n2;3,5;4,5\n", [[1, 1.5, 2.5], [2, 3.5, 4.5]]),
        ("a,größe\n1,2\n", [[1, 2]]),
    ],
)
def test_text_of_another_dialect_is_read_as_the_message_says(
    tmp_path: Path, text: str, wanted: list[list[float]]
) -> None:
    for code in ("utf-8", "utf-8-sig") if text.isascii() else ("cp1252",):
        (tmp_path / "t.csv").write_bytes(text.encode(code))
        assert cured(tmp_path / "t.csv", header="yes") == wanted


@pytest.mark.parametrize("code", ["utf-16-le", "utf-16-be"])
def test_text_of_utf_16_is_read_as_the_message_says(tmp_path: Path, code: str) -> None:
    (tmp_path / "t.csv").write_bytes("\ufeffa,b\n1,2\n".encode(code))
    assert cured(tmp_path / "t.csv", header="yes") == [[1, 2]]


def test_a_comment_is_left_out_and_what_looks_like_one_stays(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("# c\na,b,id\n1,2,P#1\n3,4,P#2\n")
    assert cured(tmp_path / "t.csv", columns=["a", "b"]) == [[1, 2], [3, 4]]
    assert pd.read_csv(tmp_path / "new.csv")["id"].tolist() == ["P#1", "P#2"]


@pytest.mark.parametrize("text", [
    "value\n1,5\n2,5\n", "a,b\n1,2\n3\n", "#a,b\n1,2\n", "a,b\n", "a,b\n1;2,x\n3;4,y\n", "a,b\n\n1,2\n",
])  # fmt: skip
def test_text_with_commas_is_taken_for_nothing_else(text: str) -> None:
    assert not otherwise(text.splitlines(keepends=True))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1,5;2,5\n11,5;2,1\n12,5;2,2\n", [[1.5, 2.5], [11.5, 2.1], [12.5, 2.2]]),
        ("sep=;\n1,5;2\n3;4\n", [[1.5, 2], [3, 4]]),
    ],
)
def test_a_first_line_of_numbers_stays_a_row(tmp_path: Path, text: str, wanted: list[list[float]]) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert cured(tmp_path / "t.csv", header="no") == wanted


@pytest.mark.parametrize("cells", ['"1,234"', '"1,5"', "12%", "$2"])
def test_numbers_with_commas_or_signs_are_told_as_that(tmp_path: Path, cells: str) -> None:
    (tmp_path / "t.csv").write_text(f"a,b\n{cells},2\n{cells},3\n")
    refused(tmp_path / "t.csv", r"Columns hold numbers with commas or signs in them: \['a'\]")


def test_what_separates_thousands_is_for_a_person_to_say(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;b\n1.234;2\n")
    refused(tmp_path / "t.csv", r"name a mark that separates thousands or decimals \(thousands=, decimal=\).*sep=';'")


def test_words_with_semicolons_do_not_make_text_of_semicolons(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b;c,d\n1.5,red;blue,3\n2.5,green;red,4\n")
    assert rows_of(tmp_path / "t.csv", columns=["a", "d"]).tolist() == [[1.5, 3], [2.5, 4]]


def test_text_over_several_lines_is_one_cell(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,note,b\n1,"two\nlines",3\n5,"say ""yes""\r\n,",6\n')
    assert rows_of(path, columns=["a", "b"]).tolist() == [[1, 3], [5, 6]]
    path.write_text('a,note,b\n1,"two\nlines",3\n5,"x",y\n')
    refused(path, r"line 4, column 'b': the cell is not a number", columns=["a", "b"])


def test_words_and_codes_for_missing_are_named_by_a_schema(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,c\n?,-999,x\n3,4,.\n")
    own = [
        Column("a", "number", missing="fill", fill=0, missing_values=["?"]),
        Column("b", "integer", missing="fill", fill=1, missing_values=[-999]),
        Column("c", "category", categories=["x"], missing="indicator", missing_values=["."]),
    ]
    wanted = [[0, 1, 1, 0], [3, 4, 0, 1]]
    assert rows_of(tmp_path / "t.csv", schema=Schema(own)).tolist() == wanted
    plain = [Column(each.name, each.kind, **{**each.given, "missing_values": None}) for each in own]
    whole = Schema(plain, missing_values=["?", ".", -999])
    assert rows_of(tmp_path / "t.csv", schema=whole).tolist() == wanted
    assert Schema.from_json(whole.to_json()).columns == whole.columns
    refused(tmp_path / "t.csv", r'text that means a missing value: missing_values = \["\?"\]', schema=Schema(plain))


def test_dates_of_iso_8601_with_parts_of_seconds_and_zones_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("d,b\n1970-01-01T00:00:01.500Z,1\n1970-01-01 01:00:02+01:00,2\n")
    schema = Schema([Column("d", "date", unit="seconds"), Column("b", "number")])
    assert rows_of(tmp_path / "t.csv", schema=schema).tolist() == [[1.5, 1], [2, 2]]


def test_decimals_bytes_and_uuids_are_numbers_words_and_ids(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    whole, cents = pa.decimal128(38, 0), pa.decimal128(12, 2)
    pq.write_table(pa.table({
        "id": pa.array([Decimal(7), Decimal(7), Decimal(9)], whole), "pay": pa.array([Decimal("1.25")] * 3, cents),
        "sex": pa.array([b"f", b"m", b"f"], pa.binary()),
    }), path)  # fmt: skip
    assert rows_of(path, columns=["id", "pay"]).tolist() == [[7, 1.25], [7, 1.25], [9, 1.25]]
    columns = [Column("id", "privacy unit"), Column("pay", "number"), Column("sex", "category", categories=["f", "m"])]
    assert rows_of(path, schema=Schema(columns, max_rows=1)).tolist() == [[1.25, 1, 0], [1.25, 1, 0]]


def test_a_key_of_a_folder_may_be_in_the_file_too_and_says_the_same(tmp_path: Path) -> None:
    place = tmp_path / "in" / "year=2020"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1.5], "year": [2020]}), place / "0.parquet")
    assert rows_of(tmp_path / "in").tolist() == [[1.5, 2020]]
    pq.write_table(pa.table({"x": [1.5], "year": [2021]}), place / "0.parquet")
    refused(tmp_path / "in", "a column called like its folder, with other values")


@pytest.mark.parametrize(
    ("key", "cell"),
    [("01", 1), ("1.50", 1.5), ("1e16", 1e16), ("10000000000000000", 1e16), ("1.5", Decimal("1.50")), ("1", True)],
)
def test_a_key_of_a_folder_says_the_same_as_a_number_however_it_is_written(
    tmp_path: Path, key: str, cell: float | Decimal
) -> None:
    place = tmp_path / "in" / f"key={key}"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1.5], "key": [cell]}), place / "0.parquet")
    assert rows_of(tmp_path / "in").tolist() == [[1.5, float(cell)]]
    pq.write_table(pa.table({"x": [1.5, 1.5], "key": [cell, type(cell)(0)]}), place / "0.parquet")
    refused(tmp_path / "in", "a column called like its folder, with other values")


def test_genotypes_as_newer_tools_write_them(tmp_path: Path) -> None:
    site = "1\t100\trs1\tA\t{}\t.\t.\t.\tGT\t/0/1\t|1|1\n"
    (tmp_path / "t.vcf").write_text(VCF + site.format("G") + site.format("T"))
    found = ingest(tmp_path / "t.vcf", tmp_path / "found.zarr")
    assert found.names == ("rs1:G", "rs1:T")
    assert rows_of(tmp_path / "t.vcf").tolist() == [[1, 1], [2, 2]]


def test_fields_of_plink_are_separated_by_spaces_too_and_a_fault_is_told_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "t.bed").write_bytes(b"\x6c\x1b\x01\x0b\x0b")
    (tmp_path / "t.fam").write_text("f a 0 0 0 -9\nf b 0 0 0 -9\n")
    (tmp_path / "t.bim").write_text("1 rs1 0 100 A G\n1 rs1 0 200 C T\n")
    assert ingest(tmp_path / "t.bed", tmp_path / "found.zarr").names == ("rs1:A", "rs1:C")
    assert rows_of(tmp_path / "t.bed").shape == (2, 2)
    (tmp_path / "t.bim").write_text("1 rs1 0 100 A G\n1 rs2 200 C T\n")
    refused(tmp_path / "t.bed", r"t\.bim, line 2 has 5 fields")
    (tmp_path / "t.bim").write_text("1 rs1 100 A G\n1 rs2 200 C T\n")
    refused(tmp_path / "t.bed", r"t\.bim, line 1 has 5 fields")
    (tmp_path / "t.bim").write_text("1 rs1 0 100 A G\n1 rs1 0 200 C T\n")
    (tmp_path / "t.fam").write_text("##f a 0 0 0 -9\nf b 0 0 0 -9\nf c 0 0 0 -9\n")
    assert rows_of(tmp_path / "t.bed").shape == (3, 2)  # none of them is a comment
    (tmp_path / "t.fam").write_text("#FID IID\nf a\nf b\n")
    refused(tmp_path / "t.bed", r"t\.fam, line 1 has 2 fields")


def test_arrays_of_scipy_of_python_objects_and_in_groups_are_told_as_that(tmp_path: Path) -> None:
    scipy.sparse.save_npz(tmp_path / "t.npz", scipy.sparse.csr_matrix(np.eye(3)))
    refused(tmp_path / "t.npz", r"sparse matrix of SciPy.*load_npz\(FILE\)\.toarray\(\)")
    np.save(tmp_path / "new.npy", scipy.sparse.load_npz(tmp_path / "t.npz").toarray())
    assert rows_of(tmp_path / "new.npy").tolist() == np.eye(3).tolist()
    names = np.array(["age", "sex"], dtype=object)
    np.savez(tmp_path / "o.npz", X=np.ones((2, 2)), feature_names=names)
    refused(tmp_path / "o.npz", r"feature_names\.astype\(str\)")
    np.savez(tmp_path / "o.npz", X=np.ones((2, 2)), feature_names=names.astype(str))
    assert rows_of(tmp_path / "o.npz", columns=["sex", "age"]).shape == (2, 2)
    inner = xarray.Dataset({"t2m": (("time", "s"), np.ones((3, 2)))})
    inner.to_netcdf(tmp_path / "t.nc", group="data", engine="h5netcdf")
    refused(tmp_path / "t.nc", r"Choose with --variable: data/t2m \(3, 2\)")
    assert rows_of(tmp_path / "t.nc", variable="data/t2m").shape == (3, 2)


def test_anndata_before_0_7_is_written_again_by_a_newer_one(tmp_path: Path) -> None:
    anndata.AnnData(np.ones((3, 2), np.float32)).write_h5ad(tmp_path / "t.h5ad")
    with h5py.File(tmp_path / "t.h5ad", "r+") as file:
        for name, count in (("obs", 3), ("var", 2)):
            del file[name]
            file[name] = np.array([(f"{name}{i}".encode(),) for i in range(count)], dtype=[("index", "S8")])
    refused(tmp_path / "t.h5ad", r"before 0\.7.*anndata\.read_h5ad\(FILE\)\.write_h5ad\(NEW\)")


def test_nobody_is_told_to_remove_what_dpdist_did_not_make_and_swapped_places_are_recognised(tmp_path: Path) -> None:
    table, rows = tmp_path / "table.csv", tmp_path / "rows.zarr"
    table.write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "notes").mkdir()
    with pytest.raises(UsageError, match=rf"seem to be swapped.*ingest {table} {rows}"):
        ingest_rows(rows, table)
    for taken in (table, tmp_path / "notes"):
        with pytest.raises(DataError, match=r"was not made by dpdist\. Choose another place") as caught:
            ingest_rows(table, taken)
        assert "Remove" not in str(caught.value)
    made = ingest_rows(table, rows)
    table.unlink()
    with pytest.raises(DataError, match="No such file"):  # its source is gone, and nothing was swapped
        ingest_rows(table, rows)
    assert made.path.exists()


# --- a folder whose files do not mean the same ------------------------------------------------------------------------


def _vcf(folder: Path) -> None:
    for name, alleles in (("a", "A\tG"), ("b", "G\tA")):
        sites = "".join(f"1\t{at}\trs{at}\t{alleles}\t.\t.\t.\tGT\t0/1\t1/1\n" for at in (1, 2))
        (folder / f"{name}.vcf").write_text(VCF.replace("s1\ts2", f"{name}1\t{name}2") + sites)


def _plink(folder: Path) -> None:
    for name, (one, two), counts in (("a", "AG", [[0, 1], [2, 1]]), ("b", "GA", [[2, 1], [0, 1]])):
        facts = {"iid": [f"{name}1", f"{name}2"], "sid": ["rs1", "rs2"], "allele_1": [one] * 2, "allele_2": [two] * 2}
        to_bed(folder / f"{name}.bed", np.array(counts, float), properties=facts)


def _fields(second: Callable[[xarray.Dataset], xarray.Dataset], write: str, suffix: str, folder: Path) -> None:
    first = xarray.Dataset(
        {"t": (("time", "lat", "lon"), np.arange(12.0).reshape(2, 2, 3))}, {"lat": [10.0, 20.0], "lon": [1.0, 2.0, 3.0]}
    )
    for name, data in (("a", first), ("b", second(first + 100))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            getattr(data, write)(folder / f"{name}{suffix}")


def _turned(data: xarray.Dataset) -> xarray.Dataset:
    return data.isel(lat=[1, 0])


def _exchanged(data: xarray.Dataset) -> xarray.Dataset:
    return data.transpose("time", "lon", "lat")


def _renamed(data: xarray.Dataset) -> xarray.Dataset:
    return data.rename(t="v")


UNLIKE: dict[str, Callable[[Path], None]] = {
    "VCF": _vcf,
    "PLINK": _plink,
    **{
        f"{suffix} {second.__name__}": partial(_fields, second, write, suffix)
        for write, suffix in (("to_netcdf", ".nc"), ("to_zarr", ".zarr"))
        for second in (_turned, _exchanged, _renamed)
    },
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_files_whose_columns_are_called_alike_and_mean_other_things_are_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    UNLIKE[kind](tmp_path / "in")
    refused(tmp_path / "in", r"b\.\w+ has other columns than .*a\.\w+, though they are called alike")
    for path in (tmp_path / "in").glob("b.*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert len(rows_of(tmp_path / "in")) == 2


def test_two_filesets_of_equal_genotypes_are_of_different_people(tmp_path: Path) -> None:
    for name in "ab":
        facts = {"iid": [f"{name}1", f"{name}2"], "sid": ["rs1", "rs2"]}
        to_bed(tmp_path / f"{name}.bed", np.array([[0.0, 1], [2, 1]]), properties=facts)
    (tmp_path / "in").mkdir()
    for path in tmp_path.glob("?.*"):
        path.rename(tmp_path / "in" / path.name)
    assert rows_of(tmp_path / "in").tolist() == [[0, 1], [2, 1]] * 2


def test_an_empty_first_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").touch()
    (tmp_path / "in" / "b.csv").write_text("a,b,who\n1,2,7\n3,4,7\n")
    target = tmp_path / "rows.zarr"
    ingest_rows(tmp_path / "in", target, privacy_unit="who", max_rows=1)
    assert np.asarray(zarr.open_array(target)[:]).tolist() == [[1, 2]]


# --- cells and names --------------------------------------------------------------------------------------------------

NUMBERS = Schema([Column("a", "number"), Column("b", "number")], others="ignored")


@pytest.mark.parametrize("name", ["x\x0cy", "x\u2028y", "x\x0by", '"x\ny"', '"x\n"', '"\r\nx"'])
def test_only_line_breaks_end_a_line_of_names(tmp_path: Path, name: str) -> None:
    (tmp_path / "t.csv").write_bytes(f"a,b,{name}\n1,2,3\n4,5,6\n".encode())
    assert rows_of(tmp_path / "t.csv", schema=NUMBERS, header="yes").tolist() == [[1, 2], [4, 5]]


def _in_folder(tmp_path: Path, key: str, **columns: Any) -> Path:
    (tmp_path / "in" / key).mkdir(parents=True)
    pq.write_table(pa.table(columns), tmp_path / "in" / key / "p.parquet")
    return tmp_path / "in"


def test_a_folder_key_that_floats_would_round_is_refused(tmp_path: Path) -> None:
    refused(_in_folder(tmp_path, f"id={2**53 + 1}", x=[1.0, 2], y=[1.0, 2]), r"column 'id'")


def test_a_folder_key_that_contradicts_its_file_is_refused_with_a_schema(tmp_path: Path) -> None:
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
        with pytest.raises(DataError, match=r"row 1 .*obs/donor is missing, and it is not said whose row"):
            ingest_rows(tmp_path / "c.h5ad", tmp_path / "never.zarr", privacy_unit="obs/donor", max_rows=1)
    to_bed(tmp_path / "f.bed", np.ones((3, 2)), properties={"fid": ["1", "0", "0"], "iid": list("abc")})
    with pytest.raises(DataError, match=r"sample 2: its family \(FID\) is 0"):
        ingest_rows(tmp_path / "f.bed", tmp_path / "never.zarr", privacy_unit="FID", max_rows=1)
    ingest_rows(tmp_path / "f.bed", tmp_path / "people.zarr", privacy_unit="FID,IID", max_rows=1)


@pytest.mark.parametrize(("kind", "far"), [("ms", 2**63 - 1), ("s", 2**62), ("s", -(2**62))])
def test_a_date_beyond_what_is_counted_is_refused(tmp_path: Path, kind: str, far: int) -> None:
    when = pa.array([0, far], pa.int64()).cast(pa.timestamp(kind))
    feather.write_feather(pa.table({"when": when, "a": [1.0, 2], "b": [1.0, 2]}), tmp_path / "t.feather")
    schema = Schema([Column("when", "date", range=("1900-01-01", "2100-01-01")), *NUMBERS.columns])
    refused(tmp_path / "t.feather", r"row 1 .*'when': the date is more than", schema=schema)


def test_hours_among_days_are_not_cut_off() -> None:
    frame = pd.DataFrame({"when": [date(2020, 1, 1), datetime(2020, 1, 2, 18)], "a": [1, 2]}, dtype=object)  # noqa: DTZ001
    with pytest.raises(DataError, match="values of several types"):
        Schema([Column("when", "date"), Column("a", "number")]).transform(frame)


def test_entries_of_a_sparse_matrix_are_added_up_or_refused(tmp_path: Path) -> None:
    where = ([0, 0, 1], [0, 0, 1])
    ingest_rows(scipy.sparse.coo_array((np.array([100, 100, 1], "u1"), where)), tmp_path / "rows.zarr")
    assert np.asarray(zarr.open_array(tmp_path / "rows.zarr")[:]).tolist() == [[200, 0], [0, 1]]
    with pytest.raises(DataError, match="beyond uint8"):
        ingest_rows(scipy.sparse.coo_array((np.array([200, 100, 1], "u1"), where)), tmp_path / "never.zarr")
    with pytest.raises(DataError, match="beyond uint8"):
        dense(scipy.sparse.coo_array((np.array([200, 100, 1], "u1"), where)))


# --- the same table in another format is the same rows ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        (Column("a", "date", range=("2000-01-01", "2030-12-31"), missing_values=["9999-12-31"]),
         ["2020-01-01", "9999-12-31", "2021-05-05"], pa.date32()),
        (Column("a", "category", categories=["1"], other="column", missing_values=[9]), ["1", "9", "3"], pa.int64()),
        (Column("a", "category", categories=["1", "2"], missing_values=[9]), ["1.0", "9.0", "2.0"], pa.float64()),
        (Column("a", "number", range=(-50, 50), missing_values=[-99.9]), ["12.5", "-99.9", "3.25"], pa.float32()),
        (Column("a", "number", range=(0, 120), missing_values=[-999]), ["41", "-999", "52"], pa.decimal128(38, 9)),
        (Column("a", "integer", range=(0, 120), missing_values=["?"]), ["15", "?", "58"], pa.decimal128(38, 9)),
        (Column("a", "boolean"), ["1.0", "", "0.0"], pa.float64()),
    ],
    ids=lambda each: getattr(each, "kind", None),
)  # fmt: skip
def test_missing_values_of_a_schema_are_those_of_every_type(
    tmp_path: Path, column: Column, values: list[str], kind: pa.DataType
) -> None:
    column = Column(column.name, column.kind, **column.given, missing="indicator")
    schema = Schema([column, Column("x", "number")])
    (tmp_path / "t.csv").write_text("a,x\n" + "".join(f"{each},1\n" for each in values))
    wanted = rows_of(tmp_path / "t.csv", schema=schema)
    cells = pa.array([None if each in {"?", ""} else each for each in values])
    table = pa.table({"a": cells.cast(kind), "x": [1.0] * 3})
    pq.write_table(table, tmp_path / "t.parquet")
    assert rows_of(tmp_path / "t.parquet", schema=schema).tolist() == wanted.tolist()
    assert schema.transform(table).to_numpy().tolist() == wanted.tolist()
    assert wanted[:, -2].tolist() == [0, 1, 0]


def test_a_code_for_a_missing_person_is_no_person(tmp_path: Path) -> None:
    pq.write_table(pa.table({"p": [1, -1, -1], "x": [1.0, 2, 3], "y": [1.0, 2, 3]}), tmp_path / "t.parquet")
    columns = [Column("p", "privacy unit", missing_values=[-1]), Column("x", "number"), Column("y", "number")]
    refused(tmp_path / "t.parquet", "the privacy unit is missing", schema=Schema(columns, max_rows=1))


@given(st.lists(st.decimals(-(10**9), 10**9, places=5), min_size=1), st.sampled_from([(38, 9), (38, 5), (18, 5)]))
def test_decimals_are_the_nearest_floats(values: list[Decimal], kind: tuple[int, int]) -> None:
    found = floats(pa.array(values, pa.decimal128(*kind))).to_pylist()
    assert found == [float(each) for each in values]


# --- arrays that name what they are along -----------------------------------------------------------------------------


def dataset(values: Any, dims: tuple[str, ...] = ("sample", "gene"), **coords: Any) -> Any:
    return xarray.Dataset({"x": (dims, np.asarray(values))}, coords=coords)


def written(folder: Path, kind: str, **datasets: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for name, each in datasets.items():
        if kind == ".nc":
            each.to_netcdf(folder / f"{name}.nc", engine="h5netcdf")
        else:
            each.to_zarr(folder / f"{name}.zarr", zarr_format=2)
    return folder


@pytest.mark.parametrize("kind", [".nc", ".zarr"])
def test_arrays_along_other_coordinates_are_not_joined(tmp_path: Path, kind: str) -> None:
    one, two = [[1.0, 2], [3, 4]], [[5.0, 6], [7, 8]]
    turned = written(tmp_path / "a", kind, a=dataset(one, gene=["g1", "g2"]), b=dataset(two, gene=["g2", "g1"]))
    refused(turned, "has other columns")
    dims = ("sample", "gene", "day")
    deep = {name: dataset(np.ones((2, 2, 2)), dims, gene=each) for name, each in (("a", ["p", "q"]), ("b", ["q", "p"]))}
    refused(written(tmp_path / "b", kind, **deep), "has other columns")
    times = {name: dataset(one, ("s", "time"), time=pd.date_range(at, periods=2)) for name, at in _YEARS.items()}
    refused(written(tmp_path / "c", kind, **times), "other coordinates or units")
    days = {name: dataset([np.datetime64(at, "ns") + np.array([0, 86400], "m8[s]")]) for name, at in _YEARS.items()}
    refused(written(tmp_path / "d", kind, **days), "other coordinates or units")
    alike = written(tmp_path / "e", kind, a=dataset(one, gene=["g1", "g2"]), b=dataset(two, gene=["g1", "g2"]))
    assert rows_of(alike).tolist() == [*one, *two]


_YEARS = {"a": "2020-01-01", "b": "2021-06-01"}


@pytest.mark.parametrize("kind", [".nc", ".zarr"])
def test_rows_that_an_array_names_are_there_once(tmp_path: Path, kind: str) -> None:
    twice = written(
        tmp_path / "a", kind, a=dataset(np.eye(2), sample=["s1", "s2"]), b=dataset(np.eye(2) + 1, sample=["s2", "s3"])
    )
    refused(twice, "1 sample that .* names, too")
    refused(written(tmp_path / "b", kind, a=dataset(np.eye(3, 2), sample=["s", "t", "s"])), "a sample twice")
    with pytest.raises(DataError, match="has the same name"):
        ingest_rows(dataset(np.eye(3, 2), sample=["s", "t", "s"])["x"], tmp_path / "rows.zarr")


@pytest.mark.parametrize("kind", [".nc", ".zarr"])
def test_a_time_that_is_none_is_missing_and_bounds_are_no_rows(tmp_path: Path, kind: str) -> None:
    when = dataset(np.array([["2020-01-01", "NaT"], ["2020-01-02", "2020-03-01"]], "M8[ns]"))
    refused(written(tmp_path / "a", kind, a=when), "missing|not finite")
    edges = dataset(np.arange(8.0).reshape(4, 2), ("time", "bnds"), time=np.arange(4)).rename(x="time_bnds")
    edges["time"].attrs["bounds"] = "time_bnds"
    refused(written(tmp_path / "b", kind, a=edges), "holds no (array|variable) of two or more dimensions")


def test_gaps_of_a_grid_are_left_out_as_the_message_says(tmp_path: Path) -> None:
    values = np.arange(12.0).reshape(3, 2, 2)
    values[:, 0, 1] = np.nan
    dataset(values, ("time", "lat", "lon")).to_netcdf(tmp_path / "t.nc", engine="h5netcdf")
    with pytest.raises(DataError, match="in Python") as caught:
        rows_of(tmp_path / "t.nc")
    line = str(caught.value).split("in Python: ")[1].removesuffix(".")
    eval(line, {"xarray": xarray}, {"FILE": tmp_path / "t.nc", "NEW": tmp_path / "new.nc"})  # noqa: S307
    assert rows_of(tmp_path / "new.nc").tolist() == [[0, 2, 3], [4, 6, 7], [8, 10, 11]]


def test_samples_of_a_vcf_and_of_plink_are_the_same_people(tmp_path: Path) -> None:
    path = tmp_path / "all"
    path.mkdir()
    head = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\ts1\ts2\n"
    (path / "a.vcf").write_text(
        head + "1\t100\trs1\tA\tG\t.\tPASS\t.\tGT\t0/1\t1/1\n1\t200\trs2\tC\tT\t.\tPASS\t.\tGT\t0/0\t0/1\n"
    )
    for families in (["0", "0"], ["s1", "s2"]):
        properties = {
            "fid": families, "iid": ["s1", "s2"], "sid": ["rs1", "rs2"], "chromosome": ["1", "1"],
            "bp_position": [100, 200], "allele_1": ["G", "T"], "allele_2": ["A", "C"],
        }  # fmt: skip
        to_bed(path / "b.bed", np.array([[1, 0], [2, 1]], dtype=np.int8), properties=properties)
        refused(path, r"b\.bed names 2 samples that .*a\.vcf names, too")


def test_a_part_of_a_lake_table_is_refused_as_the_table_is(tmp_path: Path) -> None:
    for mark, part in (("_delta_log", "year=2020"), ("metadata", "data"), (".hoodie", "p")):
        folder = tmp_path / mark.strip("._")
        (folder / mark).mkdir(parents=True)
        (folder / part).mkdir()
        pq.write_table(pa.table({"a": [1, 2], "b": [3, 4]}), folder / part / "p0.parquet")
        if mark == "metadata":
            assert len(rows_of(folder / part)) == 2  # a folder of this name alone is no table
            (folder / mark / "v1.metadata.json").write_text("{}")
        refused(folder / part, "files of older versions lie beside")


def test_names_and_arrays_of_an_npz(tmp_path: Path) -> None:
    path, rows = tmp_path / "t.npz", np.arange(6.0).reshape(3, 2)
    np.savez(path, X=rows, feature_names=np.array([b"a", b"b"]))
    assert ingest(path, tmp_path / "bytes.zarr").names == ("a", "b")
    np.savez(path, X=rows, feature_names=np.array(["a"]))
    refused(path, "feature_names are not 2 words")
    np.savez(path, train=rows, test=rows + 1)
    refused(path, r"Choose with .*variable.*: train \(3, 2\); test \(3, 2\)")
    assert rows_of(path, variable="test").tolist() == (rows + 1).tolist()
    np.savez(path, X=rows, Z=np.ones((3, 4)), feature_names=np.array(["a", "b"]))
    assert ingest(path, tmp_path / "z.zarr", choices=Choices("Z")).names == ("c0", "c1", "c2", "c3")
