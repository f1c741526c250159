"""A cluster is what the user has of it: his client or the object that made it. It stays his, and is heard by nobody."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, default_client
from distributed.comm.registry import backends
from distributed.comm.tcp import TLSBackend
from distributed.core import Status
from distributed.security import Security
from distributed.versions import VersionMismatchWarning
from sklearn.base import clone
from support.estimator_scene import ingested, table

import dpdist
from dpdist import Cluster, PrivatePCA
from dpdist.errors import DataError, RefusedError, ResumableError, UsageError
from dpdist.moment.layout import PROCESS_BYTES, Layout, layout_of
from dpdist.moment.total import add_partials, complete, moment_task, partition_moment
from dpdist.rows import dataset
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import partitions
from dpdist.rows.table import Shape
from dpdist.runtime import connection, workers
from dpdist.runtime.connection import connected
from dpdist.runtime.work import Each, Work
from dpdist.triangle import Band
from faults.packages import missing
from faults.waiting import until

QUIET = {"dashboard_address": "127.0.0.1:0", "processes": False}
KEPT = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}
LOSS = dpdist.PrivacyLoss.parse("1", "1e-6")
REQUEST = dpdist.ReleaseRequest("gaussian", LOSS, clip_norm=8)
pytestmark = pytest.mark.filterwarnings("ignore:Rows of the same number and kind were released")


@contextmanager
def cluster(count: int = 1, **options: Any) -> Iterator[LocalCluster]:
    """Start a cluster as a user does, of workers that are threads of this process; they keep sums in memory."""
    place = {"host": "127.0.0.1"} if "protocol" in options else {}  # else nothing listens
    with (
        dask.config.set(KEPT),
        LocalCluster(n_workers=count, **{"threads_per_worker": 1, **QUIET, **place, **options}) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def plain() -> Iterator[LocalCluster]:
    with cluster(2, protocol="tcp://") as made:
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 1)
    monkeypatch.setattr(workers, "WORKER_SECONDS", 1)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return ingested(table(), tmp_path)


def release(rows: Path, given: Any, **options: Any) -> Any:
    where = Cluster(client=given, **options)
    return dpdist.release_rows(rows, rows.parent / "release.zarr", REQUEST, cluster=where)


# What may be given


@pytest.mark.parametrize("kind", ["client", "cluster"])
def test_a_release_is_computed_where_the_client_or_the_cluster_object_computes(
    plain: LocalCluster, rows: Path, kind: str
) -> None:
    with Client(plain, set_as_default=False) as client:
        before = len(plain.scheduler.transition_log)
        assert release(rows, client if kind == "client" else plain).fresh
        assert [each for each in list(plain.scheduler.transition_log)[before:] if each[2] == "processing"]


def test_it_stays_the_users(plain: LocalCluster) -> None:
    with Client(plain, set_as_default=True) as client:
        future, processes = client.submit(abs, -7), client.run(id, None)
        for given in (client, plain):
            with Cluster(client=given).connected() as started:
                started.map(Work("test", _nothing, Each(), [1]), "Working")
                assert default_client() is client
            with pytest.raises(ZeroDivisionError), Cluster(client=given).connected():
                raise ZeroDivisionError
        assert client.status == "running"
        assert plain.status == Status.running
        assert future.result() == 7
        assert client.run(id, None).keys() == processes.keys()
        until(lambda: set(plain.scheduler.clients) - {"fire-and-forget"} == {client.id})  # and nothing of ours is left
        assert set(plain.scheduler.tasks) == {future.key}


def _nothing(_: int) -> None:
    pass


def test_threads_share_the_memory_of_their_worker() -> None:
    with cluster(1, threads_per_worker=4, memory_limit="2 GiB") as made, connected(client=made) as started:
        assert (started.memory, started.threads) == (2 << 30, 4)
    table, bound = Shape(10**6, 3000, "float32", 1000), RowBound(3000, 1.0)
    whole = Layout(table, bound, 1, (Band.whole(3000),), threads=4)
    one = Layout(table, bound, 1, (Band.whole(3000),))
    assert whole.worker_bytes - PROCESS_BYTES > 2.5 * (one.worker_bytes - PROCESS_BYTES)
    for divisible in (False, True):
        found = layout_of(table, bound, 1, 600 << 20, divisible=divisible, threads=4)
        assert found.worker_bytes <= 600 << 20
        assert found.threads < 4
        assert len(found.bands) == 1 or divisible


def test_threads_of_a_worker_add_the_bits_that_one_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 1000 * 40)
    rng, names = np.random.default_rng(0), tuple(f"c{i}" for i in range(40))
    with dataset.created(tmp_path / "rows.zarr", rows=32_000, dtype="float64", names=names, budget=None) as writer:
        for _ in range(32):
            writer.append(rng.normal(size=(1000, 40)))
    table, bound = dpdist.open_rows(tmp_path / "rows.zarr"), RowBound(40, 7.0)
    task = moment_task(table, bound)
    alone = complete(table, partition_moment(task))
    with cluster(1, threads_per_worker=8) as made, connected(client=made) as started:
        work = Work("sum", partition_moment, task, partitions(table.chunks, 32), add_partials, started.threads)
        found = started.reduce(work, partial(complete, table), label=None)
    assert found.rows == alone.rows
    assert np.array_equal(found.values, alone.values)


def test_threads_of_this_process_are_a_cluster_too(rows: Path) -> None:
    with cluster() as made:
        assert made.scheduler_address.startswith("inproc://")
        assert release(rows, made).fresh


def test_a_cluster_with_a_client_is_copied_with_an_estimator(plain: LocalCluster) -> None:
    where = Cluster(client=plain)
    assert copy.deepcopy(where) is where
    assert clone(PrivatePCA(2, epsilon=1, delta=1e-6, clip=8, cluster=where)).cluster is where
    assert where == Cluster(client=plain) != Cluster()
    assert "client=LocalCluster(" in repr(where)
    with pytest.raises(UsageError, match="cannot be sent to another process"):
        pickle.dumps(where)
    assert pickle.loads(pickle.dumps(Cluster(workers=2))) == Cluster(workers=2)  # noqa: S301 - written here
    assert where.named


@pytest.mark.parametrize("given", ["tls://127.0.0.1:8786", LocalCluster, object(), 7])
def test_anything_else_is_refused_in_a_sentence(given: Any) -> None:
    with pytest.raises(UsageError, match=r"client takes a dask\.distributed\.Client or a cluster object"):
        Cluster(client=given)


def test_it_goes_by_its_own_name_and_alone(plain: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Cluster\(client=\.\.\.\)"):
        Cluster(plain)
    keys = dpdist.Certificates(tmp_path, tmp_path, tmp_path)
    for others in ({"scheduler": "tcp://127.0.0.1:1"}, {"workers": 2}, {"certificates": keys}):
        with pytest.raises(UsageError, match="give either client, or the others"):
            Cluster(client=plain, **others)


@pytest.mark.parametrize("call", ["release", "estimator", "project", "bound", "audit"])
def test_one_in_the_place_of_a_cluster_is_told_how_to_be_given(plain: LocalCluster, rows: Path, call: str) -> None:
    where: Any = plain
    calls: dict[str, Callable[[], Any]] = {
        "release": lambda: dpdist.release_rows(rows, rows.parent / "r.zarr", REQUEST, cluster=where),
        "estimator": lambda: PrivatePCA(2, epsilon=1, delta=1e-6, clip=8, cluster=where).fit(rows),
        "project": lambda: dpdist.project_rows(rows, rows.parent / "m.zarr", rows.parent / "s.zarr", cluster=where),
        "bound": lambda: dpdist.choose_clip_norm(rows, dpdist.NormsRequest(LOSS), cluster=where),
        "audit": lambda: dpdist.audit_mechanism("gaussian", LOSS, cluster=where),
    }
    with pytest.raises(UsageError, match=r"dpdist\.Cluster\(client=\.\.\.\)"):
        calls[call]()


# Workers that come


def test_an_adaptive_cluster_that_has_no_worker_starts_some(rows: Path) -> None:
    told = []
    with cluster(0) as made:
        made.adapt(minimum=0, maximum=2, interval="50ms", wait_count=1)
        assert not made.scheduler.workers
        assert release(rows, made, progress=lambda *each: told.append(each)).fresh
    assert told[:2] == [("Waiting for workers", 0, 1), ("Waiting for workers", 1, 1)]


def test_it_does_not_close_its_last_worker_between_two_steps() -> None:
    with cluster(0) as made:
        made.adapt(minimum=0, maximum=2, interval="20ms", wait_count=1)
        with Cluster(client=made).connected() as started:
            time.sleep(0.5)  # 25 times as long as an idle worker is kept
            assert started.workers
        until(lambda: not made.scheduler.workers)  # and is idle again at the end
        assert not made.scheduler.tasks


@pytest.mark.usefixtures("impatient")
def test_if_none_comes_it_is_said(rows: Path) -> None:
    with cluster(0) as made, pytest.raises(DataError, match=r"has no workers after 1 seconds.*adapt\(\)"):
        release(rows, made)


# What cannot be used


@pytest.mark.usefixtures("impatient")
def test_what_is_closed_is_said_to_be(rows: Path) -> None:
    with cluster() as made:
        client = Client(made, set_as_default=False)
        alone = Client(made.scheduler_address, set_as_default=False)
        alone.close()
        with pytest.raises(DataError, match=r"The Dask client is closed\."):
            release(rows, alone)
    with pytest.raises(DataError, match=r"The Dask cluster is closed\."):
        release(rows, made)
    with pytest.raises(DataError, match=r"No Dask scheduler answers|The Dask client is closed"):
        release(rows, client)
    client.close()


@pytest.fixture
def dying() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a scheduler that can be killed, and say where."""
    text = """
import asyncio
from distributed import Scheduler, Worker
async def serve():
    local = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(port=0, **local) as scheduler, Worker(scheduler.address, nthreads=1, **local):
        print(scheduler.address, flush=True)
        await scheduler.finished()
asyncio.run(serve())
"""
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


