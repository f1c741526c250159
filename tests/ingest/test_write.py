"""Ingest by tasks: whoever writes which chunks, and whatever dies in between, the table is the same."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import stat
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.ingest_scene import SECRET, write_csv, write_npz, write_parquet
from support.memory_store import OBJECTS, MemoryStore

from dpdist.errors import DataError, ResumableError
from dpdist.ingest import survey, write
from dpdist.ingest.readers import columnar, npy, text, zarr_store
from dpdist.ingest.readers.base import Choices
from dpdist.ingest.survey import Job, Part, Run
from dpdist.ingest.write import Write, ingest, units_of
from dpdist.pipeline.budget import ingest_rows
from dpdist.pipeline.sources import computed
from dpdist.rows import dataset
from dpdist.rows.table import Shape
from dpdist.rows.units import KeptRows, Unit
from dpdist.rows.writing import RowsWriter, chunk_key
from dpdist.runtime.cluster import Cluster
from dpdist.storage import atomic
from dpdist.storage import store as stores
from dpdist.storage.store import Store, store_at

ROWS = 97
Before = Callable[[Job, int], object]


def values(rows: int = ROWS) -> Any:
    return np.random.default_rng(7).integers(0, 200, (rows, 3)) + 0.5


def small(monkeypatch: pytest.MonkeyPatch, piece: int = 300, chunk: int = 7 * 24) -> None:
    """Let a task take on a few rows, read in this process, and a chunk of the table hold seven of float64."""
    monkeypatch.setattr(survey, "PIECE", piece)
    for module in (survey, text):
        monkeypatch.setattr(module, "FRAGMENT", piece)
    for module in (npy, columnar, zarr_store):
        monkeypatch.setattr(module, "PIECE", 100)
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", chunk)


@dataclass
class Others:
    """Workers that take units in any order, some of them twice, each with nothing but what a task brings."""

    seed: int = 0
    before: Before = lambda _job, _unit: None
    done: list[tuple[str, int]] = field(default_factory=list)
    named: bool = True
    again: bool = True

    @contextmanager
    def connected(self, place: Store, choices: Choices) -> Iterator[Run]:
        def run(job: Job, units: Sequence[Any]) -> list[Any]:
            order, found = random.Random(self.seed), {}
            numbers = [*range(len(units)), *range(0, len(units) if self.again else 0, 3)]
            for number in order.sample(numbers, k=len(numbers)):
                self.before(job, number)
                self.done.append((job.name, number))
                found[number] = computed(*cloudpickle.loads(cloudpickle.dumps((units[number], (job, place, choices)))))
            return [found[number] for number in range(len(units))]

        yield run


def objects(place: Any) -> dict[str, Any]:
    """Return every object of a table, its random identity taken out."""
    store = store_at(place)
    found: dict[str, Any] = {key: store.get(key) for key, _ in store.list()}
    head = json.loads(found["zarr.json"])
    del head["attributes"]["dpdist"]["dataset_id"]
    return found | {"zarr.json": head}


def write_folder(path: Path, rows: Any, write: Callable[[Path, Any], None], suffix: str) -> None:
    path.mkdir()
    for number, part in enumerate(np.split(rows, [1, 30, 33, 70])):
        write(path / f"{number}.{suffix}", part)


def write_zarr(path: Path, rows: Any, **options: Any) -> None:
    zarr.create_array(path, shape=rows.shape, dtype=rows.dtype, **{"chunks": (10, 2), **options})[:] = rows


def write_keys(path: Path, rows: Any) -> None:
    for key in (3, 7):
        (path / f"year={key}").mkdir(parents=True)
        write_parquet(path / f"year={key}" / "t.parquet", rows[: 10 * key])


def write_mixed(path: Path, rows: Any) -> None:
    write_folder(path, rows, write_csv, "csv")
    write_parquet(path / "5.parquet", rows)
    write_npz(path / "6.npz", rows)


KINDS: dict[str, Callable[[Path, Any], Any]] = {
    "t.npy": np.save,
    "fortran.npy": lambda path, rows: np.save(path, np.asfortranarray(rows)),
    "t.npz": write_npz,
    "t.csv": write_csv,
    "t.csv.gz": write_csv,
    "t.parquet": write_parquet,
    "t.zarr": write_zarr,
    "sharded.zarr": lambda path, rows: write_zarr(path, rows, chunks=(5, 3), shards=(20, 3)),
    "keys": write_keys,
    "parquets": lambda path, rows: write_folder(path, rows, write_parquet, "parquet"),
    "texts": lambda path, rows: write_folder(path, rows, write_csv, "csv"),
    "packed": lambda path, rows: write_folder(path, rows, write_csv, "csv.gz"),
    "mixed": write_mixed,
}  # fmt: skip
WHOLE = {"t.npz", "t.csv.gz"}
"""Kinds of which nothing can be read by itself."""


def made(folder: Path, name: str, rows: Any = None) -> Path:
    KINDS[name](folder / name, values() if rows is None else rows)
    return folder / name


def serial(source: Path, target: Path, **options: Any) -> dict[str, Any]:
    ingest(source, target, **options)
    return objects(target)


# --- the same bytes ---


@pytest.mark.parametrize("name", KINDS)
def test_the_table_is_the_same_whoever_reads_which_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source = made(tmp_path, name)
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 7 * 24)
    alone = serial(source, tmp_path / "alone.zarr")
    assert len(alone) > 10
    small(monkeypatch, 700)
    assert serial(source, tmp_path / "here.zarr") == alone
    small(monkeypatch, 400)
    others = Others()
    assert serial(source, tmp_path / "there.zarr", elsewhere=others) == alone
    assert bool(others.done) == (name not in WHOLE)
    found = [path for path in tmp_path.rglob("*") if path.name.startswith(".")]
    assert found == []


def test_what_is_written_is_what_zarr_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 7 * 24)
    for compress in (False, True):
        made_here = ingest(
            made(tmp_path, f"{'t' if compress else 'fortran'}.npy"), tmp_path / f"{compress}.zarr", compress=compress
        )
        shutil.copytree(made_here.path, tmp_path / "copy.zarr")
        array = zarr.open_array(tmp_path / "copy.zarr", mode="r+")
        array[:] = np.zeros_like(values())
        array[:] = values()
        assert objects(tmp_path / "copy.zarr") == objects(made_here.path)
        shutil.rmtree(tmp_path / "copy.zarr")


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("most", [1, 3])
def test_rows_of_units_and_compressed_ones_are_the_same_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, compress: bool
) -> None:
    rows = values().astype(np.int32)
    rows[:, 0] = np.random.default_rng(1).integers(0, 40, ROWS)
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 7 * 8)
    options: dict[str, Any] = {"unit": Unit("alpha", most), "compress": compress}
    source = made(tmp_path, "parquets", rows)
    alone = serial(source, tmp_path / "alone.zarr", **options)
    small(monkeypatch, 80, 7 * 8)
    others = Others()
    assert serial(source, tmp_path / "there.zarr", elsewhere=others, **options) == alone
    assert ("write", 3) in others.done


def test_files_of_whole_numbers_are_judged_together_wherever_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, (low, high) in enumerate([(0, 100), (-5, 127), (3, 4)]):
        (folder / f"{number}.csv").write_text(f"{low},{high}\n" * 20)
    small(monkeypatch)
    choices = Choices(header="no")
    assert ingest(folder, tmp_path / "rows.zarr", choices=choices, elsewhere=Others()).dtype == "int8"


def test_a_table_is_private_while_it_is_built_and_holds_nothing_of_the_building(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    seen: set[int] = set()

    def look(_job: Job, _unit: int) -> None:
        for path in tmp_path.glob(".rows.zarr.*/**/*"):
            seen.add(stat.S_IMODE(path.stat().st_mode) & 0o077)

    before = os.umask(0)
    try:
        ingest(made(tmp_path, "parquets"), tmp_path / "rows.zarr", elsewhere=Others(before=look))
    finally:
        os.umask(before)
    assert seen == {0}
    found = [tmp_path / "rows.zarr", *(tmp_path / "rows.zarr").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in found} == {0}
    assert {path.name for path in (tmp_path / "rows.zarr").iterdir()} == {"c", "zarr.json"}


COUNTS = st.lists(st.integers(1, 30), min_size=1, max_size=6)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_units_write_each_chunk_once_of_the_rows_that_it_has(
    monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(survey, "PIECE", data.draw(st.integers(1, 60)))
    parts, total = list[Part](), 0
    for number, counts in enumerate(data.draw(st.lists(COUNTS, min_size=1, max_size=4))):
        whole_file = len(counts) == 1
        for first, count in zip(np.cumsum([0, *counts]).tolist(), counts, strict=False):
            parts.append(Part(number, None if whole_file else (first, first + count), first, count))
        total += sum(counts)
    kept = None
    if data.draw(st.booleans()):
        kept = KeptRows(total)
        kept.add(np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=total, max_size=total))))
    mask = np.ones(total, dtype=bool) if kept is None else kept.among(0, total)
    whole = np.arange(2 * total).reshape(total, 2).astype(np.int32)
    shape = Shape(int(mask.sum()), 2, "int32", data.draw(st.integers(1, 12)))
    begins = {part[:2]: row for part, row in zip(parts, np.cumsum([0, *(p.rows for p in parts)]), strict=False)}
    units = units_of(parts, shape, kept, data.draw(st.sampled_from([None, 8])))
    with MemoryStore("memory://once").staged("rows") as aside:
        written: list[str] = []
        for unit in data.draw(st.permutations(units)):
            writer, target, row = RowsWriter(aside, shape, unit.first, unit.stop), unit.target, unit.row
            for part in unit.parts:
                fragment = None if part.fragment is None else (part.first, part.first + part.rows)
                begin = next(
                    at
                    for (source, known), at in begins.items()
                    if source == part.source and (known is None or (fragment is not None and known[0] == fragment[0]))
                )
                assert row == begin
                some = whole[row : row + part.rows][mask[row : row + part.rows]]
                writer.append(some, target)
                target, row = target + len(some), row + part.rows
            assert writer.full
            written += writer.keys
        assert (
            sorted(written) == sorted(chunk_key(index) for index in range(shape.chunks)) if shape.rows else not written
        )
        chunks = [
            np.frombuffer(aside.get(key)[:-4], np.int32).reshape(-1, 2) for key in map(chunk_key, range(shape.chunks))
        ]
    MemoryStore("memory://once").delete()
    stored = np.concatenate([np.empty((0, 2), np.int32), *chunks])
    assert np.array_equal(stored[: shape.rows], whole[mask])
    assert not stored[shape.rows :].any()


# --- what is wrong ---


def said_of(source: Path, target: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        ingest(source, target, **options)
    assert str(SECRET) not in str(caught.value)
    assert caught.value.__context__ is None
    assert not target.exists()
    return str(caught.value)


@pytest.mark.parametrize("name", ["t.npy", "t.zarr", "t.csv", "mixed"])
def test_the_first_fault_is_told_in_the_same_words_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    rows = values()
    rows[5] = SECRET
    for place in (96, 61, 62, 90):
        rows[place, 1] = np.nan if place % 2 else np.inf
    source = made(tmp_path, name, rows)
    before = sorted(tmp_path.rglob("*"))
    alone = said_of(source, tmp_path / "rows.zarr")
    small(monkeypatch)
    assert said_of(source, tmp_path / "rows.zarr") == alone
    there = said_of(source, tmp_path / "rows.zarr", elsewhere=Others(3))
    assert (
        "the value is not finite" in there or "is not a number" in there or "missing" in there
    )  # whichever came first
    assert sorted(tmp_path.rglob("*")) == before


def test_a_relative_source_is_named_as_it_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    rows = values()
    rows[61, 1] = np.nan
    made(tmp_path, "parquets", rows)
    monkeypatch.chdir(tmp_path)
    said = said_of(Path("parquets"), tmp_path / "rows.zarr", elsewhere=Others())
    assert said.startswith("parquets/3.parquet, row 28 ")


def test_files_that_do_not_belong_together_are_refused_and_questions_are_asked_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    source = made(tmp_path, "parquets")
    pq.write_table(pa.table({"a": [1.0], "b": [SECRET]}), source / "9.parquet")
    assert "9.parquet has other columns than" in said_of(source, tmp_path / "rows.zarr", elsewhere=Others())
    (tmp_path / "in").mkdir()
    for number in range(9):
        (tmp_path / "in" / f"{number}.csv").write_text(f"1{number},{SECRET}\n" * 20)
    assert "header" in said_of(tmp_path / "in", tmp_path / "rows.zarr", elsewhere=Others())


@pytest.mark.parametrize("name", ["t.npy", "t.parquet", "t.zarr", "texts"])
def test_a_source_that_changes_on_the_way_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    small(monkeypatch)
    others = values()
    others[90, 2] += 1
    for late in (False, True):
        source = made(tmp_path, name)

        seen: list[int] = []

        def change(job: Job, unit: int, source: Path = source, late: int = 2 * late, seen: list[int] = seen) -> None:
            seen += [unit] if job.name == "write" else []
            if len(seen) == 1 + late and not (tmp_path / "changed").exists():
                shutil.rmtree(source) if source.is_dir() else source.unlink()
                made(tmp_path, name, others)
                (tmp_path / "changed").touch()

        said = said_of(source, tmp_path / "rows.zarr", elsewhere=Others(before=change))
        assert "changed while it was read" in said
        (tmp_path / "changed").unlink()
        shutil.rmtree(source) if source.is_dir() else source.unlink()
        assert list(tmp_path.iterdir()) == []


def test_a_chunk_of_a_file_that_changed_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was given up writes on: into an object store, where it cannot be kept from it. It must see the change."""
    small(monkeypatch)
    source = made(tmp_path, "t.npy")
    written: list[str] = []
    put = stores.FolderStore.put

    def noted(self: Any, key: str, content: Any) -> None:
        written.append(key)
        put(self, key, content)

    def change(job: Job, _unit: int) -> None:
        if job.name == "write" and not written:
            os.utime(source)
            monkeypatch.setattr(stores.FolderStore, "put", noted)

    said_of(source, tmp_path / "rows.zarr", elsewhere=Others(before=change))
    assert not written


