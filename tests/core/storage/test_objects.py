"""Object stores: partial releases are invisible, a race has one winner, and errors are reported in a sentence."""

from __future__ import annotations

import itertools
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from faults.store_proxy import DENIED, EXPIRED, GONE, Answer, Proxy, store_proxy
from obstore.store import S3Store
from support.ledgers import DiedError, dies, losses
from support.s3_server import S3Server
from zarr.storage import ObjectStore as ZarrStore

from dpdist.core.errors import DataError, DpdistError, RefusedError, ResumableError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ingest.write import ingest
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.pipeline.budget import create_ledger
from dpdist.core.pipeline.release import release_rows
from dpdist.core.pipeline.sources import ingest_rows, register_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.opening import open_release
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows import dataset
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage import arrays, bucket, connections
from dpdist.core.storage.objects import ObjectStore
from dpdist.core.storage.store import store_at

BUDGET, COST = PrivacyLoss.parse("3"), PrivacyLoss.parse("1")
REQUEST = ReleaseRequest("laplace", COST, 20.0, grid_bits=10)
ROWS = np.random.default_rng(7).integers(0, 9, (50, 4)).astype(np.uint8)


@dataclass
class Scene:
    """Rows in a bucket, a ledger in a folder, and a proxy in front of the server."""

    folder: Path
    server: S3Server
    proxy: Proxy

    def __post_init__(self) -> None:
        self.at = f"s3://private/{self.folder.name}"
        self.rows, self.target = f"{self.at}/rows.zarr", f"{self.at}/release.zarr"
        self.place, self.source = self.folder / "rows.ledger", self.folder / "t.npy"

    def ingest(self) -> None:
        ingest_rows(self.source, self.rows, budget=BUDGET, ledger=self.place)

    def release(self) -> bool:
        return release_rows(self.rows, self.target, REQUEST, ledger=self.place).fresh

    def objects(self, name: str = "") -> dict[str, bytes]:
        inner = f"{self.folder.name}/{name}"
        keys = [key for key in self.server.keys("private") if key.startswith(inner)]
        read = self.server.client.get_object
        return {key.removeprefix(inner): read(Bucket="private", Key=key)["Body"].read() for key in keys}

    def require_one_release(self) -> None:
        ledger = Ledger(self.place)
        ledger.verify()
        (record,) = ledger.records
        assert (record.state, losses(ledger)) == (State.PUBLISHED, [COST])
        assert open_release(self.target).release_id == record.release_id


@pytest.fixture
def scene(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(connections, "_RETRIES", {"max_retries": 0})  # report faults at once
    monkeypatch.setattr(Cluster, "named", False)
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", ROWS.nbytes // 5)
    np.save(tmp_path / "t.npy", ROWS)
    with store_proxy(server.environment["AWS_ENDPOINT_URL"]) as proxy:
        for name, value in (server.environment | {"AWS_ENDPOINT_URL": proxy.url}).items():
            monkeypatch.setenv(name, value)
        yield Scene(tmp_path, server, proxy)


def test_plain_zarr_reads_rows_and_releases(scene: Scene) -> None:
    def group(address: str) -> zarr.Group:
        bucket, _, prefix = address.removeprefix("s3://").partition("/")
        store = S3Store(bucket, prefix=prefix, client_options={"allow_http": True})
        return zarr.open_group(ZarrStore(store, read_only=True), mode="r")

    scene.ingest()
    assert scene.release()
    ((_, rows),) = group(scene.rows).arrays()
    released = dict(group(scene.target).arrays())
    assert np.array_equal(np.asarray(rows[...]), ROWS)
    assert set(released) == {"lattice", "second_moment"}
    assert sorted(scene.objects("release.zarr")) == [
        ".lease", "/lattice/c/0/0", "/lattice/zarr.json", "/second_moment/c/0/0", "/second_moment/zarr.json",
        "/zarr.json",
    ]  # fmt: skip


def test_a_registered_table_may_be_in_a_store(scene: Scene) -> None:
    first, again = (register_rows(scene.source, scene.rows, budget=BUDGET, ledger=scene.place) for _ in range(2))
    assert (first.rows, again.dataset_id) == (50, first.dataset_id)
    assert scene.release()
    scene.require_one_release()


def test_blocks_of_a_collection_are_written_to_the_store_and_read_from_there(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "_WHOLE", 5 << 20)  # the first block is sent in two parts
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 1 << 20)
    rows = np.random.default_rng(3).normal(size=(40_000, 20))
    ingest_rows(da.from_array(rows, chunks=(35_000, 20)), scene.rows)
    assert np.array_equal(read_rows(scene.rows), rows)
    assert not [key for key in scene.objects("rows.zarr") if "work" in key]
    before = sorted(scene.folder.iterdir())
    rows[39_999, 7] = np.nan
    with pytest.raises(DataError, match=r"Block 1 .*row 4999 \(counting from 0\), column 'c7'.*not finite"):
        ingest_rows(da.from_array(rows, chunks=(35_000, 20)), f"{scene.at}/bad.zarr")
    deadline, left = time.monotonic() + 60, None
    while left != {} and time.monotonic() < deadline:  # a thread that was given up writes its block, and then drops it
        time.sleep(0.05)
        with suppress(Exception):  # an object that vanished between its listing and its reading
            left = scene.objects("bad.zarr")
    assert (left, sorted(scene.folder.iterdir())) == ({}, before)


