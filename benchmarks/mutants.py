"""Mutation testing: small faults are put into the code one at a time, and its own tests must notice each.

The faults are those of cosmic-ray (extra ``mutation``). What is mutated, by which operators and before which tests
stands in ``pyproject.toml`` under ``tool.mutants``. Every mutant runs in a fork that imports the mutated module for the
real one, so no file changes. Its first failing test ends it, or a timeout of four times what the tests need,
which counts as noticed. Results are written after every mutant; the next run with the same source goes on where the
last one ended::

    python -m benchmarks.mutants sensitivity bounding
    python -m benchmarks.mutants accounting --shard 2/4
    python -m benchmarks.mutants bounding --survivors        # again, after a test was added
    python -m benchmarks.mutants --summary

``results/mutants/NAME.json`` has every mutant, ``explained.toml`` says of survivors why they change nothing, and
``summary.md`` is made of both.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import importlib.abc
import importlib.util
import json
import math
import os
import random
import signal
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "mutants"
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutants"]
PRELOADED = ("numpy", "scipy.stats", "scipy.special", "mpmath", "numba", "zarr", "dask", "pandas", "distributed")
"""Imported once, before the forks: they know nothing of what is mutated."""
PATIENCE, LEAST_PATIENCE = 4, 20.0
"""A mutant has so many times the seconds its tests take without a fault, and at least so many."""

MEMORY = Path("/dev/shm")  # noqa: S108 - each test makes a folder of its own there
"""Where tests write: no mutant is about a disk, and waiting for one takes most of the time of the ledger's tests."""

Place = tuple[int, int]
"""Line and column."""


@dataclass(frozen=True)
class Mutant:
    """One fault: the operator, which of its places, the line, and the line before and after."""

    operator: str
    occurrence: int
    line: int
    before: str
    after: str


class Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a module from a text."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self._name, self._path, self._text = name, path, text

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Claim the one module."""
        del path, target
        found: ModuleSpec | None = None
        if fullname == self._name:
            found = importlib.util.spec_from_file_location(fullname, self._path, loader=self)
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Run the text in place of the file."""
        exec(compile(self._text, str(self._path), "exec"), module.__dict__)  # noqa: S102 - this is the fault


def ignored(source: str) -> list[tuple[Place, Place]]:
    """Return where what is never evaluated begins and ends: annotations."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            found = getattr(node, name, None)
            if isinstance(found, ast.expr) and found.end_lineno is not None and found.end_col_offset is not None:
                spans.append(((found.lineno, found.col_offset), (found.end_lineno, found.end_col_offset)))
    return spans


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every fault of the configured operators."""
    unseen, tree = ignored(source), get_ast(source)
    for name in CONFIG["operators"]:
        operator = get_operator(f"core/{name}")()
        places = [place for node in ast_nodes(tree) for place in operator.mutation_positions(node)]
        for occurrence, (start, _) in enumerate(places):
            if any(first <= start < last for first, last in unseen):
                continue
            text = mutate_code(source, operator, occurrence)
            if text is None or text == source:
                continue
            lines = [(a, b) for a, b in zip(source.splitlines(), text.splitlines(), strict=False) if a != b]
            before, after = (line.strip() for line in lines[0])
            yield Mutant(name, occurrence, start[0], before, after)


def is_program(text: str) -> bool:
    """Say whether a text can be compiled: an operator may also meet a star that multiplies nothing."""
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def tested(name: str, text: str | None, seconds: float) -> tuple[str, float]:
    """Run the tests of a subject in a fork, over its module or another text of it; return the outcome and seconds."""
    subject = CONFIG["subjects"][name]
    path = ROOT / (subject["module"].replace(".", "/") + ".py")
    if text is not None and not is_program(text):
        return "no program", 0.0
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            if text is not None:
                sys.meta_path.insert(0, Replaced(subject["module"], path, text))
            if subject.get("interpreted"):
                importlib.import_module("numba").config.DISABLE_JIT = True
            pytest = importlib.import_module("pytest")
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", *subject["tests"]]))
        finally:
            os._exit(code)
    while time.monotonic() - begun < seconds:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            took = time.monotonic() - begun
            return {0: "survived", 1: "killed"}.get(os.waitstatus_to_exitcode(status), "broken"), took
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout", time.monotonic() - begun


