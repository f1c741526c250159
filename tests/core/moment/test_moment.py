"""The exact second moment and its products with vectors: the same bits from any chunking, and nothing missed."""

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
from support.dithering import KEY
from support.parts import added, parts_of, table_of, whole_of

from dpdist.core.errors import DataError, DpdistError
from dpdist.core.moment import gram, total
from dpdist.core.moment.layout import split_tasks
from dpdist.core.moment.operator import GRID_BITS, Digits, ProductTask, on_grid, partition_product
from dpdist.core.moment.total import (
    MomentTask,
    Partial,
    add_partials,
    block_rows,
    complete,
    moment_task,
    partition_moment,
)
from dpdist.core.parallel import fan_in
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dataset import RowsTable, partitions
from dpdist.core.rows.dither import Dithering, DitherKey
from dpdist.core.rows.table import Shape
from dpdist.core.rows.writing import chunk_key
from dpdist.core.triangle import unpacked

OTHER = DitherKey(bytes(32))


def reference(rows: npt.NDArray[Any], bound: RowBound) -> npt.NDArray[np.int64]:
    """Compute the moment in Python integers."""
    z = np.full((len(rows), bound.width), float(bound.constant))
    rule, dithers = Dithering(bound.columns, bound.grid_bits), KEY.drawn(0, len(rows), bound.columns)
    z[:, : bound.columns] = rule.rounded(rows.astype(float), dithers, bound.affine)
    integers = z.astype(np.int64).astype(object)
    return np.asarray((integers.T @ integers)[np.triu_indices(bound.width)], dtype=np.int64)


@settings(max_examples=15)
@given(
    rows=st.integers(1, 80), chunk_rows=st.integers(1, 90), count=st.integers(1, 25), block_rows=st.integers(1, 30),
    piece_rows=st.integers(1, 30), pairs=st.integers(1, 12), compress=st.booleans(),
    columns=st.sampled_from([4, 30, 130]), bits=st.sampled_from([4, 8, 12, 15, 16, 20, 24]),
    dtype=st.sampled_from(["float64", "float32", "uint8"]), constant=st.booleans(), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_any_chunking_partitioning_order_retry_and_processor_gives_the_same_bits(
    rows: int, chunk_rows: int, count: int, block_rows: int, piece_rows: int, pairs: int, compress: bool, columns: int,
    bits: int, dtype: str, constant: bool, seed: int,
) -> None:  # fmt: skip
    data = (np.random.default_rng(seed).normal(size=(rows, columns)) * 3).clip(-300 if dtype != "uint8" else 0)
    data = data.astype(dtype)
    bound = RowBound(columns, 9.0, bits, constant=2 ** (bits - 1) if constant else 0)
    shuffled = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (total, "_BLOCK_ROWS", block_rows), (total, "_PIECE_BYTES", 8 * bound.width * piece_rows),
            (gram, "_PAIRS", pairs), (gram, "_PANEL_BYTES", 0),
        ):  # fmt: skip
            patch.setattr(module, name, value)
        table, expected = table_of(Path(folder) / "rows", data, chunk_rows, compress=compress), reference(data, bound)
        for least in (0, 2**62):  # with machine code, as large tables are summed, and without
            patch.setattr(total, "COMPILED_VALUES", least)
            tasks = parts_of(table, bound, count)
            shuffled.shuffle(tasks)
            sums = [partition_moment(task) for task in tasks]
            sums[0] = partition_moment(tasks[0])  # a retried task computes its partial again
            middle = len(sums) // 2
            halves = [added(half) for half in (sums[:middle], sums[middle:]) if half]
            found = complete(table, added(halves))
            assert found.key == KEY.fingerprint
            assert found.rows == rows
            assert np.array_equal(found.values, expected)


def test_no_row_is_lost_where_a_piece_does_not_fit_the_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path / "rows.zarr", np.random.default_rng(1).normal(size=(90, 30)), 23)
    monkeypatch.setattr(gram, "_PANEL_BYTES", 0)
    found = set()
    for least, pairs in ((2**62, 1), (0, 1), (0, 8), (0, 10), (0, 256)):
        monkeypatch.setattr(total, "COMPILED_VALUES", least)
        monkeypatch.setattr(gram, "_PAIRS", pairs)
        found.add(partition_moment(whole_of(table, RowBound(30, 5.0, 10))).values.tobytes())
    assert len(found) == 1


def partial(start: int, stop: int, rows: int = 1) -> Partial[np.int64]:
    return Partial(np.ones(3, dtype=np.int64), rows, ((start, stop),))


