"""All rows of a privacy unit are stored together, in an order that follows from a key, and a task has whole units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest import together, write
from dpdist.core.ingest.readers.base import Choices
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ingest.write import ingest
from dpdist.core.moment.total import add_partials, complete, moment_task, partition_moment
from dpdist.core.pipeline.inspect import inspect_path
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.rows import dataset, unit_rows
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.columns import Column
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import UNITS
from dpdist.core.rows.unit_rows import UnitBatches
from dpdist.core.rows.units import Unit
from dpdist.core.rows.writing import RowsWriter

Table = npt.NDArray[np.float64]
WHO = Unit("who")
SECRET = b"k" * 64


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 40 * 24)


def visits(seed: int = 3) -> Table:
    """Rows of 60 units, one of which is longer than three chunks: unit, number of the row, and a value."""
    random = np.random.default_rng(seed)
    who = np.concatenate([random.integers(0, 60, 500), np.full(150, 7)])
    random.shuffle(who)
    return np.column_stack([who, np.arange(len(who)), random.integers(0, 3, len(who))]).astype(np.float64)


def store(path: Path, rows: Table, text: bool = False) -> Path:
    who: Any = pa.array([f"P{unit:.0f}" for unit in rows[:, 0]]) if text else pa.array(rows[:, 0].astype(np.int64))
    pq.write_table(pa.table({"who": who, "a": rows[:, 1], "b": rows[:, 2]}), path)
    return path


def units_in(table: RowsTable, tasks: list[range], limit: int = 50) -> list[Any]:
    found: list[Any] = []
    for chunks in tasks:
        batches = UnitBatches(table, chunks, limit, None)
        for _, rows, starts in batches:
            found += [unit.copy() for unit in np.split(rows, starts[1:])]
        assert [index for index, _ in batches.checksums] == list(chunks)
    return found


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("text", [False, True])
def test_every_task_has_whole_units_and_all_tasks_have_every_unit_once(tmp_path: Path, text: bool) -> None:
    rows = visits()
    source = store(tmp_path / "visits.parquet", rows, text)
    schema = Schema([Column("who", "privacy unit"), Column("a", "number"), Column("b", "number")]) if text else None
    table = ingest_rows(source, tmp_path / "rows.zarr", privacy_unit=None if text else "who", schema=schema)
    assert table.unit == WHO
    assert table.together
    assert (table.rows, table.max_rows) == (len(rows), 1)
    assert table.chunks > 10
    owner = {number: unit for unit, number in rows[:, :2]}
    expected = sorted(tuple(rows[rows[:, 0] == unit, 1]) for unit in np.unique(rows[:, 0]))
    for count in (1, 3, table.chunks):
        for limit in (1, 50, 10_000):
            found = units_in(table, dataset.partitions(table.chunks, count), limit)
            assert sorted(tuple(sorted(unit[:, 0])) for unit in found) == expected
            assert all(len({owner[number] for number in unit[:, 0]}) == 1 for unit in found)


@pytest.mark.usefixtures("small_chunks")
def test_the_integers_do_not_depend_on_order_files_chunks_and_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "secret_of", lambda _: SECRET)
    rows, sums = visits(), []
    half = tmp_path / "halves"
    half.mkdir()
    shuffled = rows[np.random.default_rng(0).permutation(len(rows))]
    store(half / "a.parquet", shuffled[:200])
    store(half / "b.parquet", shuffled[200:])
    sources = [store(tmp_path / "in_order.parquet", rows), store(tmp_path / "shuffled.parquet", shuffled), half]
    bound = RowBound(2, 300.0, 10, constant=64, unit_norm="frobenius")
    for number, source in enumerate(sources):
        for size in (960, 5000, 8 << 20):
            monkeypatch.setattr(dataset, "_TARGET_CHUNK", size)
            table = ingest(source, tmp_path / f"{number}-{size}.zarr", unit=WHO)
            for count in {1, 2, table.chunks}:
                total = None
                for chunks in dataset.partitions(table.chunks, count):
                    part = partition_moment(moment_task(table, bound).for_task(chunks).with_key(bytes(32)))
                    total = part if total is None else add_partials(total, part)
                sums.append(complete(table, total).values)
    assert len(sums) > 20
    assert all(np.array_equal(other, sums[0]) for other in sums)
    monkeypatch.setattr(write, "secret_of", lambda _: b"another" + SECRET)
    other = ingest(sources[0], tmp_path / "other.zarr", unit=WHO)
    assert not np.array_equal(partition_moment(moment_task(other, bound).with_key(bytes(32))).values, sums[0])


def test_the_first_row_of_a_unit_is_chosen_by_the_key(tmp_path: Path) -> None:
    rows = np.column_stack([np.zeros(50), np.arange(50.0), np.ones(50)])
    source, first = store(tmp_path / "one.parquet", rows), set()
    for number in range(12):
        table = ingest(source, tmp_path / f"{number}.zarr", unit=WHO)
        first.add(float(units_in(table, [range(1)])[0][0, 0]))
    assert len(first) > 3  # twelve equal ones, or two or three values, are far below one in a billion


@pytest.mark.usefixtures("small_chunks")
def test_an_interrupted_ingest_goes_on_with_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = visits()
    source, taken = store(tmp_path / "visits.parquet", rows), []
    append = RowsWriter.append

    def dies(writer: RowsWriter, batch: Any, start: int | None = None) -> Any:
        taken.append(len(batch))
        if len(taken) == 30:
            raise KeyboardInterrupt
        return append(writer, batch, start)

    with monkeypatch.context() as patch:
        patch.setattr(RowsWriter, "append", dies)
        with pytest.raises(KeyboardInterrupt):
            ingest(source, tmp_path / "rows.zarr", unit=WHO)
    table = ingest(source, tmp_path / "rows.zarr", unit=WHO)
    found = units_in(table, [range(table.chunks)])
    assert sorted(tuple(sorted(unit[:, 0])) for unit in found) == sorted(
        tuple(rows[rows[:, 0] == unit, 1]) for unit in np.unique(rows[:, 0])
    )


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("fault", ["short", "flipped"])
def test_damaged_boundaries_are_refused(tmp_path: Path, fault: str) -> None:
    table = ingest(store(tmp_path / "visits.parquet", visits()), tmp_path / "rows.zarr", unit=WHO)
    path = tmp_path / "rows.zarr" / UNITS
    content = bytearray(path.read_bytes())
    assert path.stat().st_mode & 0o077 == 0
    content[3] ^= fault == "flipped"
    path.write_bytes(content[: -5 if fault == "short" else None])
    with pytest.raises(DataError, match="privacy units begin"):
        units_in(open_rows(table.store), [range(table.chunks)])
    assert "privacy units begin" in " ".join(inspect_path(tmp_path / "rows.zarr", verify=True).damaged or ())


def test_a_unit_larger_than_memory_is_refused_with_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = store(tmp_path / "visits.parquet", visits())
    monkeypatch.setattr(unit_rows, "_LARGEST", 8 * 2 * 100)
    with pytest.raises(DataError, match="A who has more than 100 rows") as refused:
        ingest(source, tmp_path / "rows.zarr", unit=WHO)
    assert "1" not in str(refused.value).replace("100", "")  # neither who nor how many
    assert not (tmp_path / "rows.zarr").exists()
    monkeypatch.setattr(unit_rows, "_LARGEST", 8 * 2 * 400)
    assert ingest(source, tmp_path / "rows.zarr", unit=WHO).rows == 650
    assert unit_rows.largest_unit(2) == 400


def test_only_the_unit_says_who_and_nothing_says_how_many(tmp_path: Path) -> None:
    said: list[str] = []
    ingest_rows(store(tmp_path / "v.parquet", visits()), tmp_path / "rows.zarr", privacy_unit="who", say=said.append)
    assert said == ["The privacy unit is who, with all rows of each, which are protected together."]
    assert {path.name for path in (tmp_path / "rows.zarr").iterdir()} == {"c", "units", "zarr.json"}
    head = json.loads((tmp_path / "rows.zarr" / "zarr.json").read_text())
    assert head["attributes"]["dpdist"]["unit"] == {"column": "who"}


@pytest.mark.parametrize("cell", ["", "NaN", "1.5"])
def test_a_row_without_a_unit_is_refused(tmp_path: Path, cell: str) -> None:
    (tmp_path / "t.csv").write_text(f"who,a,b\n1,2,3\n{cell},5,6\n")
    with pytest.raises(DataError):
        ingest_rows(tmp_path / "t.csv", tmp_path / "rows.zarr", privacy_unit="who", header="yes")


def test_one_unit_only_and_a_table_of_one_row(tmp_path: Path) -> None:
    pc.write_csv(pa.table({"who": [4, 4, 4], "a": [1.0, 2, 3], "b": [1.0, 1, 1]}), tmp_path / "one.csv")
    table = ingest(tmp_path / "one.csv", tmp_path / "one.zarr", unit=WHO, choices=Choices(header="yes"))
    assert [len(unit) for unit in units_in(table, [range(1)])] == [3]
    with pytest.raises(UsageError, match="keep"):
        Unit("who", None, "random")
    with pytest.raises(UsageError, match="max_periods"):
        Unit("who", None, max_periods=3)
    assert together.Gathered.full is False


def first_rows(folder: Path, rows: Table, secret: bytes, monkeypatch: pytest.MonkeyPatch) -> dict[float, float]:
    """Return the value ``a`` of the first row of each unit, by the value ``b`` of all its rows."""
    monkeypatch.setattr(write, "secret_of", lambda _: secret)
    source = folder / f"{len(list(folder.iterdir()))}.csv"
    source.write_text("who,a,b\n" + "".join(f"{who:.0f},{a:g},{b:g}\n" for who, a, b in rows))
    table = ingest(source, source.with_suffix(".zarr"), unit=WHO, choices=Choices(header="yes"))
    return {float(unit[0, 1]): float(unit[0, 0]) for unit in units_in(table, [range(table.chunks)])}


def test_the_row_of_a_unit_that_is_counted_does_not_depend_on_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one fraction of one unit makes the table float64 instead of uint8, in which -0 has another sign than 0
    rows = np.array([[unit, value, unit] for unit in range(1, 60) for value in (-0.0, 1.0, 2.0)])
    for secret in (SECRET, b"another" * 9):
        found = [first_rows(tmp_path, np.vstack([rows, [[99, 1, last]]]), secret, monkeypatch) for last in (99.0, 99.5)]
        assert all(abs(found[0][unit]) == abs(found[1][unit]) for unit in range(1, 60))
        assert set(map(abs, found[0].values())) == {0.0, 1.0, 2.0}  # not the same one of all units


def test_a_row_of_zeros_is_not_always_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.array([[unit, value, value and unit] for unit in range(1, 400) for value in (0.0, 1, 2, 3)])
    monkeypatch.setattr(write, "secret_of", lambda _: SECRET)
    table = ingest(store(tmp_path / "t.parquet", rows), tmp_path / "t.zarr", unit=WHO)
    zeros = np.mean([unit[0, 0] == 0 for unit in units_in(table, [range(table.chunks)])])
    assert 0.1 < zeros < 0.4  # 1/4 within 7 deviations


def test_rows_without_their_boundaries_are_not_opened(tmp_path: Path) -> None:
    table = ingest(store(tmp_path / "visits.parquet", visits()), tmp_path / "rows.zarr", unit=WHO)
    (tmp_path / "rows.zarr" / UNITS).unlink()
    with pytest.raises(DataError, match="privacy units begin"):
        open_rows(table.store)
