"""An attack on a privacy unit with many rows: what a release shows of all of them, against the claim.

The attacker knows all other rows, and which of two sets of rows the unit has. He weighs the release by its likelihood
ratio. The integers are those that the product sums, and the noise is drawn as by a release.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import PrivacyLoss, ReleaseRequest
from dpdist.core.mechanisms.gaussian import CalibratedGaussian
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.lattice import rounded_normal
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.rows.dither import DitherKey, Dithers
from dpdist.core.rows.unit_moment import bounded_units
from dpdist.literature.loss_bounds import Finding, examine_weighted

Rows = npt.NDArray[np.float64]
LOSS = PrivacyLoss.parse("1", "1e-6")


def units() -> dict[str, Rows]:
    """Rows of units that are as different as they can be, in the units of a clip norm of 1."""
    random = np.random.default_rng(1)
    steep = np.array([[1.0, 0.0]])
    return {
        "one row": steep, "another row": steep[:, ::-1].copy(), "nobody": np.empty((0, 2)),
        "a thousand rows": np.tile(steep * 3, (1000, 1)), "a thousand others": np.tile(steep[:, ::-1] * 9, (1000, 1)),
        "rows that alternate": np.array([[1.0, 1], [1, -1]] * 50),
        "huge and tiny": np.array([[1e300, 0], [1e-9, 1e-9]]),
        "random": random.normal(size=(60, 2)),
    }  # fmt: skip


def attacked(
    first: Rows, second: Rows, neighbours: Neighbours, draws: int, *, too_small: float = 1.0, error: float = 0.001
) -> tuple[Finding, float]:
    """Return what is found of two units, and the exact mu of their release over the mu of the claim."""
    request = ReleaseRequest("gaussian", LOSS, 1.0, neighbours, grid_bits=10)
    plan = planned(request, Dimensions(2, 1000, together=True))
    if not isinstance(plan.moment, CalibratedGaussian) or plan.guarantee is None:
        raise TypeError(plan.moment)
    moments: list[Any] = []
    for rows in (first, second):
        z = np.zeros((0, 2))
        if len(rows):
            z = bounded_units(rows, np.array([0]), plan.bound, Dithers(DitherKey(bytes(32)), 0))
        moments.append((z.T @ z).astype(np.int64))
    change = (moments[0] - moments[1])[np.triu_indices(2)]
    on, off = plan.moment.sigma_diagonal, plan.moment.sigma_off_diagonal
    scales = [max(1, round(scale / too_small)) for scale in (on, off, on)]
    shift = change / np.array(scales)
    mu = float(np.sqrt((shift**2).sum()))
    tilt = (LOSS.epsilon / max(mu, 1e-9) + mu / 2 + 0.5) / max(mu, 1e-9)  # where the events are that tell of epsilon
    along = np.zeros(draws)
    for step, scale in zip(shift, scales, strict=True):
        along += step * (rounded_normal(scale, draws, SYSTEM) / scale + tilt * step)
    finding = examine_weighted(
        (1 - tilt) * along - (1 - tilt**2) * mu**2 / 2, -tilt * along + tilt**2 * mu**2 / 2, error, LOSS.delta
    )
    return finding, mu / math.sqrt(plan.guarantee.mu_squared or 0)