def test_a_frame_with_units_is_written_to_the_store_and_read_from_there(scene: Scene) -> None:
    frame = pd.DataFrame({"who": ["a", "b", "a", "c", "a", "b"], "x": np.arange(6.0), "y": np.ones(6)})
    schema = Schema([Column("who", "privacy unit"), Column("x", "number"), Column("y", "number")], max_rows=2)
    for number, source in enumerate((frame, dd.from_pandas(frame, npartitions=2))):
        table = ingest_rows(source, f"{scene.at}/{number}.zarr", schema=schema)
        assert table.unit == schema.unit
        np.testing.assert_array_equal(read_rows(f"{scene.at}/{number}.zarr")[:, 0], [0, 1, 2, 3, 5])


def read_rows(address: str) -> Any:
    table = open_rows(address)
    reader = ChunkReader(table, table.chunk_rows)
    return np.concatenate([piece.copy() for index in range(table.chunks) for piece in reader.read(index)])


def test_a_store_contains_no_credentials(scene: Scene) -> None:
    store = store_at(scene.rows)
    store.exists()
    for text in (repr(store), str(store), pickle.dumps(store).decode("latin-1")):
        assert "secretword" not in text
        assert "127.0.0.1" not in text


KEYS = ("c/0", "zarr.json")


def build(store: ObjectStore, identity: str, *, fails: bool = False) -> None:
    with store.staged("release", identity=lambda: identity, keys=lambda: KEYS) as staging:
        staging.put("c/0", identity.encode())
        staging.put("zarr.json", b"{}")
        if fails:
            raise ZeroDivisionError


def test_nothing_is_visible_before_the_root_and_no_other_identity_or_foreign_object_becomes_part(scene: Scene) -> None:
    store = ObjectStore(scene.target)
    with pytest.raises(ZeroDivisionError):
        build(store, "one", fails=True)
    assert not store.exists()
    with pytest.raises(OSError, match=r"zarr\.json"):
        store.get("zarr.json")
    with pytest.raises(DataError, match="was started as another release"):
        build(store, "two")
    foreign = {"Bucket": "private", "Key": f"{scene.folder.name}/release.zarr/extra/zarr.json"}
    scene.server.client.put_object(**foreign, Body=b"{}")
    with pytest.raises(DataError, match=r"'extra/zarr\.json'"):
        build(store, "one")
    assert not store.exists()
    scene.server.client.delete_object(**foreign)
    build(store, "one")  # its own leftovers are accepted
    assert (store.get("c/0"), store.get("zarr.json")) == (b"one", b"{}")
    with pytest.raises(DataError, match="exists already"):
        build(store, "one")
    assert sorted(scene.objects("release.zarr")) == [".lease", "/c/0", "/zarr.json"]


def test_concurrent_builders_of_one_identity_publish_one_release(scene: Scene) -> None:
    store = ObjectStore(scene.target)
    with store.staged("release", identity=lambda: "one", keys=lambda: KEYS) as slow:
        slow.put("zarr.json", b"{}")
        build(store, "one")
        slow.put("c/0", b"one")
        slow.put("zarr.json", b"{}")
    assert store.get("zarr.json") == b"{}"
    assert sorted(scene.objects("release.zarr")) == [".lease", "/c/0", "/zarr.json"]


