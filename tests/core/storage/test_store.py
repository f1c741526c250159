"""The contract of all stores: bytes under keys, published once and last, and the steps of dpdist on them."""

from __future__ import annotations

import pickle
import shutil
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from support.dithering import KEY
from support.parts import added, whole_of

from dpdist.answers.fitting import fit_components
from dpdist.core.errors import DataError, ResumableError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ingest.write import ingest
from dpdist.core.moment.total import MomentTask, complete, moment_task, partition_moment
from dpdist.core.pipeline.budget import create_ledger, default_ledger, periodic_table, verify_ledger
from dpdist.core.pipeline.inspect import inspect_path
from dpdist.core.pipeline.projection import scores_in_memory
from dpdist.core.pipeline.release import release_rows
from dpdist.core.pipeline.scores import project_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows import dataset
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.dataset import partitions
from dpdist.core.rows.writing import chunk_key
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage.store import FolderStore, Store, store_at

STORES = ("folder", "s3")
BOUND = RowBound(4, 30.0)
BUDGET = PrivacyLoss.parse("3")
REQUEST = ReleaseRequest("laplace", PrivacyLoss.parse("1"), 20.0, grid_bits=10)
ROWS = np.random.default_rng(7).integers(0, 9, (50, 4)).astype(np.uint8)
CHUNKS = 5


@pytest.fixture(params=STORES)
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return the parent of the stores of a test."""
    if request.param == "s3":
        for name, value in request.getfixturevalue("server").environment.items():
            monkeypatch.setenv(name, value)
    return store_at({"folder": str(tmp_path), "s3": f"s3://private/{tmp_path.name}"}[request.param])


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a file of rows that are stored in several chunks."""
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", ROWS.nbytes // CHUNKS)
    np.save(tmp_path / "source.npy", ROWS)
    return tmp_path / "source.npy"


def test_a_build_appears_at_the_end_with_all_its_objects(bucket: Store) -> None:
    store = bucket.within("a.zarr")
    with store.staged("rows") as staging:
        staging.put("zarr.json", b"{}")
        staging.put(chunk_key(0), b"first")
        staging.put(chunk_key(0), b"again, and longer")
        assert dict(staging.list("c")) == {chunk_key(0): 17}
        assert not store.exists()
        assert not store.exists("zarr.json")
    assert store.exists()
    assert store.exists("zarr.json")
    assert dict(store.list()) == {"zarr.json": 2, chunk_key(0): 17}
    assert (store.size(chunk_key(0)), store.get(chunk_key(0))) == (17, b"again, and longer")
    store.replace(chunk_key(0), b"new", "rows", private=True)
    store.replace("y", b"made", "rows")
    assert (store.get(chunk_key(0)), store.get("y")) == (b"new", b"made")
    store.delete()
    assert not store.exists()
    store.delete()


def test_an_object_is_read_in_parts_or_into_buffers(bucket: Store) -> None:
    store, buffer = bucket.within("a.zarr"), bytearray(4)
    for read in (store.size, store.get, store.opened):
        with pytest.raises(OSError, match="x"):
            read("x")
    with store.staged("rows") as staging:
        staging.put("x", b"abcdef")
    with store.opened("x") as file:
        assert file.readinto(memoryview(buffer)) == 4
        assert buffer == b"abcd"
        assert file.readinto(memoryview(buffer)) == 2
        assert buffer == b"efcd"
    assert (store.get_range("x", 0, 6), store.get_range("x", 2, 3)) == (b"abcdef", b"cde")
    for key, start, length in (("x", 2, 5), ("x", 6, 1), ("x", 9, 1), ("y", 0, 1)):
        with pytest.raises(OSError, match=rf"shorter|{key}"):
            store.get_range(key, start, length)
    with pytest.raises(OSError, match=r"MiB|x"):
        store.get("x", 5)


