"""Ingest by tasks: no matter who writes which chunks, and what dies in between, the table is the same."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ingest_scene import SECRET, Others, stored, write_csv, write_npz, write_parquet
from support.memory_store import OBJECTS, MemoryStore

from dpdist.core.errors import DataError, ResumableError
from dpdist.core.ingest import survey, write
from dpdist.core.ingest.readers import columnar, npy, text, zarr_store
from dpdist.core.ingest.survey import Job
from dpdist.core.ingest.write import Write, ingest
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.rows import dataset
from dpdist.core.rows.units import Unit
from dpdist.core.rows.writing import RowsWriter
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage import atomic
from dpdist.core.storage import store as stores
from dpdist.core.storage.store import store_at

ROWS = 97
Before = Callable[[Job, int], object]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a task take on a few rows, read in this process, and a chunk of the table hold seven of float64."""
    for module, name, size in [
        (survey, "PIECE", 300),
        *((module, "FRAGMENT", 300) for module in (survey, text)),
        *((module, "PIECE", 100) for module in (npy, columnar, zarr_store)),
        (dataset, "_TARGET_CHUNK", 7 * 24),
    ]:
        monkeypatch.setattr(module, name, size)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give a place that cannot rename a folder."""
    monkeypatch.setitem(stores.SCHEMES, "memory", MemoryStore)
    yield store_at(f"memory://{tmp_path.name}/rows.zarr")
    OBJECTS.clear()


def values(rows: int = ROWS) -> Any:
    return np.random.default_rng(7).integers(0, 200, (rows, 3)) + 0.5


def objects(path: Any) -> dict[str, Any]:
    """Return every object of a table, its random identity taken out."""
    store = store_at(path)
    contents: dict[str, Any] = {key: store.get(key) for key, _ in store.list()}
    head = json.loads(contents["zarr.json"])
    del head["attributes"]["dpdist"]["dataset_id"]
    return contents | {"zarr.json": head}


def write_folder(path: Path, rows: Any, write: Callable[[Path, Any], None], suffix: str) -> None:
    path.mkdir()
    for number, part in enumerate(np.split(rows, [1, 30, 33, 70])):
        write(path / f"{number}.{suffix}", part)


def write_keys(path: Path, rows: Any) -> None:
    for key in (3, 7):
        (path / f"year={key}").mkdir(parents=True)
        write_parquet(path / f"year={key}" / "t.parquet", rows[: 10 * key])


def write_mixed(path: Path, rows: Any) -> None:
    write_folder(path, rows, write_csv, "csv")
    write_parquet(path / "5.parquet", rows)
    write_npz(path / "6.npz", rows + 1)


KINDS: dict[str, Callable[[Path, Any], Any]] = {
    "t.npy": np.save,
    "fortran.npy": lambda path, rows: np.save(path, np.asfortranarray(rows)),
    "t.csv": write_csv,
    "t.csv.gz": write_csv,
    "t.parquet": write_parquet,
    "t.zarr": lambda path, rows: zarr.create_array(path, data=rows, chunks=(10, 2)),
    "sharded.zarr": lambda path, rows: zarr.create_array(path, data=rows, chunks=(5, 3), shards=(20, 3)),
    "keys": write_keys,
    "parquets": lambda path, rows: write_folder(path, rows, write_parquet, "parquet"),
    "texts": lambda path, rows: write_folder(path, rows, write_csv, "csv"),
    "mixed": write_mixed,
}


def made(folder: Path, name: str, rows: Any = None) -> Path:
    KINDS[name](folder / name, values() if rows is None else rows)
    return folder / name


def serial(source: Path, target: Path, **options: Any) -> dict[str, Any]:
    ingest(source, target, **options)
    return objects(target)


# --- the same bytes ---


@pytest.mark.parametrize("name", KINDS)
def test_any_reader_of_any_piece_gives_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    source = made(tmp_path, name)
    with monkeypatch.context() as patch:
        for module in (survey, npy, columnar, zarr_store):
            patch.setattr(module, "PIECE", 1 << 20)
        alone = serial(source, tmp_path / "alone.zarr")
    assert len(alone) > 10
    assert serial(source, tmp_path / "here.zarr") == alone
    others = Others()
    assert serial(source, tmp_path / "there.zarr", elsewhere=others) == alone
    assert bool(others.done) == (name != "t.csv.gz")  # it cannot be read in parts
    assert [path for path in tmp_path.rglob("*") if path.name.startswith(".")] == []


@pytest.mark.parametrize("compress", [False, True])
def test_what_is_written_is_what_zarr_writes(tmp_path: Path, compress: bool) -> None:
    written = ingest(made(tmp_path, "fortran.npy"), tmp_path / "rows.zarr", compress=compress)
    shutil.copytree(written.path, tmp_path / "copy.zarr")
    array = zarr.open_array(tmp_path / "copy.zarr", mode="r+")
    array[:] = np.zeros_like(values())
    array[:] = values()
    assert objects(tmp_path / "copy.zarr") == objects(written.path)


@settings(max_examples=20)
@given(data=st.data())
def test_any_chunks_keep_the_first_rows_of_units(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder, most = tmp_path_factory.mktemp("any"), data.draw(st.integers(1, 3))
    lengths = data.draw(st.lists(st.integers(1, 25), min_size=1, max_size=4))
    owners = data.draw(st.lists(st.integers(0, 9), min_size=sum(lengths), max_size=sum(lengths)))
    rows = np.stack([owners, np.arange(len(owners)), np.arange(len(owners)) % 3], axis=1)
    (folder / "in").mkdir()
    for number, part in enumerate(np.split(rows, np.cumsum(lengths)[:-1])):
        write_parquet(folder / "in" / f"{number}.parquet", part)
    options: dict[str, Any] = {"unit": Unit("alpha", most), "compress": data.draw(st.booleans())}
    tables: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_TARGET_CHUNK", data.draw(st.integers(16, 300)))
        for others in (None, Others(data.draw(st.integers(0, 99)))):
            patch.setattr(survey, "PIECE", data.draw(st.integers(20, 600)))
            tables.append(serial(folder / "in", folder / f"{len(tables)}.zarr", elsewhere=others, **options))
    assert tables[0] == tables[1]
    expected = [list(row[1:]) for at, row in enumerate(rows) if owners[:at].count(owners[at]) < most]
    assert stored(folder / "1.zarr").tolist() == expected


def test_a_table_is_private_while_it_is_built_and_holds_nothing_of_the_building(tmp_path: Path) -> None:
    modes: set[int] = set()

    def look(_job: Job, _unit: int) -> None:
        for path in tmp_path.glob(".rows.zarr.*/**/*"):
            modes.add(stat.S_IMODE(path.stat().st_mode) & 0o077)

    before = os.umask(0)
    try:
        ingest(made(tmp_path, "parquets"), tmp_path / "rows.zarr", elsewhere=Others(before=look))
    finally:
        os.umask(before)
    paths = [tmp_path / "rows.zarr", *(tmp_path / "rows.zarr").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in paths} == modes == {0}
    assert {path.name for path in (tmp_path / "rows.zarr").iterdir()} == {"c", "zarr.json"}


# --- errors ---


def said_of(source: Path, target: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        ingest(source, target, **options)
    assert str(SECRET) not in str(caught.value)
    assert caught.value.__context__ is None
    assert not target.exists()
    return str(caught.value)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("name", ["t.npy", "t.zarr", "texts"])
@pytest.mark.parametrize("late", [0, 2])
def test_a_source_that_changes_on_the_way_is_refused(tmp_path: Path, name: str, late: int) -> None:
    others = values()
    others[90, 2] += 1
    source, counts = made(tmp_path, name), list[int]()

    def change(job: Job, unit: int) -> None:
        counts.extend([unit] if job.name == "write" else [])
        if len(counts) == 1 + late and not (tmp_path / "changed").exists():
            remove(source)
            made(tmp_path, name, others)
            (tmp_path / "changed").touch()

    assert "changed while it was read" in said_of(source, tmp_path / "rows.zarr", elsewhere=Others(before=change))
    assert {path.name for path in tmp_path.iterdir()} == {"changed", name}


def noted(patch: pytest.MonkeyPatch, kind: Any = stores.FolderStore) -> list[str]:
    """Record the keys that are put into a store."""
    written: list[str] = []
    put = kind.put

    def note(self: Any, key: str, content: Any) -> None:
        written.append(key)
        put(self, key, content)

    patch.setattr(kind, "put", note)
    return written


def test_a_chunk_of_a_file_that_changed_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was given up writes on: into an object store, where it cannot be kept from it. It must see the change."""
    source = made(tmp_path, "t.npy")
    written: list[list[str]] = []

    def change(job: Job, _unit: int) -> None:
        if job.name == "write" and not written:
            os.utime(source)
            written.append(noted(monkeypatch))

    said_of(source, tmp_path / "rows.zarr", elsewhere=Others(before=change))
    assert written == [[]]


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


