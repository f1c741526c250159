"""Names of persons along the rows of an array: text, bytes or whole numbers, however they are stored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from support.ingest_scene import stored

from dpdist import PrivatePCA, ingest_rows, register_rows
from dpdist.core.errors import DataError, UsageError

NAMED: dict[str, Any] = {
    "text": np.array(["p1", "p2", "p1"]),
    "bytes": np.array([b"p1", b"p2", b"p1"]),
    "bytes of another alphabet": np.array([b"\xe9", b"p2", b"\xe9"]),
    "int64": np.array([7, 8, 7]),
    "uint8": np.array([7, 8, 7], "u1"),
    "large": np.array([2**62 + 1, 2**62, 2**62 + 1]),
    "doubles": np.array([7.0, 8, 7]),
    "float32": np.array([7.0, 8, 7], "f4"),
    "a number of the rows, then a copy": np.array([0, 1, 0]),
}
NO_NAMES: dict[str, tuple[Any, dict[str, str]]] = {
    "times": (np.array([7, 8, 7]), {"units": "days since 2026-01-01"}),
    "places": (np.array([7.0, 8, 7]), {"units": "degrees_north"}),
    "fractions": (np.array([0.5, 1, 0.5]), {}),
    "floats that may be rounded": (np.array([2.0**24, 8, 2.0**24], "f4"), {}),
    "truth": (np.array([True, False, True]), {}),
}


def table(labels: Any, attributes: dict[str, str] | None = None, dimension: str = "subject") -> xarray.DataArray:
    rows = xarray.DataArray(np.arange(2.0 * len(labels)).reshape(-1, 2), dims=(dimension, "item"), name="v")
    return rows.assign_coords({dimension: (dimension, labels, attributes or {})})


def saved(path: Path, data: Any) -> Path:
    if path.suffix == ".nc":
        data.to_netcdf(path, engine="h5netcdf")
    else:
        data.to_dataset(name="v").to_zarr(path, zarr_format=2)
    return path


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("kind", NAMED)
def test_a_person_with_two_rows_of_an_array_is_refused_or_the_privacy_unit(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    file = saved(tmp_path / f"t{suffix}", table(NAMED[kind]))
    with pytest.raises(DataError, match="names a sample twice: one person would have several rows"):
        ingest_rows(file, tmp_path / "rows.zarr")
    kept = ingest_rows(file, tmp_path / "rows.zarr", privacy_unit="subject", max_rows=1)
    assert stored(Path(kept.path)).tolist() == [[0, 1], [2, 3]]
    if suffix == ".zarr":
        with pytest.raises(DataError, match="names a sample twice"):
            register_rows(file, tmp_path / "placed.zarr", variable="v")


@pytest.mark.parametrize("kind", NAMED)
def test_the_same_in_memory(kind: str, tmp_path: Path) -> None:
    for data in (table(NAMED[kind]), table(NAMED[kind]).to_dataset(name="v")):
        with pytest.raises(DataError, match="Two rows have the same 'subject'"):
            PrivatePCA(epsilon=1).fit(data)
        with pytest.raises(DataError, match=r"pass the rows without it: \.drop_vars\('subject'\)"):
            ingest_rows(data, tmp_path / "rows.zarr")
    assert ingest_rows(table(NAMED[kind]).drop_vars("subject"), tmp_path / "rows.zarr").rows == 3


@pytest.mark.parametrize("kind", NO_NAMES)
def test_times_places_fractions_and_truth_values_name_no_person(tmp_path: Path, kind: str) -> None:
    data = table(*NO_NAMES[kind], dimension="x")
    for number, source in enumerate((saved(tmp_path / "t.nc", data), saved(tmp_path / "t.zarr", data), data)):
        assert ingest_rows(source, tmp_path / f"{number}.zarr").rows == 3
    with pytest.raises(UsageError, match="no column 'x'"):
        ingest_rows(tmp_path / "t.nc", tmp_path / "no.zarr", privacy_unit="x", max_rows=1)


def test_a_coordinate_that_counts_the_rows_of_each_file_names_nobody_unless_it_is_declared(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        saved(tmp_path / "in" / f"{number}.nc", table(np.arange(3)) + number)
    assert ingest_rows(tmp_path / "in", tmp_path / "rows.zarr").rows == 6
    declared = ingest_rows(tmp_path / "in", tmp_path / "declared.zarr", privacy_unit="subject", max_rows=1)
    assert declared.rows == 3
    saved(tmp_path / "in" / "2.nc", table(np.arange(3)) + 1)
    with pytest.raises(DataError, match=r"1\.nc and .*2\.nc have the same rows"):
        ingest_rows(tmp_path / "in", tmp_path / "no.zarr")


def test_a_person_in_two_files_is_found_under_the_same_number_in_other_types(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, labels in enumerate((np.array([7, 8]), np.array(["007", "9"]), np.array([8.0, 5.0]))):
        saved(tmp_path / "in" / f"{number}.nc", table(labels) + 10 * number)
        if number:
            with pytest.raises(DataError, match=r"names 1 sample of .*0\.nc again"):
                ingest_rows(tmp_path / "in", tmp_path / "rows.zarr")
            (tmp_path / "in" / f"{number}.nc").unlink()


def test_who_is_named_beside_the_rows_is_told_and_can_be_the_privacy_unit(tmp_path: Path) -> None:
    data = table(np.array(["r1", "r2", "r3"]), dimension="row").to_dataset(name="v")
    data = data.assign_coords(donor=("row", [4, 4, 5]), site=("row", [b"a", b"b", b"a"]), age=("row", [0.5, 1, 2]))
    for suffix in (".nc", ".zarr"):
        file, told = tmp_path / f"t{suffix}", list[str]()
        _ = data.to_netcdf(file, engine="h5netcdf") if suffix == ".nc" else data.to_zarr(file, zarr_format=2)
        ingest_rows(file, tmp_path / f"a{suffix}", variable="v", say=told.append)
        assert any("--privacy-unit" in text or "privacy_unit of donor, site" in text for text in told), told
        for unit, rows in (("donor", 2), ("donor,site", 3), ("site", 2)):
            kept = ingest_rows(file, tmp_path / f"{unit}{suffix}.zarr", variable="v", privacy_unit=unit, max_rows=1)
            assert kept.rows == rows


@pytest.mark.filterwarnings("ignore")
def test_the_cure_for_a_coordinate_of_years_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for suffix in (".nc", ".zarr"):
        saved(Path(f"t{suffix}"), table(np.array([2020, 2020, 2021]), dimension="year"))
        with pytest.raises(DataError) as caught:
            ingest_rows(f"t{suffix}", "rows.zarr")
        code = re.search(r"leave it out: (xarray.*\))\.$", str(caught.value))
        assert code is not None
        exec(code[1], {"xarray": xarray})  # noqa: S102 - as a user would
        assert ingest_rows("NEW.nc", f"rows{suffix}").rows == 3


def test_a_row_without_a_number_belongs_to_nobody(tmp_path: Path) -> None:
    file = saved(tmp_path / "t.nc", table(np.array([7, np.nan, 8])))
    with pytest.raises(DataError, match="subject is missing for some rows"):
        ingest_rows(file, tmp_path / "rows.zarr", privacy_unit="subject", max_rows=1)


@pytest.mark.parametrize("other", [np.arange(1, 20), np.arange(20)[::-1], np.arange(20.0)[::-1]])
def test_numbers_that_only_count_rows_are_compared_with_those_that_do_more(tmp_path: Path, other: Any) -> None:
    (tmp_path / "in").mkdir()
    saved(tmp_path / "in" / "a.nc", table(np.arange(20)))
    saved(tmp_path / "in" / "b.nc", table(other) + 100)
    with pytest.raises(DataError, match=r"b\.nc names \d+ samples of .*a\.nc again"):
        ingest_rows(tmp_path / "in", tmp_path / "rows.zarr")
    saved(tmp_path / "in" / "b.nc", table(np.arange(20)) + 100)  # other people, counted again
    assert ingest_rows(tmp_path / "in", tmp_path / "rows.zarr").rows == 40


@pytest.mark.parametrize("order", [("a.nc", "b.nc"), ("b.nc", "a.nc")])
def test_a_copy_whose_names_only_count_its_rows_is_found_by_its_rows(tmp_path: Path, order: tuple[str, str]) -> None:
    (tmp_path / "in").mkdir()
    saved(tmp_path / "in" / order[0], table(np.arange(1000, 1020)))
    saved(tmp_path / "in" / order[1], table(np.arange(20)))
    with pytest.raises(DataError, match="have the same rows"):
        ingest_rows(tmp_path / "in", tmp_path / "rows.zarr")
