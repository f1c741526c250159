"""SIGINT and SIGTERM: exit code 5 and one sentence, whenever they come; nothing half-written, nothing left running."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import signals

SENTENCE = "dpdist: Interrupted by {}: the same command resumes, and charges nothing twice.\n"
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
START = """
import os, signal, sys, threading, time
from pathlib import Path
from dpdist.core import interruption
interruption.GRACE_SECONDS = 0.5
interruption.install()
def strike(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
def run(work):
    import click
    from dpdist.cli import execute
    execute(click.Command("work", callback=work))
"""


SERVER = """
import json, os, sys
import dpdist.cli
for line in iter(sys.stdin.readline, ""):
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(asked["folder"])
        for number, name in ((1, asked["out"]), (2, asked["err"])):
            os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), number)
        exec(asked["script"], {"__name__": "__main__"})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
Ended = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """Return a function that runs a script in a folder, in a fork; it returns the exit code and both outputs."""
    said = tmp_path_factory.mktemp("said")
    out, err = said / "out", said / "err"
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        ask, answers = server.stdin, server.stdout

        def run(folder: Path, script: str, *, before: str = "") -> tuple[int, str, str]:
            out.unlink(missing_ok=True)
            err.unlink(missing_ok=True)
            asked = {"folder": str(folder), "out": str(out), "err": str(err), "script": before + START + script}
            ask.write(json.dumps(asked) + "\n")
            ask.flush()
            return int(answers.readline()), out.read_text(), err.read_text().lstrip("\n")

        yield run
        ask.close()


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Let what a test starts hear signals, also where the tests themselves were told to ignore some, as by nohup."""
    ignored = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def test_nothing_heavy_is_imported_before_signals_are_answered() -> None:
    light = """
