"""Calibration against golden numbers, and composition against independent computations."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from faults.adaptive_analyst import (
    gaussian,
    halves,
    played,
    point,
    pure,
    random_menu,
    random_staircase,
    ranged,
    staircase,
)
from scipy import stats

from dpdist.core.errors import DataError, UsageError
from dpdist.core.privacy.accounting import (
    CapSet,
    Filter,
    Left,
    caps_for,
    certified,
    composed,
    composed_epsilon_micro,
    filter_for,
    fits,
    gaussian_delta,
    gaussian_sigma,
    least_epsilon_micro,
    share,
)
from dpdist.core.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.core.privacy.profile import mu_of_pure

# epsilon, delta and sigma at sensitivity 1, computed independently in 50 digits
GOLDEN_SIGMA = [
    ("0.1", "0.01", 9.541823088828865),
    ("0.1", "1e-9", 50.209818263013815),
    ("1", "1e-6", 4.22467888932684),
    ("8", "1e-9", 0.7922370498040952),
    ("40", "1e-6", 0.18362000523583627),
]


def gaussian_of(loss: PrivacyLoss) -> Guarantee:
    return replace(pure("1"), loss=loss, mu_squared=1 / Fraction(gaussian_sigma(loss)) ** 2)


@pytest.mark.parametrize(("epsilon", "delta", "sigma"), GOLDEN_SIGMA)
def test_sigma_agrees_with_golden_numbers_and_is_on_the_safe_side(epsilon: str, delta: str, sigma: float) -> None:
    loss = PrivacyLoss.parse(epsilon, delta)
    found = gaussian_sigma(loss)
    assert found == pytest.approx(sigma, rel=1e-9)
    exact = Fraction(loss.epsilon_micro, 10**6)
    assert gaussian_delta(exact, 1 / Fraction(found) ** 2) <= loss.delta
    assert gaussian_delta(exact, 1 / Fraction(found * (1 - 1e-9)) ** 2) > loss.delta
    with pytest.raises(UsageError, match="two-sided-wishart"):
        gaussian_sigma(PrivacyLoss.parse(epsilon))


def test_requests_fixed_beforehand_cost_the_least_epsilon_that_holds() -> None:
    one = gaussian("0.5", "1e-6")
    mu = math.sqrt(12) / gaussian_sigma(one.loss)
    epsilon = composed_epsilon_micro([one] * 12, 10**12) / 1e6
    delta = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-6, rel=1e-4)
    mixed = [gaussian("1", "1e-6"), pure("0.5")]
    spent, total = composed_epsilon_micro(mixed, 10**12), composed(mixed)
    assert total.delta(Fraction(spent, 10**6)) <= Fraction(1, 10**6) < total.delta(Fraction(spent - 1, 10**6))
    assert composed([pure("0.5"), pure("0.25")]).epsilon_micro == 750_000
    assert composed_epsilon_micro([], 0) == 0
    with pytest.raises(UsageError, match="at any epsilon"):
        composed_epsilon_micro([point("1", "1e-6")], 10**11)


def test_epsilons_and_deltas_add_up_to_those_of_the_budget_and_no_further() -> None:
    for delta in ("0", "1e-6"):
        assert fits([pure("0.2")] * 10, PrivacyLoss.parse("2", delta))
        assert not fits([pure("0.2")] * 11, PrivacyLoss.parse("2", delta))
    assert fits([point("1", "1e-6")], PrivacyLoss.parse("2", "1e-6"))
    assert not fits([point("1", "1e-6")] * 2, PrivacyLoss.parse("2", "1e-6"))
    assert not fits([point("1", "1e-6")] * 2, PrivacyLoss.declared("2", "1e-6", "2", "1e-6"))
    assert fits([point("1", "5e-7")] * 2, PrivacyLoss.declared("2", "1e-6", "2", "1e-6"))
    assert not fits([point("1", "5e-7")] * 3, PrivacyLoss.declared("3", "1e-6", "3", "1e-6"))


@pytest.mark.parametrize(
    ("epsilon", "delta", "count"),
    [("1", "1e-6", 1), ("1", "1e-6", 365), ("8", "1e-5", 2), ("8", "0.4", 2)],  # the last: less than half of epsilon
)
def test_equal_gaussian_shares_fit_the_budget_that_they_share_and_one_more_does_not(
    epsilon: str, delta: str, count: int
) -> None:
    budget = PrivacyLoss.parse(epsilon, delta)
    guarantee = gaussian_of(share(budget, count, gaussian=True))
    assert gaussian_delta(Fraction(epsilon), count * (guarantee.mu_squared or Fraction(0))) <= budget.delta
    assert fits([guarantee] * count, budget)
    assert not fits([guarantee] * (count + 1), budget)


def test_pure_shares_divide_epsilon_and_delta() -> None:
    budget = PrivacyLoss.parse("1", "3e-6")
    assert share(budget, 3, gaussian=False) == PrivacyLoss.parse("0.333333", "1e-6")
    with pytest.raises(UsageError, match="cannot be divided"):
        share(PrivacyLoss.parse("0.000001"), 2, gaussian=False)


def test_many_small_pure_releases_may_be_charged_as_gaussian_ones() -> None:
    budget = PrivacyLoss.parse("4", "1e-6")
    mu_squared = (2 * stats.norm.ppf(math.exp(0.05) / (1 + math.exp(0.05)))) ** 2
    count = int(gaussian_sigma(budget) ** -2 / mu_squared)
    assert count * 0.05 > 8  # twice what adding epsilons up would allow
    assert fits([pure("0.05")] * count, budget)
    assert not fits([pure("0.05")] * (count + 1), budget)
    assert fits([ranged("0.05")] * (4 * count - 4), budget)
    assert not fits([ranged("0.05")] * (4 * count + 4), budget)


def test_a_release_of_every_kind_fits_a_budget_of_its_own_size() -> None:
    for epsilon, delta in (("1", "1e-6"), ("0.1", "1e-9"), ("8", "0.01"), ("0.000001", "1e-18"), ("40", "1e-12")):
        for kind in (gaussian, point):
            assert fits([kind(epsilon, delta)], PrivacyLoss.parse(epsilon, delta))
        assert fits([pure(epsilon)], PrivacyLoss.parse(epsilon, delta))
        assert fits([pure(epsilon)], PrivacyLoss.parse(epsilon))
    for kind in (gaussian, point):
        assert not fits([kind("1", "1e-6")], PrivacyLoss.parse("0.999999", "1e-6"))
        assert not fits([kind("1", "1e-6")], PrivacyLoss(1_000_000, 10**12 - 10**6))
        assert not fits([kind("1", "1e-6")], PrivacyLoss.parse("1"))


def test_the_attack_that_was_found_is_refused_in_one_of_its_branches() -> None:
    budget = PrivacyLoss.parse("1.1", "1e-6")
    first = gaussian("0.1", "1e-6")
    assert fits([first, gaussian("1.09324", "1e-6")], budget)
    assert not fits([first, pure("1")], budget)
    assert fits([pure("1"), pure("0.1")], budget)


def test_caps_follow_from_the_budget_and_the_first_release_and_keep_the_budget() -> None:
    declared = PrivacyLoss.declared("2", "1e-6", "0.5", "1e-7")
    points = point("0.3", "1e-7"), point("0.3", "1e-6"), point("9", "0.1")
    for budget in (PrivacyLoss.parse("1"), PrivacyLoss.parse("1", "1e-6"), declared):
        for first in (None, pure("0.1"), gaussian("0.1", "1e-6"), *points):
            caps = caps_for(budget, first)
            assert certified(caps, budget)
            assert not certified([replace(c, mu_squared=c.mu_squared * 2 + Fraction(1, 10)) for c in caps], budget)
            assert not certified([replace(c, delta_atto=c.delta_atto + 10**12) for c in caps], budget)
    assert caps_for(PrivacyLoss.parse("2", "1e-6"), point("0.3", "1e-7"))[1].delta_atto == 10**11


def test_a_set_that_a_charge_does_not_fit_is_closed_for_good_and_opens_when_nobody_saw_the_answer() -> None:
    budget = PrivacyLoss.parse("1", "1e-6")
    account = Filter(budget, caps_for(budget))
    assert account.book("a", pure("0.1"))
    assert account.left().pure_micro == 900_000
    assert account.book("b", gaussian("0.5", "1e-6"))  # closes the pure set
    assert account.left().pure_micro < 700_000
    assert not account.book("c", pure("0.9"))
    account.refund("b")
    assert account.book("c", pure("0.9"))


def test_what_is_said_to_be_left_can_be_had_and_a_little_more_cannot() -> None:
    for budget in (PrivacyLoss.parse("1", "1e-6"), PrivacyLoss.declared("2", "1e-5", "0.3")):
        for past in ([], [pure("0.1")], [gaussian("0.3", "1e-6")], [gaussian("0.3", "1e-6"), pure("0.05")]):
            account = filter_for(budget, past)
            left = account.left()
            assert left.gaussian_micro
            assert account.holds(gaussian_of(PrivacyLoss(left.gaussian_micro, budget.delta_atto)))
            assert not account.holds(gaussian_of(PrivacyLoss(left.gaussian_micro + 2, budget.delta_atto)))
            assert account.holds(pure(f"{left.pure_micro / 1e6:.6f}"))
            assert not account.holds(pure(f"{(left.pure_micro + 1) / 1e6:.6f}"))
    left = filter_for(PrivacyLoss.parse("1"), [pure("0.25")]).left()
    assert (left.pure_micro, left.share) == (750_000, 0.25)
    for epsilon in ("0.000003", "0.5", "2.000001"):  # all of a new budget is left, to the last millionth
        budget = PrivacyLoss.parse(epsilon, "1e-6")
        assert filter_for(budget, []).left().gaussian_micro == budget.epsilon_micro
        caps = (CapSet(mu_squared=mu_of_pure(Fraction(epsilon))),)  # of this pure release, and of no larger one
        assert Filter(budget, caps).left().pure_micro == budget.epsilon_micro


def test_what_is_left_is_told_in_four_digits_rounded_down() -> None:
    assert str(Left(1_092_999, 0, 10**12, 0.5)) == "one more release of epsilon 1.092 (gaussian, delta 1e-06)"
    assert str(Left(0, 12_345_678, 0, 0.5)) == "one more release of epsilon 12.34 (pure)"
    assert str(Left(0, 123, 0, 0.5)) == "one more release of epsilon 0.000123 (pure)"
    assert str(Left(0, 12, 0, 0.99999)) == "next to nothing"
    assert str(Left(0, 12, 0, 0.9998)) == "one more release of epsilon 0.000012 (pure)"
    assert str(Left(0, 0, 0, 1.0)) == "nothing"


def test_a_charge_depends_on_what_was_charged_before_it_and_not_on_what_comes_after() -> None:
    budget = PrivacyLoss.declared("2", "1e-6", "1")
    account = Filter(budget, caps_for(budget))
    assert account.book("a", pure("1"))
    assert account.book("b", pure("0.1"))  # E is used up, so M is charged
    before = account.left().gaussian_micro
    account.refund("a")
    assert account.left().gaussian_micro == before
    assert account.book("c", pure("1"))  # E is free again


def test_the_least_budget_pays_for_releases_and_a_smaller_one_does_not() -> None:
    for releases, delta in (
        ([pure("0.1"), pure("0.2")], 0),
        ([pure("0.000001")], 0),
        ([gaussian("1", "1e-6"), pure("0.5")], 10**12),
    ):
        least = least_epsilon_micro(releases, delta)
        assert fits(releases, PrivacyLoss(least, delta))
        assert least == 1 or not fits(releases, PrivacyLoss(least - 1, delta))
    with pytest.raises(UsageError, match=r"No budget with such a small delta|at any epsilon"):
        least_epsilon_micro([point("1", "1e-5")], 0)


@pytest.mark.parametrize(("epsilon", "delta", "seed"), [("3", "1e-6", 0), ("1", "1e-6", 1), ("2", "1e-5", 3)])
def test_no_analyst_gets_more_than_the_budget_from_a_random_menu(epsilon: str, delta: str, seed: int) -> None:
    budget = PrivacyLoss.parse(epsilon, delta)
    menu = random_menu(budget, seed) if seed % 2 else random_staircase(budget, seed)
    found = played(budget, menu, 3, 2001)
    assert found["after_low"] <= 1
    assert found["after_high"] <= 1.3  # the grid is fine enough to see an excess


def test_an_analyst_exceeded_the_rule_before_caps_and_does_not_exceed_the_filter() -> None:
    budget = PrivacyLoss.parse("3", "1e-6")
    delta = played(budget, staircase(budget, halves(3)), 5, 3001)
    assert delta["before_low"] > 2
    assert delta["after_low"] <= 1
    assert delta["after_high"] <= 1.2


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [("0", "0"), ("-1", "0"), ("nan", "0"), ("inf", "0"), ("1e-7", "0"), ("1", "1"), ("1", "-1"), ("1", "1e-19"),
     ("1e7", "0"), ("1e-999999999", "0"), ("0.1234567890123456789012345678901234567", "0")],
)  # fmt: skip
def test_a_loss_out_of_range_or_finer_than_its_units_is_refused(epsilon: str, delta: str) -> None:
    with pytest.raises(DataError):
        PrivacyLoss.parse(epsilon, delta)


@pytest.mark.parametrize("parts", [("1.1", "0"), ("-0.1", "0"), ("0", "2e-6"), ("0", "-1e-9"), ("nan", "0")])
def test_a_part_larger_than_the_budget_or_negative_is_a_usage_error(parts: tuple[str, str]) -> None:
    with pytest.raises(UsageError):
        PrivacyLoss.declared("1", "1e-6", *parts)
    with pytest.raises(UsageError):
        PrivacyLoss.declared("1", "0", "0.5")


@pytest.mark.parametrize("given", [(1, 1e-6), (1.0, 0), (True, 0), ("1", 0)])
def test_a_loss_of_other_numbers_than_whole_units_is_refused(given: Any) -> None:
    """A ledger could write them, but not read them again."""
    with pytest.raises(UsageError, match=r"PrivacyLoss\.parse\(1, 1e-6\)"):
        PrivacyLoss(*given)
