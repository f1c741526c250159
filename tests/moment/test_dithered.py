"""Sums of dithered rows: the same bits in every chunking, one key for all of a sum, and one row's part for one row."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dithering import KEY
from support.parts import added, parts_of

from dpdist.errors import DpdistError
from dpdist.ingest.registered import open_rows
from dpdist.moment import gram, total
from dpdist.moment.total import MomentTask, add_partials, complete, moment_task, partition_moment
from dpdist.rows import bounding, dataset
from dpdist.rows.bounding import DITHERED, RowBound
from dpdist.rows.dataset import RowsTable, created, partitions
from dpdist.rows.dither import Dithering, DitherKey, Dithers
from dpdist.triangle import packed

OTHER = DitherKey(bytes(32))


def table_of(path: Path, rows: npt.NDArray[np.float64], chunk_rows: int) -> RowsTable:
    names = tuple(f"c{i}" for i in range(rows.shape[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_TARGET_CHUNK", 8 * rows.shape[1] * chunk_rows)
        with created(path, rows=rows.shape[0], dtype=str(rows.dtype), names=names, budget=None) as writer:
            writer.append(rows)
    return open_rows(path)


def tasks_of(table: RowsTable, bound: RowBound, key: DitherKey, count: int) -> list[MomentTask]:
    task = moment_task(table, bound).keyed(key.key)
    return [task.cut(run) for run in partitions(table.chunks, count)]


@settings(max_examples=25)
@given(
    rows=st.integers(1, 80),
    chunk_rows=st.integers(1, 90),
    parts=st.integers(1, 6),
    block_rows=st.integers(1, 30),
    piece_rows=st.integers(1, 30),
    columns=st.sampled_from([30, 260, 4]),
    bits=st.sampled_from([8, 12, 15, 16]),
    dtype=st.sampled_from(["float64", "float32", "uint8", "int8"]),
    pairs=st.integers(1, 12),
    seed=st.integers(0, 10**6),
)
def test_any_chunking_and_processor_gives_the_same_bits(
    rows: int, chunk_rows: int, parts: int, block_rows: int, piece_rows: int, columns: int, bits: int, dtype: str,
    pairs: int, seed: int,
) -> None:  # fmt: skip
    data = np.abs(np.random.default_rng(seed).normal(size=(rows, columns)) * 3).astype(dtype)
    bound = RowBound(columns, 9.0, bits, constant=2 ** (bits - 1) if columns < 260 else 0, rule=DITHERED)
    z = np.full((rows, bound.width), 2.0 ** (bits - 1))
    z[:, :columns] = Dithering(columns, bits).rounded(data.astype(float), KEY.drawn(0, rows, columns), 9.0)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(total, "_BLOCK_ROWS", block_rows)
        patch.setattr(gram, "_PAIRS", pairs)
        patch.setattr(gram, "_PANEL_BYTES", 0)
        patch.setattr(total, "_PIECE_BYTES", 8 * bound.width * piece_rows)
        table, integers = table_of(Path(folder) / "rows.zarr", data, chunk_rows), z.astype(np.int64)
        for least in (0, 2**62):  # with machine code, and without
            patch.setattr(total, "COMPILED_VALUES", least)
            found = complete(table, added(partition_moment(task) for task in tasks_of(table, bound, KEY, parts)))
            assert found.key == KEY.fingerprint
            assert np.array_equal(found.values, packed(integers.T @ integers))


def test_no_row_is_lost_where_a_piece_does_not_fit_the_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path / "rows.zarr", np.random.default_rng(1).normal(size=(90, 30)), 23)
    monkeypatch.setattr(gram, "_PANEL_BYTES", 0)
    found = set()
    for least, pairs in ((2**62, 1), (0, 1), (0, 3), (0, 8), (0, 10), (0, 12), (0, 256)):
        monkeypatch.setattr(total, "COMPILED_VALUES", least)
        monkeypatch.setattr(gram, "_PAIRS", pairs)
        (task,) = tasks_of(table, RowBound(30, 5.0, 10, rule=DITHERED), KEY, 1)
        found.add(partition_moment(task).values.tobytes())
    assert len(found) == 1


def test_sums_of_two_keys_never_meet(tmp_path: Path) -> None:
    bound = RowBound(4, 5.0, 8, rule=DITHERED)
    table = table_of(tmp_path / "rows.zarr", np.ones((10, 4)), 5)
    first, second = (partition_moment(tasks_of(table, bound, key, 2)[i]) for i, key in enumerate((KEY, OTHER)))
    with pytest.raises(DpdistError, match="keys"):
        add_partials(first, second)
    plain = partition_moment(parts_of(table, RowBound(4, 5.0, 8), 2)[1])
    with pytest.raises(DpdistError, match="keys"):
        add_partials(first, plain)


def test_a_rule_without_a_key_and_a_key_without_the_rule_are_defects(tmp_path: Path) -> None:
    table = table_of(tmp_path / "rows.zarr", np.ones((10, 4)), 5)
    dithered, plain = RowBound(4, 5.0, 8, rule=DITHERED), RowBound(4, 5.0, 8)
    for defect in (
        lambda: partition_moment(moment_task(table, dithered)),
        lambda: moment_task(table, plain).keyed(KEY.key),
        lambda: moment_task(table, dithered).keyed(KEY.key).keyed(KEY.key),
    ):
        with pytest.raises(AssertionError):
            defect()
    for bound, key in ((dithered, None), (plain, KEY)):
        with pytest.raises(AssertionError):
            bound.apply(np.ones((2, 4)), np.empty((2, 4)), None if key is None else Dithers(key, 0))


def test_an_exchanged_row_changes_its_own_integers_only() -> None:
    rows, bound = np.random.default_rng(1).normal(size=(20, 6)), RowBound(6, 4.0, 10, rule=DITHERED)
    before = bound.apply(rows, np.empty(rows.shape), Dithers(KEY, 5))
    exchanged = rows.copy()
    exchanged[7] = 100
    after = bound.apply(exchanged, np.empty(rows.shape), Dithers(KEY, 5))
    assert np.flatnonzero((before != after).any(axis=1)).tolist() == [7]


def test_what_was_stored_without_a_rule_is_truncated_and_keeps_its_id() -> None:
    old = RowBound(6, 4.0, 10)
    assert "rule" not in old.to_json()
    assert RowBound.from_json(old.to_json()) == old
    new = RowBound(6, 4.0, 10, rule=DITHERED)
    assert RowBound.from_json(new.to_json()) == new
    assert bounding.DITHERED == 2
