"""An attack on a person with a row in 7 nights (:mod:`faults.person_attack`), in every form of nightly releases.

As a twin that must be rejected, each row is protected alone.

    python -m benchmarks.person_audit --output benchmarks/results/person_audit.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

from faults.person_attack import LOSS, MOST, NIGHTS, PLANS, audited

from dpdist.core.rows.units import Unit


def main() -> None:
    """Attack every form, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    lines = [
        f"# A person with a row in {MOST} of {NIGHTS} nights",
        "",
        f"Claimed: {LOSS}, of all that is published together. {chosen.draws} draws, confidence 0.999 each.",
        "mu is exact, of the nights that show most, over that of the claim.",
        "",
        "| form | protected | nights | mu | epsilon at least | claim |",
        "|---|---|---|---|---|---|",
    ]
    for name, plan in PLANS.items():
        for unit, what in ((Unit("person", 1, max_periods=MOST), "a person"), (None, "a row")):
            found = audited(plan, unit, chosen.draws, 0.001)
            nights, least = ", ".join(map(str, found.nights)), found.finding.epsilon(LOSS.delta)
            verdict = "REJECTED" if found.rejected else "not rejected"
            lines.append(f"| {name} | {what} | {nights} | {found.factor:.3f} | {least:.3f} | {verdict} |")
    chosen.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
