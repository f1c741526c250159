"""The laws that two libraries draw private eigenvectors from are those that the quadrature takes them for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import integrate, stats

from papers.repair import samplers

SIZE, STRENGTH, PROPOSALS = 4, 6.0, 60_000
FALSE_ALARM = 1e-9


def drawn(law: str) -> npt.NDArray[np.float64]:
    """Return (u^T e)² of accepted proposals, with the acceptance of each library as it is written there."""
    random = np.random.default_rng(11)
    a = STRENGTH * np.diag([0.0, *[1.0] * (SIZE - 1)])
    b = samplers.envelope(STRENGTH, SIZE)
    w = np.eye(SIZE) + 2 * a / b
    bound = np.exp(-(SIZE - b) / 2) * (SIZE / b) ** (SIZE / 2)
    z = random.normal(size=(PROPOSALS, SIZE)) / np.sqrt(np.diag(w))
    u = z / np.linalg.norm(z, axis=1, keepdims=True)
    spread = np.einsum("ni,ij,nj->n", u, w, u) ** (SIZE / 2)
    gain = np.exp(-np.einsum("ni,ij,nj->n", u, a, u)) / bound
    accepted = {"right": gain * spread, "inverted": gain / spread, "all": np.ones(PROPOSALS)}[law]
    assert accepted.max() <= 1 + 1e-12
    found: npt.NDArray[np.float64] = u[random.random(PROPOSALS) <= accepted, 0] ** 2
    return found


def p_value(law: str, values: npt.NDArray[np.float64]) -> float:
    """Compare draws with the distribution function of a law."""
    density = samplers.log_density(law, STRENGTH, SIZE)
    shares = np.linspace(0, 1, 4001)
    angles = np.arccos(np.sqrt(shares))[::-1]
    weights = np.exp(density(np.cos(angles) ** 2)) * np.sin(angles) ** (SIZE - 2)
    total = integrate.cumulative_simpson(weights, x=angles, initial=0)
    above = np.interp(np.arccos(np.sqrt(values)), angles, total / total[-1])
    return float(stats.kstest(1 - above, "uniform").pvalue)


@pytest.mark.parametrize("law", samplers.LAWS)
def test_the_law_is_the_one_that_is_drawn_from(law: str) -> None:
    """It fails by chance once in 10^9 seeds; this one is fixed. The laws of the others are told apart."""
    values = drawn(law)
    share = 10 ** samplers.log_acceptance(law, STRENGTH, SIZE)
    assert stats.binomtest(len(values), PROPOSALS, min(share, 1.0)).pvalue > FALSE_ALARM
    assert p_value(law, values) > FALSE_ALARM
    assert all(p_value(other, values) < FALSE_ALARM for other in samplers.LAWS if other != law)


def test_what_is_right_keeps_its_claim_and_what_is_not_grows_with_the_columns() -> None:
    worst = {
        law: [max(samplers.loss(law, 1, size, rows) for rows in (0, 14, 104, 1000)) for size in (5, 50)]
        for law in samplers.LAWS
    }
    assert max(worst["right"]) <= 0.25
    assert worst["inverted"][0] < 1 < worst["inverted"][1]
    assert worst["all"][0] < 0.5 < worst["all"][1]


def test_beyond_its_claim_one_library_never_returns_and_the_other_does() -> None:
    found = {
        name: samplers.worst({"sampler": name, "epsilon": 1.0, "d": d}, None)
        for name, d in (("diffprivlib 0.6.6", 50), ("OpenDP 0.14 to 0.16", 5))
    }
    never, returns = found.values()
    assert never["at least"] > 1 > never["at least, where it returns"]
    assert never["log10 of the acceptance beyond the claim, at most"] < -12
    assert returns["at least, where it returns"] == pytest.approx(0.601, abs=1e-3)
