"""Some nights of the simulated year, in a process of its own: nothing of it may go wrong otherwise than told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.folders import ROOT


def test_some_nights_is_simulated_and_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.nightly_year", "--periods", "4", "--output", str(tmp_path / "week")]
    command += ["--form", "single periods", "--form", "tree"]
    run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "week.json").read_text())
    single, tree = found["single periods"], found["tree"]
    assert single["releases"] == 4
    assert tree["releases"] == 4 + 2 + 1
    for year in (single, tree):
        (left,) = year["left"]  # for rows to come, night after night: all of it
        assert left.startswith("one gaussian release of epsilon 1 at delta 1e-06")
        assert sum(count for what, count in year["happened"].items() if what.startswith("runs ended")) >= 1
    assert "| 4 |" in (tmp_path / "week.md").read_text()