# --- what dies ---


def die_at(name: str, unit: int) -> Before:
    def die(job: Job, number: int) -> None:
        if (job.name, number) == (name, unit):
            raise ResumableError("gone")

    return die


def die_after(count: int) -> Before:
    left = iter(range(count))

    def die(job: Job, _unit: int) -> None:
        if job.name == "write" and next(left, None) is None:
            raise ResumableError("gone")

    return die


@pytest.mark.parametrize("place", ["folder", "memory"])
@pytest.mark.parametrize("name", ["parquets", "texts", "t.npy"])
def test_a_second_run_does_not_do_again_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    monkeypatch.setitem(stores.SCHEMES, "memory", MemoryStore)
    small(monkeypatch)
    target: Any = tmp_path / "rows.zarr" if place == "folder" else store_at(f"memory://{tmp_path.name}/rows.zarr")
    source = made(tmp_path, name)
    alone = serial(source, tmp_path / "alone.zarr")
    written: list[str] = []
    kind: Any = type(store_at(target))
    put = kind.put

    def noted(self: Any, key: str, content: Any) -> None:
        written.append(key)
        put(self, key, content)

    monkeypatch.setattr(kind, "put", noted)
    runs = 0
    while not store_at(target).exists():
        others, runs = Others(runs, die_after(2), again=False), runs + 1
        with suppress(ResumableError):
            ingest(source, target, elsewhere=others)
    chunks = [key for key in written if key.startswith("c/")]
    assert len(chunks) == len(set(chunks)) == len([key for key in alone if key.startswith("c/")])
    assert runs > 1
    assert objects(target) == alone
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    OBJECTS.clear()


