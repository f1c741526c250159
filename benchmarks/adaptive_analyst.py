"""What an analyst wins against the ledger's rule, and won before there were caps (:mod:`faults.adaptive_analyst`).

::

    python -m benchmarks.adaptive_analyst --output benchmarks/results/adaptive_analyst
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from faults.adaptive_analyst import BUDGETS, halves, played, random_menu, random_staircase, staircase

from dpdist import PrivacyLoss


def main() -> None:
    """Play all games and write what was reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/adaptive_analyst"))
    parser.add_argument("--menus", type=int, default=50)
    parser.add_argument("--stages", type=int, default=6)
    parser.add_argument("--points", type=int, default=8001)
    arguments = parser.parse_args()
    games: list[dict[str, Any]] = []
    for seed in range(arguments.menus):
        budget = PrivacyLoss.parse(*BUDGETS[seed % len(BUDGETS)])
        kind, menu_of = (("staircase", random_staircase), ("all kinds", random_menu))[seed % 2]
        found = played(budget, menu_of(budget, seed), arguments.stages, arguments.points)
        games.append({"menu": f"random {seed}, {kind}", "budget": str(budget), **found})
        print(games[-1], flush=True)
    for pair in BUDGETS:
        budget = PrivacyLoss.parse(*pair)
        found = played(budget, staircase(budget, halves(5)), 7, arguments.points)
        games.append({"menu": "doubling staircase", "budget": str(budget), **found})
        print(games[-1], flush=True)
    arguments.output.with_suffix(".json").write_text(json.dumps(games, indent=1) + "\n")
    worst = {key: max(float(game[key]) for game in games) for key in ("before_low", "after_low", "after_high")}
    lines = [
        "# An adaptive analyst against the ledger",
        "",
        f"Delta reached over the delta of the budget, {arguments.stages} requests, {arguments.points} losses. `low` is",
        "reached by a strategy, `high` is an upper bound; made by `python -m benchmarks.adaptive_analyst`.",
        "",
        "Largest: {before_low:.2f} before caps; now {after_low:.4f}, at most {after_high:.4f}.".format(**worst),
        "",
        "| menu | budget | before: low | now: low | now: high |",
        "|---|---|---|---|---|",
        *(
            f"| {g['menu']} | {g['budget']} | {g['before_low']:.3f} | {g['after_low']:.4f} | {g['after_high']:.4f} |"
            for g in games
        ),
    ]
    arguments.output.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
