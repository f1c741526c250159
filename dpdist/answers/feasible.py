"""The nearest moment that rows can have: tables without negative cells, and no negative variance along any direction.

The exact moment of bounded rows is positive semidefinite, its diagonal blocks follow from the counts of categories, and
no cell of a table is negative. These sets are convex, and the noise is, for normal entries, isotropic in the Frobenius
norm of the reduced matrix: rows ``[c, w_i U_i'e ..., x_q ...]`` of the constant, contrasts and numbers. So the
projection of the released matrix on their intersection *in this norm* is never farther from the exact matrix than the
closed form (:mod:`dpdist.answers.variables`), which is the projection on the linear part, but for the tolerance. In
other norms it may be. The number of rows is kept: a private one is known far better than cells, which, made positive,
would enlarge it.

Answers of the nearest moment keep the stated law of the noise, and so the width of their intervals, though nothing is
known of the error of a projection but that it is not larger. Measured on tables of 6,000 to 20,000 rows of 26 columns
of categories and 5 numbers at epsilon .3 and 1: intervals of slopes hold in .97 to .99 of releases (of the released
moment in .96), of squared cosines in .91 to .93 (.94 to .95); slopes are 7 to 10 % closer to those of the rows, and
components capture .0005 to .004 more of the variance.

**Computation.** In the coordinates n, r_i, R_ij, t_q, X_iq and the moment of the numbers, the squared norms of the
reduced matrix, and of all cells of all tables, are sums of squares with weights, because both are orthogonal
decompositions:

    |M|² = D n² + sum_i D_i |r_i|² + 2 sum_ij w_i² w_j² |R_ij|² + ...,
    |T_ij|² = n²/(kl) + |r_i|²/l + |r_j|²/k + |R_ij|².

So the alternating direction method of multipliers (Boyd et al. 2011) needs one eigendecomposition and one clipping of
the cells for each step, and its linear steps are divisions. It stops when no cell is more negative than a tenth of its
noise, and no eigenvalue than a hundredth of the edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from dpdist.answers.categories import Matrix
from dpdist.answers.variables import Variables, variables
from dpdist.core.errors import UsageError
from dpdist.core.naming import parameter
from dpdist.core.progress import Progress, steps
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted, listed

_STEPS = 400
_CELLS, _EDGES = 0.02, 0.01
"""Largest violations: of a cell in its deviations, of an eigenvalue in edges of the noise."""


@dataclass(frozen=True)
class Feasible:
    """The nearest moment that rows can have."""

    moment: Matrix  # (d + 1, d + 1), of the bounded rows and their constant
    tables: dict[tuple[str, str], Matrix]  # not negative
    steps: int
    moved: float  # its distance from the released one, over the expected norm of the noise

    def table(self, rows: str, columns: str) -> Matrix:
        """Return the table of two variables."""
        return self.tables[rows, columns] if (rows, columns) in self.tables else self.tables[columns, rows].T

    def describe(self) -> str:
        """Return what was done, in a sentence."""
        return (
            "From the nearest moment that rows can have, without a negative count in a table or a negative variance: "
            f"{self.moved:.2g} of the noise away, {counted(self.steps, 'step')}."
        )


class Layout:
    """Where coordinates are in the reduced matrix, and what they weigh."""

    def __init__(self, held: Variables) -> None:
        self.held = held
        place = 1
        self.at: dict[str, slice] = {}
        for name, variable in held.categorical.items():
            self.at[name] = slice(place, place + variable.size - 1)
            place += variable.size - 1
        self.numbers = slice(place, place + len(held.numeric))
        self.size = self.numbers.stop
        self.c = held.precision.constant
        self.onto = np.zeros((len(held.moment), self.size))
        self.onto[-1, 0] = 1
        for name, variable in held.categorical.items():
            self.onto[list(variable.places), self.at[name]] = variable.columns
        for number, at in zip(held.numeric.values(), range(self.numbers.start, self.size), strict=True):
            self.onto[number.place, at] = 1

    def places(self, name: str) -> list[int]:
        """Return where a variable is in the reduced matrix."""
        if name in self.at:
            return [*range(self.at[name].start, self.at[name].stop)]
        return [self.numbers.start + [*self.held.numeric].index(name)]

    def released(self) -> Matrix:
        """Return the released reduced matrix, in units of the bounded rows."""
        reduced: Matrix = self.onto.T @ self.held.moment @ self.onto
        return (reduced + reduced.T) / 2

    def of(self, n: float, margins: dict[str, Matrix], rest: Matrix) -> Matrix:
        """Return the matrix with a number of rows, the margins, and the other entries as they were."""
        matrix = rest.copy()
        matrix[0, 0] = self.c**2 * n
        for name, variable in self.held.categorical.items():
            at, w, basis, r = self.at[name], variable.weight, variable.basis, margins[name]
            matrix[at, at] = w**2 * (basis.T @ ((n / variable.size + basis @ r)[:, None] * basis))
            matrix[0, at] = matrix[at, 0] = self.c * w * r
        return matrix

    def margins(self, matrix: Matrix) -> dict[str, Matrix]:
        """Return the margins of the nearest matrix of this form."""
        held, c, margins = self.held, self.c, dict[str, Matrix]()
        for name, variable in held.categorical.items():
            at, w, basis, k = self.at[name], variable.weight, variable.basis, variable.size
            diagonal = np.einsum("gi,ij,gj->g", basis, matrix[at, at], basis)
            total = 2 * c * w * matrix[0, at] + w**2 * (basis.T @ diagonal)
            margins[name] = total / (2 * c**2 * w**2 + w**4 * (1 - 2 / k))
        return margins


def feasible(held: Variables, progress: Progress | None = None) -> Feasible:
    """Return the nearest moment that rows can have; refuse rows that are not about the middles of categories."""
    if not held.precision.constant or not all(variable.centred for variable in held.categorical.values()):
        raise UsageError("Only a release with the mean, about the middles of categories, has a nearest moment of rows.")
    layout = Layout(held)
    released = layout.released()
    n, margins = held.rows, layout.margins(released)
    matrix = layout.of(n, margins, released)
    edge = float(np.sqrt(2 * held.precision.noise * layout.size))
    pairs = list(combinations(held.categorical, 2))
    cells = {pair: _cells(layout, matrix, n, margins, *pair) for pair in pairs}
    slack_matrix, slack_cells = np.zeros_like(matrix), {pair: np.zeros_like(cells[pair]) for pair in pairs}
    report = steps(progress, "Looking for the nearest moment")
    for step in range(1, _STEPS + 1):
        if report is not None:
            report(step, _STEPS)
        split = _semidefinite(matrix + slack_matrix)
        split_cells = {pair: np.maximum(cells[pair] + slack_cells[pair], 0.0) for pair in pairs}
        margins, matrix = _nearest(layout, released, split - slack_matrix, split_cells, slack_cells)
        cells = {pair: _cells(layout, matrix, n, margins, *pair) for pair in pairs}
        slack_matrix = slack_matrix + matrix - split
        slack_cells = {pair: slack_cells[pair] + cells[pair] - split_cells[pair] for pair in pairs}
        if _done(held, matrix, cells, edge):
            break
    if report is not None:
        report(_STEPS, _STEPS)
    usual = float(np.sqrt(held.precision.noise * layout.size * (layout.size + 1) / 2))
    return Feasible(
        layout.onto @ matrix @ layout.onto.T, {pair: np.maximum(table, 0.0) for pair, table in cells.items()}, step,
        float(np.linalg.norm(matrix - released)) / usual,
    )  # fmt: skip


def _cells(layout: Layout, matrix: Matrix, n: float, margins: dict[str, Matrix], first: str, second: str) -> Matrix:
    a, b = layout.held.categorical[first], layout.held.categorical[second]
    both = matrix[layout.at[first], layout.at[second]] / (a.weight * b.weight)
    outside = n / (a.size * b.size) + (a.basis @ margins[first])[:, None] / b.size
    table: Matrix = outside + (b.basis @ margins[second])[None] / a.size + a.basis @ both @ b.basis.T
    return table


def _semidefinite(matrix: Matrix) -> Matrix:
    values, vectors = np.linalg.eigh(matrix)
    nearest: Matrix = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return nearest


def _nearest(
    layout: Layout, released: Matrix, split: Matrix, cells: dict[tuple[str, str], Matrix],
    slack: dict[tuple[str, str], Matrix],
) -> tuple[dict[str, Matrix], Matrix]:  # fmt: skip
    """Return the matrix that is nearest to the released one, the semidefinite one and all tables, with a penalty."""
    held, c = layout.held, layout.c
    scale = float(np.mean([v.weight for v in held.categorical.values()]) ** 4) if held.categorical else 1.0
    target = (released + split) / 2  # both have the weight 1
    margins, rest = layout.margins(target), target.copy()
    information = {
        name: 2 * (2 * c**2 * v.weight**2 + v.weight**4 * (1 - 2 / v.size)) for name, v in held.categorical.items()
    }
    sums = {name: information[name] * margins[name] for name in margins}
    for (first, second), table in cells.items():
        a, b, wanted = held.categorical[first], held.categorical[second], table - slack[first, second]
        sums[first] = sums[first] + scale * (a.basis.T @ wanted.sum(axis=1)) / b.size
        sums[second] = sums[second] + scale * (b.basis.T @ wanted.sum(axis=0)) / a.size
        information[first] += scale / b.size
        information[second] += scale / a.size
        weight = 4 * (a.weight * b.weight) ** 2  # of both triangles, and of both matrices
        at = layout.at[first], layout.at[second]
        both = target[at] / (a.weight * b.weight)
        both = (weight * both + scale * (a.basis.T @ wanted @ b.basis)) / (weight + scale)
        rest[at] = a.weight * b.weight * both
        rest[at[1], at[0]] = rest[at].T
    margins = {name: sums[name] / information[name] for name in sums}
    return margins, layout.of(held.rows, margins, rest)


def _done(held: Variables, matrix: Matrix, cells: dict[tuple[str, str], Matrix], edge: float) -> bool:
    """Whether the violations that are left are little beside the noise."""
    for (first, second), table in cells.items():
        deviation = np.sqrt(held.precision.of_pair(held.categorical[first], held.categorical[second]))
        if table.min() < -_CELLS * deviation:
            return False
    return float(np.linalg.eigvalsh(matrix)[0]) >= -_EDGES * edge


def nearest(release: Release, progress: Progress | None = None) -> tuple[Release, str]:
    """Return a release with the nearest moment that rows can have, for answers only, and a sentence about it.

    Columns without a value in each row, such as those that count gaps, keep what was released.
    """
    held = variables(release)
    found = feasible(held, progress)
    d, step = release.bound.columns, release.bound.unit**2
    places = {place for variable in held.categorical.values() for place in variable.places}
    covered = [*sorted(places | {number.place for number in held.numeric.values()}), d]
    moment = held.moment.copy()
    moment[np.ix_(covered, covered)] = found.moment[np.ix_(covered, covered)]
    values, lattice = (moment[:d, :d] + moment[:d, :d].T) / 2 / step, release.lattice.copy()
    values[np.diag_indices(d)] += release.noise.mean_diagonal + release.rounding_diagonal / step
    lattice[:d, :d] = np.rint(values)
    lattice[:d, d] = lattice[d, :d] = np.rint(moment[:d, d] / held.precision.constant / release.row_sum_step)
    if release.exact_count is None and not (release.schema is not None and release.schema.dropping):
        lattice[d, d] = round(moment[d, d] / step + release.noise.mean_diagonal)
    others = listed(release.names[place] for place in range(d) if place not in covered)
    rest = f" As released: {others}." if others else ""
    return replace(release, answer=lattice), f"{found.describe()}{rest}"


def feasible_covariance(release: Release) -> Matrix:
    """Return the covariance of the nearest moment that rows can have, (d, d), in units of the bounded rows."""
    held = variables(release)
    covered = {place for variable in held.categorical.values() for place in variable.places}
    covered |= {number.place for number in held.numeric.values()}
    if len(covered) < release.bound.columns:
        missing = listed(name for place, name in enumerate(release.names) if place not in covered)
        raise UsageError(
            f"The nearest moment of rows is of variables with a value in each row, and not of: {missing}. Use another "
            f"{parameter('shrinkage')}."
        )
    found = feasible(held)
    mean = found.moment[:-1, -1] / (held.precision.constant * held.rows)
    covariance: Matrix = found.moment[:-1, :-1] / held.rows - np.outer(mean, mean)
    return covariance