def test_the_next_builder_of_the_same_content_resumes_the_objects_of_a_dead_one(bucket: Store) -> None:
    store = bucket.within("a.zarr")
    for turn in range(3):
        with pytest.raises(ResumableError), store.staged("rows", resume=b"one") as staging:  # noqa: PT012 - it dies after that
            assert {key for key, _ in staging.list("work")} == {f"work/{i}" for i in range(turn)}
            staging.put(f"work/{turn}", b"done")
            staging.flush([f"work/{turn}"])
            raise ResumableError
        assert not store.exists()
    with store.staged("rows", resume=b"one") as staging:
        staging.put("zarr.json", b"{}")
        staging.put(chunk_key(0), b"chunk")
        staging.flush(["zarr.json", chunk_key(0)])
        staging.drop("work")
        staging.drop("nothing")
    assert dict(store.list()) == {"zarr.json": 2, chunk_key(0): 5}
    with pytest.raises(DataError, match="exists already"), store.staged("rows", resume=b"one"):
        pass


def test_other_failed_or_cleaned_builds_are_not_resumed(bucket: Store) -> None:
    store = bucket.within("a.zarr")
    deaths = (
        (b"one", ResumableError),
        (b"other", DataError),
        (b"other", KeyboardInterrupt),
        (b"other", ResumableError),
    )
    for identity, error in deaths:
        with pytest.raises(error), store.staged("rows", resume=identity) as staging:  # noqa: PT012 - it dies after that
            assert list(staging.list("work")) == []
            staging.put("zarr.json", b"{}")
            staging.put("work/0", b"done")
            raise error
        assert not store.exists()
    assert store.clean() == ()  # too young
    assert len(store.clean(0.0)) == 1
    with store.staged("rows", resume=b"other") as staging:
        assert list(staging.list("work")) == []
        staging.put("zarr.json", b"{}")
    assert dict(store.list()) == {"zarr.json": 2}
    assert store.clean(0.0) == ()


def test_of_two_builders_one_publishes_and_the_other_is_refused(bucket: Store) -> None:
    store = bucket.within("a.zarr")
    with pytest.raises(DataError, match="exists already"), store.staged("rows") as late:  # noqa: PT012
        late.put("x", b"late")
        with store.staged("rows") as early:
            early.put("x", b"early")
    assert store.get("x") == b"early"
    with pytest.raises(DataError, match="exists already"):
        store.require_new("rows")


def test_an_abandoned_build_is_removed_and_cannot_be_published(bucket: Store) -> None:
    store = bucket.within("a.zarr")
    with ExitStack() as stack:
        staging = stack.enter_context(store.staged("rows"))
        staging.put(chunk_key(0), b"rows")
        assert store.clean() == ()  # too young
        if isinstance(staging, FolderStore):
            assert store.clean(0) == ()  # the builder is alive and holds the lock
            shutil.copytree(staging.path, staging.path.with_name(".a.zarr.0123abcd.partial"))
        assert len(store.clean(0)) == 1
        assert store.clean(0) == ()
        if not isinstance(staging, FolderStore):
            with pytest.raises(ResumableError, match="Another process changed"):
                stack.close()
            assert not store.exists()
    if isinstance(staging, FolderStore):
        assert store.get(chunk_key(0)) == b"rows"


def test_a_lock_excludes_others(bucket: Store) -> None:
    store, order = bucket.within("a.zarr"), []

    def other() -> None:
        with store.locked():
            order.append("other")

    with store.staged("rows") as staging:
        staging.put("x", b"")
    thread = threading.Thread(target=other)
    with store.locked():
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "other"]


def test_a_store_is_equal_in_other_processes(bucket: Store) -> None:
    store = bucket.within("a.zarr").absolute()
    for same in (pickle.loads(pickle.dumps(store)), store_at(store.address()), store_at(store)):  # noqa: S301 - our own
        assert (same, hash(same), str(same)) == (store, hash(store), str(store))
    assert store.parent == bucket.absolute()


