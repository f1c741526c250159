"""The exact second moment: the same bits from any chunking, partitioning, order and retry, and nothing missed."""

from __future__ import annotations

import itertools
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parts import added, parts_of

from dpdist._util.tree import fan_in
from dpdist.errors import DataError, DpdistError
from dpdist.ingest.registered import open_rows
from dpdist.moment import total
from dpdist.moment.gram import Arithmetic, GramSum, available, gram_sum
from dpdist.moment.layout import units_of
from dpdist.moment.total import Partial, add_partials, complete, moment_task, partition_moment
from dpdist.rows import dataset
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import RowsTable, created
from dpdist.rows.table import Shape
from dpdist.rows.writing import chunk_key
from dpdist.triangle import packed, unpacked


def table_of(path: Path, rows: npt.NDArray[np.float64], chunk_bytes: int, *, compress: bool = False) -> RowsTable:
    names = tuple(f"c{i}" for i in range(rows.shape[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_TARGET_CHUNK", chunk_bytes)
        with created(
            path, rows=rows.shape[0], dtype=str(rows.dtype), names=names, budget=None, compress=compress
        ) as writer:
            writer.append(rows)
    return open_rows(path)


def reference(rows: npt.NDArray[np.float64], bound: RowBound) -> npt.NDArray[np.int64]:
    """Compute the moment in Python integers."""
    z = bound.apply(rows, np.empty((rows.shape[0], bound.width))).astype(np.int64).astype(object)
    moment = z.T @ z
    return np.array([int(moment[i, j]) for i in range(bound.width) for j in range(i, bound.width)], dtype=np.int64)


@settings(max_examples=40)
@given(
    rows=st.integers(1, 80),
    chunk_rows=st.integers(1, 90),
    workers=st.integers(1, 5),
    per_worker=st.integers(1, 5),
    block_rows=st.integers(1, 30),
    piece_rows=st.integers(1, 30),
    compress=st.booleans(),
    columns=st.sampled_from([4, 30]),
    bits=st.sampled_from([4, 12, 16, 20, 24]),
    constant=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_any_chunking_partitioning_order_and_retry_gives_the_same_bits(
    rows: int,
    chunk_rows: int,
    workers: int,
    per_worker: int,
    block_rows: int,
    piece_rows: int,
    compress: bool,
    columns: int,
    bits: int,
    constant: bool,
    seed: int,
) -> None:
    data = np.random.default_rng(seed).normal(size=(rows, columns)) * 3
    bound = RowBound(columns, 5.0, bits, constant=2 ** (bits - 1) if constant else 0)
    shuffled = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(total, "_BLOCK_ROWS", block_rows)
        patch.setattr(total, "_PIECE_BYTES", 8 * bound.width * piece_rows)
        table = table_of(Path(folder) / "rows.zarr", data, 8 * columns * chunk_rows, compress=compress)
        tasks = parts_of(table, bound, workers * per_worker)
        # a retried task computes its partial again
        again = [partition_moment(task) for task in tasks]
        patch.setattr(total, "COMPILED_VALUES", 0)  # and now with machine code, as large tables are
        shuffled.shuffle(tasks)
        sums: list[list[Partial[np.int64]]] = [[] for _ in range(workers)]
        for task in tasks:
            shuffled.choice(sums).append(partition_moment(task))
        found = complete(table, added(added(some) for some in sums if some))
        assert np.array_equal(complete(table, added(again)).values, found.values)
    assert found.rows == rows
    assert np.array_equal(found.values, reference(data, bound))


def test_what_multiplies_follows_from_the_size_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, found = table_of(tmp_path / "rows.zarr", np.ones((10, 30)), 800), []

    def seen(*asked: Any) -> GramSum:
        found.append((made := gram_sum(*asked)).arithmetic)
        return made

    monkeypatch.setattr(total, "gram_sum", seen)
    for least in (301, 300):
        monkeypatch.setattr(total, "COMPILED_VALUES", least)
        partition_moment(moment_task(table, RowBound(30, 2.0, 12)))
    assert found == [Arithmetic.FLOAT64, available()[0]]


def test_packing_and_unpacking_are_inverse() -> None:
    matrix = np.random.default_rng(0).integers(-(2**62), 2**62, (9, 9))
    matrix = np.triu(matrix) + np.triu(matrix, 1).T
    assert np.array_equal(unpacked(packed(matrix), 9), matrix)


def test_large_integers_survive_packing() -> None:
    exact = np.array([[2**62 + 1, 3], [3, -(2**62) - 1]], dtype=np.int64)
    assert packed(exact).tolist() == [2**62 + 1, 3, -(2**62) - 1]


def partial(start: int, stop: int, rows: int = 1) -> Partial[np.int64]:
    return Partial(np.ones(3, dtype=np.int64), rows, ((start, stop),))


def test_a_partial_is_added_to_the_memory_of_the_total_and_left_as_it_was() -> None:
    left, right = partial(0, 1), partial(1, 2)
    found = add_partials(left, right)
    assert found.values is left.values
    assert found.values.tolist() == [2, 2, 2]
    assert right.values.tolist() == [1, 1, 1]


def test_a_total_that_came_in_a_message_may_be_added_to() -> None:
    left = partial(0, 1)
    left.values.flags.writeable = False
    assert add_partials(left, partial(1, 2)).values.tolist() == [2, 2, 2]
    assert left.values.tolist() == [1, 1, 1]


def test_a_chunk_that_comes_twice_is_refused() -> None:
    for overlapping in ([partial(0, 3), partial(2, 4)], [partial(0, 3), partial(0, 3)], [partial(0, 5), partial(1, 2)]):
        with pytest.raises(DpdistError, match="twice"):
            added(overlapping)


def test_coverage_runs_merge_in_any_order() -> None:
    parts = [partial(0, 2), partial(2, 3), partial(5, 7), partial(3, 5)]
    for order in itertools.permutations(parts):
        assert added(order).covered == ((0, 7),)
    assert add_partials(parts[0], parts[2]).covered == ((0, 2), (5, 7))


def test_a_sum_that_misses_a_chunk_or_a_row_is_refused(tmp_path: Path) -> None:
    table = table_of(tmp_path / "rows.zarr", np.ones((10, 2)), 32)
    tasks = parts_of(table, RowBound(2, 2.0), 2)
    total = added(map(partition_moment, tasks))
    complete(table, total)
    for wrong in (None, partition_moment(tasks[0]), replace(total, rows=total.rows + 1)):
        with pytest.raises(DpdistError, match="before any noise"):
            complete(table, wrong)


def test_a_missing_chunk_is_an_error_and_not_zeros(tmp_path: Path) -> None:
    table = table_of(tmp_path / "rows.zarr", np.ones((10, 2)), 32)
    (table.path / chunk_key(1)).unlink()
    with pytest.raises(DataError, match="Chunk 1"):
        [partition_moment(task) for task in parts_of(table, RowBound(2, 2.0), 1)]


@given(
    rows=st.integers(1, 10**10),
    chunk_rows=st.integers(1, 10**5),
    row_seconds=st.floats(1e-9, 1e-3),
    entries=st.integers(0, 10**9),
    workers=st.integers(1, 2000),
)
def test_units_are_small_but_not_too_small_whoever_is_there(
    rows: int, chunk_rows: int, row_seconds: float, entries: int, workers: int
) -> None:
    table = Shape(rows, 10, "uint8", max(chunk_rows, rows // 10**4))
    units = units_of(table, row_seconds=row_seconds, entries=entries, workers=workers)
    assert [unit.start for unit in units] == [0, *(unit.stop for unit in units[:-1])]
    assert units[-1].stop == table.chunks
    seconds, chunk = rows * row_seconds, table.chunk_rows * row_seconds
    mean = seconds / len(units)
    # at most some 30 s, where chunks and rounding allow it
    assert mean <= 2 * max(30, chunk)
    large = fan_in(8 * entries) == 2  # their sums: to add them takes as long as what is computed
    assert len(units) >= min(table.chunks, workers if large else 4 * workers)
    if 50 * workers <= min(table.chunks, seconds, seconds / (50 * 6e-9 * (entries + 1)), seconds / (6e-3 * workers)):
        assert len(units) >= 50 * workers  # of a second or more each
    if len(units) > 4 * workers + 1 and mean < 29:
        assert mean >= 0.9 * min(0.2, seconds)
    fewer = units_of(table, row_seconds=row_seconds, entries=entries, workers=1)
    if table.chunks >= 400 and seconds > 400 * max(1, 50 * 6e-9 * entries):
        assert len(fewer) >= 400  # there is work for those who come later


def test_more_rows_than_int64_can_sum_are_refused_before_any_work(tmp_path: Path) -> None:
    short = table_of(tmp_path / "rows.zarr", np.ones((4, 2)), 32)
    table = RowsTable(**{**vars(short), "rows": 2**31})
    with pytest.raises(DataError, match="grid bits"):
        moment_task(table, RowBound(2, 2.0))
    with pytest.raises(DataError, match="columns"):
        moment_task(short, RowBound(3, 2.0))