@pytest.mark.usefixtures("impatient")
def test_a_scheduler_that_dies_is_said_to_be_lost(dying: tuple[str, subprocess.Popen[str]]) -> None:
    address, process = dying
    given = SimpleNamespace(scheduler_address=address, security=None, status="running")  # as of a cluster service
    with Cluster(client=given).connected() as started:
        process.kill()
        process.wait()
        with pytest.raises(ResumableError, match="connection to the cluster was lost"):
            started.map(Work("test", _nothing, Each(), [1]), "Working")
    began = time.monotonic()
    with pytest.raises(DataError, match="No Dask scheduler answers"), Cluster(client=given).connected():
        pass
    assert time.monotonic() - began < 10


def test_an_asynchronous_one_is_told_how_to_be_waited_for(rows: Path) -> None:
    async def compute(*, aside: bool, kind: str) -> Any:
        with dask.config.set(KEPT):
            made = await LocalCluster(n_workers=1, asynchronous=True, **QUIET)
        async with made, Client(made, asynchronous=True) as client:
            given = client if kind == "client" else made
            return await asyncio.to_thread(release, rows, given) if aside else release(rows, given)

    for kind in ("client", "cluster"):
        with pytest.raises(UsageError, match=rf"The Dask {kind} is asynchronous.*asyncio\.to_thread"):
            asyncio.run(compute(aside=False, kind=kind))
    assert dpdist.Ledger(rows.with_suffix(".ledger")).records == []
    assert asyncio.run(compute(aside=True, kind="client")).fresh  # what the message says to do


