"""How much variance private components capture: an evaluation on public data, not private.

The exact second moment of a rows.zarr is computed once on the cluster; noise of each setting is then drawn a number of
times and the components are scored against the exact ones. Nothing is charged to a ledger and nothing is published,
because the score is a function of the exact data. Run it on public data only::

    python workflows/captured_variance.py rows.zarr --clip 2500 --components 50 gaussian:1:1e-6 two-sided-wishart:10
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from dpdist.engine import connected
from dpdist.moment.operator import MomentMatrix
from dpdist.moment.total import add_partials, complete, partition_moment, plan
from dpdist.noise.entropy import SYSTEM
from dpdist.pca.spectrum import captured_variance, top_eigenpairs
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release.request import ReleaseRequest
from dpdist.rows.dataset import open_rows
from dpdist.triangle import unpacked


def main() -> None:
    """Print one JSON object per setting: the captured variance of each draw, their mean and spread."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("settings", nargs="+", metavar="MECHANISM:EPSILON[:DELTA]")
    parser.add_argument("--clip", type=float, required=True)
    parser.add_argument("--components", type=int, required=True)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--neighbours", choices=[n.value for n in Neighbours], default=Neighbours.REPLACE_ONE.value)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--scheduler")
    chosen = parser.parse_args()
    print("evaluation on public data: not private", file=sys.stderr)

    table = open_rows(chosen.rows)
    requests = []
    for setting in chosen.settings:
        mechanism, epsilon, *delta = setting.split(":")
        loss = PrivacyLoss.parse(epsilon, *delta)
        requests.append(ReleaseRequest(mechanism, loss, chosen.clip, Neighbours(chosen.neighbours)))
    bound = requests[0].bound(table.columns)
    with connected(chosen.scheduler, chosen.workers) as engine:
        moment = plan(table, bound, len(engine.workers))
        sums = engine.reduce(partition_moment, add_partials, moment.groups, "Summing rows")
        total = engine.trusted(lambda *parts: complete(table, parts), sums=sums)
    exact = unpacked(total.values, bound.width).astype(np.float64)
    for request in requests:
        calibrated = request.calibrated(table.columns)
        captured = []
        for _ in range(chosen.draws):
            answer = calibrated.answer(MomentMatrix(total.values, bound.width), SYSTEM)
            if answer.ndim == 1:
                noisy = unpacked(answer.astype(np.int64, copy=False), bound.width).astype(np.float64)
                answer = top_eigenpairs(noisy, chosen.components)[1]
            captured.append(captured_variance(answer.astype(np.float64, copy=False), exact))
        result = {
            "mechanism": request.mechanism,
            "epsilon": request.loss.epsilon,
            "delta": request.loss.delta,
            "components": chosen.components,
            "draws": chosen.draws,
            "mean": round(float(np.mean(captured)), 4),
            "standard_deviation": round(float(np.std(captured)), 4),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
