"""Commands as people type them, what they said, and a folder of rows with their ledger to run them in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from dpdist import cli
from dpdist.ledger.ledger import Ledger
from dpdist.pipeline import budget
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows import dataset
from dpdist.rows.dataset import created

ROWS, COLUMNS = 50, 3
CHUNKS = 5
BUDGET = PrivacyLoss.parse("2", "1e-5")
LOSS = ("--epsilon", "1", "--delta", "1e-6", "--clip", "300")
CHUNK = Path("rows.zarr", "c", "2", "0")


class Said(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on standard output, which must hold nothing else."""
        assert self.out.count("\n") == 1
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value

    @property
    def message(self) -> str:
        """The one paragraph that says what went wrong; only labels of progress may stand before it."""
        assert self.out == ""
        assert "Traceback" not in self.err
        *labels, message = self.err.splitlines()
        assert set(labels) <= {"Ingesting", "Summing rows", "Projecting rows"}
        assert message.startswith("dpdist: ")
        return message


Call = Callable[..., Said]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs a command in this process."""

    def run(*arguments: object) -> Said:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["dpdist", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert isinstance(stop.value.code, int)
        return Said(stop.value.code, *capsys.readouterr())

    return run


def start(*arguments: object, folder: Path, script: Path | None = None) -> Said:
    """Run a command, or a script that calls it, in a process of its own."""
    program = ["-m", "dpdist"] if script is None else [str(script)]
    command = [sys.executable, *program, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with rows in several chunks and their ledger, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    rows = np.random.default_rng(9).integers(0, 255, size=(ROWS, COLUMNS), dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_TARGET_CHUNK", rows.nbytes // CHUNKS)
        with created(folder / "rows.zarr", rows=ROWS, dtype="uint8", names=("a", "b", "c"), budget=BUDGET) as writer:
            writer.append(rows)
    budget.create_ledger(folder / "rows.ledger", folder / "rows.zarr")
    return folder


@pytest.fixture
def here(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a fresh folder that holds rows.zarr and rows.ledger, on a machine that has seen no copy of them."""
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_nothing_spent(folder: Path, *more: str) -> None:
    """Check that a failure cost nothing and left nothing, besides what the test itself put there."""
    ledger = Ledger(folder / "rows.ledger")
    assert ledger.charges == []
    assert names_in(folder) == sorted(["rows.ledger", "rows.zarr", *more])
    assert names_in(folder / "rows.ledger") == ["blobs", "ledger.sqlite"]
    assert names_in(folder / "rows.ledger" / "blobs") == []


@pytest.fixture
def released(here: Path, call: Call, scheduler: str) -> Path:
    """Work beside a release of the rows."""
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 0
    return here
