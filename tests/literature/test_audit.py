"""Audits: valid bounds, effective attacks, and claims that are rejected exactly if they are false."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from faults import weakened
from scipy import stats
from support.registered import least_options, loss_for
from support.tallies import FALSE_ALARM

from dpdist import cli
from dpdist.core.mechanisms import registry
from dpdist.core.mechanisms.base import Calibrated
from dpdist.core.mechanisms.registry import MECHANISMS
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.literature import attack
from dpdist.literature.loss_bounds import Count, Finding, Weighted, examine, examine_weighted, implied_delta, rejects

ONE = PrivacyLoss.parse("1")
UNIT = 4**16
FEW, MANY = 1500, 4000
"""Draws where a claim is pure, and where an event must be more likely than delta."""
ATTEMPTS = 4
"""At a copy with less noise. One attempt fails in less than 3 % (`gaussian`: in none of 100), all of them in 1e-6."""


def test_counts_are_bounded_as_by_clopper_and_pearson() -> None:
    # 10 of 100 at 95 %: 0.0490 to 0.1762 in every table; no hit in n draws: 1 - error^(1/n)
    assert Count(10, 100).interval(0.025) == pytest.approx((0.04900469, 0.17622260), rel=1e-6)
    assert Count(0, 50).interval(0.01) == pytest.approx((0, 1 - 0.01 ** (1 / 50)))
    assert Count(50, 50).interval(0.01) == pytest.approx((0.01 ** (1 / 50), 1))


def test_a_bound_on_a_known_profile_holds_and_comes_close() -> None:
    first, second = np.random.default_rng(1).normal([[1.0], [0.0]], size=(2, 200_000))
    exact = stats.norm.cdf(0.5 - 1) - math.e * stats.norm.cdf(-0.5 - 1)  # mu = 1, epsilon = 1: 0.126937
    low, estimate, _ = examine(first, second, FALSE_ALARM, epsilon=1.0).delta(1.0)
    assert 0.8 * exact < low < exact
    assert estimate == pytest.approx(exact, rel=0.05)
    # large or small values may speak for either table
    for one, other in ((second, first), (-first, -second), (-second, -first)):
        assert examine(one, other, FALSE_ALARM, epsilon=1.0).delta(1.0)[0] == pytest.approx(low, rel=0.05)


def test_the_event_is_counted_on_draws_that_did_not_choose_it() -> None:
    # equal laws and a fine choice of events: counted on the same draws, some would be certain by luck
    rng = np.random.default_rng(2)
    pairs = (rng.normal(size=(2, 40)) for _ in range(2000))
    wrong = sum(examine(first, second, 0.05, epsilon=0.0).delta(0.0)[0] > 0 for first, second in pairs)
    assert wrong <= stats.binom.isf(FALSE_ALARM, 2000, 0.05)


def test_certainty_is_seen_as_infinite() -> None:
    first = np.where(np.arange(1000) % 2 == 0, math.inf, -0.5)
    finding = examine(first, np.full(1000, -0.5), FALSE_ALARM, epsilon=1.0)
    assert 0.28 < finding.delta(1.0)[0] < 0.5
    assert finding.delta(1.0)[1] == pytest.approx(0.5, abs=1e-9)
    assert rejects(finding, PrivacyLoss.parse("1", "0.3"))
    assert not rejects(finding, PrivacyLoss.parse("1", "0.5"))


def test_what_a_claim_implies_elsewhere_is_that_of_randomised_response() -> None:
    loss = PrivacyLoss.parse("1", "0.1")
    assert implied_delta(loss, 1.0) == implied_delta(loss, 3.0) == pytest.approx(0.1)
    assert implied_delta(loss, 0.0) == pytest.approx(0.1 + 0.9 * math.tanh(0.5))


def test_tables_further_apart_bound_the_same_epsilon() -> None:
    # randomised response between neighbours: epsilon 1, so 3 rows apart a ratio of e³, and no more
    certain = Finding(Count(10**9, 10**9), Count(round(10**9 * math.exp(-3)), 10**9), 1e-9, distance=3)
    assert 0.999 < certain.epsilon(0.0) < 1
    # and delta adds up to delta (1 + e + e²)
    shown = Finding(Count(10**9, 10**9), Count(0, 10**9), 1e-9, distance=3).delta(1.0)[0]
    assert shown == pytest.approx(1 / (1 + math.e + math.e**2), rel=1e-5)


def test_weighted_means_are_bounded_as_by_hoeffding() -> None:
    # weights 1/2 on half of 1000 draws
    weights = np.where(np.arange(1000) % 2 == 0, math.log(0.5), -math.inf)
    for bound in Weighted.of(weights, np.isfinite(weights), 0.0).interval(0.01):
        assert 1000 * stats.entropy([0.25, 0.75], [bound, 1 - bound]) == pytest.approx(math.log(100), rel=1e-6)
    # nearly certain: nothing overflows
    assert Weighted(50, 50, 1 - 2**-53, 0.0).interval(0.01)[1] == pytest.approx(1)
    # no hit, and nothing but hits: the bounds of Clopper and Pearson
    for value in (0.0, 1.0):
        interval = Weighted.of(np.zeros(50), np.full(50, value > 0), 0.0).interval(0.01)
        assert interval == pytest.approx(Count(int(50 * value), 50).interval(0.01), abs=1e-9)
    with pytest.raises(AssertionError, match="bounds the weights"):
        Weighted.of(weights, np.isfinite(weights), -1.0)


def test_weighted_bounds_fail_as_seldom_as_they_say() -> None:
    # the mean of a uniform weight is 1/2; each side may fail in 5 % of all samples
    rng = np.random.default_rng(3)
    bounds = [Weighted.of(np.log(w), w > 0, 0.0).interval(0.05) for w in rng.uniform(size=(2000, 40))]
    for wrong in (sum(low > 0.5 for low, _ in bounds), sum(high < 0.5 for _, high in bounds)):
        assert wrong <= stats.binom.isf(FALSE_ALARM, 2000, 0.05)


@pytest.mark.parametrize(("claimed", "expected"), [(4.6, True), (4.9, False)])
def test_weighted_draws_see_events_that_no_count_would(claimed: float, *, expected: bool) -> None:
    # mu = 1 at delta 1e-6: epsilon 4.88 by the analytic Gaussian profile; the event has a probability of 1e-5
    y = np.random.default_rng(4).normal(5, 1, size=100_000)
    first, second = ((y - 5) ** 2 / 2 - (y - mean) ** 2 / 2 for mean in (1, 0))
    finding = examine_weighted(first, second, FALSE_ALARM, 1e-6)
    assert rejects(finding, PrivacyLoss.parse(str(claimed), "1e-6")) is expected


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("kind", [{"additive": True}, {"iterated": True}, {}], ids=str)
def test_tables_are_as_many_rows_apart_as_is_said(kind: dict[str, bool], neighbours: Neighbours) -> None:
    query = LatticeQuery(4, UNIT, neighbours)
    shape = {"additive": False, "iterated": False, "weighted": False} | kind
    for scene in attack.scenes(query, 1.0, **shape):
        change = np.linalg.eigvalsh(scene.first.matrix() - scene.second.matrix()) / UNIT
        assert change.clip(0).sum() <= scene.apart * (1 + 1e-9)
        assert -change.clip(None, 0).sum() <= scene.apart * (neighbours is Neighbours.REPLACE_ONE) + 1e-9
        for moment in (scene.first, scene.second):
            assert np.linalg.eigvalsh(moment.matrix())[0] >= -1e-9 * np.trace(moment.matrix())


def calibrated(name: str, query: LatticeQuery, epsilon: str) -> tuple[Calibrated, PrivacyLoss]:
    loss = loss_for(name, epsilon, "0.01")
    # drawn exactly, Wishart noise takes twenty times as long; its scale is the same
    arithmetic = {"arithmetic": "ideal-real"} if "wishart" in {name, name.removeprefix("two-sided-")} else {}
    options = {"sketch": 16} if name == "jl" else {**least_options(name), **arithmetic}
    return registry.calibrated(name, query, loss, options), loss


@pytest.mark.parametrize("name", sorted(set(MECHANISMS) - {"none"}))
def test_a_copy_with_less_noise_is_rejected_and_the_mechanism_is_not(name: str) -> None:
    query = LatticeQuery(2, UNIT, Neighbours.REPLACE_ONE)
    honest, loss = calibrated(name, query, "2")
    draws = MANY if loss.delta_atto else FEW
    copy = weakened.weakened(honest, weakened.FACTOR)
    if weakened.kept_by_the_copy(name, copy, query, loss):  # with so much noise to spare nothing can be seen
        return
    for _ in range(ATTEMPTS):
        scene = attack.choose(copy, query, loss, draws, 0.001, weighted=True)
        first, second = attack.attack(copy, scene, draws)
        rejected = rejects(examine_weighted(first, second, 0.001, loss.delta), loss)
        if rejected:
            break
    assert rejected
    first, second = attack.attack(honest, scene, draws // 2)
    assert np.unique([first, second]).size > 1
    if honest.guarantee is not None:
        assert not rejects(examine_weighted(first, second, FALSE_ALARM, loss.delta), honest.guarantee.loss)


def said(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["dpdist", "audit", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_the_erratum_is_measured_on_a_cluster_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "sn.png"
    attacked = ("sn", "--epsilon", 1, "--draws", 4000, "--neighbours", "add-remove")
    assert said(monkeypatch, *attacked, "--workers", 2, "--plot", picture, "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["draws"], output["claim_rejected"], output["proof_rejected"]) == (4000, True, False)
    # an attacker who sees such a release knows that the row was there, in 63 % of all releases
    counted = output["counted"]
    assert counted["delta_lower"] < 1 - math.exp(-1) < counted["delta_upper_of_this_event"]
    assert counted["delta_estimate"] == pytest.approx(1 - math.exp(-1), abs=0.06)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments",
    ["sn --epsilon 1 --draws 4", "sn --epsilon 800", "sn --epsilon 1 --delta 1e-6", "gaussian --epsilon 1",
     "sn --epsilon 1 --confidence 1", "bingham --epsilon 1 --option components=9", "nothing --epsilon 1"],
)  # fmt: skip
def test_an_audit_that_makes_no_sense_is_usage(monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    assert said(monkeypatch, *arguments.split()) == 2
