"""Audits: bounds that hold, attacks that see what there is to see, and claims that are rejected exactly when false."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpdist import cli
from dpdist.mechanisms import attack, registry
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.mechanisms.wishart import CalibratedTwoSidedWishart
from dpdist.noise.entropy import SYSTEM
from dpdist.privacy.audit import Count, Finding, examine, implied_delta, rejects
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss

FALSE_ALARM = 1e-6
"""Probability with which each statistical test fails on correct code."""
ONE = PrivacyLoss.parse("1")
UNIT = 4**16


def test_counts_are_bounded_as_by_clopper_and_pearson() -> None:
    # 10 of 100 at 95 %: 0.0490 to 0.1762 in every table; no hit in n draws: 1 - error^(1/n)
    assert Count(10, 100).interval(0.025) == pytest.approx((0.04900469, 0.17622260), rel=1e-6)
    assert Count(0, 50).interval(0.01) == pytest.approx((0, 1 - 0.01 ** (1 / 50)))
    assert Count(50, 50).interval(0.01) == pytest.approx((0.01 ** (1 / 50), 1))


def test_a_bound_on_a_known_profile_holds_and_comes_close() -> None:
    first, second = np.random.default_rng(1).normal([[1.0], [0.0]], size=(2, 200_000))
    exact = stats.norm.cdf(0.5 - 1) - math.e * stats.norm.cdf(-0.5 - 1)  # mu = 1, epsilon = 1: 0.126937
    low, estimate, _ = examine(first, second, 1.0, FALSE_ALARM).delta(1.0)
    assert 0.8 * exact < low < exact
    assert estimate == pytest.approx(exact, rel=0.05)
    # large or small values may speak for either table
    for one, other in ((second, first), (-first, -second), (-second, -first)):
        assert examine(one, other, 1.0, FALSE_ALARM).delta(1.0)[0] == pytest.approx(low, rel=0.05)


def test_the_event_is_counted_on_draws_that_did_not_choose_it() -> None:
    # equal laws and a fine choice of events: counted on the same draws, some would be certain by luck
    rng = np.random.default_rng(2)
    pairs = (rng.normal(size=(2, 40)) for _ in range(2000))
    wrong = sum(examine(first, second, 0.0, 0.05).delta(0.0)[0] > 0 for first, second in pairs)
    assert wrong <= stats.binom.isf(FALSE_ALARM, 2000, 0.05)


def test_the_second_half_of_the_draws_is_counted_and_nothing_else() -> None:
    finding = examine(np.array([10.0] * 20 + [0.0] * 20), np.zeros(40), 0.0, 0.1)
    assert (finding.more, finding.less) == (Count(0, 20), Count(0, 20))
    # each of the two counts may err with half the probability
    low = Count(19, 20).interval(0.05)[0] - Count(1, 20).interval(0.05)[1]
    assert Finding(Count(19, 20), Count(1, 20), 0.1).delta(0.0)[0] == pytest.approx(low)


def test_certainty_is_seen_as_infinite() -> None:
    first = np.where(np.arange(1000) % 2 == 0, math.inf, -0.5)
    finding = examine(first, np.full(1000, -0.5), 1.0, FALSE_ALARM)
    assert 0.28 < finding.delta(1.0)[0] < 0.5
    assert finding.delta(1.0)[1] == pytest.approx(0.5, abs=1e-9)
    assert rejects(finding, PrivacyLoss.parse("1", "0.3"))
    assert not rejects(finding, PrivacyLoss.parse("1", "0.5"))


def test_what_a_claim_implies_elsewhere_is_that_of_randomised_response() -> None:
    loss = PrivacyLoss.parse("1", "0.1")
    assert implied_delta(loss, 1.0) == implied_delta(loss, 3.0) == pytest.approx(0.1)
    assert implied_delta(loss, 0.0) == pytest.approx(0.1 + 0.9 * math.tanh(0.5))


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("law", ["discrete-laplace", "rounded-gaussian-orthogonal"])
def test_the_pair_attains_the_sensitivity(law: str, neighbours: Neighbours) -> None:
    query = LatticeQuery(6, UNIT, neighbours)
    first, second = attack.neighbouring_moments(query, {"law": law})
    change = (first.matrix() - second.matrix()) / UNIT
    if law == "discrete-laplace":
        found, limit = np.abs(change[np.triu_indices(6)]).sum(), query.triangle_l1 / UNIT
    else:
        found, limit = np.sum(change**2), query.frobenius_squared / UNIT**2
    assert 0.95 * limit < found <= limit


def test_the_pure_mechanism_is_not_rejected_and_its_copy_with_half_the_noise_is() -> None:
    query = LatticeQuery(2, UNIT, Neighbours.ADD_REMOVE)
    honest = registry.calibrated("two-sided-wishart", query, ONE, {"arithmetic": "ideal-real"})
    assert isinstance(honest, CalibratedTwoSidedWishart)
    for scale, expected in ((honest.scale, False), (honest.scale // 2, True)):
        sample = attack.attack(dataclasses.replace(honest, scale=scale), query, 12_000, SYSTEM)
        assert rejects(examine(sample[0], sample[1], 1.0, FALSE_ALARM), ONE) is expected


OPTIONS: dict[str, dict[str, Any]] = {
    "power": {"components": 1, "iterations": 2},
    "power-published": {"components": 1, "iterations": 2},
    "ppca": {"components": 1},
    "bingham": {"components": 1},
    "kapralov-talwar": {"components": 1},
    "amin": {"components": 1},
    "orbit": {"spectrum": (1.0, 0.0)},
    "orbit-lowrank": {"components": 1},
    "mvg": {"rows": 1},
    "mvg-psd": {"rows": 1},
    "jl": {"sketch": 4},
}


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("name", sorted(set(MECHANISMS) - {"none"}))
def test_no_proof_is_contradicted(name: str, neighbours: Neighbours) -> None:
    loss = PrivacyLoss.parse("1", "0" if MECHANISMS[name].statement.delta == "none" else "0.01")
    query = LatticeQuery(2, UNIT, neighbours)
    found = registry.calibrated(name, query, loss, OPTIONS.get(name, {}))
    draws = 40 if name == "nuclear" else 400  # a perfect simulation for each
    first, second = attack.attack(found, query, draws)
    assert np.unique([first, second]).size > 1
    if found.guarantee is not None:
        assert not rejects(examine(first, second, loss.epsilon, FALSE_ALARM), found.guarantee.loss)


def said(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["dpdist", "audit", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_the_erratum_is_measured_on_a_cluster_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "sn.png"
    code = said(monkeypatch, "sn", "--epsilon", 1, "--draws", 4000, "--workers", 2, "--plot", picture, "--json")
    assert code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["draws"] == 4000
    assert found["claim_rejected"]
    assert not found["proof_rejected"]
    # whoever sees such a release knows the row was there, in 63 % of all releases
    assert found["delta_lower"] < 1 - math.exp(-1) < found["delta_upper_of_this_event"]
    assert found["delta_estimate"] == pytest.approx(1 - math.exp(-1), abs=0.06)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments",
    [
        ("sn", "--epsilon", 1, "--draws", 4),
        ("sn", "--epsilon", 800),
        ("sn", "--epsilon", 1, "--delta", "1e-6"),
        ("gaussian", "--epsilon", 1),
        ("sn", "--epsilon", 1, "--confidence", 1),
        ("bingham", "--epsilon", 1, "--option", "components=9"),
        ("nothing", "--epsilon", 1),
    ],
    ids=str,
)
def test_an_audit_that_makes_no_sense_is_usage(monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...]) -> None:
    assert said(monkeypatch, *arguments) == 2
