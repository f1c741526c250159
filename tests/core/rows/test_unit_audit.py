"""What a release shows of a privacy unit with many rows never exceeds its claim; with too little noise it does."""

from __future__ import annotations

from itertools import combinations

import pytest
from faults.unit_attack import LOSS, attacked, units

from dpdist.core.privacy.guarantee import Neighbours
from dpdist.literature.loss_bounds import rejects

DRAWS = 40_000


def test_no_pair_of_units_shows_more_than_is_claimed_and_the_worst_shows_all() -> None:
    worst = 0.0
    for first, second in combinations(units().values(), 2):
        if len(first) and len(second):
            finding, share = attacked(first, second, Neighbours.REPLACE_ONE, DRAWS)
            assert share <= 1
            assert not rejects(finding, LOSS)
            worst = max(worst, share)
    assert worst > 0.99  # two orthogonal units within the bound: it is attained


@pytest.mark.parametrize("name", ["one row", "a thousand rows", "rows that alternate", "random"])
def test_a_unit_more_or_fewer_shows_no_more_than_is_claimed(name: str) -> None:
    finding, share = attacked(units()[name], units()["nobody"], Neighbours.ADD_REMOVE, DRAWS)
    assert share <= 1
    assert not rejects(finding, LOSS)
    assert share > (0.5 if name == "random" else 0.7)


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_a_twin_with_too_little_noise_is_rejected(neighbours: Neighbours) -> None:
    second = "a thousand others" if neighbours is Neighbours.REPLACE_ONE else "nobody"
    pair = units()["a thousand rows"], units()[second]
    finding, share = attacked(*pair, neighbours, DRAWS, too_small=1.5)
    assert share > 1.4
    assert rejects(finding, LOSS)
    # the error of .001 of each finding is that of a false alarm: below 1 in 25 over all of this file
    assert not rejects(attacked(*pair, neighbours, DRAWS)[0], LOSS)
