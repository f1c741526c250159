"""Break a release in every way it must survive, hundreds of times, and count what was lost, doubled or leaked.

Every fault of :mod:`faults.chaos` is injected into real processes: scheduler, workers, trusted node, driver, database.
After each, the same command is run again and five invariants are checked (:mod:`faults.chaos_scene`). It needs the test
extra, PostgreSQL's programs, and root for small disks, network namespaces and other processes' memory::

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.chaos --output benchmarks/results/chaos

A fault that did not land counts as a failure, and so does one that this user may not inject. Results are written down
at once. The next run with the same output plays only what is missing or missed: a violation stays, and is never played
away.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from faults import chaos, postgres_server
from faults.chaos import Fault
from faults.chaos_stage import Stage, staging

INVARIANTS = {
    "I1": "double releases", "I2": "lost or double charges", "I3": "wrong sums", "I4": "leaked sentinels",
    "I5": "commands that did not end well",
}  # fmt: skip

_KEYS = ("kind", "where", "trusted", "ledger")


def _counts(result: dict[str, Any]) -> bool:
    """Say whether a fault landed, whatever came of it."""
    return result["failure"] is None or result["failure"].startswith("ViolationError")


def played(stage: Stage, fault: Fault, *, search_memory: bool) -> dict[str, Any]:
    """Play one fault and return what became of it."""
    try:
        return {**stage.play(fault, search_memory=search_memory).to_json(), "failure": None}
    except Exception as error:  # noqa: BLE001 - whatever it is, it did not hold
        failure = f"{type(error).__name__}: {error}"
    return {
        "kind": fault.kind, "where": fault.where, "trusted": fault.trusted, "ledger": fault.books, "failure": failure,
    }  # fmt: skip


class Run:
    """Plays faults on several stages at once, those across a network on the first, and keeps what became of them."""

    def __init__(self, faults: list[Fault], output: str) -> None:
        self._output = Path(f"{output}.json")
        before = json.loads(self._output.read_text(encoding="utf-8")) if self._output.exists() else []
        self.results: list[dict[str, Any]] = [result for result in before if _counts(result)]
        self._count = len(faults)
        self._searched: Counter[tuple[str, str]] = Counter()
        self._near: queue.SimpleQueue[Fault] = queue.SimpleQueue()
        self._far: queue.SimpleQueue[Fault] = queue.SimpleQueue()
        known = {tuple(result[key] for key in _KEYS) for result in self.results}
        for fault in faults:
            if (fault.kind, fault.where, fault.trusted, fault.books) in known:
                continue
            (self._far if fault.needs == "network" else self._near).put(fault)

    def on(self, stages: list[Stage]) -> None:
        """Play all of them."""
        threads = [threading.Thread(target=self._work, args=(stage, stage is stages[0])) for stage in stages]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, stage: Stage, first: bool) -> None:
        for waiting in (self._far, self._near) if first else (self._near,):
            while True:
                try:
                    fault = waiting.get_nowait()
                except queue.Empty:
                    break
                self._play(stage, fault)

    def _play(self, stage: Stage, fault: Fault) -> None:
        began = time.monotonic()
        self._searched[fault.kind, fault.trusted] += 1
        # memory of scheduler and client is searched for the first two of a kind and trusted node
        result = played(stage, fault, search_memory=self._searched[fault.kind, fault.trusted] <= 2)
        self.results.append(result)
        ordered = sorted(self.results, key=lambda one: [one[key] for key in _KEYS])
        self._output.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
        words = f"{len(self.results)}/{self._count} {time.monotonic() - began:.0f} s {fault.name}: "
        print(words + (result["failure"] or "held"), flush=True)


def table(results: list[dict[str, Any]]) -> str:
    """Return the summary in Markdown."""
    failures = [result["failure"] for result in results if result["failure"]]
    counts = {words: sum(f"{name}:" in failure for failure in failures) for name, words in INVARIANTS.items()}
    memories = sum(any("memory" in place for place in result.get("searched", [])) for result in results)
    lines = [
        f"{len(results)} of {len(chaos.all_faults())} faults injected, {sum(map(_counts, results))} landed.",
        "",
        ", ".join(f"{count} {words}" for words, count in counts.items()) + ".",
        f"Files and logs were searched for un-noised values after every fault, memory after {memories}.",
        "",
        "| fault held of injected | driver, folder | driver, PostgreSQL | worker, folder | worker, PostgreSQL |",
        "|---|---|---|---|---|",
    ]
    for kind in sorted({result["kind"] for result in results}):
        cells = []
        for trusted in chaos.NODES:
            for books in chaos.BOOKS:
                these = [
                    result
                    for result in results
                    if (result["kind"], result["trusted"], result["ledger"]) == (kind, trusted, books)
                ]
                held = sum(result["failure"] is None for result in these)
                cells.append(f"{held} of {len(these)}" if these else "")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Play every fault, write the results as JSON and Markdown, and return 1 if anything did not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="Stages at once, each with a cluster of its own.")
    parser.add_argument("--only", default="", help="Play only faults with this in their name.")
    parser.add_argument("--output", required=True, help="Names the results: OUTPUT.json and OUTPUT.md.")
    chosen = parser.parse_args()
    programs = postgres_server.programs()
    if programs is None:
        raise SystemExit("PostgreSQL's initdb and postgres are needed (Debian: apt-get install postgresql).")
    run = Run([fault for fault in chaos.all_faults() if chosen.only in fault.name], chosen.output)
    with ExitStack() as stack:
        os.environ["PGPASSWORD"] = postgres_server.PASSWORD
        server = stack.enter_context(postgres_server.running(programs))
        run.on([stack.enter_context(staging(server)) for _ in range(chosen.jobs)])
    words = table(run.results)
    Path(f"{chosen.output}.md").write_text(words, encoding="utf-8")
    print(words)
    return int(any(result["failure"] for result in run.results))


if __name__ == "__main__":
    sys.exit(main())
