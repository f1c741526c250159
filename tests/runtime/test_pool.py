"""Processes that compute beside this one: each result once, by whatever they end, and nothing left of them."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpdist.runtime import pool as pools
from dpdist.runtime.pool import Pool, usable_cores

Integers = npt.NDArray[np.int64]
SECONDS = 60.0


def numbers(size: int, task: int) -> Integers:
    return np.arange(size, dtype=np.int64) * task


def slowly(ours: int, seconds: float, task: int) -> Integers:
    """Take long in the process of that id, where the others shall do the work."""
    if os.getpid() == ours:
        time.sleep(seconds)
    return np.array([task, os.getpid()], dtype=np.int64)


def dying(ours: int, folder: Path, task: int) -> Integers:
    """Kill the process in which it runs, over some tasks, unless that is the one of that id."""
    if os.getpid() != ours and task % 3 == 1:
        (folder / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return np.array([task], dtype=np.int64)


def freezing(ours: int, folder: Path, task: int) -> Integers:
    """Stop any process in which it runs but the one of that id."""
    if os.getpid() != ours:
        (folder / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    wait_until(lambda: any(folder.iterdir()))
    return np.array([task], dtype=np.int64)


def interrupted(ours: int, folder: Path, task: int) -> Integers:
    """Be interrupted here, as by Ctrl-C, while another process is at work for long."""
    if os.getpid() != ours:
        (folder / str(task)).touch()
        time.sleep(100)
    wait_until(lambda: any(folder.iterdir()))
    raise KeyboardInterrupt


def ours_alone(ours: int, task: int) -> Integers:
    """Fail anywhere else."""
    if os.getpid() != ours:
        raise ValueError(task)
    return np.array([task], dtype=np.int64)


def failing(task: int) -> Integers:
    raise ZeroDivisionError(task)


def core_limits(task: int) -> Integers:
    """Return what the kernel says of core dumps of this process, and which signals it ignores."""
    limits = Path("/proc/self/limits").read_text().splitlines()
    core = next(line for line in limits if line.startswith("Max core")).split()[4:6]
    dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
    ignored = [signal.getsignal(each) == signal.SIG_IGN for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    return np.array([task, *(int(each != "0") for each in core), dumpable, *ignored, os.getpid()], dtype=np.int64)


def collected(pool: Pool[int], function: Any, tasks: range) -> dict[int, list[int]]:
    """Return the results by their tasks; a task that is taken twice fails."""
    found: dict[int, list[int]] = {}
    mutex = threading.Lock()

    def take(task: int, result: Integers) -> None:
        with mutex:
            assert task not in found
            found[task] = result.tolist()

    pool.each(function, tasks, take)
    assert sorted(found) == list(tasks)
    return found


def gone(pid: int) -> bool:
    """Say whether there is no such process, a dead one that is not buried aside."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def wait_until(what: Any, *arguments: Any) -> None:
    until = time.monotonic() + SECONDS
    while not what(*arguments):
        assert time.monotonic() < until
        time.sleep(0.01)


def at_work(pool: Pool[int], processes: int) -> set[int]:
    """Wait until so many processes answer, and return their ids."""
    found: set[int] = set()

    def all_there() -> bool:
        tasks = range(4 * processes)
        found.update(pid for _, pid in collected(pool, partial(slowly, os.getpid(), 0.1), tasks).values())
        return found - {os.getpid()} == set(pool.processes)

    wait_until(all_there)
    return found - {os.getpid()}


@pytest.mark.parametrize("processes", [0, 2])
def test_every_result_is_taken_once_whoever_computes_it(processes: int) -> None:
    with Pool[int](processes) as pool:
        if processes:
            assert len(at_work(pool, processes)) == processes
        for size in (3, 100_000):  # more than a pipe holds
            found = collected(pool, partial(numbers, size), range(20))
            assert found == {task: numbers(size, task).tolist() for task in range(20)}
        started = pool.processes
    assert all(map(gone, started))
    assert pool.processes == []
    assert collected(pool, partial(numbers, 2), range(2)) == {0: [0, 0], 1: [0, 1]}  # here, now


def test_nothing_waits_for_a_process_that_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_START", "import time; time.sleep(60)")
    begun = time.monotonic()
    with Pool[int](2) as pool:
        collected(pool, partial(numbers, 2), range(5))
    assert time.monotonic() - begun < 30


def test_a_process_that_is_killed_costs_time_and_no_result(tmp_path: Path) -> None:
    with Pool[int](2) as pool:
        at_work(pool, 2)
        found = collected(pool, partial(dying, os.getpid(), tmp_path), range(30))
        assert found == {task: [task] for task in range(30)}
        victims = [int(path.name) for path in tmp_path.iterdir()]
        assert victims
        wait_until(lambda: not set(victims) & set(pool.processes))


def test_a_process_that_is_frozen_is_ended_and_its_task_computed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Pool[int](1) as pool:
        at_work(pool, 1)
        monkeypatch.setattr(pools, "PATIENCE", 0.2)
        collected(pool, partial(freezing, os.getpid(), tmp_path), range(5))
        (frozen,) = (int(path.name) for path in tmp_path.iterdir())
        wait_until(gone, frozen)