@pytest.mark.parametrize(("name", "place"), [("parquets", "folder"), ("texts", "memory"), ("t.npy", "memory")])
def test_a_second_run_does_not_do_again_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Any, name: str, place: str
) -> None:
    target = store_at(tmp_path / "rows.zarr") if place == "folder" else memory
    source = made(tmp_path, name)
    alone = serial(source, tmp_path / "alone.zarr")
    written = noted(monkeypatch, type(target))
    runs = 0
    while not target.exists():
        others, runs = Others(runs, die_after(2), again=False), runs + 1
        with suppress(ResumableError):
            ingest(source, target, elsewhere=others)
    chunks = [key for key in written if key.startswith("c/")]
    assert len(chunks) == len(set(chunks)) == len([key for key in alone if key.startswith("c/")])
    assert runs > 1
    assert objects(target) == alone
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


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
    written, steps = noted(monkeypatch), list[tuple[int, int]]()
    ingest(source, tmp_path / "rows.zarr", progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (ROWS, ROWS)
    every = {key for key in alone if key.startswith("c/")}
    assert {key for key in written if key.startswith("c/")} == every - {"c/0/0", "c/2/0", "c/3/0"}
    assert objects(tmp_path / "rows.zarr") == alone
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.zarr", "parquets", "rows.zarr"]


@pytest.mark.parametrize("moment", ["head", "drop", "publish"])
def test_one_killed_at_its_end_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    source = made(tmp_path, "t.npy")
    alone = serial(source, tmp_path / "alone.zarr")
    where: tuple[Any, str] = {
        "head": (stores.FolderStore, "put"), "drop": (stores.FolderStore, "drop"), "publish": (atomic, "sync"),
    }[moment]  # fmt: skip
    original = getattr(*where)

    def dies(*arguments: Any) -> None:
        original(*arguments)
        path = arguments[0]
        if moment == "publish" and (path / "zarr.json").exists() and not (path / "work").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if moment != "publish" and {"zarr.json", "work"} & set(map(str, arguments[1:2])):
            os.kill(os.getpid(), signal.SIGKILL)

    def dying() -> None:
        setattr(*where, dies)
        ingest(source, tmp_path / "rows.zarr")

    assert killed(dying) == -signal.SIGKILL
    monkeypatch.setattr(Write, "__call__", None)
    ingest(source, tmp_path / "rows.zarr")
    assert objects(tmp_path / "rows.zarr") == alone


@pytest.mark.parametrize(
    "change",
    [
        {"columns": ["c1", "c0"]}, {"compress": True}, {"budget": PrivacyLoss.parse(1, 1e-6)}, "source",
        "put by somebody else",
    ],
)  # fmt: skip
def test_another_source_or_another_question_begins_anew(tmp_path: Path, change: Any) -> None:
    source = made(tmp_path, "t.npy")
    with pytest.raises(ResumableError):
        ingest(source, tmp_path / "rows.zarr", elsewhere=Others(before=die_at("write", 4)))
    (left,) = tmp_path.glob(".rows.zarr.*.partial")
    if change == "source":
        os.utime(source)
    elif isinstance(change, str):
        left.chmod(0o755)
    others = Others()
    ingest(source, tmp_path / "rows.zarr", elsewhere=others, **(change if isinstance(change, dict) else {}))
    assert ("write", 0) in others.done


def test_of_two_at_once_the_second_takes_the_first_s_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, order, errors = made(tmp_path, "t.npy"), set[str](), list[str]()
    started, go = threading.Event(), threading.Event()
    do: Any = Write.__call__

    def slow(*arguments: Any) -> None:
        order.add(threading.current_thread().name)
        started.set()
        assert go.wait(60)
        do(*arguments)

    def take() -> None:
        errors.append(ingest_rows(source, tmp_path / "rows.zarr").dataset_id)

    monkeypatch.setattr(Write, "__call__", slow)
    first, second = (threading.Thread(target=take, name=name) for name in ("first", "second"))
    first.start()
    assert started.wait(60)
    second.start()
    second.join(0.5)
    assert second.is_alive()
    go.set()
    for thread in (first, second):
        thread.join(60)
    assert len(errors) == 2
    assert (len(set(errors)), order) == (1, {"first"})


def test_a_late_worker_leaves_a_table_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Any) -> None:
    late: list[Any] = []
    write_unit: Any = Write.__call__

    def noted(*arguments: Any) -> None:
        late.append(arguments)
        write_unit(*arguments)

    monkeypatch.setattr(Write, "__call__", noted)
    ingest(made(tmp_path, "t.npy"), memory, elsewhere=Others())
    before = objects(memory)
    made(tmp_path, "t.npy", values() + 1)
    assert late
    for arguments in late:
        with suppress(DataError, ResumableError, OSError):
            write_unit(*arguments)
    assert objects(memory) == before


