"""rows.zarr: what is written is what is read, and what is damaged is refused."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dpdist.errors import DataError
from dpdist.ingest.registered import open_rows
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows import dataset
from dpdist.rows.chunks import ChunkReader
from dpdist.rows.columns import DTYPES
from dpdist.rows.dataset import RowsTable, chunk_rows_for, created, incomplete, partitions
from dpdist.rows.periods import create_periods, seal_rows
from dpdist.rows.units import Unit
from dpdist.rows.writing import chunk_key
from dpdist.storage.arrays import array_options

BUDGET = PrivacyLoss.parse("2", "1e-6")


def write(path: Path, rows: npt.NDArray[Any], pieces: int = 1, *, compress: bool = False) -> None:
    names = tuple(f"c{i}" for i in range(rows.shape[1]))
    with created(
        path, rows=rows.shape[0], dtype=str(rows.dtype), names=names, budget=BUDGET, compress=compress
    ) as writer:
        for piece in np.array_split(rows, pieces):
            writer.append(piece)


def all_rows(table: RowsTable, piece_rows: int) -> npt.NDArray[Any]:
    reader = ChunkReader(table, piece_rows)
    pieces = [piece.copy() for index in range(table.chunks) for piece in reader.read(index)]
    assert max(len(piece) for piece in pieces) <= piece_rows
    return np.concatenate(pieces)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 400)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compress", [False, True])
def test_what_was_written_in_any_pieces_is_read_by_us_and_by_zarr(tmp_path: Path, dtype: str, compress: bool) -> None:
    rows = np.random.default_rng(0).integers(0, 100, (101, 5)).astype(dtype)
    write(tmp_path / "rows.zarr", rows, pieces=13, compress=compress)
    table = open_rows(tmp_path / "rows.zarr")
    assert table.chunks >= 2
    assert (table.rows, table.columns, table.dtype, table.budget) == (101, 5, dtype, BUDGET)
    assert np.array_equal(all_rows(table, 3), rows)
    array = zarr.open_array(tmp_path / "rows.zarr", mode="r")
    assert np.array_equal(np.asarray(array[:]), rows)
    assert array.dtype == rows.dtype


def test_every_table_has_an_identity_of_its_own(tmp_path: Path) -> None:
    rows = np.ones((3, 2))
    for name in ("a", "b"):
        write(tmp_path / name, rows)
    assert open_rows(tmp_path / "a").dataset_id != open_rows(tmp_path / "b").dataset_id


@pytest.mark.parametrize(("columns", "dtype"), [(54, "int16"), (784, "uint8"), (784, "float64"), (5000, "float32")])
def test_chunks_are_whole_rows_of_eight_to_24_mib(columns: int, dtype: str) -> None:
    rows = chunk_rows_for(columns, dtype, 10**9)
    assert 8 << 20 <= rows * columns * np.dtype(dtype).itemsize <= 24 << 20
    assert chunk_rows_for(columns, dtype, 7) == 7


@given(st.integers(1, 500), st.integers(1, 60))
def test_partitions_are_contiguous_complete_and_balanced(chunks: int, count: int) -> None:
    runs = partitions(chunks, count)
    assert [i for run in runs for i in run] == list(range(chunks))
    lengths = {len(run) for run in runs}
    assert len(runs) == min(chunks, count)
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("damage", ["missing", "short", "long", "empty", "link", "pipe", "folder"])
def test_a_missing_or_truncated_chunk_is_refused_when_it_is_read_and_named(
    tmp_path: Path, damage: str, compress: bool
) -> None:
    path = tmp_path / "rows.zarr"
    write(path, np.ones((101, 5)), compress=compress)
    chunk = path / chunk_key(2)
    content = chunk.read_bytes()
    chunk.unlink()
    if damage == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        chunk.symlink_to(tmp_path / "elsewhere")
    elif damage == "pipe":
        os.mkfifo(chunk)
    elif damage == "folder":
        chunk.mkdir()
    elif damage != "missing":
        chunk.write_bytes({"short": content[:-1], "long": content + b"0", "empty": b""}[damage])
    reader = ChunkReader(open_rows(path), 7)
    with pytest.raises(DataError, match=r"Chunk 2 of .* (missing|truncated|altered)"):
        list(reader.read(2))
    if not compress:  # of a packed chunk nobody knows the length
        assert [index for index, _ in incomplete(open_rows(path))] == [2]
    assert sum(len(piece) for piece in reader.read(1)) == open_rows(path).rows_in(1)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("compress", [False, True])
def test_a_flipped_bit_and_a_chunk_lost_after_opening_are_found_when_read(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "rows.zarr"
    write(path, np.ones((101, 5)), compress=compress)
    table = open_rows(path)
    chunk = table.path / chunk_key(1)
    content = bytearray(chunk.read_bytes())
    content[17] ^= 4
    chunk.write_bytes(content)
    reader = ChunkReader(table, 2)
    list(reader.read(0))
    with pytest.raises(DataError, match=r"Chunk 1 .* altered"):
        list(reader.read(1))
    chunk.write_bytes(content[: 1 if compress else 100])
    with pytest.raises(DataError, match=r"Chunk 1 .* truncated"):
        list(reader.read(1))
    chunk.unlink()
    with pytest.raises(DataError, match=r"Chunk 1 .* missing"):
        list(reader.read(1))


def test_chunks_of_zeros_are_written_too(tmp_path: Path) -> None:
    write(tmp_path / "rows.zarr", np.zeros((10, 3)))
    assert (tmp_path / "rows.zarr" / chunk_key(0)).is_file()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None), ({"compressors": None}, "CRC32C"), ({"dtype": "complex128"}, "its dtype is complex128"),
        ({"shape": (10,), "chunks": (5,)}, "no usable rows"), ({"chunks": (5, 2)}, "whole rows"),
        ({"shape": (10, 3, 2), "chunks": (5, 3, 2)}, "two named columns"), ({"chunks": (20, 3)}, "whole rows"),
        ({"shape": (10, 1), "chunks": (5, 1)}, "two named columns"),
        ({"chunks": (2, 3), "shards": (4, 3)}, "whole rows"),
    ],
)  # fmt: skip
def test_an_array_laid_out_otherwise_is_refused(tmp_path: Path, changes: dict[str, Any], said: str | None) -> None:
    options: dict[str, Any] = {"shape": (10, 3), "chunks": (5, 3), **array_options("float64"), **changes}
    array = zarr.create_array(store=tmp_path / "rows.zarr", **options)
    array[...] = 1
    names = [f"c{i}" for i in range(options["shape"][-1])]
    array.attrs["dpdist"] = {"format": dataset.FORMAT, "dataset_id": "0" * 32, "columns": names, "budget": None,
                             "ledger_id": None}  # fmt: skip
    with pytest.raises(DataError, match=said) if said else nullcontext():
        assert open_rows(tmp_path / "rows.zarr").rows == 10


def test_what_is_no_table_of_ours_is_refused_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    with pytest.raises(DataError, match=r"dpdist\.ingest_rows"):
        open_rows(path)
    zarr.create_array(store=path, shape=(4, 4), dtype="float64")
    with pytest.raises(DataError, match=r"dpdist\.ingest_rows"):
        open_rows(path)
    shutil.rmtree(path)
    write(path, np.ones((4, 4)))
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["attributes"]["dpdist"]["format"] = "dpdist-rows/99"
    (path / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(DataError, match="dpdist-rows/99"):
        open_rows(path)
    (path / "zarr.json").write_text("{")
    with pytest.raises(DataError, match=r"dpdist\.ingest_rows"):
        open_rows(path)


def test_an_existing_target_is_kept_and_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    write(path, np.ones((4, 4)))
    before = open_rows(path)
    with pytest.raises(DataError, match="exists already"):
        write(path, np.zeros((4, 4)))
    assert open_rows(path) == before
    with (
        pytest.raises(DataError, match="announced"),
        created(tmp_path / "other", rows=5, dtype="float64", names=("a", "b"), budget=None) as writer,
    ):
        writer.append(np.ones((4, 2)))
    assert [p.name for p in tmp_path.iterdir()] == ["rows.zarr"]


@pytest.mark.parametrize(
    "changed",
    [
        {"dataset_id": 7}, {"ledger_id": ["a"]}, {"budget": {"epsilon_micro": "1", "delta_atto": 0}}, {"budget": {}},
        {"period": 5}, {"reproduced": "no"}, {"unit": {"column": "a"}}, {"unit": {"column": "a", "max_rows": True}},
        {"unit": {"column": "a", "max_rows": 2, "kept": "last"}}, {"columns": "ab"},
    ],
    ids=str,
)  # fmt: skip
def test_attributes_of_other_types_are_refused_and_none_is_guessed(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = tmp_path / "rows.zarr"
    with created(path, rows=2, dtype="uint8", names=("a", "b"), budget=None) as writer:
        writer.append(np.zeros((2, 2), dtype=np.uint8))
    assert open_rows(path).rows == 2
    said = json.loads((path / "zarr.json").read_text())
    said["attributes"]["dpdist"] |= changed
    (path / "zarr.json").write_text(json.dumps(said))
    with pytest.raises(DataError, match="no usable rows"):
        open_rows(path)


def test_periods_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    unit, seals = Unit("who", 2, max_periods=3), dict[str, str]()
    table = create_periods(tmp_path / "visits", BUDGET, unit)
    for period, names, own in (("d1", ("a", "b"), unit), ("d2", ("a", "c"), unit), ("d3", ("a", "b"), None)):
        stored = table.rows_of(period)
        with created(stored, rows=2, dtype="uint8", names=names, budget=None, period=period, unit=own) as writer:
            writer.append(np.zeros((2, 2), dtype=np.uint8))
        seals[period] = seal_rows(open_rows(stored))
    assert table.span({"d1": seals["d1"]}, 0).rows == 2
    for other, said in (("d2", "other columns"), ("d3", "another privacy unit")):
        with pytest.raises(DataError, match=said):
            table.span({"d1": seals["d1"], other: seals[other]}, 0)
