"""rows.zarr: rows are read as written, and damage is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.parts import table_of

from dpdist.core.errors import DataError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.rows import dataset
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.columns import DTYPES
from dpdist.core.rows.dataset import chunk_rows_for, created, incomplete
from dpdist.core.rows.periods import create_periods, seal_rows
from dpdist.core.rows.units import Unit
from dpdist.core.rows.writing import chunk_key
from dpdist.core.storage.arrays import array_options

BUDGET = PrivacyLoss.parse("2", "1e-6")


@pytest.mark.parametrize("compress", [False, True])
def test_what_was_written_in_any_pieces_is_read_by_us_and_by_zarr(tmp_path: Path, compress: bool) -> None:
    identities = set()
    for dtype in DTYPES:
        rows = np.random.default_rng(0).integers(0, 100, (101, 5)).astype(dtype)
        rows[50:] = 0  # chunks of zeros are written too
        path = tmp_path / f"{dtype}.zarr"
        table = table_of(path, rows, 40, pieces=13, compress=compress, budget=BUDGET)
        assert sum(chunk.is_file() for chunk in (path / "c").rglob("0")) == table.chunks >= 2
        assert (table.rows, table.columns, table.dtype, table.budget) == (101, 5, dtype, BUDGET)
        reader = ChunkReader(table, 3)
        pieces = [piece.copy() for index in range(table.chunks) for piece in reader.read(index)]
        assert max(map(len, pieces)) <= 3
        assert np.array_equal(np.concatenate(pieces), rows)
        array = zarr.open_array(path, mode="r")
        assert np.array_equal(np.asarray(array[:]), rows)
        assert array.dtype == rows.dtype
        identities.add(table.dataset_id)
    assert len(identities) == len(DTYPES)


@pytest.mark.parametrize(("columns", "dtype"), [(54, "int16"), (784, "uint8"), (784, "float64"), (5000, "float32")])
def test_chunks_are_whole_rows_of_eight_to_24_mib(columns: int, dtype: str) -> None:
    rows = chunk_rows_for(columns, dtype, 10**9)
    assert 8 << 20 <= rows * columns * np.dtype(dtype).itemsize <= 24 << 20
    assert chunk_rows_for(columns, dtype, 7) == 7


@pytest.mark.parametrize("compress", [False, True])
def test_a_damaged_chunk_is_refused_when_it_is_read_and_named(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "rows.zarr"
    table, chunk = table_of(path, np.ones((101, 5)), 10, compress=compress), path / chunk_key(2)
    content = chunk.read_bytes()
    flipped = content[:17] + bytes([content[17] ^ 4]) + content[18:]
    (tmp_path / "elsewhere").write_bytes(content)

    def refused(said: str) -> None:
        reader = ChunkReader(table, 7)
        with pytest.raises(DataError, match=f"Chunk 2 of .* {said}"):
            list(reader.read(2))
        if not compress and said != "altered":  # the length of a compressed chunk is not fixed
            assert [index for index, _ in incomplete(open_rows(path))] == [2]
        assert sum(len(piece) for piece in reader.read(1)) == table.rows_in(1)

    for damaged, said in (
        (flipped, "altered"), (content[:-1], "(truncated|altered)"), (content + b"0", "(truncated|altered)"),
        (b"", "truncated"),
    ):  # fmt: skip
        chunk.write_bytes(damaged)
        refused(said)
    replacements: list[Callable[[], object]] = [
        lambda: None, lambda: chunk.symlink_to(tmp_path / "elsewhere"), lambda: os.mkfifo(chunk), chunk.mkdir,
    ]  # fmt: skip
    for replaced in replacements:
        chunk.unlink(missing_ok=True)
        replaced()
        refused("(missing|truncated)")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None), ({"compressors": None}, "CRC32C"), ({"dtype": "complex128"}, "its dtype is complex128"),
        ({"shape": (10,), "chunks": (5,)}, "no usable rows"), ({"chunks": (5, 2)}, "full rows"),
        ({"shape": (10, 3, 2), "chunks": (5, 3, 2)}, "two named columns"), ({"chunks": (20, 3)}, "full rows"),
        ({"shape": (10, 1), "chunks": (5, 1)}, "two named columns"),
        ({"chunks": (2, 3), "shards": (4, 3)}, "full rows"),
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
    zarr.create_array(store=path, shape=(4, 4), dtype="float64")
    for content in ((path / "zarr.json").read_text(), "{"):
        (path / "zarr.json").write_text(content)
        with pytest.raises(DataError, match=r"dpdist\.ingest_rows"):
            open_rows(path)


def test_an_existing_target_is_kept_and_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    before = table_of(path, np.ones((4, 4)))
    with pytest.raises(DataError, match="exists already"):
        table_of(path, np.zeros((4, 4)))
    assert open_rows(path) == before
    with (
        pytest.raises(DataError, match="announced"),
        created(tmp_path / "other", rows=5, dtype="float64", names=("a", "b"), budget=None) as writer,
    ):
        writer.append(np.ones((4, 2)))
    assert [p.name for p in tmp_path.iterdir()] == ["rows.zarr"]


def test_attributes_of_other_types_are_refused_and_none_is_guessed(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    table_of(path, np.zeros((2, 2), dtype=np.uint8))
    sound = (path / "zarr.json").read_text()
    changes: list[dict[str, Any]] = [
        {"dataset_id": 7}, {"ledger_id": ["a"]}, {"budget": {"epsilon_micro": "1", "delta_atto": 0}}, {"budget": {}},
        {"period": 5}, {"reproduced": "no"}, {"unit": {"max_rows": 2}}, {"unit": {"column": "a", "max_rows": True}},
        {"unit": {"column": "a", "max_rows": 2, "kept": "last"}}, {"columns": "ab"},
    ]  # fmt: skip
    for changed in changes:
        said = json.loads(sound)
        said["attributes"]["dpdist"] |= changed
        (path / "zarr.json").write_text(json.dumps(said))
        with pytest.raises(DataError, match="no usable rows"):
            open_rows(path)


def test_periods_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    unit, seals = Unit("who", 2, max_periods=3), dict[str, str]()
    table = create_periods(tmp_path / "visits", BUDGET, unit)
    for period, names, own in (("d1", ("a", "b"), unit), ("d2", ("a", "c"), unit), ("d3", ("a", "b"), None)):
        rows = np.zeros((2, 2), dtype=np.uint8)
        seals[period] = seal_rows(table_of(table.rows_of(period), rows, names=names, period=period, unit=own))
    assert table.span({"d1": seals["d1"]}, 0).rows == 2
    for other, said in (("d2", "differ in columns"), ("d3", "differ in their privacy unit")):
        with pytest.raises(DataError, match=said):
            table.span({"d1": seals["d1"], other: seals[other]}, 0)