def written(output: Path, record: dict[str, Any]) -> None:
    """Write what is known of the mutants of a subject."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run(name: str, shard: tuple[int, int], *, survivors: bool) -> None:
    """Play the mutants of a subject that were not played yet, or those again that survived."""
    subject = CONFIG["subjects"][name]
    path = ROOT / (subject["module"].replace(".", "/") + ".py")
    source = path.read_text(encoding="utf-8")
    digest = hashlib.sha256(source.encode()).hexdigest()
    output = RESULTS / f"{name}.json"
    record: dict[str, Any] = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    every = list(mutants(source))
    shuffled = list(every)
    random.Random(1).shuffle(shuffled)  # noqa: S311 - a larger sample holds the smaller one
    chosen = shuffled[: math.ceil(len(every) * subject.get("sample", 1))]
    if record.get("source") != digest:  # what is known of the same line stays known
        past = record.get("mutants", [])
        record = {"module": subject["module"], "source": digest, "possible": len(every), "mutants": []}
        for each in every:
            told = asdict(each)
            same = (old for old in past if all(old[key] == told[key] for key in ("operator", "before", "after")))
            found = next(same, None)
            if found is not None:
                past.remove(found)  # it speaks for one line, should there be several alike
                record["mutants"].append({**told, "outcome": found["outcome"]})
        written(output, record)
    played = {(each["operator"], each["occurrence"]): each for each in record["mutants"]}
    chosen += [each for each in shuffled[len(chosen) :] if (each.operator, each.occurrence) in played]
    outcome, took = tested(name, None, 600.0)
    if outcome != "survived":
        raise SystemExit(f"The tests of {name} do not pass without any fault: {outcome}.")
    patience = max(LEAST_PATIENCE, PATIENCE * took)
    for number, mutant in enumerate(chosen):
        earlier = played.get((mutant.operator, mutant.occurrence))
        if number % shard[1] != shard[0] - 1 or (
            earlier is not None and not (survivors and earlier["outcome"] == "survived")
        ):
            continue
        text = mutate_code(source, get_operator(f"core/{mutant.operator}")(), mutant.occurrence)
        outcome, took = tested(name, text, patience)
        played[mutant.operator, mutant.occurrence] = {**asdict(mutant), "outcome": outcome}
        record["mutants"] = sorted(played.values(), key=lambda m: (m["line"], m["operator"], m["occurrence"]))
        written(output, record)
        if outcome == "survived":
            print(f"{name}:{mutant.line} {mutant.operator}\n  - {mutant.before}\n  + {mutant.after}", flush=True)
    print(name, len(played), "of", len(every), flush=True)


def summary() -> str:
    """Return a table of all subjects, and every survivor with its explanation."""
    explained = tomllib.loads((RESULTS / "explained.toml").read_text(encoding="utf-8"))
    lines = [
        "# Mutants",
        "",
        "Made by `python -m benchmarks.mutants --summary`. A mutant is killed by a failing test, by tests that cannot",
        "even start with it, or by a timeout. Where fewer were run than there are, they are a random sample.",
        "Where the source is an earlier one, the module has changed since they were run.",
        "",
        "| subject | source | possible | run | killed | survived | explained |",
        "|---|---|---|---|---|---|---|",
    ]
    told = []
    for path in sorted(RESULTS.glob("*.json")):
        record, reasons = json.loads(path.read_text(encoding="utf-8")), explained.get(path.stem, {})
        played = [each for each in record["mutants"] if each["outcome"] != "no program"]
        left = [each for each in played if each["outcome"] == "survived"]
        known = [reasons.get(f"{each['before']} -> {each['after']}") for each in left]
        count, killed = len(played), len(played) - len(left)
        source = ROOT / (CONFIG["subjects"][path.stem]["module"].replace(".", "/") + ".py")
        current = hashlib.sha256(source.read_bytes()).hexdigest() == record["source"]
        state = "as it is" if current else "earlier"
        cells = (
            f"`{record['module']}`",
            state,
            record["possible"],
            count,
            killed,
            len(left),
            len(left) - known.count(None),
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
        if left:
            told += ["", f"## `{record['module']}`", ""]
        for each, reason in zip(left, known, strict=True):
            told.append(f"* `{each['before']}` to `{each['after']}`: {reason or '**not explained**'}")
    return "\n".join([*lines, *told]) + "\n"


def main() -> None:
    """Play mutants, or write the summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("subjects", nargs="*", choices=[*CONFIG["subjects"], []])
    parser.add_argument("--shard", default="1/1", help="K/N: of the mutants the K-th of every N.")
    parser.add_argument("--survivors", action="store_true", help="Play those again that survived.")
    parser.add_argument("--summary", action="store_true", help="Write summary.md.")
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if MEMORY.is_dir():
        os.environ["TMPDIR"] = str(MEMORY)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    if chosen.subjects:
        for name in PRELOADED:
            importlib.import_module(name)
    part, parts = map(int, chosen.shard.split("/"))
    for name in chosen.subjects:
        run(name, (part, parts), survivors=chosen.survivors)
    if chosen.summary:
        (RESULTS / "summary.md").write_text(summary(), encoding="utf-8")


if __name__ == "__main__":
    main()
