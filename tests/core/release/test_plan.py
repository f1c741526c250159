"""A plan decides what is public before the first draw: noise, price and id do not depend on what a stage chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.core.errors import UsageError
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.plan import Dimensions, calibrated, planned, with_norm_of, without_choices
from dpdist.core.release.request import Centring, ReleaseRequest

D = 5
LOSSES = {"gaussian": PrivacyLoss.parse(2, "1e-6"), "two-sided-wishart": PrivacyLoss.parse(3)}
CHOICES: list[dict[str, Any]] = [
    {"clip_norm": "private"}, {"clip_norm": "auto", "scale": "private"}, {"clip_norm": "private", "scale": "private"},
    {"clip_norm": 3.0, "scale": "private", "centre": (1.0,) * D},
]  # fmt: skip


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("mechanism", LOSSES)
@given(
    clip=st.floats(1e-3, 1e6),
    scale=st.lists(st.floats(1e-3, 1e3), min_size=D, max_size=D),
    neighbours=st.sampled_from(Neighbours),
    centring=st.sampled_from(Centring),
    rows=st.none() | st.integers(2_000, 10**8),
    unit_rows=st.integers(1, 4),
)
def test_the_noise_and_the_price_are_those_of_whatever_the_stages_choose(
    mechanism: str, choices: dict[str, Any], clip: float, scale: list[float], neighbours: Neighbours,
    centring: Centring, rows: int | None, unit_rows: int,
) -> None:  # fmt: skip
    asked = ReleaseRequest(mechanism, LOSSES[mechanism], neighbours=neighbours, centring=centring, **choices)
    plan = planned(asked, Dimensions(D, rows, unit_rows, unit_rows))
    realised = replace(plan.bound, clip_norm=clip, scale=tuple(scale))
    drawn = calibrated(replace(without_choices(asked), loss=plan.loss), realised, unit_rows)
    assert (drawn.noise, drawn.guarantee) == (plan.moment.noise, plan.moment.guarantee)
    assert plan.guarantee is not None
    assert plan.guarantee.loss == asked.loss
    assert list(plan.stages) == list(asked.chooses)
    assert all(0 < share < 1 for share in plan.shares.values())


def test_what_is_given_is_planned_and_what_is_not_there_is_refused() -> None:
    asked = ReleaseRequest("gaussian", LOSSES["gaussian"], 3.0, grid_bits=13)
    assert planned(asked, Dimensions(D, 10)).bound.grid_bits == 13
    assert planned(asked, Dimensions(D)).guarantee == planned(asked, Dimensions(D, 10**6)).guarantee
    by_schema = replace(asked, clip_norm="schema")
    assert with_norm_of(None, asked, Dimensions(D)) is asked
    with pytest.raises(UsageError, match="these rows have none"):
        with_norm_of(None, by_schema, Dimensions(D))