import sys
import dpdist.__main__
print({"numpy", "dask", "click", "zarr", "pyarrow", "multiprocessing", "logging"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", light], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "set()\n"


def test_a_signal_during_the_first_imports_is_one_sentence_and_exit_5(tmp_path: Path) -> None:
    place = signals.Place(tmp_path / "place")
    found = place.struck("ingest", signal.SIGHUP, everybody=False, moment=0)
    assert (found.code, found.words) == (5, SENTENCE.format("SIGHUP"))


IGNORED = """
def work():
    strike(signal.SIGHUP)
    time.sleep(1)
    print("done")
run(work)
"""
LATE = """
import atexit
atexit.register(strike)
run(lambda: print("done"))
"""


@pytest.mark.parametrize("script", [IGNORED, LATE], ids=["ignored", "late"])
def test_a_signal_ignored_from_the_start_or_after_the_last_line_of_a_command_changes_nothing(
    ended: Ended, tmp_path: Path, script: str
) -> None:
    before = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    assert ended(tmp_path, script, before=before) == (0, "done\n", "")


TIDYING = """
def work():
    try:
        strike()
    finally:
        strike()
        strike(signal.SIGINT)
        Path("tidied").touch()
run(work)
"""
DESTRUCTOR = """
interruption.GRACE_SECONDS = 100
class Gone:
    def __del__(self):
        strike()
def work():
    Gone()
    time.sleep(50)
    print("went on")
run(work)
"""


@pytest.mark.parametrize(("script", "left"), [(TIDYING, ["tidied"]), (DESTRUCTOR, [])], ids=["tidying", "destructor"])
def test_a_signal_that_a_destructor_swallows_is_answered_and_more_do_not_disturb_the_tidying_up(
    ended: Ended, tmp_path: Path, script: str, left: list[str]
) -> None:
    assert ended(tmp_path, script) == (5, "", SENTENCE.format("SIGTERM"))
    assert [path.name for path in tmp_path.iterdir()] == left


SWALLOWED = """try:
            strike()
            time.sleep(50)
        except BaseException:
            time.sleep(50)"""
WAITING = """held = sqlite3.connect("db")
        held.execute("BEGIN IMMEDIATE")
        threading.Timer(0.5, strike).start()
        sqlite3.connect("db", timeout=50).execute("BEGIN IMMEDIATE")"""


@pytest.mark.parametrize("deaf", [SWALLOWED, WAITING], ids=["swallowed by a library", "native code"])
def test_what_hears_no_signal_is_ended_after_a_while_with_nothing_left(tmp_path: Path, deaf: str) -> None:
    script = f"""
import multiprocessing, sqlite3, threading
from dpdist.core.storage.atomic import scratch, staged
def work():
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(100,), daemon=True)
    child.start()
    print(child.pid, flush=True)
    with staged(Path("target").absolute(), "rows") as aside, scratch(Path().absolute(), "scratch") as other:
        (aside / "half").touch()
        (other / "half").touch()
        {deaf}
if __name__ == "__main__":
    interruption.install()
    run(work)
"""
    (tmp_path / "script.py").write_text(START.replace("interruption.install()", "") + script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.lstrip("\n")) == (5, SENTENCE.format("SIGTERM"))
    assert not Path(f"/proc/{int(done.stdout)}").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"script.py", "db", "db-journal"}


def test_what_was_just_made_aside_is_removed_even_if_its_owner_never_knew_of_it(ended: Ended, tmp_path: Path) -> None:
    script = """
from dpdist.core.storage.atomic import staged
def work():
    make = Path.mkdir
    def struck(self, *arguments):
        make(self, *arguments)
        strike()
    Path.mkdir = struck
    with staged(Path("target").absolute(), "rows"):
        print("went on")
run(work)
"""
    assert ended(tmp_path, script) == (5, "", SENTENCE.format("SIGTERM"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("struck", [True, False])
def test_what_a_library_a_thread_or_a_destructor_says_because_of_the_signal_is_not_said(
    ended: Ended, tmp_path: Path, struck: bool
) -> None:
    """Dask's threads watch processes that are killed meanwhile. Without a signal, all is said."""
    script = f"""
import logging
class Broken:
    def __del__(self):
        raise ValueError("in a destructor")
def fail():
    raise OSError("in a thread")
def work():
    try:
        if {struck}:
            strike()
    finally:
        logging.getLogger("asyncio").error("in a log")
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        Broken()
run(work)
"""
    code, _, said = ended(tmp_path, script)
    assert (code, said) == (5, SENTENCE.format("SIGTERM")) if struck else code == 0
    assert all((f"in a {place}" in said) is not struck for place in ("destructor", "thread", "log"))


def test_a_process_that_reads_is_no_second_command(ended: Ended, tmp_path: Path) -> None:
    """Ctrl-C in a terminal goes to the group of a command: this process is in another, and answers."""
    script = f"""
sys.path.append({str(Path(__file__).parents[1])!r})
from support.misbehaving import Misbehaving
from dpdist.core.ingest.readers.isolated import ReaderProcess
def work():
    reading = ReaderProcess(Path.cwd())
    print(os.getpgid(reading.ask(Misbehaving(Path("x")), "process")) != os.getpgid(0))
    reading.close()
run(work)
"""
    assert ended(tmp_path, script) == (0, "True\n", "")


@pytest.mark.parametrize("late", ["before the rename", "after the rename"])
def test_what_has_its_place_is_whole_or_not_there(ended: Ended, tmp_path: Path, late: str) -> None:
    """The process is ended from outside the main thread while it moves a folder to its place."""
    script = f"""
from dpdist.core.storage.atomic import staged
def work():
    rename = Path.rename
    def struck(self, target):
        if {late == "after the rename"}:
            rename(self, target)
        try:
            strike()
            time.sleep(5)
        except KeyboardInterrupt:
            time.sleep(1.5)
        if {late == "before the rename"}:
            rename(self, target)
    Path.rename = struck
    with staged(Path("target").absolute(), "rows") as aside:
        for number in range(100):
            (aside / str(number)).touch()
    time.sleep(50)
run(work)
"""
    assert ended(tmp_path, script) == (5, "", SENTENCE.format("SIGTERM"))
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert len(list((tmp_path / "target").iterdir())) == 100


def test_a_job_struck_half_way_leaves_nothing_running_and_nothing_in_tmpdir(tmp_path: Path) -> None:
    supply = signals.supplied(tmp_path / "supply", rows=2000)
    ((one,), well) = signals.again_and_again(tmp_path, supply, "run", signal.SIGINT, [4.0], everybody=True)
    assert (one.faults, one.faults and one.words) == ([], [])
    assert well
