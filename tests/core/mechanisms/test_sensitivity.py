"""The sensitivities are attained and never exceeded, on real rows and on the integer lattice."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from support.registered import NAMES, calibrated

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.sensitivity import DeclaredQuery, LatticeQuery, ceil_sqrt
from dpdist.core.privacy.guarantee import Neighbours

REPLACE, ADD = Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE
UNIT = 4**20
"""A norm bound that makes rounding down to an integer invisible."""


@pytest.mark.parametrize("size", [2, 3, 4, 6, 7, 12, 13])
def test_an_ascent_from_many_starts_reaches_the_sensitivity_of_the_triangle_and_never_more(size: int) -> None:
    changes = np.random.default_rng(size).normal(size=(300, size, size))
    signs = np.sign(changes + changes.swapaxes(1, 2))
    for _ in range(25):  # the worst change for these signs; then the signs of that change
        _, vectors = np.linalg.eigh(signs * (1 + np.eye(size)))
        first, last = vectors[:, :, 0], vectors[:, :, -1]
        change = last[:, :, None] * last[:, None] - first[:, :, None] * first[:, None]
        signs = np.where(change >= 0, 1.0, -1.0)
    worst = np.abs(change[:, *np.triu_indices(size)]).sum(axis=1).max()
    assert worst == pytest.approx(LatticeQuery(size, UNIT, REPLACE).triangle_l1 / UNIT, rel=1e-9)


@pytest.mark.parametrize(("size", "bound"), [(2, 1), (2, 4), (2, 5), (2, 16), (2, 25), (3, 3), (3, 4), (3, 6), (4, 4)])
@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_no_rows_of_a_small_lattice_exceed_the_sensitivities(size: int, bound: int, neighbours: Neighbours) -> None:
    side = range(-math.isqrt(bound), math.isqrt(bound) + 1)
    rows = np.array([row for row in itertools.product(side, repeat=size) if sum(x * x for x in row) <= bound])
    squares = rows[:, :, None] * rows[:, None]
    changes = squares[:, None] - squares[None] if neighbours is REPLACE else squares
    query = LatticeQuery(size, bound, neighbours)
    frobenius = (changes**2).sum(axis=(-2, -1)).max()
    nuclear = np.abs(np.linalg.eigvalsh(changes)).sum(axis=-1).max()
    assert np.abs(changes[..., *np.triu_indices(size)]).sum(axis=-1).max() <= query.triangle_l1
    if math.isqrt(bound) ** 2 == bound:  # as 4^b is: rows of full norm are along the axes
        assert frobenius == query.frobenius_squared
        assert nuclear == pytest.approx(query.nuclear)
    else:
        assert frobenius <= query.frobenius_squared
        assert nuclear <= query.nuclear + 1e-9


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("count", [1, 2, 5])
def test_sensitivities_grow_linearly_in_the_rows_of_a_unit(neighbours: Neighbours, count: int) -> None:
    for size in (2, 3, 8):
        one, several = LatticeQuery(size, 77, neighbours), LatticeQuery(size, 77, neighbours, count)
        assert several.frobenius_squared == count**2 * one.frobenius_squared
        assert (several.nuclear, several.triangle_l1) == (count * one.nuclear, count * one.triangle_l1)
    for bound in (1, 9, 10):  # a single column is a number between 0 and the sum of its rows
        column, most = LatticeQuery(1, bound, neighbours, count), count * bound
        assert (column.frobenius_squared, column.nuclear, column.triangle_l1) == (most**2, most, most)


@pytest.mark.parametrize("wrong", [{"size": 0}, {"bound": 0}, {"rows": 0}])
def test_an_empty_query_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least one column"):
        LatticeQuery(**{"size": 1, "bound": 1, "neighbours": REPLACE, "rows": 1} | wrong)  # type: ignore[arg-type]
    assert LatticeQuery(1, 1, REPLACE).entries == 1
    assert LatticeQuery(4, 1, REPLACE).entries == 10


@pytest.mark.parametrize("name", NAMES)
def test_with_one_column_replacing_a_row_takes_no_more_noise_than_removing_one(name: str) -> None:
    """Replaced or removed, the one number changes by at most S. Both relations have the same worst change."""
    replaced, removed = (calibrated(name, 1, neighbours=relation) for relation in (REPLACE, ADD))
    if name not in {"bingham", "ppca"}:  # a subspace of one column discloses nothing, for any concentration
        assert replaced.noise == removed.noise
    if replaced.guarantee is not None and removed.guarantee is not None:
        assert replaced.guarantee.mu_squared == removed.guarantee.mu_squared


def test_roots_of_declared_squares_are_rounded_upwards() -> None:
    for square in (Fraction(0), Fraction(1, 9), *(Fraction(k, 7) for k in range(1, 200)), Fraction(10**40 + 1)):
        root = ceil_sqrt(square)
        assert root >= 0
        assert root**2 >= square > (root - 1) ** 2 or root == square == 0


@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_two_neighbours_that_round_apart_in_every_entry_need_all_that_is_added(size: int) -> None:
    """Entries just beside one half, whose change has signs of orthogonal rows: every norm is the largest there is."""
    signs = np.array([[1.0]])
    while len(signs) < size:
        signs = np.block([[signs, signs], [signs, -signs]])
    tiny = 1e-9
    moved = np.rint(0.5 + tiny * signs) - np.rint(0.5 - tiny * signs)
    assert np.array_equal(moved, signs)
    declared = {"frobenius": Fraction(2 * tiny) * size}
    query = DeclaredQuery.of(declared, size, Fraction(1), Neighbours.REPLACE_ONE)
    assert query.frobenius - 1 == np.linalg.norm(moved)  # one step is for the change itself
    assert query.nuclear_norm - 1 == math.ceil(np.linalg.norm(moved, "nuc") - 1e-9)
    assert query.l1 - 1 == np.abs(np.triu(moved)).sum()