def test_a_chunk_that_comes_twice_is_refused_and_runs_merge_in_any_order() -> None:
    for overlapping in ([partial(0, 3), partial(2, 4)], [partial(0, 3), partial(0, 3)], [partial(0, 5), partial(1, 2)]):
        with pytest.raises(DpdistError, match="twice"):
            added(overlapping)
    for order in itertools.permutations(((0, 2), (2, 3), (5, 7), (3, 5))):
        found = added(partial(*run) for run in order)
        assert (found.covered, found.values.tolist()) == (((0, 7),), [4, 4, 4])
    assert add_partials(partial(0, 2), partial(5, 7)).covered == ((0, 2), (5, 7))


def test_a_sum_that_misses_a_chunk_or_a_row_is_refused(tmp_path: Path) -> None:
    table = table_of(tmp_path / "rows.zarr", np.ones((10, 2)), 2)
    tasks = parts_of(table, RowBound(2, 2.0), 2)
    found = added(map(partition_moment, tasks))
    complete(table, found)
    for wrong in (None, partition_moment(tasks[0]), replace(found, rows=found.rows + 1)):
        with pytest.raises(DpdistError, match="before any noise"):
            complete(table, wrong)
    (table.path / chunk_key(1)).unlink()
    with pytest.raises(DataError, match="Chunk 1"):  # it is no chunk of zeros
        partition_moment(whole_of(table, RowBound(2, 2.0)))


def test_sums_of_two_keys_never_meet(tmp_path: Path) -> None:
    bound = RowBound(4, 5.0, 8)
    table = table_of(tmp_path / "rows.zarr", np.ones((10, 4)), 5)

    def summed(task: MomentTask, part: int) -> Partial[np.int64]:
        return partition_moment(task.for_task(partitions(table.chunks, 2)[part]))

    first = summed(moment_task(table, bound).with_key(KEY.key), 0)
    other = summed(moment_task(table, bound).with_key(OTHER.key), 1)
    for each in (other, replace(other, key="")):  # one that other sums share, or one of its own
        with pytest.raises(DpdistError, match="keys"):
            add_partials(first, each)


def test_a_sum_without_a_key_and_a_second_key_are_defects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = moment_task(table_of(tmp_path / "rows.zarr", np.ones((10, 4)), 5), RowBound(4, 5.0, 8))
    for least in (0, 2**62):  # with machine code and without
        monkeypatch.setattr(total, "COMPILED_VALUES", least)
        with pytest.raises(AssertionError, match="dithered with a key"):
            partition_moment(task)
    with pytest.raises(AssertionError, match="dithered with a key"):
        partition_product(ProductTask(task, np.eye(4)))
    for each in (KEY, OTHER):
        with pytest.raises(AssertionError, match="only one key"):
            task.with_key(KEY.key).with_key(each.key)