@pytest.mark.parametrize("way", ["address", "client", "estimator"])
def test_a_running_loop_is_no_obstacle_to_who_waits(plain: LocalCluster, rows: Path, way: str) -> None:
    """So it is in a notebook: its loop runs in this thread, and clients have one of their own."""

    async def compute() -> Any:
        if way == "address":
            where = Cluster(plain.scheduler_address)
            return dpdist.release_rows(rows, rows.parent / "release.zarr", REQUEST, cluster=where).fresh
        with Client(plain.scheduler_address, set_as_default=way == "estimator") as client:
            if way == "client":
                return release(rows, client).fresh
            array = da.from_array(np.random.default_rng(0).normal(size=(100, 4)), chunks=(50, 4))
            return PrivatePCA(2, epsilon=1, delta=1e-6, clip=8).fit(array).components_.shape

    assert asyncio.run(compute()) in (True, (2, 4))


# Who can listen


def test_what_could_be_listened_to_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_require_answer", None)
    for address in ("tcp://192.0.2.1:8786", "ws://192.0.2.1:8786", "ucx://192.0.2.1:8786"):
        given = SimpleNamespace(scheduler_address=address, security=Security())
        with pytest.raises(RefusedError, match="pass insecure"), Cluster(client=given).connected():
            pass


