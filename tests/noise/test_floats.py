"""Float64 draws: each against its law, with a twin that must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.tallies import FALSE_ALARM

from dpdist.noise.entropy import SYSTEM
from dpdist.noise.floats import exponentials, gammas, haar, normals, uniforms

COUNT = 40_000

LAWS: list[tuple[str, Callable[[], npt.NDArray[np.float64]], Any]] = [
    ("uniform", lambda: uniforms(COUNT, SYSTEM), stats.uniform()),
    ("normal", lambda: normals(COUNT, SYSTEM), stats.norm()),
    ("exponential", lambda: exponentials(COUNT, SYSTEM), stats.expon()),
    *((f"gamma {a}", lambda a=a: gammas(a, COUNT, SYSTEM), stats.gamma(a)) for a in (0.3, 1.0, 2.5, 300.0)),
]


@pytest.mark.parametrize(("draw", "law"), [case[1:] for case in LAWS], ids=[case[0] for case in LAWS])
def test_draws_have_their_law_and_their_twin_fails(draw: Callable[[], npt.NDArray[np.float64]], law: Any) -> None:
    assert stats.kstest(draw(), law.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(0.9 * draw(), law.cdf).pvalue < FALSE_ALARM  # power 1 - 1e-9 at this size


def test_haar_columns_are_orthonormal_and_uniform() -> None:
    found = np.stack([haar(3, 2, SYSTEM) for _ in range(8_000)])
    assert np.allclose(np.einsum("nij,nik->njk", found, found), np.eye(2))
    for entry in (found[:, 0, 0], found[:, 2, 1]):  # an entry of a uniform unit vector of R^3 is uniform on [-1, 1]
        assert stats.kstest(entry, stats.uniform(-1, 2).cdf).pvalue > FALSE_ALARM
        assert stats.kstest(np.abs(entry), stats.uniform(-1, 2).cdf).pvalue < FALSE_ALARM  # QR's own signs


def test_uniforms_never_touch_the_ends() -> None:
    class Extreme:
        def words(self, count: int) -> npt.NDArray[np.uint64]:
            return np.array([0, 2**64 - 1] * count, dtype=np.uint64)[:count]

    low, high = uniforms(2, Extreme())
    assert 0 < low < high < 1
