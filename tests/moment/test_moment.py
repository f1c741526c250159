"""The exact second moment: the same bits from any chunking, partitioning, order and retry, and nothing missed."""

from __future__ import annotations

import itertools
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdist.errors import DataError, DpdistError
from dpdist.ingest.opening import open_rows
from dpdist.moment import total
from dpdist.moment.gram import GramSum
from dpdist.moment.total import Partial, add_partials, complete, partition_moment, plan
from dpdist.rows import dataset
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import RowsTable, chunk_key, created
from dpdist.triangle import Band, packed, unpacked


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
    bits=st.sampled_from([4, 16, 20, 24]),
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
    bits: int,
    constant: bool,
    seed: int,
) -> None:
    data = np.random.default_rng(seed).normal(size=(rows, 4)) * 3
    bound = RowBound(4, 5.0, bits, constant=2 ** (bits - 1) if constant else 0)
    shuffled = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(total, "_BLOCK_ROWS", block_rows)
        patch.setattr(total, "_PIECE_BYTES", 8 * bound.width * piece_rows)
        table = table_of(Path(folder) / "rows.zarr", data, 32 * chunk_rows, compress=compress)
        sums = []
        for group in plan(table, bound, workers, per_worker).groups:
            partials = [partition_moment(task) for task in group]
            # a retried task computes its partial again; a used partial must still be what it was
            again = [partition_moment(task) for task in group]
            shuffled.shuffle(partials)
            once = add_partials(partials)
            assert np.array_equal(add_partials(again).values, once.values)
            assert np.array_equal(add_partials(partials).values, once.values)
            sums.append(once)
        shuffled.shuffle(sums)
        found = complete(table, *sums)
    assert found.rows == rows
    assert np.array_equal(found.values, reference(data, bound))


@pytest.mark.parametrize("bits", [16, 20, 24])
def test_float64_sums_move_to_integers_before_they_lose_a_bit(bits: int) -> None:
    # rows just inside the bound, all alike: sums grow as fast as they can, by odd numbers float64 cannot hold
    bound = RowBound(2, 1.0, bits)
    block = np.zeros((min(bound.exact_rows, 4096) - 1, 2))
    block[:, 0] = 2**bits - 1
    sums = GramSum(Band.whole(2), bound.exact_rows)
    times = 2 ** (53 - 2 * bits) // block.shape[0] + 5 | 1
    for _ in range(times):
        sums.add(block)
    expected = times * block.shape[0] * (2**bits - 1) ** 2
    assert expected > 2**53
    assert int(float(expected)) != expected
    assert sums.total().tolist() == [expected, 0, 0]


def test_a_block_of_more_rows_than_are_exact_is_refused() -> None:
    with pytest.raises(ValueError, match="exactly"):
        GramSum(Band.whole(2), 3).add(np.ones((4, 2)))


def test_packing_and_unpacking_are_inverse() -> None:
    matrix = np.random.default_rng(0).integers(-(2**62), 2**62, (9, 9))
    matrix = np.triu(matrix) + np.triu(matrix, 1).T
    assert np.array_equal(unpacked(packed(matrix), 9), matrix)


def test_large_integers_survive_packing() -> None:
    exact = np.array([[2**62 + 1, 3], [3, -(2**62) - 1]], dtype=np.int64)
    assert packed(exact).tolist() == [2**62 + 1, 3, -(2**62) - 1]


def partial(start: int, stop: int, rows: int = 1) -> Partial[np.int64]:
    return Partial(np.ones(3, dtype=np.int64), rows, ((start, stop),))


def test_partials_are_never_added_in_place() -> None:
    left, right = partial(0, 1), partial(1, 2)
    add_partials([left, right])
    assert left.values.tolist() == right.values.tolist() == [1, 1, 1]


def test_a_chunk_that_comes_twice_is_refused() -> None:
    for overlapping in ([partial(0, 3), partial(2, 4)], [partial(0, 3), partial(0, 3)], [partial(0, 5), partial(1, 2)]):
        with pytest.raises(DpdistError, match="twice"):
            add_partials(overlapping)


def test_coverage_runs_merge_in_any_order() -> None:
    parts = [partial(0, 2), partial(2, 3), partial(5, 7), partial(3, 5)]
    for order in itertools.permutations(parts):
        assert add_partials(order).covered == ((0, 7),)
    assert add_partials([parts[0], parts[2]]).covered == ((0, 2), (5, 7))


def test_a_sum_that_misses_a_chunk_or_a_row_is_refused(tmp_path: Path) -> None:
    table = table_of(tmp_path / "rows.zarr", np.ones((10, 2)), 32)
    tasks = [task for group in plan(table, RowBound(2, 2.0), 2).groups for task in group]
    partials = [partition_moment(task) for task in tasks]
    complete(table, *partials)
    with pytest.raises(DpdistError, match="before any noise"):
        complete(table, *partials[:-1])
    with pytest.raises(DpdistError, match="before any noise"):
        complete(table, *(replace(p, rows=p.rows + 1) for p in partials))


def test_a_missing_chunk_is_an_error_and_not_zeros(tmp_path: Path) -> None:
    table = table_of(tmp_path / "rows.zarr", np.ones((10, 2)), 32)
    (table.path / chunk_key(1)).unlink()
    with pytest.raises(DataError, match="Chunk 1"):
        [partition_moment(task) for group in plan(table, RowBound(2, 2.0), 1).groups for task in group]


def test_the_plan_has_a_few_tasks_per_worker_whatever_the_length(tmp_path: Path) -> None:
    short = table_of(tmp_path / "rows.zarr", np.ones((4, 2)), 32)
    for rows in (4, 4000, 4_000_000):
        table = RowsTable(**{**vars(short), "rows": rows, "chunk_rows": 2})
        groups = plan(table, RowBound(2, 2.0), 3).groups
        assert len(groups) <= 3
        assert all(len(group) <= 4 for group in groups)
        assert [i for group in groups for task in group for i in task.chunks] == list(range(table.chunks))


def test_more_rows_than_int64_can_sum_are_refused_before_any_work(tmp_path: Path) -> None:
    short = table_of(tmp_path / "rows.zarr", np.ones((4, 2)), 32)
    table = RowsTable(**{**vars(short), "rows": 2**31})
    with pytest.raises(DataError, match="grid bits"):
        plan(table, RowBound(2, 2.0), 1)
    with pytest.raises(DataError, match="columns"):
        plan(short, RowBound(3, 2.0), 1)
