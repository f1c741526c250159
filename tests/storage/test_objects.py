"""What object stores promise: no half of a release is seen, a race has one winner, a fault has a sentence."""

from __future__ import annotations

import json
import pickle
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from faults.forks import Forks, forking
from faults.store_proxy import DENIED, EXPIRED, GONE, Answer, Proxy, store_proxy
from obstore.store import S3Store
from support.ledgers import losses
from support.s3_server import S3Server
from zarr.storage import ObjectStore as ZarrStore

from dpdist.cli import cli
from dpdist.errors import DataError, DpdistError, RefusedError, ResumableError, UsageError
from dpdist.ingest.registered import open_rows
from dpdist.ingest.write import ingest
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.pipeline.budget import create_ledger, ingest_rows
from dpdist.pipeline.release import release_rows
from dpdist.pipeline.sources import register_rows
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release.artefact import open_release
from dpdist.release.request import ReleaseRequest
from dpdist.rows import dataset
from dpdist.runtime.cluster import Cluster
from dpdist.storage import arrays, connections, objects
from dpdist.storage.objects import ObjectStore
from dpdist.storage.store import store_at

BUDGET, COST = PrivacyLoss.parse("3"), PrivacyLoss.parse("1")
REQUEST = ReleaseRequest("laplace", COST, 20.0, grid_bits=10)
ROWS = np.random.default_rng(7).integers(0, 9, (50, 4)).astype(np.uint8)


@dataclass
class Scene:
    """Rows in a bucket, a ledger in a folder, and what stands between them and the server."""

    folder: Path
    server: S3Server
    proxy: Proxy

    @property
    def at(self) -> str:
        return f"s3://private/{self.folder.name}"

    @property
    def rows(self) -> str:
        return f"{self.at}/rows.zarr"

    @property
    def target(self) -> str:
        return f"{self.at}/release.zarr"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "rows.ledger")

    @property
    def source(self) -> Path:
        return self.folder / "t.npy"

    def ingest(self) -> None:
        ingest_rows(self.source, self.rows, budget=BUDGET, ledger=self.folder / "rows.ledger")

    def release(self) -> bool:
        return release_rows(self.rows, self.target, REQUEST, ledger=self.folder / "rows.ledger").fresh

    def objects(self, name: str = "") -> dict[str, bytes]:
        """Return the objects below a place, as another client reads them."""
        inner = f"{self.folder.name}/{name}"
        keys = [key for key in self.server.keys("private") if key.startswith(inner)]
        read = self.server.client.get_object
        return {key.removeprefix(inner): read(Bucket="private", Key=key)["Body"].read() for key in keys}

    def require_one_release(self) -> None:
        """Check that one release was charged, committed and published, once."""
        ledger = self.ledger
        ledger.verify()
        (record,) = ledger.records
        assert (record.state, losses(ledger)) == (State.PUBLISHED, [COST])
        assert open_release(self.target).release_id == record.release_id


