"""What an attacker sees of every mechanism: the share of epsilon shown, and whether a copy with less noise is rejected.

Every mechanism is attacked as ``dpdist audit`` does, at one claimed epsilon (and delta where it takes one), on
synthetic tables; nothing here is private. Then a copy with 1.5 times less noise, which claims the same, is attacked:
it must be rejected, or the table says why no attack can: the copy keeps the claim too. Finished cells are kept, so the
same command goes on where it was stopped::

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python -m benchmarks.audit_table --output benchmarks/results/audit_table
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from faults.weakened import FACTOR, kept_by_the_copy, weakened

from dpdist import Neighbours, PrivacyLoss
from dpdist.core.mechanisms import registry
from dpdist.core.mechanisms.info import DeltaUse
from dpdist.core.mechanisms.registry import MECHANISMS
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.privacy.guarantee import ATTO
from dpdist.literature.attack import AuditTask
from dpdist.literature.audit import Audit, attacked

UNIT = 4**16
ERROR = 0.001
OPTIONS: dict[str, Any] = {"components": 1, "iterations": 4, "rows": 1, "sketch": 16, "spectrum": (1.0,)}
Json = dict[str, Any]


def options_for(name: str) -> Json:
    """Return the public parameters with which a mechanism is attacked."""
    return {
        option.name: OPTIONS.get(option.name, 1) for option in MECHANISMS[name].info.options if option.default is None
    }


def cell(name: str, columns: int, neighbours: Neighbours, epsilon: str, draws: int) -> Json:
    """Attack one mechanism and its copy."""
    use = MECHANISMS[name].info.delta
    loss = PrivacyLoss.parse(epsilon, "0.01" if use is DeltaUse.REQUIRED else "0")
    query = LatticeQuery(columns, UNIT, neighbours)
    task = AuditTask(name, query, loss, options_for(name), draws)
    begun = time.process_time()
    honest = registry.calibrated(name, query, loss, task.options)
    copy = weakened(honest, FACTOR)
    found: list[Audit] = [attacked(task, each, ERROR) for each in (honest, copy)]
    first, second = (each.to_json() for each in found)
    return {
        "proved": first["proved"],
        "claim": first["claim"],
        "draws": task.draws,
        "counted": first["counted"]["epsilon_lower"],
        "rows_apart": first["counted"]["rows_apart"],
        "weighted": first["weighted"] and first["weighted"]["epsilon_lower"],
        "claim_rejected": first["claim_rejected"],
        "proof_rejected": first["proof_rejected"],
        "copy_counted": second["counted"]["epsilon_lower"],
        "copy_weighted": second["weighted"] and second["weighted"]["epsilon_lower"],
        "copy_rejected": second["claim_rejected"],
        "reason": kept_by_the_copy(name, copy, query, loss),
        "cpu_seconds": round(time.process_time() - begun, 1),
    }


def _share(shown: float | None, epsilon: float) -> str:
    """Return a share in words; where a release tells a table for certain, every epsilon is shown."""
    if shown is None:
        return "-"
    return "any" if shown > 100 * epsilon else f"{shown / epsilon:.2f}"


def _row(key: str, found: Json, epsilon: float) -> str:
    name, columns, _ = key.split(" ")
    proved = found["proved"]
    counted, weighted = (_share(found[way], epsilon) for way in ("counted", "weighted"))
    claim = "**rejected**" if found["claim_rejected"] else "not rejected"
    copy = "rejected" if found["copy_rejected"] else found["reason"] or "NOT SEEN"
    delta = "nothing" if proved is None else f"{proved['delta_atto'] / ATTO:.3g}"
    return f"| {name} | {columns} | {delta} | {claim} | {counted} | {found['rows_apart']} | {weighted} | {copy} |"


def main() -> None:
    """Attack what was asked for, and write the table as JSON and Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mechanisms", nargs="+", default=sorted(set(MECHANISMS) - {"none"}))
    parser.add_argument("--columns", nargs="+", type=int, default=[2, 8])
    parser.add_argument("--neighbours", default="replace-one")
    parser.add_argument("--epsilon", default="2")
    parser.add_argument("--draws", type=int, default=20_000, help="Of each table.")
    parser.add_argument("--output", required=True, help="Names the results: OUTPUT.json and OUTPUT.md.")
    chosen = parser.parse_args()
    kept = Path(f"{chosen.output}.json")
    results: dict[str, Json] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for columns in chosen.columns:
        for name in chosen.mechanisms:
            key = f"{name} {columns} {chosen.neighbours}"
            if key not in results:
                results[key] = cell(name, columns, Neighbours(chosen.neighbours), chosen.epsilon, chosen.draws)
                kept.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
                print(key, results[key], flush=True)
    draws = ", ".join(sorted({str(found["draws"]) for found in results.values()}))
    lines = [
        f"Epsilon {chosen.epsilon} claimed, {chosen.neighbours}; delta 0.01 where one is taken; one component,",
        f"4 rounds, a sketch of 16; {draws} draws of each table. Shares of the claimed epsilon that are shown",
        f"at the claimed delta, confidence {1 - ERROR:g}.",
        "Counted: from draws of both tables alone, so many rows apart. Weighted: if the likelihood ratio is right.",
        f"The copy has {FACTOR} times less noise, in the scale it is calibrated to, and claims the same.",
        "The JSON has what either way shows of it. A draw that is not of its stated scale is for the counts to see.",
        "",
        "| mechanism | d | delta proved | claim | counted | rows apart | weighted | copy |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(key, found, float(chosen.epsilon)) for key, found in sorted(results.items())),
    ]
    Path(f"{chosen.output}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