def test_so_is_a_worker_beyond_this_machine(plain: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def somewhere(_: Client, **__: Any) -> Any:
        return {"workers": {"tcp://192.0.2.1:4711": {"resources": {}, "memory_limit": 1, "nthreads": 1}}}

    monkeypatch.setattr(Client, "scheduler_info", somewhere)
    with pytest.raises(RefusedError, match=r"worker tcp://192\.0\.2\.1:4711"), Cluster(client=plain).connected():
        pass
    with Cluster(client=plain, insecure=True).connected() as started:
        assert started.workers == ["tcp://192.0.2.1:4711"]


class ServiceSecurity(Security):  # type: ignore[misc]
    """The keys of one cluster as Dask Gateway and Coiled hand them out: text, and Dask's fields are not there."""

    def __init__(self, tls_key: str, tls_cert: str) -> None:
        self.tls_key, self.tls_cert = tls_key, tls_cert
        self.extra_conn_args: dict[str, Any] = {}

    def get_connection_args(self, role: str) -> dict[str, Any]:
        """Make what Dask connects with."""
        made = Security(
            require_encryption=True,
            tls_ca_file=self.tls_cert,
            tls_client_cert=self.tls_cert,
            tls_client_key=self.tls_key,
        )
        found: dict[str, Any] = made.get_connection_args(role)
        return found


class ProxyBackend(TLSBackend):  # type: ignore[misc]
    """What ``gateway://HOST:PORT/NAME`` leads to: TLS with a cluster, by way of a proxy that is told its name."""

    def __init__(self, behind: str) -> None:
        self._behind = behind.removeprefix("tls://")

    def get_connector(self) -> Any:
        """Connect to what is behind the proxy."""
        behind, made = self._behind, super().get_connector()

        async def connect(address: str, deserialize: bool = True, **given: Any) -> Any:
            assert address.endswith("/a1b2")
            assert isinstance(given["ssl_context"], ssl.SSLContext)
            return await type(made).connect(made, behind, deserialize, **given)

        return SimpleNamespace(connect=connect)


@pytest.mark.parametrize("service", ["gateway", "coiled"])
def test_an_encrypted_cluster_of_a_service_is_known_by_its_addresses(
    rows: Path, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    """A stand-in of the interface that dask-gateway 2026.3 and coiled 1.135 document; the former is run elsewhere."""
    keys = Security.temporary()
    with cluster(security=keys, protocol="tls://") as made:
        address = made.scheduler_address
        if service == "gateway":
            monkeypatch.setitem(backends, "gateway", ProxyBackend(address))
            address = "gateway://127.0.0.1:8002/a1b2"
        security = ServiceSecurity(keys.tls_client_key, keys.tls_client_cert)
        assert release(rows, SimpleNamespace(scheduler_address=address, security=security, status="running")).fresh
        assert all(each.startswith("tls://") for each in made.scheduler.workers)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("what", ["nothing", "no CA", "another's"])
def test_keys_that_do_not_fit_are_said_not_to(what: str) -> None:
    keys = {"nothing": None, "no CA": Security(require_encryption=True), "another's": Security.temporary()}[what]
    with cluster(security=Security.temporary(), protocol="tls://") as made:
        given = SimpleNamespace(scheduler_address=made.scheduler_address, security=keys, status="running")
        with pytest.raises(DataError, match=r"No Dask scheduler answers.*has a CA"), Cluster(client=given).connected():
            pass


# Versions


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"python": "3.99.1.final.0"}, r"the worker tcp://\S+ runs python 3\.99\.1 \(here 3\.\d+\.\d+\)\."),
        ({"dask": "2020.1.0", "numpy": "99.1"}, r"runs dask 2020\.1\.0 \(here [^)]*\), numpy 99\.1 \(here"),
        ({"numpy": ".".join([*np.__version__.split(".")[:1], "999"]), "msgpack": "0.1"}, None),
    ],
)
def test_versions_that_matter_are_said_in_a_sentence(
    plain: LocalCluster, monkeypatch: pytest.MonkeyPatch, there: dict[str, str], words: str | None
) -> None:
    ask = Client.get_versions

    def told(self: Client, **options: Any) -> Any:
        found: Any = ask(self, **options)
        next(iter(found["workers"].values()))["packages"].update(there)
        return found

    monkeypatch.setattr(Client, "get_versions", told)
    with pytest.WarningsRecorder(_ispytest=True) as said, Cluster(client=plain).connected():
        pass
    given = [str(each.message) for each in said if issubclass(each.category, VersionMismatchWarning)]
    assert len(given) == (words is not None)
    if words is not None:
        assert re.search(words, given[0]), given[0]


# Of others


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its pipes are left open
def test_jobs_of_dask_jobqueue_start_when_there_is_something_to_do(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes, as of every batch system: dask-jobqueue's own LocalCluster."""
    if find_spec("dask_jobqueue") is None:
        missing("dask-jobqueue", "pip install dask-jobqueue")
    from dask_jobqueue.local import LocalCluster as JobCluster

    for name in ("TARGET", "SPILL"):
        monkeypatch.setenv(f"DASK_DISTRIBUTED__WORKER__MEMORY__{name}", "False")
    with JobCluster(
        cores=1, processes=1, memory="1 GiB", local_directory=str(tmp_path), log_directory=str(tmp_path),
        scheduler_options={"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"},
        worker_extra_args=["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"],
    ) as made:  # fmt: skip
        made.adapt(minimum=0, maximum=1, interval="100ms", wait_count=100)
        assert release(rows, made).fresh