def killed(action: Callable[[], object]) -> int:
    """Do something in a process of its own that dies, and return its code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_an_ingest_that_was_killed_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    source = made(tmp_path, "parquets")
    alone = serial(source, tmp_path / "alone.zarr")
    write_one: Any = RowsWriter._write

    def kill_at(count: int) -> Callable[..., Any]:
        seen: list[int] = []

        def written(self: RowsWriter, index: int) -> None:
            write_one(self, index)
            seen.append(index)
            if len(seen) == count:
                os.kill(os.getpid(), signal.SIGKILL)

        return written

    for count in (2, 4):
        monkeypatch.setattr(RowsWriter, "_write", kill_at(count))
        assert killed(lambda: ingest(source, tmp_path / "rows.zarr")) == -signal.SIGKILL
        assert len(list(tmp_path.glob(".rows.zarr.*.partial"))) == 1
    (damaged,) = tmp_path.glob(".rows.zarr.*.partial/c/1/0")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    monkeypatch.setattr(RowsWriter, "_write", write_one)
    put, written = stores.FolderStore.put, list[str]()

    def noted(self: Any, key: str, content: Any) -> None:
        written.append(key)
        put(self, key, content)

    monkeypatch.setattr(stores.FolderStore, "put", noted)
    told: list[tuple[int, int]] = []
    ingest(source, tmp_path / "rows.zarr", progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (ROWS, ROWS)
    every = {key for key in alone if key.startswith("c/")}
    assert [key for key in written if key.startswith("c/")] == sorted(
        every - {"c/0/0", "c/2/0", "c/3/0"}, key=lambda key: int(key.split("/")[1])
    )
    assert objects(tmp_path / "rows.zarr") == alone
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.zarr", "parquets", "rows.zarr"]


@pytest.mark.parametrize("moment", ["head", "drop", "publish"])
def test_one_that_was_killed_at_its_end_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    small(monkeypatch)
    source = made(tmp_path, "t.npy")
    alone = serial(source, tmp_path / "alone.zarr")
    where = {
        "head": (stores.FolderStore, "put", "zarr.json"), "drop": (stores.FolderStore, "drop", "work"),
        "publish": (atomic, "sync", ""),
    }[moment]  # fmt: skip
    original = getattr(*where[:2])

    def dies(*arguments: Any) -> None:
        original(*arguments)
        whole = not where[2] and (arguments[0] / "zarr.json").exists() and not (arguments[0] / "work").exists()
        if whole or (where[2] and where[2] in arguments):
            os.kill(os.getpid(), signal.SIGKILL)

    def dying() -> None:
        setattr(*where[:2], dies)
        ingest(source, tmp_path / "rows.zarr")

    assert killed(dying) == -signal.SIGKILL
    monkeypatch.setattr(Write, "__call__", None)
    ingest(source, tmp_path / "rows.zarr")
    assert objects(tmp_path / "rows.zarr") == alone


def test_another_source_or_another_question_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    source = made(tmp_path, "t.npy")
    for change in ({"columns": ["c1", "c0"]}, {"compress": True}, {}):
        with pytest.raises(ResumableError):
            ingest(source, tmp_path / "rows.zarr", elsewhere=Others(before=die_at("write", 4)))
        (left,) = tmp_path.glob(".rows.zarr.*.partial")
        if not change:
            os.utime(source)
        others = Others()
        ingest(source, tmp_path / "rows.zarr", elsewhere=others, **change)
        assert ("write", 0) in others.done
        assert not left.exists()
        shutil.rmtree(tmp_path / "rows.zarr")


def test_what_somebody_else_may_have_put_there_is_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    source = made(tmp_path, "t.npy")
    with pytest.raises(ResumableError):
        ingest(source, tmp_path / "rows.zarr", elsewhere=Others(before=die_at("write", 4)))
    (left,) = tmp_path.glob(".rows.zarr.*.partial")
    left.chmod(0o755)
    others = Others()
    ingest(source, tmp_path / "rows.zarr", elsewhere=others)
    assert ("write", 0) in others.done


def test_of_two_at_once_the_second_waits_and_takes_the_table_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    source, order = made(tmp_path, "t.npy"), []
    begun, go = threading.Event(), threading.Event()
    do: Any = Write.__call__

    def slow(self: Write, *arguments: Any) -> None:
        order.append(threading.current_thread().name)
        begun.set()
        assert go.wait(60)
        do(self, *arguments)

    monkeypatch.setattr(Write, "__call__", slow)
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(ingest_rows(source, tmp_path / "rows.zarr").dataset_id), name=name)
        for name in ("first", "second")
    ]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    threads[1].join(0.5)
    assert threads[1].is_alive()
    go.set()
    for each in threads:
        each.join(60)
    assert len(found) == 2
    assert len(set(found)) == 1
    assert set(order) == {"first"}


def test_a_worker_that_comes_late_does_not_touch_a_table_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stores.SCHEMES, "memory", MemoryStore)
    small(monkeypatch)
    late: list[Any] = []
    write_unit: Any = Write.__call__

    def noted(self: Write, opener: Any, unit: Any, told: Any) -> None:
        late.append((self, opener, unit, told))
        write_unit(self, opener, unit, told)

    monkeypatch.setattr(Write, "__call__", noted)
    source, target = made(tmp_path, "t.npy"), store_at(f"memory://{tmp_path.name}/late.zarr")
    ingest(source, target, elsewhere=Others())
    before = objects(target)
    made(tmp_path, "t.npy", values() + 1)
    assert late
    for arguments in late:
        with suppress(DataError, ResumableError, OSError):
            write_unit(*arguments)
    assert objects(target) == before
    OBJECTS.clear()


def test_what_a_worker_puts_where_nobody_builds_any_more_it_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of somebody else's cluster ends its unit when the command is gone, and a store has no folder to lose."""
    monkeypatch.setitem(stores.SCHEMES, "memory", MemoryStore)
    small(monkeypatch)
    kept: list[Any] = []
    write_unit: Any = Write.__call__

    def interrupted(self: Write, *arguments: Any) -> None:
        kept.append((self, *arguments))
        raise KeyboardInterrupt

    source, target = made(tmp_path, "t.npy"), store_at(f"memory://{tmp_path.name}/rows.zarr")
    for removes in (True, False):  # and a twin that does not look
        with monkeypatch.context() as patch:
            patch.setattr(Write, "__call__", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ingest(source, target, elsewhere=Others())
        assert not any(OBJECTS.values())
        with suppress(DataError):
            (write_unit if removes else Write._write)(*kept[-1])
        assert any(OBJECTS.values()) is not removes
        OBJECTS.clear()


# --- who computes ---


def test_workers_are_asked_where_they_are_named_or_worth_it_and_there_is_something_to_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    source = made(tmp_path, "t.npy")

    def asked(**options: Any) -> bool:
        others = Others(**options)
        ingest(source, tmp_path / "rows.zarr", elsewhere=others)
        shutil.rmtree(tmp_path / "rows.zarr")
        return bool(others.done)

    assert not asked(named=True)  # one piece
    small(monkeypatch)
    assert asked(named=True)
    assert not asked(named=False)
    monkeypatch.setattr(write, "LARGE", 1000)
    assert asked(named=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert not asked(named=False)


def test_a_packed_file_that_workers_cannot_share_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    told: list[str] = []
    others = Others()
    ingest(made(tmp_path, "t.csv.gz"), tmp_path / "rows.zarr", elsewhere=others, say=told.append)
    assert others.done == []
    (said,) = [each for each in told if "in parts" in each]
    assert str(tmp_path / "t.csv.gz") in said
    told.clear()
    ingest(tmp_path / "t.csv.gz", tmp_path / "alone.zarr", say=told.append)
    assert not [each for each in told if "in parts" in each]


def test_workers_of_a_cluster_write_the_same_table_and_one_may_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two workers one is killed on the way, and replaced."""
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 7 * 24)
    source, target = made(tmp_path, "mixed"), tmp_path / "rows.zarr"
    alone = serial(source, tmp_path / "alone.zarr")
    small(monkeypatch)
    struck: list[int] = []

    def strike() -> None:
        while not target.exists() and not struck:
            if len(list(tmp_path.glob(".rows.zarr.*/c/*/0"))) > 2:
                worker = next(each for each in multiprocessing.active_children() if each.pid is not None)
                worker.kill()
                struck.append(worker.pid or 0)

    thread = threading.Thread(target=strike)
    thread.start()
    with Cluster(workers=2).kept() as cluster:
        ingest_rows(source, target, cluster=cluster)
        thread.join()
        assert struck
        assert objects(target) == alone
        assert objects(ingest_rows(source, tmp_path / "again.zarr", cluster=cluster).path) == alone