def test_an_error_is_that_of_this_process(capfd: pytest.CaptureFixture[str]) -> None:
    with Pool[int](1) as pool:
        at_work(pool, 1)
        collected(pool, partial(ours_alone, os.getpid()), range(8))
    with Pool[int](1) as pool:
        at_work(pool, 1)
        with pytest.raises(ZeroDivisionError):
            collected(pool, failing, range(8))
        assert pool.processes == []  # whoever catches it leaves nothing running
    assert capfd.readouterr() == ("", "")


def test_an_interruption_ends_the_processes_at_work(tmp_path: Path) -> None:
    with Pool[int](1) as pool:
        at_work(pool, 1)
        (pid,) = pool.processes
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            collected(pool, partial(interrupted, os.getpid(), tmp_path), range(4))
        assert gone(pid)
        assert time.monotonic() - begun < 50


def test_an_error_of_who_takes_is_raised_wherever_it_happened() -> None:
    def take(task: int, result: Integers) -> None:
        if result[1] != os.getpid():
            raise KeyError(task)

    with Pool[int](1) as pool:
        at_work(pool, 1)
        with pytest.raises(KeyError):
            pool.each(partial(slowly, os.getpid(), 0.2), range(50), take)


@pytest.mark.parametrize("fault", ["no interpreter", "another program", "frozen", "another version", "no process"])
def test_where_no_process_can_be_started_everything_is_computed_here(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "no interpreter":
        monkeypatch.setattr(pools, "get_executable", lambda: None)
    elif fault == "another program":
        monkeypatch.setattr(pools, "get_executable", lambda: "/bin/true")
    elif fault == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    elif fault == "another version":
        monkeypatch.setattr(pools, "__version__", "0")
    else:

        def refused(*_: Any, **__: Any) -> None:
            raise BlockingIOError  # what fork says at the limit of processes

        monkeypatch.setattr(subprocess, "Popen", refused)
    with Pool[int](2) as pool:
        wait_until(lambda: pool.processes == [])
        found = collected(pool, partial(slowly, os.getpid(), 0), range(5))
    assert {pid for _, pid in found.values()} == {os.getpid()}


def test_no_thread_is_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError(thread.name)  # at the limit of processes of a user

    monkeypatch.setattr(threading.Thread, "start", refused)
    with Pool[int](2) as pool:
        assert pool.processes == []
        collected(pool, partial(numbers, 2), range(5))


def test_a_process_leaves_no_core_dump_and_ignores_the_signals_of_a_terminal() -> None:
    with Pool[int](1) as pool:
        (pid,) = at_work(pool, 1)
        os.kill(pid, signal.SIGTERM)
        assert os.getpgid(pid) == pid
        found: list[list[int]] = []
        while not any(row[-1] == pid for row in found):
            found = list(collected(pool, core_limits, range(20)).values())
    (other, *_) = (row for row in found if row[-1] == pid)
    assert other[1:-1] == [0, 0, 0, 1, 1, 1]


PARENT = """
import os, sys, time
from functools import partial
from test_pool import at_work, slowly
from dpdist.runtime.pool import Pool
if __name__ != "__main__":
    raise SystemExit("a script must not be imported again")
with Pool(2) as pool:
    print(*at_work(pool, 2), flush=True)
    if sys.argv[1] == "idle":
        time.sleep(100)
    pool.each(partial(slowly, -1, 100), range(100), print)
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Any]:
    """Return a function that runs a script with a pool, and its process and those of the pool."""
    running: list[subprocess.Popen[str]] = []
    script = tmp_path / "script.py"
    script.write_text(PARENT)

    def start(what: str) -> tuple[subprocess.Popen[str], list[int]]:
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        process = subprocess.Popen(
            [sys.executable, str(script), what],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        )
        running.append(process)
        assert process.stdout is not None
        return process, [int(word) for word in process.stdout.readline().split()]

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("what", ["idle", "working"])
def test_no_process_outlives_the_one_that_started_it(parent: Any, what: str) -> None:
    process, helpers = parent(what)
    assert len(helpers) == 2
    process.kill()
    for pid in helpers:
        wait_until(gone, pid)


def test_they_start_from_a_thread_of_a_process_that_may_have_no_children() -> None:
    # as a worker under a nanny: a daemonic process, which multiprocessing lets have none, with threads of Dask in it
    script = """
import json, multiprocessing, os, sys
from concurrent.futures import ThreadPoolExecutor
def work(told):
    from test_pool import at_work
    from dpdist.runtime.pool import Pool
    def one():
        with Pool(1) as pool:
            return len(at_work(pool, 1))
    with ThreadPoolExecutor(2) as threads:
        told.put([threads.submit(one).result(), multiprocessing.current_process().daemon])
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    child = context.Process(target=work, args=(told,), daemon=True)
    child.start()
    print(json.dumps(told.get()))
    child.join()
"""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    found = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        check=True,
        timeout=600,
    )
    assert json.loads(found.stdout) == [1, True]


def test_pools_in_several_threads_do_not_meet() -> None:
    def one(size: int) -> dict[int, list[int]]:
        with Pool[int](1) as pool:
            return collected(pool, partial(numbers, size), range(10))

    with ThreadPoolExecutor(3) as threads:
        for size, found in zip((2, 3, 4), threads.map(one, (2, 3, 4)), strict=True):
            assert found == {task: numbers(size, task).tolist() for task in range(10)}


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert usable_cores() == 1
