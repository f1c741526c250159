"""What a release of a billion rows costs on more and more workers, where one store gives all of them so much in all.

The table of docs/howto/wide.md. Seconds of a core are measured where it runs; nothing else is.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from benchmarks import cluster_cost as cost
from dpdist import PrivacyLoss, ReleaseRequest
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.report.text import amount

ROWS, COLUMNS = 10**9, 1000
WORKERS = (16, 64, 256, 1024)
MEMORY = 16 << 30


def duration(seconds: float) -> str:
    """Return a time, rounded up.

    >>> duration(0.2), duration(61), duration(9000)
    ('1 s', '2 min', '2.5 h')
    """
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    if seconds < 7200:
        return f"{math.ceil(seconds / 60)} min"
    return f"{math.ceil(seconds / 360) / 10:g} h"


def main() -> None:
    """Write NAME.json and NAME.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store-bandwidth", type=float, default=1e10)
    parser.add_argument("--output", required=True)
    chosen = parser.parse_args()
    request = ReleaseRequest("gaussian", PrivacyLoss.parse(1, "1e-12"), 1.0)
    table, bound = cost.described(ROWS, COLUMNS, "float32"), planned(request, Dimensions(COLUMNS, ROWS)).bound
    found = cost.forecast(table, bound, WORKERS, MEMORY, divisible=True, bandwidth=chosen.store_bandwidth)
    lines = [
        "| workers | tasks | between workers | ingest of Parquet | of CSV | one read | release | lost worker |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        layout = each.layout
        ingest = (duration(each.ingest_seconds(kind)) for kind in ("parquet", "csv"))
        cells = (
            layout.workers, sum(cost.tasks_of(layout)), amount(cost.bytes_between_workers(layout)), *ingest,
            duration(each.read_seconds), duration(each.seconds), duration(each.lost_worker_seconds),
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    Path(f"{chosen.output}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    told = {"rates": vars(found[0].rates), "costs": [each.to_json() for each in found]}
    Path(f"{chosen.output}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