def test_rows_get_one_ledger_if_two_machines_create_one_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ingest(scene.source, store_at(scene.rows), budget=BUDGET)
    bind = arrays.set_attributes

    def late(*arguments: Any, **options: Any) -> None:
        """Another machine without this lock and state folder is faster."""
        monkeypatch.setattr(dataset, "set_attributes", bind)
        monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "other"))
        create_ledger(tmp_path / "other.ledger", scene.rows)
        bind(*arguments, **options)

    monkeypatch.setattr(dataset, "set_attributes", late)
    monkeypatch.setattr(connections, "locked_here", lambda _: nullcontext())
    with pytest.raises(ResumableError, match="Another process changed"):
        create_ledger(scene.place, scene.rows)
    assert open_rows(scene.rows).ledger_id == Ledger(tmp_path / "other.ledger").ledger_id
    with pytest.raises(RefusedError):
        scene.release()
    assert losses(Ledger(scene.place)) == []


def test_a_concurrent_replacement_is_not_overwritten(scene: Scene) -> None:
    store = ObjectStore(scene.rows)
    with store.staged("rows") as staging:
        staging.put("x", b"old")
    store.replace("x", b"new", "rows", expected=b"old")
    with pytest.raises(ResumableError, match="Another process changed"):
        store.replace("x", b"other", "rows", expected=b"old")
    key = f"{store.absolute().folder}/x"

    def faster(method: str, path: str) -> None:
        """Let another machine replace it between the comparison and the request."""
        if method == "PUT" and key in path:
            scene.server.client.put_object(Bucket="private", Key=key, Body=b"theirs")

    scene.proxy.fault = faster
    with pytest.raises(ResumableError, match="Another process changed"):
        store.replace("x", b"other", "rows", expected=b"new")
    assert store.get("x") == b"theirs"


def on(method: str, part: str, answer: Answer, *, after: int = 0) -> Callable[[str, str], Answer | None]:
    """Return a fault: after ``after`` requests of a method for a part of a path, send another answer."""
    count = itertools.count()
    return lambda requested, path: answer if requested == method and part in path and next(count) >= after else None


FAULTS: tuple[tuple[Answer, type[DpdistError], str], ...] = (
    (DENIED, DataError, "the store denies access to these credentials"),
    (EXPIRED, DataError, "the store does not accept them"),
    (GONE, ResumableError, "keeps closing connections"),
    ((503, "SlowDown"), ResumableError, "keeps closing connections"),
)


@contextmanager
def told(kind: type[DpdistError], message: str) -> Iterator[None]:
    """Check the message of an error, which must not quote the store or obstore."""
    with pytest.raises(kind, match=message) as caught:
        yield
    assert not any(word in str(caught.value) for word in ("secretword", "127.0.0.1"))
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_fault_while_rows_are_read_is_reported_and_charges_nothing_twice(scene: Scene) -> None:
    scene.ingest()
    for answer, kind, message in FAULTS:
        scene.proxy.fault = on("GET", "/c/", answer, after=2)
        with told(kind, message):
            scene.release()
        assert not store_at(scene.target).exists()
        # if rows cannot be read, it is refunded; if it can be resumed, it stays charged
        assert losses(Ledger(scene.place)) == ([] if kind is DataError else [COST])
    scene.proxy.fault = lambda *_: None
    assert scene.release()
    scene.require_one_release()


def test_a_fault_during_publication_is_reported_and_the_same_command_publishes_it(scene: Scene) -> None:
    scene.ingest()
    parts = ("release.zarr.lease", "lattice/c", "release.zarr.root", "release.zarr/zarr.json")
    for part, (answer, kind, message) in zip(parts, FAULTS, strict=True):
        scene.proxy.fault = on("PUT", part, answer)
        with told(kind, f"cannot be written.*{message}"):
            scene.release()
        assert not store_at(scene.target).exists()
        assert losses(Ledger(scene.place)) == [COST]
    scene.proxy.fault = lambda *_: None
    with mock.patch.object(Ledger, "published", dies), pytest.raises(DiedError):  # the root object is there by then
        scene.release()
    assert store_at(scene.target).exists()
    scene.release()
    scene.require_one_release()
    scene.proxy.fault = on("GET", "/second_moment/c/", GONE)
    with pytest.raises(ResumableError, match="keeps closing connections"):  # not damaged
        open_release(scene.target)


