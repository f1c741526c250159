"""The process that reads fragile files: its end, its limits, and its environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.ingest_scene import stored
from support.misbehaving import Misbehaving

from dpdist.core.errors import DataError, DpdistError
from dpdist.core.ingest.readers import isolated
from dpdist.core.ingest.readers.isolated import ReaderProcess
from dpdist.core.ingest.write import ingest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only there is memory limited"),
    pytest.mark.usefixtures("other_process"),
]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Any]:
    with closing(ReaderProcess(tmp_path)) as reader:
        yield reader


def test_a_crash_and_a_hang_are_told(process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Misbehaving(tmp_path / "t.h5ad")
    monkeypatch.setattr(isolated, "_PATIENCE", 1)
    for question, message in (
        (
            "crashing",
            r"t\.h5ad cannot be read: it is damaged or takes too much memory, .* crashes\. .* save it",
        ),
        ("hanging", r"t\.h5ad cannot be read: .* its library hangs"),
        ("hungry", r"t\.h5ad cannot be read: it takes more memory than it declares"),
    ):
        with pytest.raises(DataError, match=message):
            process.ask(source, question)
        assert process.ask(source, "names") == ("a",)  # by the next process, if need be


def test_a_parquet_file_of_very_many_columns_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow takes 20 KB of memory for each, which its footer declares."""
    monkeypatch.setattr(isolated, "_MEMORY", 32 << 20)
    rows = np.arange(60_000, dtype=np.float32).reshape(3, -1)
    pq.write_table(pa.table(list(rows.T), names=[f"c{i}" for i in range(rows.shape[1])]), tmp_path / "wide.parquet")
    ingest(tmp_path / "wide.parquet", tmp_path / "rows.zarr")
    assert np.array_equal(stored(tmp_path / "rows.zarr"), rows)


def test_libraries_print_nothing(process: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It may quote a row."""
    assert process.ask(Misbehaving(tmp_path), "talkative") == ("a", "b")
    assert capfd.readouterr() == ("", "")


def test_a_process_is_used_again_in_the_same_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source: Any = Misbehaving(tmp_path)

    def asked(question: str) -> Any:
        with closing(ReaderProcess(tmp_path)) as process:
            return process.ask(source, question)

    first = asked("process")
    assert asked("process") == first
    monkeypatch.setenv("MISBEHAVING", "changed")
    monkeypatch.chdir(tmp_path)
    assert asked("folder") == f"{tmp_path}changed"
    second = asked("process")
    assert second != first
    with pytest.raises(DataError):
        asked("hungry")
    third = asked("process")  # memory that a failure left is not the next file's
    assert third != second
    os.kill(third, signal.SIGKILL)  # it waits for the next file, and has ended by then
    fourth = asked("process")
    assert fourth != third
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert asked("process") != fourth


def test_one_that_is_left_halfway_ends(process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next answer belongs to an abandoned question."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    source = Misbehaving(tmp_path)
    first = process.ask(source, "process")
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "recv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            process.ask(source, "names")
    process.close()
    assert not process.alive
    assert process.ask(source, "process") != first


def test_no_forked_process_uses_it(process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = process.ask(Misbehaving(tmp_path), "process")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)  # as it is in a forked process
        parents = process._child
        process.close()
        assert process.ask(Misbehaving(tmp_path), "process") != first
        for child in (parents, process._child):
            assert child is not None
            child.end()


def test_no_module_of_the_current_folder_is_run_for_one_of_python_s_own(tmp_path: Path) -> None:
    for name in ("json", "selectors", "multiprocessing", "socket"):
        (tmp_path / f"{name}.py").write_text("open('run', 'w').close()\nraise SystemExit(9)\n")
    pq.write_table(pa.table({"a": np.arange(9.0), "b": np.ones(9)}), tmp_path / "t.parquet")
    command = [str(Path(sys.executable).with_name("dpdist")), "ingest", "t.parquet", "rows.zarr"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "run").exists()


def test_one_that_cannot_start_is_told(process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "_idle", [])
    monkeypatch.setattr(isolated, "_START", "raise SystemExit(3)")
    with pytest.raises(DpdistError, match=r"did not start: .* ended with code 3\. Run this command"):
        process.ask(Misbehaving(tmp_path), "names")


def test_a_script_without_a_guard_is_not_run_a_second_time(tmp_path: Path) -> None:
    """As most scripts are; multiprocessing would import it, and its threads would be forked with it."""
    pq.write_table(pa.table({"a": np.arange(9.0), "b": np.ones(9)}), tmp_path / "t.parquet")
    (tmp_path / "script.py").write_text(
        "import dpdist\nprint('once')\nprint(dpdist.ingest_rows('t.parquet', 'rows.zarr', "
        "budget=dpdist.PrivacyLoss.parse(1, 1e-6)).rows)\n"
    )
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "DPDIST_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert ran.stdout.split() == ["once", "9"]
