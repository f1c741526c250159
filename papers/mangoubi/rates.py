"""The rates of Mangoubi et al. and of Amin et al., without constants and logarithms.

Bounds with constants are those of :mod:`dpdist.literature.orbit_forecast`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def low_rank_rate(levels: Floats, rank: int, epsilon: float) -> float:
    """Return the rate of theorem 2.3, ``sqrt(k d lambda_1/epsilon) + sqrt(k)/epsilon + |tail|``.

    Without constants and logarithms, unlike :func:`dpdist.literature.orbit_forecast.low_rank_bound`.
    """
    tail = math.sqrt(float(levels[rank:] @ levels[rank:]))
    return math.sqrt(rank * levels.size * float(levels[0]) / epsilon) + math.sqrt(rank) / epsilon + tail


def amin_rate(levels: Floats, rank: int, epsilon: float) -> float:
    """Return the rate of Amin et al. (theorem 3.1), ``sqrt(d)/e_0 + sqrt(sum_i d lambda_i/e_i) + |tail|``.

    Without constants and logarithms. At the best split with ``e_0 = epsilon/2``:
    ``e_i`` proportional to ``sqrt(lambda_i)``.
    """
    tail = math.sqrt(float(levels[rank:] @ levels[rank:]))
    vectors = math.sqrt(2 * levels.size / epsilon) * float(np.sqrt(levels[:rank]).sum())
    return 2 * math.sqrt(levels.size) / epsilon + vectors + tail