@given(
    rows=st.integers(1, 10**10), chunk_rows=st.integers(1, 10**5), row_seconds=st.floats(1e-9, 1e-3),
    entries=st.integers(0, 10**9), workers=st.integers(0, 2000),
)  # fmt: skip
def test_units_are_small_but_not_too_small_whoever_is_there(
    rows: int, chunk_rows: int, row_seconds: float, entries: int, workers: int
) -> None:
    table = Shape(rows, 10, "uint8", max(chunk_rows, rows // 10**4))
    units = split_tasks(table, row_seconds=row_seconds, entries=entries, workers=workers)
    workers = max(1, workers)  # an adaptive cluster may have none at the moment
    assert [unit.start for unit in units] == [0, *(unit.stop for unit in units[:-1])]
    assert units[-1].stop == table.chunks
    seconds = rows * row_seconds
    mean = seconds / len(units)
    assert mean <= 2 * max(30, table.chunk_rows * row_seconds)  # some 30 s, where chunks and rounding allow it
    large = fan_in(8 * entries) == 2  # their sums: to add them takes as long as what is computed
    assert len(units) >= min(table.chunks, workers if large else 4 * workers)
    if len(units) > 4 * workers + 1 and mean < 29:
        assert mean >= 0.9 * min(0.2, seconds)


def test_more_rows_than_int64_can_sum_are_refused_before_any_work(tmp_path: Path) -> None:
    short = table_of(tmp_path / "rows.zarr", np.ones((4, 2)), 2)
    table = RowsTable(**{**vars(short), "rows": 2**31})
    with pytest.raises(DataError, match="grid bits"):
        moment_task(table, RowBound(2, 2.0))
    with pytest.raises(DataError, match="columns"):
        moment_task(short, RowBound(3, 2.0))


@settings(max_examples=25)
@given(
    bits=st.integers(3, 24), count=st.integers(1, 3), parts=st.integers(1, 15),
    chunk=st.integers(3, 40), constant=st.booleans(), largest=st.booleans(), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_products_are_exact_however_the_rows_are_shared_out(
    tmp_path_factory: pytest.TempPathFactory, bits: int, count: int, parts: int, chunk: int, constant: bool,
    largest: bool, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    # rows of full norm, alike: the largest sums there are; or any
    data = np.ones((40, 5)) * 9 if largest else rng.normal(size=(40, 5)) * 10.0 ** rng.integers(-2, 3, (40, 1))
    table = table_of(tmp_path_factory.mktemp("rows") / "rows.zarr", data, chunk)
    bound = RowBound(5, 5.0, bits, constant=2**bits if constant else 0)
    frame = np.ones((bound.width, 1)) if largest else rng.normal(size=(bound.width, count))
    vectors = on_grid(np.linalg.qr(frame)[0])
    sums = [(partition_product(ProductTask(task, vectors)) for task in parts_of(table, bound, n)) for n in (parts, 1)]
    found, whole = (complete(table, added(each)).values for each in sums)
    assert found.dtype == np.int64
    assert np.array_equal(found, whole)
    digits = Digits.of(table, bound)
    exact = sum(each.astype(object) << (place * digits.bits) for place, each in enumerate(found))
    moment = unpacked(partition_moment(whole_of(table, bound)).values, bound.width).astype(object)
    integers = np.ldexp(vectors, GRID_BITS).astype(np.int64).astype(object)
    assert (exact == moment @ integers).all()
    shifted = (moment @ integers).astype(np.float64) * 2.0**-GRID_BITS
    assert digits.joined(found) == pytest.approx(shifted, rel=1e-13, abs=abs(shifted).max() * 1e-15)


@given(columns=st.integers(1, 50_000), bits=st.integers(3, 24), constant=st.booleans(), data=st.data())
def test_no_sum_of_a_digit_leaves_its_integers(columns: int, bits: int, constant: bool, data: Any) -> None:
    columns = min(columns, 2 * 3**bits, (2**63 - 1) // 4 ** (bits + 1))  # no grid is refused as too coarse
    bound = RowBound(columns, 1.0, bits, constant=2**bits if constant else 0)
    rows = data.draw(st.one_of(st.integers(1, bound.total_rows), st.just(bound.total_rows)))
    table = Shape(rows, columns, "float32", 1)
    digits = Digits.of(table, bound)
    entry, largest = 2**bits, 2**digits.bits
    assert rows * entry * largest < 2**63
    assert block_rows(rows, bound) * entry * largest <= 2**53
    # |z| |V_j| is what a product may come to, and all digits together hold it; float64 does, before it is cut
    assert bound.norm_bound * 4**GRID_BITS < 4 ** min(digits.bits * digits.count, 53)


def test_vectors_off_the_grid_or_too_long_are_a_defect(tmp_path: Path) -> None:
    table = table_of(tmp_path / "rows.zarr", np.ones((4, 3)), 4)
    task = moment_task(table, RowBound(3, 1.0))
    for vectors in (np.full((3, 1), 0.1), np.full((3, 1), 0.75)):
        with pytest.raises(AssertionError, match="be on the grid"):
            partition_product(ProductTask(task, vectors))


@given(rows=st.integers(1, 400), count=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_what_the_moment_is_multiplied_with_is_no_longer_than_an_orthonormal_frame(
    rows: int, count: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    frame = np.linalg.qr(rng.normal(size=(rows, min(rows, count))))[0]
    for each in (frame, np.eye(rows, min(rows, count)), np.full((rows, 1), rows**-0.5)):
        found = on_grid(each)
        steps = np.ldexp(found, GRID_BITS)
        assert np.array_equal(steps, np.rint(steps))
        assert np.linalg.norm(found, 2) <= 1
        assert np.linalg.norm(found - each) < 2 * np.sqrt(each.size) * 2.0**-GRID_BITS * np.linalg.norm(each)
    rounded = np.ldexp(np.rint(np.ldexp(np.full((11, 1), 11**-0.5), 20)), -20)
    assert np.linalg.norm(rounded) > 1  # the twin: equal entries, all of them rounded up
