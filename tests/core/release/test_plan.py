"""A plan decides what is public before the first draw: noise, price and id do not depend on what a stage chooses."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.core.errors import UsageError
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.bounds import Dimensions, by_schema, calibrated, without_choices
from dpdist.core.release.plan import plan_of, planned
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import Table

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
    centring=st.sampled_from([Centring.NONE, Centring.PRIVATE]),
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
    assert [stage for stage in plan.stages if stage != "clipped rows"] == list(asked.chooses)
    assert all(0 < share < 1 for share in plan.shares.values())


def test_what_is_given_is_planned_and_what_is_not_there_is_refused() -> None:
    asked = ReleaseRequest("gaussian", LOSSES["gaussian"], 3.0, grid_bits=13)
    assert planned(asked, Dimensions(D, 10)).bound.grid_bits == 13
    assert planned(asked, Dimensions(D)).guarantee == planned(asked, Dimensions(D, 10**6)).guarantee
    assert by_schema(asked, Dimensions(D)) == replace(asked, centring=Centring.NONE)
    table = cast(
        "Table",
        SimpleNamespace(
            names=("a", "b"),
            columns=2,
            rows=9,
            periodic=False,
            max_rows=1,
            changed_rows=1,
            schema=None,
            unit=None,
            together=False,
        ),
    )
    with pytest.raises(UsageError, match="these rows have none"):
        plan_of(replace(asked, clip_norm="schema"), table)
    with pytest.raises(UsageError, match=r"ingested with a schema. These have none: use centring='private'"):
        plan_of(replace(asked, centring=Centring.SCHEMA), table)
    with pytest.raises(UsageError, match="is a public centre already"):
        replace(asked, centring=Centring.SCHEMA, centre=(0.0,) * D)


def kinds(*sizes: int, numbers: int = 0, weight: float | None = None) -> Schema:
    categories = [
        Column(f"c{i}", "category", categories=[f"v{j}" for j in range(size)], weight=weight)
        for i, size in enumerate(sizes)
    ]
    return Schema([*categories, *(Column(f"n{i}", "number") for i in range(numbers))])


def cell_deviation(sizes: tuple[int, ...], bits: int) -> float:
    """Return the error of the cells of all tables, by generalised least squares on the released entries."""
    square = sum(1 - 1 / k for k in sizes)
    constant, total, cells = square**0.5 / 2**bits, 0.0, 0
    for k, m in combinations(sizes, 2):
        # unknown: r_k, r_l and R; a margin is in the constant's entries (weight 2, as they are off the diagonal) and in
        # the diagonal block, which has the variance 1 on the diagonal and 1/2 beside it
        variances = []
        for size in (k, m):
            basis = np.linalg.svd(np.eye(size) - 1 / size)[0][:, : size - 1]
            project = basis @ basis.T
            design = [constant * np.eye(size - 1) * 2**0.5]
            block = [project @ np.diag(column) @ project for column in basis.T]
            design.append(np.array([matrix.ravel() for matrix in block]).T)  # Frobenius: two halves of one half
            stacked = np.vstack(design)
            variances.append(np.linalg.inv(stacked.T @ stacked)[0, 0])
        each = variances[0] * (k - 1) / m + variances[1] * (m - 1) / k + (k - 1) * (m - 1) / 2
        total, cells = total + each, cells + k * m
    return float((square + constant**2) * (total / cells) ** 0.5)


def test_a_clip_norm_in_other_units_than_those_of_a_private_scale_is_refused() -> None:
    asked = ReleaseRequest("gaussian", LOSSES["gaussian"], 22.0, scale="private")
    planned(asked, Dimensions(5, 20_000))
    with pytest.raises(UsageError, match=r"length of about 2\.2. A clip norm of 100 .* 2000 times .* at most 22\."):
        planned(replace(asked, clip_norm=100.0), Dimensions(5, 20_000))
    planned(replace(asked, clip_norm=100.0, scale=None), Dimensions(5, 20_000))
    planned(replace(asked, clip_norm=100.0), Dimensions(5, 20_000, together=True))  # a norm of all rows of a unit


@pytest.mark.parametrize(
    "sizes", [(2, 2), (2, 2, 2, 2, 2, 2), (3, 5), (2, 40), (5, 4, 2, 8, 3), (10, 10), (5, 8, 16, 2, 2, 41), (4, 4, 4)]
)
def test_the_constant_of_a_table_of_categories_is_the_better_one_for_its_tables(sizes: tuple[int, ...]) -> None:
    by_halves = {bits: cell_deviation(sizes, bits) for bits in (1, 2)}
    best = min(cell_deviation(sizes, bits / 20) for bits in range(80))  # type: ignore[arg-type]
    chosen = kinds(*sizes).constant_bits
    assert by_halves[chosen] == min(by_halves.values())
    assert by_halves[chosen] < 1.08 * best
    assert kinds(*sizes, weight=3).constant_bits == chosen
    assert kinds(*sizes, numbers=1).constant_bits == 1
    assert kinds(1, *sizes).constant_bits == chosen  # a single value varies in no table
    assert kinds(1, 1).constant_bits == 1
    assert kinds(*sizes, weight=1e-6).constant_bits == chosen
    with pytest.raises(UsageError, match="weight must be a number from 1e-06 to 1e"):
        kinds(2, weight=1e100)
    asked = ReleaseRequest("gaussian", LOSSES["gaussian"], "private")
    sites = [planned(asked, Dimensions(sum(sizes), rows, schema=kinds(*sizes))).bound for rows in (1000, 10**6, None)]
    assert {bound.constant / 2**bound.grid_bits for bound in sites} == {0.5**chosen}
