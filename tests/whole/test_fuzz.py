"""A few cases of benchmarks/fuzz.py of each kind, and all that failed once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.folders import RESULTS, ROOT

SEEDS = RESULTS / "fuzz_seeds.json"
SCRIPT = """
import sys
from pathlib import Path
from benchmarks import fuzz
from faults import fuzzing
main, folder = fuzzing.cli.main, Path(sys.argv[1]) / "case"
folder.mkdir()
def faulty(*_):
    (folder / ".left.partial").touch()
    try:
        bytearray(3 << 30)
    except MemoryError:
        print("dpdist: one sentence", file=sys.stderr)
        sys.exit(4)
fuzzing.cli.main = faulty
code, _, _ = fuzzing.run_case(folder, ("ingest",))
for before, ended in ((set(), code), ({".left.partial"}, code), ({".left.partial"}, 1), ({".left.partial"}, -11)):
    print(fuzzing.wrong_with(folder, ended, before, None))
(folder.parent / "case.err").write_text("Traceback: of a library\\ndpdist: one sentence\\n")
print(fuzzing.wrong_with(folder, 4, {".left.partial"}, None), flush=True)
fuzzing.cli.main = main
sys.argv[1:] = sys.argv[2:]
fuzz.main()
"""
NOTICED = ["it left .left.partial", "None", "it ended with 1", "it ended with -11", "it said more than one sentence"]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory as Linux gives it")
def test_damaged_files_of_every_kind_end_in_one_sentence_and_leave_nothing(tmp_path: Path) -> None:
    """A case that takes memory, leaves something or ends otherwise is noticed: the same process tries that first."""
    options = ["--cases", "1", "--seeds", str(SEEDS), "--out", str(tmp_path / "found")]
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), *options]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[: len(NOTICED)] == NOTICED
    found = json.loads((tmp_path / "found.json").read_text())
    assert not found["failures"]
    codes = [code for kind in found["kinds"].values() for code in kind["codes"]]
    assert {"0", "4"} <= set(codes) <= {"0", "2", "3", "4", "5"}  # some damage does not matter, and some is found
