"""Commands as people type them, what they said, and a folder of rows with their ledger to run them in."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from dpdist.core.ledger.ledger import Ledger
from dpdist.core.privacy.guarantee import PrivacyLoss

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
    def told(self) -> str:
        """The result and the messages."""
        return self.out + self.err

    @property
    def message(self) -> str:
        """The one paragraph that says what went wrong; only labels of progress and a forecast may stand before it."""
        if self.out:  # with --json
            assert self.json == {"error": self.err.splitlines()[-1].removeprefix("dpdist: "), "exit_code": self.code}
        assert "Traceback" not in self.err
        *labels, message = self.err.splitlines()
        begun = {"Ingesting", "Registering rows", "Summing rows", "Projecting rows", "Waiting for workers"}
        assert {WHERE.sub("", label) for label in labels if not label.startswith("Forecast: ")} <= begun
        assert message.startswith("dpdist: ")
        return message


WHERE = re.compile(r" in this process$| on \d+ workers? at \S+$| at \S+, [\d.e-]+ minutes at most$")
"""How a label ends."""
Call = Callable[..., Said]


def start(*arguments: object, folder: Path, script: Path | None = None) -> Said:
    program = ["-m", "dpdist"] if script is None else [str(script)]
    command = [sys.executable, *program, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


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