def test_rows_are_ingested_read_and_summed_and_a_damaged_chunk_is_an_error(bucket: Store, source: Path) -> None:
    table = ingest(source, bucket.within("rows.zarr"), compress=True)
    assert (table.store, table.chunks) == (bucket.within("rows.zarr").absolute(), CHUNKS)
    reader = ChunkReader(table, 3)
    read = [block.copy() for index in range(CHUNKS) for block in reader.read(index)]
    assert np.array_equal(np.concatenate(read), ROWS)
    sent: MomentTask = pickle.loads(pickle.dumps(moment_task(table, BOUND)))  # noqa: S301 - our own
    tasks = [sent.with_key(KEY.key).for_task(run) for run in partitions(table.chunks, 8)]
    total = complete(table, added(map(partition_moment, tasks)))
    elsewhere = ingest(source, source.with_name("elsewhere.zarr"))
    assert np.array_equal(total.values, partition_moment(whole_of(elsewhere, BOUND)).values)
    table.store.replace(chunk_key(2), table.store.get(chunk_key(2))[:-1], "rows")
    with pytest.raises(DataError, match=r"Chunk 2 of .*rows.zarr (is|was) (truncated|altered)"):
        list(ChunkReader(open_rows(table.store), 3).read(2))


def test_late_writes_to_a_failed_build_leave_nothing(tmp_path: Path) -> None:
    """A worker may still write after its pass has failed."""
    store = store_at(tmp_path / "a.zarr")
    with suppress(KeyError), store.staged("rows") as staging:
        staging.put("c/0/0", b"0")
        raise KeyError
    with pytest.raises(OSError, match="No such file"):
        staging.put("c/0/1", b"0")
    assert list(tmp_path.iterdir()) == []


def test_from_rows_to_scores(bucket: Store, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    kinds = ("rows", "release", "model", "scores")
    rows, release, model, scores = paths = [str(bucket.within(f"{name}.zarr")) for name in kinds]
    table, ledger = ingest(source, store_at(rows), budget=BUDGET), tmp_path / "rows.ledger"
    create_ledger(ledger, rows)
    assert open_rows(rows).ledger_id is not None
    first, again = (release_rows(rows, release, REQUEST, ledger=ledger) for _ in range(2))
    assert (first.fresh, again.fresh) == (True, False)
    assert str(again.path) == release
    verify_ledger(ledger, [release])
    fitted, _, fresh, *_ = fit_components(release, model, 2)
    assert fresh
    assert project_rows(rows, model, scores) == (50, True)
    assert project_rows(rows, model, scores) == (50, False)
    for path, kind in zip(paths, kinds, strict=True):
        facts = inspect_path(path, ledger=ledger, verify=True)
        assert (facts.kind, facts.damaged) == (kind, ())
    assert scores_in_memory(table, fitted.components).shape == (50, 2)


def test_invalid_locations_of_rows_and_ledgers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="need a folder"):  # nobody could hold periods against other machines
        periodic_table("s3://private/visits", BUDGET, tmp_path / "visits.ledger")
    with pytest.raises(UsageError) as refused:
        default_ledger("s3://bucket/rows.zarr")
    assert refused.value.parameter == "ledger"
    with pytest.raises(UsageError, match="is an address"):
        store_at("hdfs://bucket/rows.zarr")
    for rows in (np.ones((2, 2)), [1, 2], None):
        with pytest.raises(UsageError, match=r"NumPy first \(dpdist\.ingest_rows\)"):
            store_at(rows)  # type: ignore[arg-type]
    assert store_at("S3://b/x.zarr/") == store_at("s3://b/x.zarr")
    for wrong in ("s3://", "s3:///x", "s3://b//x", "s3://b/../x", "s3://b/x?token=secretword", "s3://b/a\nb"):
        with pytest.raises(UsageError) as refused:
            store_at(wrong)
        assert "secretword" not in str(refused.value)


@pytest.mark.parametrize("noun", ["rows", "release", "model", "scores"])
def test_a_folder_is_not_named_like_a_file(tmp_path: Path, noun: str) -> None:
    for name in ("t.csv", "t.Parquet", "t.npy"):
        with pytest.raises(UsageError, match=rf"would be a folder.*Name the {noun} .*t\.zarr"):
            store_at(tmp_path / name).require_new(noun)
    for name in ("t", "t.zarr", "csv", "2026.01", ".csv/t"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        store_at(tmp_path / name).require_new(noun)
