"""Search the state machine of a release exhaustively, for larger sets of processes than the tests do.

The real ledger, the real commit and the real rules of the witness run over books in memory: ``faults.state_machine``
says what a step is, ``faults.state_space`` how the states are searched and what must hold in each of them. A search
that meets its limit says so; its states are all those that so many steps can reach.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from faults.state_machine import Command
from faults.state_space import Space

RESULTS = Path(__file__).parent / "results"
X, Y, COPY_OF_X, COPY_OF_Y = Command("x"), Command("y"), Command("x", 1), Command("y", 1)
STAGED, COPY_OF_STAGED = Command("x", draws=2), Command("x", 1, draws=2)
THREE = Command("x", draws=3)
FAILED, HASTY = STAGED._replace(fails=True), STAGED._replace(hasty=True)
SPACES: dict[str, dict[str, Any]] = {
    "x twice": {"commands": [X, X], "deaths": 2},
    "x twice, backup": {"commands": [X, X], "deaths": 1, "restored": True},
    "x and y, backup": {"commands": [X, Y], "deaths": 2, "restored": True},
    "x and a copy, backup": {"commands": [X, COPY_OF_X], "deaths": 2, "copied": True, "restored": True},
    "x twice and a copy": {"commands": [X, X, COPY_OF_X], "copied": True},
    "x, y and a copy": {"commands": [X, Y, COPY_OF_X], "deaths": 2, "copied": True},
    "x and two of a copy": {"commands": [X, COPY_OF_X, COPY_OF_Y], "deaths": 2, "copied": True},
    "x, y and a copy, backup": {"commands": [X, Y, COPY_OF_X], "deaths": 2, "copied": True, "restored": True},
    "x, y and a copy, backup, no death": {"commands": [X, Y, COPY_OF_X], "copied": True, "restored": True},
    "x, y and a copy, backup, a death": {"commands": [X, Y, COPY_OF_X], "deaths": 1, "copied": True, "restored": True},
    "staged twice": {"commands": [STAGED, STAGED], "deaths": 1},
    "staged and its copy, backup": {
        "commands": [STAGED, COPY_OF_STAGED],
        "deaths": 1,
        "copied": True,
        "restored": True,
    },
    "staged and y, backup": {"commands": [STAGED, Y], "deaths": 2, "restored": True, "budget": 2},
    "staged, y and its copy": {"commands": [STAGED, Y, COPY_OF_STAGED], "deaths": 1, "copied": True, "budget": 2},
    "staged and who fails": {"commands": [STAGED, FAILED], "deaths": 2, "restored": True},
    "three draws twice": {"commands": [THREE, THREE], "deaths": 1},
    "three draws and their copy": {"commands": [THREE, THREE._replace(copy=1)], "copied": True},
    "three draws, backup": {"commands": [THREE], "deaths": 2, "restored": True},
    "three draws and who fails": {"commands": [THREE, THREE._replace(fails=True)], "deaths": 1},
    "three draws and who is hasty": {"commands": [THREE, THREE._replace(hasty=True)], "deaths": 1},
    "staged and who is hasty": {"commands": [STAGED, HASTY], "deaths": 1, "restored": True},
}


def searched(name: str, limit: int) -> dict[str, Any]:
    """Search one space and return its figures."""
    settings = SPACES[name]
    space, begun = Space(**settings), time.monotonic()
    space.explore(limit)
    return {
        "space": name,
        "processes": [_process(each) for each in space.commands],
        "deaths": space.deaths,
        "copied": space.copied,
        "restored": space.restored,
        "budget": space.budget,
        "states": space.states,
        "transitions": space.transitions,
        "depth": space.depth,
        "steps_of_real_code": space.executed,
        "complete": space.complete,
        "outcomes": sorted(space.outcomes),
        "violations": 0,
        "seconds": round(time.monotonic() - begun, 1),
    }


def _process(asked: Command) -> str:
    """Say what a process runs, and where."""
    kind = ("", " in two draws", " in three draws")[asked.draws - 1]
    kind += ", which fails," if asked.fails else ", hasty," if asked.hasty else ""
    return f"{asked.release_id}{kind} on {'the copy' if asked.copy else 'the ledger'}"


def table(found: list[dict[str, Any]]) -> str:
    """Return the figures as a page."""
    lines = [
        "# Every state of a release",
        "",
        "`python -m benchmarks.state_space --output state_space`. In none of these states was an invariant broken.",
        "",
        "| processes | deaths | copied | restored | budget | states | transitions | depth | searched | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        yes = {True: "once", False: "no"}
        whole = "all" if each["complete"] else "up to the depth"
        lines.append(
            f"| {', '.join(each['processes'])} | {each['deaths']} | {yes[each['copied']]} | {yes[each['restored']]} | "
            f"{each['budget']} | {each['states']} | {each['transitions']} | {each['depth']} | {whole} | "
            f"{each['seconds']} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Search the spaces that are not among the results yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", default="state_space", help="name of the files in benchmarks/results")
    parser.add_argument("--limit", type=int, default=10_000_000, help="states of a space after which it is left")
    parser.add_argument("--only", nargs="*", choices=list(SPACES), help="spaces to search")
    chosen = parser.parse_args()
    file = RESULTS / f"{chosen.output}.json"
    found = json.loads(file.read_text()) if file.exists() else []
    for name in chosen.only or SPACES:
        if name not in {each["space"] for each in found}:
            found.append(searched(name, chosen.limit))
            print(found[-1])
            file.write_text(json.dumps(found, indent=1) + "\n")
            file.with_suffix(".md").write_text(table(found))


if __name__ == "__main__":
    main()