def test_a_worker_removes_its_objects_if_the_build_has_ended(tmp_path: Path, memory: Any) -> None:
    """A worker of a shared cluster finishes its task after the command has died, and a store keeps its objects."""
    tasks: list[Any] = []
    write_unit: Any = Write.__call__

    def interrupted(*arguments: Any) -> None:
        tasks.append(arguments)
        raise KeyboardInterrupt

    for removes in (True, False):  # and a twin that does not look
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Write, "__call__", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ingest(made(tmp_path, "t.npy"), memory, elsewhere=Others())
        assert not any(OBJECTS.values())
        with suppress(DataError):
            (write_unit if removes else Write._write)(*tasks[-1])
        assert any(OBJECTS.values()) is not removes


# --- who computes ---


def test_workers_are_asked_where_they_can_share_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made(tmp_path, "t.npy")
    for named, cores, size, large, asked in (
        (True, 2, 1 << 20, 1 << 20, False),  # one piece
        (True, 2, 300, 1 << 20, True),
        (False, 2, 300, 1 << 20, False),
        (False, 2, 300, 1000, True),
        (False, 1, 300, 1000, False),
    ):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        monkeypatch.setattr(survey, "PIECE", size)
        monkeypatch.setattr(write, "LARGE", large)
        others = Others(named=named)
        ingest(source, tmp_path / "rows.zarr", elsewhere=others)
        shutil.rmtree(tmp_path / "rows.zarr")
        assert bool(others.done) is asked


def test_a_cluster_writes_the_same_table_if_a_worker_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two workers one is killed on the way, and replaced."""
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 7 * 24)
    source, target = made(tmp_path, "mixed"), tmp_path / "rows.zarr"
    alone = serial(source, tmp_path / "alone.zarr")

    struck: list[int] = []

    def strike() -> None:
        while not target.exists() and not struck:
            if len(list(tmp_path.glob(".rows.zarr.*/c/*/0"))) > 2:
                worker = next(child for child in multiprocessing.active_children() if child.pid is not None)
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
