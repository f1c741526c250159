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
from support.dithering import KEY
from support.parts import added, parts_of, table_of, whole_of

from dpdist._util.parallel import fan_in
from dpdist.errors import DataError, DpdistError
from dpdist.moment import gram, total
from dpdist.moment.gram import Arithmetic, GramSum, available, gram_sum
from dpdist.moment.layout import units_of
from dpdist.moment.total import MomentTask, Partial, add_partials, complete, moment_task, partition_moment
from dpdist.rows.bounding import DITHERED, TRUNCATED, RowBound
from dpdist.rows.dataset import RowsTable, partitions
from dpdist.rows.dither import Dithering, DitherKey, Dithers
from dpdist.rows.table import Shape
from dpdist.rows.writing import chunk_key
from dpdist.triangle import packed, unpacked

OTHER = DitherKey(bytes(32))


def reference(rows: npt.NDArray[Any], bound: RowBound) -> npt.NDArray[np.int64]:
    """Compute the moment in Python integers."""
    z = np.full((len(rows), bound.width), float(bound.constant))
    if bound.rule == DITHERED:
        size = len(rows), bound.columns
        rule = Dithering(bound.columns, bound.grid_bits)
        z[:, : bound.columns] = rule.rounded(rows.astype(float), KEY.drawn(0, *size), bound.clip_norm)
    else:
        bound.apply(rows, z)
    integers = z.astype(np.int64).astype(object)
    moment = integers.T @ integers
    return np.array([int(moment[i, j]) for i in range(bound.width) for j in range(i, bound.width)], dtype=np.int64)


@settings(max_examples=25)
@given(
    rows=st.integers(1, 80), chunk_rows=st.integers(1, 90), count=st.integers(1, 25), block_rows=st.integers(1, 30),
    piece_rows=st.integers(1, 30), pairs=st.integers(1, 12), compress=st.booleans(),
    columns=st.sampled_from([4, 30, 260]), bits=st.sampled_from([4, 8, 12, 15, 16, 20, 24]),
    rule=st.sampled_from([TRUNCATED, DITHERED]), dtype=st.sampled_from(["float64", "float32", "uint8"]),
    constant=st.booleans(), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_any_chunking_partitioning_order_retry_and_processor_gives_the_same_bits(
    rows: int, chunk_rows: int, count: int, block_rows: int, piece_rows: int, pairs: int, compress: bool, columns: int,
    bits: int, rule: int, dtype: str, constant: bool, seed: int,
) -> None:  # fmt: skip
    if rule == DITHERED:
        bits = min(bits, 16)
    data = (np.random.default_rng(seed).normal(size=(rows, columns)) * 3).clip(-300 if dtype != "uint8" else 0)
    data = data.astype(dtype)
    bound = RowBound(columns, 9.0, bits, constant=2 ** (bits - 1) if constant else 0, rule=rule)
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
            assert found.key == (KEY.fingerprint if rule == DITHERED else "")
            assert found.rows == rows
            assert np.array_equal(found.values, expected)


def test_no_row_is_lost_where_a_piece_does_not_fit_the_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path / "rows.zarr", np.random.default_rng(1).normal(size=(90, 30)), 23)
    monkeypatch.setattr(gram, "_PANEL_BYTES", 0)
    found = set()
    for least, pairs in ((2**62, 1), (0, 1), (0, 3), (0, 8), (0, 10), (0, 12), (0, 256)):
        monkeypatch.setattr(total, "COMPILED_VALUES", least)
        monkeypatch.setattr(gram, "_PAIRS", pairs)
        found.add(partition_moment(whole_of(table, RowBound(30, 5.0, 10, rule=DITHERED))).values.tobytes())
    assert len(found) == 1


def test_what_multiplies_follows_from_the_size_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, found = table_of(tmp_path / "rows.zarr", np.ones((10, 30)), 4), []

    def seen(*asked: Any) -> GramSum:
        found.append((made := gram_sum(*asked)).arithmetic)
        return made

    monkeypatch.setattr(total, "gram_sum", seen)
    for least in (301, 300):
        monkeypatch.setattr(total, "COMPILED_VALUES", least)
        partition_moment(moment_task(table, RowBound(30, 2.0, 12)))
    assert found == [Arithmetic.FLOAT64, available()[0]]


def test_packing_and_unpacking_are_inverse_also_of_large_integers() -> None:
    matrix = np.random.default_rng(0).integers(-(2**62), 2**62, (9, 9))
    matrix = np.triu(matrix) + np.triu(matrix, 1).T
    assert np.array_equal(unpacked(packed(matrix), 9), matrix)
    exact = np.array([[2**62 + 1, 3], [3, -(2**62) - 1]], dtype=np.int64)
    assert packed(exact).tolist() == [2**62 + 1, 3, -(2**62) - 1]


# --- coverage ---------------------------------------------------------------------------------------------------------


def partial(start: int, stop: int, rows: int = 1) -> Partial[np.int64]:
    return Partial(np.ones(3, dtype=np.int64), rows, ((start, stop),))


@pytest.mark.parametrize("writeable", [True, False], ids=["made here", "from another process"])
def test_a_partial_is_added_to_the_memory_of_the_total_and_left_as_it_was(writeable: bool) -> None:
    left, right = partial(0, 1), partial(1, 2)
    left.values.flags.writeable = writeable
    found = add_partials(left, right)
    assert (found.values is left.values) is writeable
    assert found.values.tolist() == [2, 2, 2]
    assert right.values.tolist() == [1, 1, 1]


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


# --- keys -------------------------------------------------------------------------------------------------------------


def test_sums_of_two_keys_never_meet(tmp_path: Path) -> None:
    bound = RowBound(4, 5.0, 8, rule=DITHERED)
    table = table_of(tmp_path / "rows.zarr", np.ones((10, 4)), 5)

    def summed(task: MomentTask, part: int) -> Partial[np.int64]:
        return partition_moment(task.cut(partitions(table.chunks, 2)[part]))

    first = summed(moment_task(table, bound).keyed(KEY.key), 0)
    for other in (moment_task(table, bound).keyed(OTHER.key), moment_task(table, RowBound(4, 5.0, 8))):
        with pytest.raises(DpdistError, match="keys"):
            add_partials(first, summed(other, 1))


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
    old, new = RowBound(6, 4.0, 10), RowBound(6, 4.0, 10, rule=DITHERED)
    assert "rule" not in old.to_json()
    assert [RowBound.from_json(bound.to_json()) for bound in (old, new)] == [old, new]
    assert DITHERED == 2


# --- units and sizes --------------------------------------------------------------------------------------------------


@given(
    rows=st.integers(1, 10**10), chunk_rows=st.integers(1, 10**5), row_seconds=st.floats(1e-9, 1e-3),
    entries=st.integers(0, 10**9), workers=st.integers(1, 2000),
)  # fmt: skip
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
    short = table_of(tmp_path / "rows.zarr", np.ones((4, 2)), 2)
    table = RowsTable(**{**vars(short), "rows": 2**31})
    with pytest.raises(DataError, match="grid bits"):
        moment_task(table, RowBound(2, 2.0))
    with pytest.raises(DataError, match="columns"):
        moment_task(short, RowBound(3, 2.0))
