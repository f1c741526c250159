"""Sums on real clusters: the right ones whoever dies, on no disk at Dask's defaults, and nothing of them in a log."""

from __future__ import annotations

import logging
import operator
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import cloudpickle
import dask
import numpy as np
import numpy.typing as npt
import pytest
from distributed import LocalCluster, get_worker
from faults.waiting import until
from support.folders import ROOT

import dpdist
from dpdist.core.errors import DataError, DpdistError, RefusedError, ResumableError
from dpdist.core.moment.total import Partial, add_partials
from dpdist.core.runtime import checks, sums
from dpdist.core.runtime.cluster import WORKER_ENVIRONMENT, Cluster
from dpdist.core.runtime.local import Computation, LocalExecutor, Secret
from dpdist.core.runtime.sums import DaskExecutor, PrivateResult, TaskContext, load_context, run_task

SECRET = 7_312_519


@contextmanager
def cluster(count: int = 2, *, trusted_worker: bool = False, **options: Any) -> Iterator[DaskExecutor]:
    """Start a cluster as everybody does, at Dask's defaults, and connect to it."""
    how = {"n_workers": count, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", **options}
    with (
        LocalCluster(**how) as made,
        Cluster(client=made, trusted_worker=trusted_worker).connected() as executor,
    ):
        assert isinstance(executor, DaskExecutor)
        yield executor


@pytest.fixture(scope="module")
def local() -> Iterator[DaskExecutor]:
    with cluster() as started:
        yield started


def keys_of(executor: DaskExecutor) -> set[str]:
    """Return the names of tasks that the dashboard has shown."""
    shown = executor._client.run_on_scheduler(
        lambda dask_scheduler: [each[0] for each in dask_scheduler.transition_log]
    )
    return {dask.utils.key_split(key) for key in shown}


def twice(value: int) -> int:
    return 2 * value


def same(value: Any) -> Any:
    return value


SEEN: dict[int, npt.NDArray[np.int64]] = {}


def part(number: int) -> Partial[np.int64]:
    """Return a sum over one chunk, which is looked at later where it is computed in this process."""
    SEEN[number] = (values := np.full(1000, number))
    return Partial(values, 1, ((number, number + 1),))


ENGINES: dict[str, Callable[[DaskExecutor], Any]] = {
    "threads": lambda _: Cluster().connected(),
    "threads of a cluster": lambda _: cluster(processes=False),
    "processes": nullcontext,
}


@pytest.mark.parametrize("made", ENGINES.values(), ids=ENGINES)
def test_every_engine_computes_the_same(local: DaskExecutor, made: Callable[[DaskExecutor], Any]) -> None:
    told: list[tuple[str, int, int]] = []
    SEEN.clear()
    with made(local) as executor:
        executor._progress = lambda *said: told.append(said)
        total = executor.reduce(Computation("sum", part, None, range(20), add_partials), same, label="Adding")
        assert total.covered == ((0, 20),)
        assert (total.values == 190).all()
        works = [Computation("sum", twice, None, range(n), operator.add) for n in (3, 9, 1)]
        assert list(executor.reduce_many(works, "Adding", concurrent=2)) == [6, 72, 0]
        assert dict(executor.results(operator.mul, [5, 6, 7], 10, "Multiplying")) == {0: 50, 1: 60, 2: 70}
        executor.map(Computation("project", twice, None, range(5)), "Mapping")
        assert executor.trusted(operator.add, 1, 2) == 3
        assert executor.reduce(Computation("sum", twice, None, ()), int, label="Adding") == 0
        assert executor.where in told[0][0]
        until(lambda: told[-1][1:] == (5, 5))
        if isinstance(executor, DaskExecutor):
            assert {"dpdist-table", "dpdist-sum", "dpdist-add", "dpdist-project"} <= keys_of(executor)
            # a result of a task is changed by no addition: of workers in this process what is fetched is Dask's own
            assert {number: int(values[0]) for number, values in SEEN.items()} == {number: number for number in SEEN}
    assert {label.split()[0] for label, _, _ in told} == {"Adding", "Multiplying", "Mapping"}


LARGE = 21  # sums of 12 MiB, beside the 79 to 110 MiB of a worker: from 80 to 95 % of its memory, where it is ended


@dataclass(frozen=True)
class Large:
    """Sums that together take most of the memory of the workers."""

    numbers: int

    def for_task(self, unit: int) -> tuple[int, int]:
        return unit, self.numbers


def large(given: tuple[int, int]) -> npt.NDArray[np.int64]:
    unit, numbers = given
    return np.full(numbers, SECRET + unit)


def _found_on_disk(folder: str) -> list[str]:
    marks = [np.int64(SECRET + unit).tobytes() * 4 for unit in range(LARGE)]
    contents = {path.name: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    return [name for name, content in contents.items() if any(mark in content for mark in marks)]


def _folder(dask_worker: Any) -> str:
    return str(dask_worker.local_directory)


def test_a_sum_is_on_no_disk_when_workers_of_dask_s_defaults_run_short_of_memory(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The twin, plain results of the same size, is written there."""
    shared = Large((12 << 20) // 8)
    content = cloudpickle.dumps(
        TaskContext(Computation("sum", large, shared, (), operator.add), checks.ClientInfo.current(), [])
    )

    def logged(client: Any) -> list[str]:
        return [line for _, line in next(iter(client.get_worker_logs().values()))]

    with caplog.at_level(logging.DEBUG), dask.config.set({"temporary-directory": str(tmp_path)}):
        with cluster(1, memory_limit="400MiB") as executor:
            client = executor._client
            (folder,) = client.run(_folder).values()
            first = client.submit(load_context, Secret(content), pure=False)
            private = client.map(run_task, range(LARGE), pure=False, shared=first)
            until(lambda: any("memory usage" in line for line in logged(client)))  # it has run short, and pauses
            assert any(future.status == "finished" for future in private)
            assert _found_on_disk(folder) == []
            logs = logged(client)
        with cluster(1, memory_limit="400MiB") as executor:
            (folder,) = executor._client.run(_folder).values()
            plain = executor._client.map(large, [shared.for_task(i) for i in range(LARGE)], pure=False)
            until(lambda: _found_on_disk(folder))
            del plain
    assert not [line for line in (*logs, caplog.text) if str(SECRET)[:4] in line]


def test_private_values_are_sent_whole_and_not_pickled_and_show_nothing(local: DaskExecutor) -> None:
    numbers = 9_000_000  # are sent in several frames
    local._client.wait_for_workers(2)
    one, other = sorted(local._workers())
    sent = local._client.submit(lambda size: PrivateResult(np.arange(size)), numbers, workers=[one], pure=False)
    ends = local._client.submit(lambda found: found.value[[0, -1]].tolist(), sent, workers=[other], pure=False)
    assert ends.result() == [0, numbers - 1]
    with pytest.raises(TypeError, match="sent, and not stored"):
        PrivateResult(1).__reduce__()
    for value in (PrivateResult(np.arange(3)), Secret(b"secret")):
        assert not re.search(r"array|\d, \d|secret|b'", repr(value) + str(value))


@dataclass(frozen=True)
class Counted:
    """Notes who computes what."""

    folder: Path

    def for_task(self, unit: int) -> tuple[Path, int]:
        return self.folder, unit


def noted(given: tuple[Path, int]) -> Partial[np.int64]:
    folder, unit = given
    (folder / f"{unit}-{os.getpid()}-{time.monotonic_ns()}").touch()
    time.sleep(0.05)
    return part(unit)


def test_a_killed_worker_costs_a_few_units_and_no_wrong_sum(local: DaskExecutor, tmp_path: Path) -> None:
    pids = list(local._client.run(os.getpid).values())

    def kill() -> None:
        until(lambda: len(list(tmp_path.iterdir())) > 30)
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    total = local.reduce(Computation("sum", noted, Counted(tmp_path), range(60), add_partials), same, label=None)
    killer.join()
    assert total.covered == ((0, 60),)
    assert (total.values == 1770).all()
    assert 60 < len(list(tmp_path.iterdir())) < 90


def joined(unit: int, more: list[int]) -> list[int]:
    return [unit, *more]


def test_results_are_asked_for_by_names_and_not_by_the_code_of_one_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of another version of Python ends a worker."""
    submitted, submit = list[Computation](), LocalExecutor.submit

    def noting(
        executor: LocalExecutor, computation: Computation, done: Callable[[], None]
    ) -> Generator[tuple[int, Any]]:
        submitted.append(computation)
        return submit(executor, computation, done)

    monkeypatch.setattr(LocalExecutor, "submit", noting)
    assert dict(LocalExecutor().results(joined, [1, 2], [3], "Joining")) == {0: [1, 3], 1: [2, 3]}
    assert b"CodeType" not in cloudpickle.dumps(submitted)


def dying(_: int) -> int:
    if threading.current_thread() is not threading.main_thread():
        os._exit(1)
    return 0


def test_a_unit_that_kills_every_worker_ends_the_pass() -> None:
    few = {"distributed.scheduler.allowed-failures": 0}
    with dask.config.set(few), cluster(1) as executor, pytest.raises(ResumableError, match="Workers died again"):
        executor.reduce(Computation("sum", dying, None, range(2), operator.add), int, label=None)


def test_workers_that_are_gone_or_paused_and_a_lost_scheduler_end_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "LOST_SECONDS", 1)
    monkeypatch.setattr(sums, "_POLL_SECONDS", 0.2)
    work = Computation("sum", time.sleep, None, [0.1] * 100, lambda *_: None)
    with dask.config.set({"distributed.worker.memory.pause": 1e-6}), LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0"
    ) as made, Cluster(client=made).connected() as executor:  # fmt: skip
        with pytest.raises(ResumableError, match="All workers have been paused for 1 seconds"):
            executor.reduce(work, print, label=None)
        made.scale(0)
        with pytest.raises(ResumableError, match="All workers have been gone for 1 seconds"):
            executor.reduce(work, print, label=None)
        monkeypatch.undo()
        threading.Timer(0.5, made.close).start()
        with pytest.raises(ResumableError, match="The connection to the cluster was lost"):
            executor.reduce(work, print, label=None)


def where_it_runs(*arguments: Any) -> tuple[str, Any]:
    return get_worker().address, arguments[-1] if arguments else None


def test_total_and_noise_are_one_task_at_the_trusted_worker_and_another_one_is_a_standby(local: DaskExecutor) -> None:
    with cluster(2, trusted_worker=True, resources={"trusted": 1}) as executor:
        address, total = executor.reduce(
            Computation("sum", part, None, range(99), add_partials), where_it_runs, label=None
        )
        assert address in executor._workers()
        assert total.covered == ((0, 99),)
        first, _ = executor.trusted(where_it_runs)
        os.kill(executor._client.run(os.getpid)[first], signal.SIGKILL)
        assert executor.trusted(where_it_runs)[0]
        assert "dpdist-noise" in keys_of(executor)
    with (
        pytest.raises(DataError, match="No worker offers the resource `trusted`"),
        Cluster(client=local._client, trusted_worker=True).connected(),
    ):
        pass


def quoting(_: int) -> int:
    raise ValueError(f"cell {SECRET}")


def refusing(_: int) -> int:
    raise DataError("chunk 7 is damaged")


def test_an_error_of_a_task_says_what_it_is_and_quotes_nothing(local: DaskExecutor) -> None:
    for executor in (local, LocalExecutor()):
        with pytest.raises(DataError, match="chunk 7 is damaged"):
            executor.reduce(Computation("sum", refusing, None, range(20), operator.add), int, label=None)
        with pytest.raises(DpdistError, match=r"ValueError at test_sums\.py:\d+ in quoting") as caught:
            executor.map(Computation("test", quoting, None, range(2)), "Mapping")
        assert str(SECRET) not in repr(caught.value) + repr(caught.value.__cause__) + repr(caught.value.__context__)


class Missing:
    """What a worker cannot unpickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, ("dpdist_of_no_version",)


def test_a_worker_of_another_version_or_without_dpdist_is_refused(
    local: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "__version__", "0")
    with pytest.raises(DataError, match=r"The worker tcp://127\.0\.0\.1:\d+ runs dpdist \S+, not 0\. Install the same"):
        local.require_visible(ROOT)
    with pytest.raises(DataError, match="Install the same"):
        local.map(Computation("test", twice, None, range(2)), "Mapping")
    monkeypatch.setattr(checks, "_traits", Missing())
    with pytest.raises(DataError, match="cannot import dpdist 0, or a dependency"):
        local.require_visible(ROOT)


def test_every_worker_must_see_the_rows_also_one_that_comes_later(local: DaskExecutor, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"The worker tcp://127\.0\.0\.1:\d+ does not see .*nowhere"):
        local.require_visible(tmp_path / "nowhere")
    local._objects.clear()
    (tmp_path / "there").mkdir()
    local.require_visible(tmp_path / "there")
    (tmp_path / "there").rmdir()
    with pytest.raises(DataError, match="does not see"):
        local.map(Computation("test", twice, None, range(2)), "Mapping")
    local._objects.clear()
    with pytest.raises(DataError, match="is missing, or cannot be read"):
        LocalExecutor().require_visible(tmp_path / "nowhere")


def leaving(folder: Path, *_: Any) -> tuple[str, bool]:
    """Answer as a worker that fits, but for the first one that is asked: it is gone before it answers."""
    try:
        (folder / "asked").touch(exist_ok=False)
    except FileExistsError:
        return dpdist.__version__, True
    os._exit(1)


def test_a_worker_that_leaves_while_it_is_asked_is_no_obstacle(
    local: DaskExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_traits", partial(leaving, tmp_path))
    local.require_visible(ROOT)
    assert (tmp_path / "asked").exists()


def test_a_worker_that_can_be_listened_to_is_refused(local: DaskExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    known = local._client.scheduler_info()
    worker = next(iter(known["workers"].values()))
    told = {**known, "workers": {"tcp://192.0.2.1:99": worker}}
    monkeypatch.setattr(local._client, "scheduler_info", lambda **_: told)
    with pytest.raises(RefusedError, match=r"worker tcp://192\.0\.2\.1:99 is on the network and not encrypted"):
        local.require_visible(ROOT)


def listening() -> set[str]:
    """Addresses on which this process listens, read from the kernel."""
    links = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    tables = [Path(f"/proc/self/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    fields = [line.split() for table in tables for line in table]
    return {field[1].split(":")[0] for field in fields if field[3] == "0A" and field[9] in inodes}  # 0A: LISTEN


def test_worker_processes_of_this_machine_are_closed_to_others_leave_no_file_and_start_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Times of tasks tell something of rows, and other users of the machine can reach its loopback interface."""
    names = ("distributed.nanny.pre-spawn-environ", "temporary-directory")
    before = list(map(dask.config.get, names))
    with Cluster(workers=2).kept() as kept, kept.connected() as executor:
        assert isinstance(executor, DaskExecutor)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        assert all(address.startswith("tls://127.0.0.1:") for address in executor._workers())
        for addresses in (listening(), *executor._client.run(listening).values()):
            assert addresses == {"0100007F"}  # 127.0.0.1, as the kernel writes it
        for environment in executor._client.run(lambda: dict(os.environ)).values():
            assert environment["OPENBLAS_NUM_THREADS"] == "1"  # Dask's own clusters of this process set others
        (folder, *_) = {str(Path(each).parent) for each in executor._client.run(_folder).values()}
        for temporary in executor._client.run(
            gettempdir
        ).values():  # of what a killed worker leaves, as Dask's TLS files
            assert folder.startswith(f"{temporary}/dask")
        port = executor._client.scheduler_info()["services"]["dashboard"]
        for page in ("info/main/workers.html", "status", "json/counts.json", "metrics"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10)
        assert list(map(dask.config.get, names)) == before
        with kept.connected() as other:
            assert other is executor
    assert not Path(folder).exists()


def test_worker_processes_leave_the_environment_of_this_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)

    def environment() -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}

    before = environment()
    with Cluster(workers=1).connected() as executor:
        assert isinstance(executor, DaskExecutor)
        assert environment() == before
        (worker,) = executor._client.run(os.getpid).values()
        os.kill(worker, signal.SIGKILL)
        until(lambda: {*executor._client.run(os.getpid, on_error="ignore").values()} - {worker})  # another in its place
        monkeypatch.setenv("MKL_NUM_THREADS", "3")  # by a user, in the meantime
    assert environment() == before | {"MKL_NUM_THREADS": "3"}


def busy(_: int) -> set[str]:
    time.sleep(0.02)
    return {threading.current_thread().name}


def test_threads_are_as_many_as_cores_and_a_pass_may_have_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdist.core.runtime.local.available_cores", lambda: 4)
    for threads, expected in ((None, 4), (2, 2), (9, 4)):
        work = Computation("sum", busy, None, range(30), operator.or_, threads=threads)
        assert LocalExecutor().reduce(work, len, label=None) == expected
