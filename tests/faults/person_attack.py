"""An attack on a person with a row in 7 nights: what all releases together show of him, and their claim.

The attacker knows all rows but those of the person, his nights, and which of two orthogonal rows of full norm he had in
each of them. He weighs everything that is published by its likelihood ratio. The noise is drawn as by releases, for the
nights that show most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpdist import PrivacyLoss, ReleaseRequest
from dpdist.core.mechanisms.gaussian import CalibratedGaussian
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.lattice import rounded_normal
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.release.series import Toeplitz, Tree, banded, levels_for, square_root
from dpdist.core.rows.periods import counted_rows
from dpdist.core.rows.units import Unit
from dpdist.jobs.series import share_of
from dpdist.literature.loss_bounds import Finding, examine_weighted, rejects

NIGHTS, MOST = 16, 7
PLANS: dict[str, Tree | Toeplitz] = {
    "single periods": Tree(1),
    "tree": Tree(levels_for(NIGHTS)),
    "square root": square_root(NIGHTS),
    "banded, 8": banded(8),
}
LOSS = PrivacyLoss.parse("1", "1e-6")


@dataclass(frozen=True)
class Audited:
    """What was found of one form: the attack, and the exact mu of all releases over that of the claim."""

    finding: Finding
    factor: float
    nights: tuple[int, ...]

    @property
    def rejected(self) -> bool:
        return rejects(self.finding, LOSS)


def audited(plan: Tree | Toeplitz, unit: Unit | None, draws: int, error: float) -> Audited:
    asked = ReleaseRequest("gaussian", LOSS, 1.0, grid_bits=10)
    bound = planned(asked, Dimensions(2)).bound.norm_bound
    added, scales = [], []
    for count in range(1, NIGHTS + 1):
        for node in plan.released(count):
            request = ReleaseRequest("gaussian", share_of(asked, 2, plan, node, unit), 1.0, grid_bits=10)
            weights = node.weights or (1,) * (node.stop - node.start)
            rows = counted_rows(unit, len(weights), weighted=bool(node.weights)) * max(node.weights, default=1)
            found = planned(request, Dimensions(2, changed_rows=rows)).moment
            if not isinstance(found, CalibratedGaussian):
                raise TypeError(found)
            scales.append(found.sigma_diagonal)
            row = np.zeros(NIGHTS)
            row[node.start : node.stop] = weights
            added.append(row)
    scale = np.array(scales)
    patterns = list(combinations(range(NIGHTS), MOST))
    shown = [float((((np.array(added)[:, list(s)].sum(axis=1)) / scale) ** 2).sum()) for s in patterns]
    worst = patterns[int(np.argmax(shown))]
    # one row for an orthogonal one changes two entries of the diagonal by the bound, in opposite directions
    shift = np.array(added)[:, list(worst)].sum(axis=1)[:, None] * np.array([bound, -bound]) / scale[:, None]
    mu = float(np.sqrt((shift**2).sum()))
    whole = planned(asked, Dimensions(2)).moment.guarantee
    if whole is None or whole.mu_squared is None:
        raise AssertionError("a Gaussian release has a mu")
    tilt = (LOSS.epsilon / mu + mu / 2 + 0.5) / mu  # where the events are that tell of epsilon
    along = np.zeros(draws)
    for each, sigma in zip(shift, scale, strict=True):
        noise = rounded_normal(int(sigma), 2 * draws, SYSTEM).reshape(2, draws) / sigma
        along += each @ (noise + tilt * each[:, None])
    first = (1 - tilt) * along - (1 - tilt**2) * mu**2 / 2  # the log ratio of either table to that of the draws
    second = -tilt * along + tilt**2 * mu**2 / 2
    finding = examine_weighted(first, second, error, LOSS.delta)
    return Audited(finding, mu / math.sqrt(whole.mu_squared), tuple(night + 1 for night in worst))