@pytest.fixture
def scene(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Give a place in a bucket; requests are not repeated, so that a fault is told at once."""
    monkeypatch.setattr(connections, "_RETRIES", {"max_retries": 0})
    monkeypatch.setattr(Cluster, "named", False)
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", ROWS.nbytes // 5)
    np.save(tmp_path / "t.npy", ROWS)
    with store_proxy(server.environment["AWS_ENDPOINT_URL"]) as proxy:
        for name, value in (server.environment | {"AWS_ENDPOINT_URL": proxy.url}).items():
            monkeypatch.setenv(name, value)
        yield Scene(tmp_path, server, proxy)


# --- what others see --------------------------------------------------------------------------------------------------


def plain(place: str) -> ZarrStore[S3Store]:
    """Return what another program reads a place by."""
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    return ZarrStore(S3Store(bucket, prefix=prefix, client_options={"allow_http": True}), read_only=True)


def test_plain_zarr_reads_rows_and_releases(scene: Scene) -> None:
    scene.ingest()
    assert scene.release()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ((_, rows),) = zarr.open_group(plain(scene.rows), mode="r").arrays()
        released = dict(zarr.open_group(plain(scene.target), mode="r").arrays())
    assert np.array_equal(np.asarray(rows[...]), ROWS)
    assert set(released) == {"lattice", "second_moment"}
    assert sorted(scene.objects("release.zarr")) == [
        ".lease", "/lattice/c/0/0", "/lattice/zarr.json", "/second_moment/c/0/0", "/second_moment/zarr.json",
        "/zarr.json",
    ]  # fmt: skip


def test_a_table_in_place_may_lie_in_a_store(scene: Scene) -> None:
    ledger = scene.folder / "rows.ledger"
    first, again = (register_rows(scene.source, scene.rows, budget=BUDGET, ledger=ledger) for _ in range(2))
    assert (first.rows, again.dataset_id) == (50, first.dataset_id)
    assert scene.release()
    scene.require_one_release()


def test_rows_in_a_store_are_no_source_of_other_rows(scene: Scene) -> None:
    scene.ingest()
    with pytest.raises(RefusedError, match="budget"):
        ingest_rows(scene.rows, scene.folder / "again.zarr", budget=BUDGET)


def test_a_store_says_nothing_of_credentials(scene: Scene) -> None:
    store = store_at(scene.rows)
    store.exists()
    for text in (repr(store), str(store), pickle.dumps(store).decode("latin-1")):
        assert "secretword" not in text
        assert "127.0.0.1" not in text
    assert len(pickle.dumps(store)) < 300


def test_an_address_is_written_in_one_way() -> None:
    assert store_at("S3://b/x.zarr/") == store_at("s3://b/x.zarr")
    for wrong in ("s3://", "s3:///x", "s3://b//x", "s3://b/../x", "s3://b/x?token=secretword", "s3://b/a\nb"):
        with pytest.raises(UsageError) as refused:
            store_at(wrong)
        assert "secretword" not in str(refused.value)


# --- once -------------------------------------------------------------------------------------------------------------


KEYS = ("c/0", "zarr.json")


def build(store: ObjectStore, identity: str, *, content: bytes = b"{}", fails: bool = False) -> None:
    with store.staged("release", identity=lambda: identity, keys=lambda: KEYS) as aside:
        aside.put("c/0", identity.encode())
        aside.put("zarr.json", content)
        if fails:
            raise ZeroDivisionError


def test_nothing_is_seen_before_the_root_and_another_identity_is_refused(scene: Scene) -> None:
    store = ObjectStore(scene.target)
    with pytest.raises(ZeroDivisionError):
        build(store, "one", fails=True)
    assert not store.exists()
    with pytest.raises(OSError, match=r"zarr\.json"):
        store.get("zarr.json")
    with pytest.raises(DataError, match="was begun as another release"):
        build(store, "two")
    build(store, "one")
    assert (store.get("c/0"), store.get("zarr.json")) == (b"one", b"{}")
    with pytest.raises(DataError, match="exists already"):
        build(store, "one")
    assert sorted(scene.objects("release.zarr")) == [".lease", "/c/0", "/zarr.json"]


def test_objects_that_others_put_at_a_place_become_no_part_of_a_release(scene: Scene) -> None:
    store = ObjectStore(scene.target)
    with pytest.raises(ZeroDivisionError):
        build(store, "one", fails=True)  # its leftovers are its own
    foreign = {"Bucket": "private", "Key": f"{scene.folder.name}/release.zarr/extra/zarr.json"}
    scene.server.client.put_object(**foreign, Body=b"{}")
    with pytest.raises(DataError, match=r"'extra/zarr\.json'"):
        build(store, "one")
    assert not store.exists()
    scene.server.client.delete_object(**foreign)
    build(store, "one")
    assert sorted(key for key, _ in store.list()) == list(KEYS)


def test_a_whole_bucket_is_not_deleted(scene: Scene) -> None:
    scene.server.client.put_object(Bucket="private", Key="zarr.json", Body=b"{}")
    with pytest.raises(UsageError, match="whole bucket"):
        ObjectStore("s3://private").delete()
    assert "zarr.json" in scene.server.keys("private")
    scene.server.client.delete_object(Bucket="private", Key="zarr.json")


def test_two_of_one_identity_at_once_leave_one(scene: Scene) -> None:
    store = ObjectStore(scene.target)
    with store.staged("release", identity=lambda: "one", keys=lambda: KEYS) as slow:
        slow.put("zarr.json", b"{}")
        build(store, "one")
        slow.put("c/0", b"one")
        slow.put("zarr.json", b"{}")
    assert store.get("zarr.json") == b"{}"
    assert sorted(scene.objects("release.zarr")) == [".lease", "/c/0", "/zarr.json"]


def test_a_pointer_that_was_created_though_the_answer_was_lost_is_taken(scene: Scene) -> None:
    """The request is repeated by the library, which is then told that the object exists already."""
    store = ObjectStore(scene.rows)
    with store.staged("rows") as aside:
        aside.put("x", b"1")
        assert isinstance(aside, ObjectStore)
        assert aside.folder is not None
        scene.server.client.put_object(
            Bucket="private", Key=f"{scene.folder.name}/rows.zarr/zarr.json", Body=pointer_of(aside.folder[-32:])
        )
    assert store.get("x") == b"1"


def pointer_of(prefix: str) -> bytes:
    """Return what points to a prefix."""
    said = {"attributes": {"dpdist": {"format": "dpdist-pointer/1", "prefix": prefix}}}
    return json.dumps(said | {"zarr_format": 3, "node_type": "group"}, indent=2).encode()


def test_rows_get_one_ledger_though_two_machines_ask_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ingest(scene.source, store_at(scene.rows), budget=BUDGET)
    asked: list[int] = []
    bind = arrays.set_attributes

    def late(*arguments: Any, **options: Any) -> None:
        """Another machine, which sees no lock of this one and has a state folder of its own, is faster."""
        if not asked:
            asked.append(1)
            monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "other"))
            create_ledger(tmp_path / "other.ledger", scene.rows)
        bind(*arguments, **options)

    monkeypatch.setattr(dataset, "set_attributes", late)
    monkeypatch.setattr(connections, "locked_here", nothing_held)
    with pytest.raises(ResumableError, match="meanwhile"):
        create_ledger(scene.folder / "rows.ledger", scene.rows)
    assert open_rows(scene.rows).ledger_id == Ledger(tmp_path / "other.ledger").ledger_id
    with pytest.raises(RefusedError):
        scene.release()
    assert losses(Ledger(scene.folder / "rows.ledger")) == []


def nothing_held(url: str) -> Any:
    """Hold nothing."""
    assert url
    return nullcontext()


def test_what_was_replaced_meanwhile_is_not_replaced(scene: Scene) -> None:
    store = ObjectStore(scene.rows)
    with store.staged("rows") as aside:
        aside.put("x", b"old")
    store.replace("x", b"new", "rows", expected=b"old")
    with pytest.raises(ResumableError, match="meanwhile"):
        store.replace("x", b"other", "rows", expected=b"old")
    key = f"{store.absolute().folder}/x"

    def faster(method: str, path: str) -> None:
        """Let another machine replace it between the comparison and the request."""
        if method == "PUT" and key in path:
            scene.server.client.put_object(Bucket="private", Key=key, Body=b"theirs")

    scene.proxy.fault = faster
    with pytest.raises(ResumableError, match="meanwhile"):
        store.replace("x", b"other", "rows", expected=b"new")
    assert store.get("x") == b"theirs"


@pytest.fixture(scope="module")
def forks(server: S3Server) -> Iterator[Forks]:
    """Give a process to fork commands from, which finds the server."""
    with forking(server.environment) as found:
        yield found


# --- death ------------------------------------------------------------------------------------------------------------


def test_a_release_killed_again_and_again_while_it_is_published_is_finished_by_the_same_command(
    scene: Scene, forks: Forks
) -> None:
    scene.ingest()
    arguments = [
        "release", scene.rows, scene.target, "--epsilon", "1", "--clip", "20", "--mechanism", "laplace", "--ledger",
        str(scene.folder / "rows.ledger"),
    ]  # fmt: skip
    words, digests = scene.folder / "words", set[str | None]()
    for number, point in enumerate(("with half of the objects", "before the root object", "after the root object")):
        marker = scene.folder / f"struck{number}"
        assert forks.start(words, ["kill", point, str(marker), "inline", *arguments]).wait() == -signal.SIGKILL
        assert marker.exists()
        there = point == "after the root object"
        assert store_at(scene.target).exists() is there
        (record,) = scene.ledger.records
        assert record.state is State.COMMITTED
        digests.add(record.digest)
        assert ("/zarr.json" in scene.objects("release.zarr")) is there
    published = scene.objects("release.zarr")
    for _ in range(2):
        assert forks.start(words, ["note", "", str(marker), "inline", *arguments]).wait() == 0, words.read_text()
        scene.require_one_release()
        assert digests == {scene.ledger.records[0].digest}
        assert scene.objects("release.zarr") == published
    assert "Traceback" not in words.read_text()


# --- a bad day --------------------------------------------------------------------------------------------------------


def never(method: str, path: str) -> None:
    """Let everything pass."""


def on(method: str, part: str, answer: Answer, *, after: int = 0) -> Callable[[str, str], Answer | None]:
    """Return a fault: requests of a method for a part of a path are answered otherwise, after so many."""
    count = iter(range(10**6))

    def fault(asked: str, path: str) -> Answer | None:
        return answer if asked == method and part in path and next(count) >= after else None

    return fault


FAULTS: tuple[tuple[Answer, type[DpdistError], str], ...] = (
    (DENIED, DataError, "the store denies it to these credentials"),
    (EXPIRED, DataError, "the store does not accept them any more"),
    (GONE, ResumableError, "ends connections"),
    ((503, "SlowDown"), ResumableError, "ends connections"),
)


def require_sentence(caught: BaseException) -> None:
    """Check that an error repeats nothing that the store or obstore said."""
    assert "secretword" not in str(caught)
    assert "127.0.0.1" not in str(caught)
    assert caught.__cause__ is caught.__context__ is None


def test_a_fault_while_rows_are_read_is_told_and_charges_nothing_twice(scene: Scene) -> None:
    scene.ingest()
    for answer, kind, said in FAULTS:
        scene.proxy.fault = on("GET", "/c/", answer, after=2)
        with pytest.raises(kind, match=said) as caught:
            scene.release()
        require_sentence(caught.value)
        assert not store_at(scene.target).exists()
        # where rows cannot be read nothing was drawn, and it is refunded; where it may go on, it stays charged
        assert losses(scene.ledger) == ([] if kind is DataError else [COST])
    scene.proxy.fault = never
    assert scene.release()
    scene.require_one_release()


def test_a_fault_while_a_release_is_published_is_told_and_the_same_command_publishes_it(scene: Scene) -> None:
    scene.ingest()
    parts = ("release.zarr.lease", "lattice/c", "release.zarr.root", "release.zarr/zarr.json")
    for part, (answer, kind, said) in zip(parts, FAULTS, strict=True):
        scene.proxy.fault = on("PUT", part, answer)
        with pytest.raises(kind, match=f"cannot be written.*{said}") as caught:
            scene.release()
        require_sentence(caught.value)
        assert not store_at(scene.target).exists()
        assert losses(scene.ledger) == [COST]
    scene.proxy.fault = never
    scene.release()
    scene.require_one_release()


def test_a_fault_while_rows_are_written_leaves_none(scene: Scene) -> None:
    for answer, kind, said in FAULTS:
        scene.proxy.fault = on("PUT", "/c/", answer, after=2)
        with pytest.raises(kind, match=said) as caught:
            scene.ingest()
        require_sentence(caught.value)
        assert "rows.zarr/zarr.json" not in scene.objects()
        if kind is not ResumableError:  # else the same goes on
            assert scene.objects() == {}
        assert not (scene.folder / "rows.ledger").exists()
    scene.proxy.fault = never
    scene.ingest()
    assert open_rows(scene.rows).rows == 50
    assert len({key.split("/")[1] for key in scene.objects()}) == 2  # the pointer, and one prefix


def test_where_there_is_no_bucket_it_is_told(scene: Scene) -> None:
    with pytest.raises(DataError, match="There is no bucket s3://absent"):
        open_rows("s3://absent/rows.zarr")
    with pytest.raises(DataError, match="There is no bucket s3://absent"):
        ingest(scene.source, store_at("s3://absent/rows.zarr"))


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


def test_a_ledger_is_not_bound_in_a_store_that_ignores_conditions(scene: Scene) -> None:
    ingest(scene.source, store_at(scene.rows), budget=BUDGET)
    objects._require_conditional.cache_clear()  # another process binds it
    scene.proxy.drop = frozenset({"if-match"})
    before = scene.objects()
    with pytest.raises(DataError, match=f"The store of {scene.at} does not replace an object only if it is unchanged"):
        create_ledger(scene.folder / "rows.ledger", scene.rows)
    assert scene.objects() == before
    assert open_rows(scene.rows).ledger_id is None


@pytest.mark.parametrize("name", ["HTTP_PROXY", "all_proxy"])
def test_no_proxy_sees_what_goes_to_a_store_on_this_machine(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.delenv("no_proxy", raising=False)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))  # nobody listens: what goes there fails
        monkeypatch.setenv(name, f"http://127.0.0.1:{other.getsockname()[1]}")
        connections._connected.cache_clear()  # a process of its own has no connection yet
        store = ObjectStore(scene.target)
        store.put("k", b"row")
        assert store.get("k") == b"row"


@pytest.mark.parametrize(("status", "scheme"), [(301, "https"), (307, "http")])
def test_a_plain_store_on_this_machine_sends_on_to_no_other(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, status: int, scheme: str
) -> None:
    """What would go to another machine goes where nobody listens; here somebody does, and takes note of it."""
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
        asked: list[Callable[[], object]] = [
            lambda: store.get("k"), lambda: store.put("k", b"row"), store.exists, lambda: [*store.list()],
        ]  # fmt: skip
        for each in asked:
            with pytest.raises(DpdistError, match=r"denies it|does not answer"):
                each()
        assert {path.startswith("http://192.0.2.1/private/") for _, path in nowhere.seen} <= {scheme == "http"}
        assert bool(nowhere.seen) == (scheme == "http")  # of the other the tunnel is refused
    connections._connected.cache_clear()


def test_plain_http_is_for_this_machine_only(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        for url in ("http://10.0.0.1:9000", "http://127.0.0.1.example.org", "HTTP://store.example.org"):
            monkeypatch.setenv(name, url)
            monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
            with pytest.raises(UsageError, match=f"{name} names is reached over http://"):
                store_at(scene.rows).exists()
            monkeypatch.delenv(name)


def test_a_missing_library_is_told_with_the_command_that_installs_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UsageError, match=r"pip install 'dpdist\[stores\]'"):
        store_at(scene.rows).exists()


def test_a_store_that_does_not_answer_is_no_damaged_release(scene: Scene) -> None:
    scene.ingest()
    scene.release()
    scene.proxy.fault = on("GET", "/second_moment/c/", GONE)
    with pytest.raises(ResumableError, match="ends connections"):
        open_release(scene.target)


def test_a_command_ends_with_the_code_of_its_fault(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.proxy.fault = on("GET", "", DENIED)
    ran = CliRunner().invoke(cli, ["inspect", scene.rows])
    assert isinstance(ran.exception, DataError)
    assert "secretword" not in ran.output + str(ran.exception) + "".join(capsys.readouterr())
