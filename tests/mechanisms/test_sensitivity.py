"""The sensitivities: nothing exceeds them, and something attains them, on real rows and on the integer lattice."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from support.registered import NAMES, calibrated

from dpdist.errors import UsageError
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.privacy.guarantee import Neighbours

REPLACE, ADD = Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE
UNIT = 4**20
"""A norm bound that makes rounding down to an integer invisible."""
Floats = npt.NDArray[np.float64]


def triangle_limit(size: int) -> float:
    return LatticeQuery(size, UNIT, REPLACE).triangle_l1 / UNIT


def spread(signs: Floats) -> Floats:
    """Half the distance of the extreme eigenvalues: the most that the triangle of any change with these signs sums to.

    The diagonal of signs counts twice, because a matrix counts an off-diagonal entry twice.
    """
    size = signs.shape[-1]
    values = np.linalg.eigvalsh(signs * (1 + np.eye(size)))
    width: Floats = (np.maximum(values[..., -1], 0) - np.minimum(values[..., 0], 0)) / 2
    return width


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_over_all_sign_patterns_the_worst_triangle_is_exactly_the_sensitivity(size: int) -> None:
    entries = size * (size + 1) // 2
    patterns = 1 - 2.0 * ((np.arange(2**entries)[:, None] >> np.arange(entries)) & 1)
    signs = np.zeros((len(patterns), size, size))
    rows, columns = np.triu_indices(size)
    signs[:, rows, columns] = signs[:, columns, rows] = patterns
    assert spread(signs).max() == pytest.approx(triangle_limit(size), rel=1e-9)


@pytest.mark.parametrize("size", [6, 7, 9, 12, 13])
def test_an_ascent_from_many_starts_reaches_the_sensitivity_of_the_triangle_and_never_more(size: int) -> None:
    found = np.random.default_rng(size).normal(size=(300, size, size))
    signs = np.sign(found + found.swapaxes(1, 2))
    for _ in range(25):  # the worst change for these signs; then the signs of that change
        _, vectors = np.linalg.eigh(signs * (1 + np.eye(size)))
        first, last = vectors[:, :, 0], vectors[:, :, -1]
        change = last[:, :, None] * last[:, None] - first[:, :, None] * first[:, None]
        signs = np.where(change >= 0, 1.0, -1.0)
    worst = np.abs(change[:, *np.triu_indices(size)]).sum(axis=1).max()
    assert worst == pytest.approx(triangle_limit(size), rel=1e-9)


@pytest.mark.parametrize("size", [2, 3, 10, 11, 100, 784])
def test_two_rows_that_are_constant_on_halves_of_the_columns_attain_the_sensitivity_of_the_triangle(size: int) -> None:
    p, q = size - size // 2, size // 2
    on = (size + 2) / math.hypot(size + 2, 2 * math.sqrt(p * q))
    first = np.repeat([p**-0.5, 0], [p, q])
    second = np.repeat([0, q**-0.5], [p, q])
    v, w = math.sqrt((1 + on) / 2), math.sqrt((1 - on) / 2)
    row, other = v * first + w * second, w * first - v * second
    change = np.outer(row, row) - np.outer(other, other)
    assert np.abs(np.triu(change)).sum() == pytest.approx(triangle_limit(size), rel=1e-9)


def lattice(size: int, bound: int) -> npt.NDArray[np.int64]:
    """Return every integer row within the bound."""
    side = range(-math.isqrt(bound), math.isqrt(bound) + 1)
    return np.array([row for row in itertools.product(side, repeat=size) if sum(x * x for x in row) <= bound])


def sizes(changes: npt.NDArray[np.int64]) -> tuple[int, float, int]:
    """Return the largest squared Frobenius norm, nuclear norm and l1 norm of the triangle of some changes."""
    rows, columns = np.triu_indices(changes.shape[-1])
    return (
        int((changes**2).sum(axis=(-2, -1)).max()),
        float(np.abs(np.linalg.eigvalsh(changes)).sum(axis=-1).max()),
        int(np.abs(changes[..., rows, columns]).sum(axis=-1).max()),
    )


def limits(query: LatticeQuery) -> tuple[int, int, int]:
    return query.frobenius_squared, query.nuclear, query.triangle_l1


@pytest.mark.parametrize(("size", "bound"), [(2, 1), (2, 4), (2, 5), (2, 16), (2, 25), (3, 3), (3, 4), (3, 6), (4, 4)])
@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_no_rows_of_a_small_lattice_exceed_the_sensitivities(size: int, bound: int, neighbours: Neighbours) -> None:
    rows = lattice(size, bound)
    squares = rows[:, :, None] * rows[:, None]
    changes = squares[:, None] - squares[None] if neighbours is REPLACE else squares
    query = LatticeQuery(size, bound, neighbours)
    frobenius, nuclear, triangle = sizes(changes)
    assert triangle <= query.triangle_l1
    if math.isqrt(bound) ** 2 == bound:  # as 4^b is: rows of full norm lie along the axes
        assert frobenius == query.frobenius_squared
        assert nuclear == pytest.approx(query.nuclear)
    else:
        assert frobenius <= query.frobenius_squared
        assert nuclear <= query.nuclear + 1e-9


def test_on_a_lattice_fine_enough_the_triangle_comes_near_its_sensitivity() -> None:
    rows = lattice(2, 400)
    rows = rows[(rows**2).sum(axis=1) > 360]
    squares = rows[:, :, None] * rows[:, None]
    limit = LatticeQuery(2, 400, REPLACE).triangle_l1
    assert 0.98 * limit < sizes(squares[:, None] - squares[None])[2] <= limit == 894


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("many", [1, 2, 3])
@pytest.mark.parametrize("bound", [1, 4, 9, 10])
def test_a_single_column_changes_by_no_more_than_one_row_holds(neighbours: Neighbours, many: int, bound: int) -> None:
    sums = {sum(row) for row in itertools.product({x * x for x in range(math.isqrt(bound) + 1)}, repeat=many)}
    worst = max(abs(one - other) for one in sums for other in (sums if neighbours is REPLACE else {0}))
    frobenius, nuclear, triangle = limits(LatticeQuery(1, bound, neighbours, many))
    assert frobenius == nuclear**2
    assert nuclear == triangle == many * bound
    assert worst == many * math.isqrt(bound) ** 2 <= nuclear


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_several_rows_of_one_unit_cost_as_often_what_one_costs(size: int, neighbours: Neighbours) -> None:
    single, several = LatticeQuery(size, 77, neighbours), LatticeQuery(size, 77, neighbours, 5)
    frobenius, nuclear, triangle = limits(single)
    assert limits(several) == (25 * frobenius, 5 * nuclear, 5 * triangle)


@pytest.mark.parametrize("wrong", [{"size": 0}, {"bound": 0}, {"rows": 0}])
def test_a_query_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least one column"):
        LatticeQuery(**{"size": 1, "bound": 1, "neighbours": REPLACE, "rows": 1} | wrong)  # type: ignore[arg-type]
    assert LatticeQuery(1, 1, REPLACE).entries == 1
    assert LatticeQuery(4, 1, REPLACE).entries == 10


@pytest.mark.parametrize("name", NAMES)
def test_with_one_column_replacing_a_row_takes_no_more_noise_than_removing_one(name: str) -> None:
    """Replaced or removed, the one number changes by at most S. Both relations have the same worst change."""
    replaced, removed = (calibrated(name, 1, neighbours=relation) for relation in (REPLACE, ADD))
    if name not in {"bingham", "ppca"}:  # a subspace of one column says nothing, whatever its concentration
        assert replaced.noise == removed.noise
    if replaced.guarantee is not None and removed.guarantee is not None:
        assert replaced.guarantee.mu_squared == removed.guarantee.mu_squared
