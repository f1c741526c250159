"""Where tests stand: a folder for each room of the package, and no test of anything but the product."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter

from support.folders import ROOT

ROOMS = {path.name for path in (ROOT / "dpdist").iterdir() if path.is_dir()}
BESIDE = {"cluster", "papers"}
"""Folders of the repository, beside the package, that have tests of their own."""
OTHERS = {"faults", "whole", "support", "stored", "__pycache__"}
SEARCHED = ("tests", "benchmarks", "papers")
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def imported(text: str) -> set[str]:
    """Return the first words of all modules that a text imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_a_folder_of_tests_is_called_like_what_it_tests() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert folders <= ROOMS | BESIDE | OTHERS
    assert all((ROOT / name).is_dir() for name in BESIDE)


def test_nobody_imports_a_test_and_what_is_tested_with_imports_no_benchmark() -> None:
    names = {path.stem for path in TESTS if path.stem.startswith("test_")}
    files = {path: imported(path.read_text()) for room in SEARCHED for path in (ROOT / room).rglob("*.py")}
    assert [str(path) for path, found in files.items() if found & names] == []
    assert [str(path) for path in TESTS if "benchmarks" in files[path]] == []


SAYS_NOTHING = {
    "found", "each", "place", "places", "said", "told", "tells", "seen", "aside", "beside", "whole", "own", "given",
    "known", "wanted", "held", "kept", "asked", "taken", "made", "begun", "got", "gone", "what", "here", "there",
    "thing", "things", "some", "many", "piece", "pieces", "apart", "which", "such", "ask", "meant", "come", "put",
    "let", "stuff", "obj", "tmp", "temp",
}  # fmt: skip
"""Names of locals that do not say what they hold."""


def test_locals_say_what_they_hold() -> None:
    bound, empty = 0, Counter[str]()
    for path in sorted((ROOT / "dpdist").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
                name = node.arg if isinstance(node, ast.arg) else node.id
                bound += 1
                empty[path.name] += name.strip("_") in SAYS_NOTHING
    assert empty.total() < 0.02 * bound, f"worst: {empty.most_common(3)}"


def test_nothing_crosses_the_wall_from_the_core_and_no_modules_import_each_other() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "house.py"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rooms"]["core"]["files"] > 100
    assert told["core to annexes, named"]  # mechanisms, readers, kinds of stored folders
    assert (told["core to annexes, imported"], told["circles"]) == ([], [])