def test_a_fault_while_rows_are_written_leaves_none(scene: Scene) -> None:
    for answer, kind, message in FAULTS:
        scene.proxy.fault = on("PUT", "/c/", answer, after=2)
        with told(kind, message):
            scene.ingest()
        assert "rows.zarr/zarr.json" not in scene.objects()
        if kind is not ResumableError:  # otherwise the same command resumes
            assert scene.objects() == {}
        assert not (scene.place).exists()
    scene.proxy.fault = lambda *_: None
    scene.ingest()
    assert open_rows(scene.rows).rows == 50
    assert len({key.split("/")[1] for key in scene.objects()}) == 2  # the pointer, and one prefix


@pytest.mark.parametrize(
    ("drop", "tags", "said"),
    [
        (frozenset({"if-none-match"}), False, "create an object only if it is absent"),
        (frozenset({"if-match"}), False, "replace an object only if it is unchanged"),
        (frozenset(), True, "replace an object only if it is unchanged"),
    ],
)
def test_a_store_without_conditions_is_refused_and_named(
    scene: Scene, drop: frozenset[str], said: str, *, tags: bool
) -> None:
    scene.proxy.drop, scene.proxy.tags = drop, tags
    with pytest.raises(DataError, match=f"The store of {scene.at} does not {said}"):
        scene.ingest()
    assert scene.objects() == {}
    if drop == {"if-match"}:  # a ledger is not bound there either
        scene.proxy.drop = frozenset()
        ingest(scene.source, store_at(scene.rows), budget=BUDGET)
        bucket._require_conditional.cache_clear()  # as in another process
        scene.proxy.drop, before = drop, scene.objects()
        with pytest.raises(DataError, match=f"The store of {scene.at} does not {said}"):
            create_ledger(scene.place, scene.rows)
        assert scene.objects() == before


@pytest.mark.parametrize(("status", "scheme", "proxy"), [(301, "https", "HTTP_PROXY"), (307, "http", "all_proxy")])
def test_a_plain_store_on_this_machine_uses_no_proxy_and_sends_on_to_no_other(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, status: int, scheme: str, proxy: str
) -> None:
    """Redirects to another machine go to a dead proxy, which records them in this test."""
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv(proxy, "http://127.0.0.1:1")
    monkeypatch.setattr(connections, "_RETRIES", {"max_retries": 0, "retry_timeout": timedelta(seconds=5)})
    with store_proxy(connections._NOWHERE) as nowhere:
        nowhere.fault = lambda *_: DENIED
        monkeypatch.setattr(connections, "_NOWHERE", nowhere.url)
        connections._connected.cache_clear()
        store = ObjectStore(scene.target)
        store.put("k", b"row")
        assert store.get("k") == b"row"
        assert nowhere.seen == []
        scene.proxy.fault = lambda *_: (status, f"{scheme}://192.0.2.1")
        requests: list[Callable[[], object]] = [
            lambda: store.get("k"), lambda: store.put("k", b"row"), store.exists, lambda: [*store.list()],
        ]  # fmt: skip
        for request in requests:
            with pytest.raises(DpdistError, match=r"denies access|does not answer"):
                request()
        assert {path.startswith("http://192.0.2.1/private/") for _, path in nowhere.seen} <= {scheme == "http"}
        assert bool(nowhere.seen) == (scheme == "http")  # the tunnel of the other is refused
    connections._connected.cache_clear()


def test_plain_http_is_for_this_machine_only(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        for url in ("http://10.0.0.1:9000", "http://127.0.0.1.example.org", "HTTP://store.example.org"):
            monkeypatch.setenv(name, url)
            with pytest.raises(UsageError, match=f"{name} gives is unencrypted"):
                store_at(scene.rows).exists()
        monkeypatch.delenv(name)


def test_a_missing_library_or_bucket_is_reported(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for use in (open_rows, lambda address: ingest(scene.source, store_at(address))):
        with pytest.raises(DataError, match="There is no bucket s3://absent"):
            use("s3://absent/rows.zarr")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[stores\]'"):
        store_at(scene.rows).exists()
