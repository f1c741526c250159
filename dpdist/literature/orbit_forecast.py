"""Bounds on unitary orbits: covering numbers, and lower bounds on the error of private algorithms.

M is a second moment of rows of norm at most 1 with eigenvalues lambda, gamma a spectrum, d the dimension, k the number
of nonzero values of gamma. The statements are those of Mangoubi, Wu, Kale, Thakurta & Vishnoi (COLT 2022). Where the
paper has an unspecified universal constant, the bound here has an explicit one, proved below, so that it can be
compared with measurements. The bounds are about H. The release is Re H, which is at most as far from the real M:
``|M - H|² = |M - Re H|² + |Im H|²`` in Frobenius norm.

A forecast of `orbit` and `orbit-lowrank` bounds their error in this way before anything is charged. They add no noise,
so there is no edge. The spectrum of the moment is guessed from public knowledge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import UsageError
from dpdist.core.naming import parameter
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release.bounds import Dimensions, require_schema
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.literature.orbit import CalibratedLowRankOrbit, CalibratedOrbit

Floats = npt.NDArray[np.float64]

BEND = 1 / math.cos(math.pi / 12)
"""``2 sin(t/2) <= BEND sin(t)`` for angles t up to 30 degrees, that is for sin(t) <= 1/2."""


def covering_log_number(size: int, rank: int, largest: float, radius: float) -> float:
    """Return the logarithm of a covering number of the orbit by spectral-norm balls centred in it (lemma 6.3)."""
    # (1 + 8 gamma_1 / radius)^(2 d k). *Proof.* The complex k x d matrices of spectral norm at most 1 are the unit
    # ball of a real normed space of dimension 2dk, covered by (1 + 2/r)^(2dk) balls of radius r. A ball that meets
    # the matrices with orthonormal rows is within 2r of one of them, and |V* G V - W* G W| <= 2 gamma_1 |V - W|
    # maps it into a ball of radius 4 gamma_1 r about a point of the orbit. ∎
    return 2 * size * rank * math.log1p(8 * largest / radius)


@dataclass(frozen=True)
class Turn:
    """Subspaces of dimension i of the span of the eigenvectors 1 .. i and j .. d: points of the orbit."""

    # The smallest rotation to each turns the first i eigenvectors into the last ones. Two of them at chordal distance s
    # give points of the orbit at Frobenius distance at least sqrt 2 gap s: with w the doubly stochastic matrix of
    # the squared inner products of the eigenvectors, the squared distance is sum_ab w_ab (l_a - l_b)². The pairs a
    # <= i, b >= j, and the reverse pairs, have weight s² each, and differences of at least the gap l_i - l_j.

    top: int
    bottom: int
    gap: float

    @property
    def freedom(self) -> int:
        """Real dimension of the Grassmannian."""
        return 2 * self.top * self.bottom

    @property
    def angles(self) -> int:
        """Number of principal angles."""
        return min(self.top, self.bottom)


def turns(spectrum: Floats) -> list[Turn]:
    """Return every choice of i < j with a gap; for equal values only the outermost choices matter."""
    ends = [i for i, (a, b) in enumerate(pairwise(spectrum), 1) if a > b]  # i values precede the gap
    return [Turn(i, spectrum.size - j, float(spectrum[i - 1] - spectrum[j])) for i in ends for j in ends if j >= i]


def _covered_loss(levels: Floats, rank: int, largest: float, exponent: float, failure: float) -> float:
    """Return the bound of :func:`utility_bound` at the best t, which solves a quadratic equation."""
    trace = float(levels.sum())
    freedom, b = 2 * levels.size * rank / exponent, 8 * largest * trace
    t = 2 * freedom * b / (b + math.sqrt(b * b + 4 * freedom * b))
    return t + (covering_log_number(levels.size, rank, largest, t / trace) - math.log(failure)) / exponent


def utility_bound(levels: Floats, spectrum: Floats, exponent: float, failure: float) -> float:
    """Bound the loss of algorithm 1, ``sum lambda_i gamma_i - tr(M H)``, up to a failure probability (theorem 2.2)."""
    # For H with density exp(c tr(M H)) on the orbit of gamma the loss is, except with probability beta, below
    #
    #     t + (2 d k log(1 + 8 gamma_1 tr(M) / t) + log(1/beta)) / c        for every t > 0.
    #
    # *Proof.* Points within t / tr(M) of the best one in spectral norm lose at most t (Hölder), and have measure at
    # least 1/N, N the covering number, because all balls of one radius have the same measure (lemma 6.4). So
    # P(loss >= t + s) <= exp(-c s) N. ∎ The loss of the worst order is returned if it is smaller.
    rank = int(np.count_nonzero(spectrum))
    worst = float(levels @ spectrum - levels @ spectrum[::-1])
    return min(worst, _covered_loss(levels, rank, float(spectrum[0]), exponent, failure))


def low_rank_bound(levels: Floats, rank: int, scale: float, rate: float, failure: float) -> float:
    """Bound the Frobenius error of algorithm 2, up to a failure probability (theorem 2.3)."""
    # |M - H|_F² = sum_(i>k) lambda_i² + sum_(i<=k) (lambda_i - gamma_i)² + 2 (loss of algorithm 1). All k Laplace
    # variables are below x = scale log(2k/beta) except with probability beta/2; sorting and clipping increase no
    # error of an eigenvalue. Both bounds of the loss increase with every gamma_i, so they are evaluated at lambda_i +
    # x: the covering bound, and sum gamma_i max(0, lambda_i - lambda_(d+1-i)).
    x = scale * math.log(2 * rank / failure)
    raised = np.where(np.arange(levels.size) < rank, levels + x, 0.0)
    worst = float(raised @ np.maximum(levels - levels[::-1], 0))
    highest = float(raised[0])
    loss = min(worst, _covered_loss(levels, rank, highest, rate / highest, failure / 2))
    return math.sqrt(float(levels[rank:] @ levels[rank:]) + rank * x * x + 2 * loss)


def lower_bound(levels: Floats, spectrum: Floats, epsilon: float) -> float:
    """Return an error that every private algorithm exceeds with probability 1/2 for some M (theorem 2.4)."""
    # For every epsilon-private algorithm (replace-one, rows of norm at most 1) there is an M with eigenvalues lambda
    # for which, with probability at least 1/2, the result is farther than this in Frobenius norm from the matrix with
    # the eigenvectors of M and the eigenvalues gamma. With gamma = lambda this matrix is M: theorem 2.4, and corollary
    # 2.5, as the result need not be in the orbit; other gamma are corollary 2.6. Tables have enough rows, some of them
    # zero.
    #
    # *Proof.* Take subspaces within a chordal distance r <= 1/2 of the first, pairwise farther apart than s: at least
    # (r/s)^f of them, f = 2i(d-j+1), the quotient of the volumes (theorem 2.7, `papers/mangoubi/packing.py`). Their
    # matrices of spectrum gamma are more than sqrt 2 gap s apart, gap = gamma_i - gamma_j, so balls of half of that
    # are disjoint. If the algorithm failed on none of the M, each ball would get probability 1/2 from its own M and so
    # exp(-epsilon n)/2 from the first, n the number of rows exchanged on the way: impossible once f log(r/s) >=
    # epsilon n + log 2. An algorithm sees M only, so every exchange may start from any table of this M that has
    # the row to exchange.
    #
    # The number n: the change U L U* - L has nuclear norm at most (lambda_1 - lambda_d) |U - 1|_*, where |U - 1|_* = 4
    # sum sin(t/2) <= 2 sum sin(t) / cos 15°, and half of it has to move from its negative to its positive eigenvectors,
    # at most 4q; sum sin(t) <= sqrt(q) r for q principal angles. Move along the segment between both ends one row at a
    # time, with each eigenvector at most one row ahead or behind (Tijdeman 1980); the remainder takes 4q more rows. If
    # both ends are at least 2 along these eigenvectors, there is always a row to exchange. Otherwise zero rows are
    # first exchanged for unit rows, and removed at the end: two along every eigenvector of M below 2 (the first matrix
    # is then that of the higher eigenvalues, the same for all M), or two along each of the 4q. If all lambda are 0 or
    # one value of at least 2, both ends consist of q two-dimensional blocks lambda u u*, lambda w w*: exchange one row
    # u of a block for a row orthogonal to it, move between matrices with eigenvalues lambda - 1 and 1, and exchange the
    # row back: 3q rows in addition to those of the change. ∎
    #
    # The best r is f cos 15° / (epsilon (lambda_1 - lambda_d) sqrt q).
    spread = float(levels[0] - levels[-1])
    best = 0.0
    for turn in turns(spectrum):
        weight = epsilon * spread * math.sqrt(turn.angles) * BEND
        r = min(0.5, turn.freedom / weight) if weight else 0.5
        spent = weight * r + epsilon * _other_rows(levels, turn) + math.log(2)
        best = max(best, turn.gap * r / math.sqrt(2) * math.exp(-spent / turn.freedom))
    return best


def _other_rows(levels: Floats, turn: Turn) -> int:
    """Return the number of rows exchanged in addition to those of the change itself (see lower_bound)."""
    highest = levels[0]
    if highest >= 2 and np.all((levels == 0) | (levels == highest)):
        return 3 * turn.angles
    chosen = np.concatenate([levels[: turn.top], levels[levels.size - turn.bottom :]])
    raised = 2 * int(np.count_nonzero(chosen < 2)) if highest >= 4 else 16 * turn.angles
    return 4 * turn.angles + min(16 * turn.angles, raised)


def first_order_error(levels: Floats, spectrum: Floats, exponent: float, eigenvalue_variance: float = 0.0) -> float:
    """Return the limit of the root mean square error for strong signals: ``2/c`` per pair of distinct eigenvalues."""
    # Near the optimum the loss is a sum of independent quadratic forms, a complex coordinate for every pair i < j with
    # gamma_i > gamma_j and lambda_i > lambda_j, each with mean 1/c. It is at most the loss of a uniform rotation.
    distinct = (levels[:, None] > levels) & (spectrum[:, None] > spectrum)
    uniform = float(levels @ spectrum - levels.sum() * spectrum.sum() / levels.size)
    loss = min(float(np.count_nonzero(distinct)) / exponent, uniform)
    noise = eigenvalue_variance * int(np.count_nonzero(spectrum))
    return math.sqrt(float(np.sum((levels - spectrum) ** 2)) + noise + 2 * loss)


def subspace_forecast(levels: Floats, spectrum: Floats, rank: int, exponent: float) -> dict[str, Any]:
    """Return the captured share and ``|P - P'|_F`` of the top k of Re H, in the limit of strong signals."""
    # Turns of the eigenvectors i <= k < j have complex coordinates z_ij with E|z_ij|² = 1 / (c (gamma_i - gamma_j)
    # (lambda_i - lambda_j)), c the exponent. Re H keeps their real parts: half of it. P' loses (lambda_i - lambda_j)
    # (Re z_ij)² of captured variance for each, and |P - P'|² is 2 sum (Re z_ij)²: at most that of a uniform subspace.
    best, d = float(levels[:rank].sum()), levels.size
    apart, gaps = (values[:rank, None] - values[rank:] for values in (levels, spectrum))
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.where(apart * gaps > 0, 1 / (2 * exponent * gaps * apart), np.inf)
    lost = min(float(np.where(apart > 0, apart * squares, 0.0).sum()), best - rank * float(levels.sum()) / d)
    distance = math.sqrt(min(2 * float(squares.sum()), 2 * rank * (d - rank) / d))
    return {"components": rank, "captured": 1 - lost / best, "distance": distance}


ORBITS = ("orbit", "orbit-lowrank")
"""The mechanisms with this forecast."""
FAILURE = 0.05
"""Probability that an error exceeds its upper bound."""


@dataclass(frozen=True)
class OrbitForecast:
    """Bounds on the error of a release, Frobenius norm per row, in squared units of the rows."""

    request: ReleaseRequest
    clip_norm: float
    columns: int
    rows: int
    upper: float  # exceeded with probability at most 0.05 (theorem 2.2, or 2.3 for `orbit-lowrank`)
    about: float  # limit of the root mean square error of H for strong signals; the released Re H has a smaller one
    # lower bound for every mechanism of this loss and some moment of the guessed spectrum, with probability above 1/2:
    # the distance to the matrix with the released eigenvalues and the true eigenvectors (theorem 2.4, corollaries 2.5
    # and 2.6)
    least: float
    zero: float  # the error of answering zero
    # of the top k of the release, for strong signals: None if the spectrum of `orbit` does not single out k directions
    components: int | None = None
    captured: float | None = None  # share of the variance that the best k components capture
    distance: float | None = None  # of the projectors on the released and the best k components, Frobenius norm

    def to_json(self) -> dict[str, object]:
        """Return the forecast as JSON values."""
        return {
            "mechanism": self.request.mechanism,
            "epsilon": self.request.loss.epsilon,
            "neighbours": self.request.neighbours.value,
            "clip_norm": self.clip_norm,
            "d": self.columns,
            "n": self.rows,
            "error_upper_bound": self.upper,
            "error_first_order": self.about,
            "error_lower_bound": self.least,
            "error_of_zero": self.zero,
            "components": self.components,
            "captured_share": self.captured,
            "projector_distance": self.distance,
        }


def forecast_orbit(request: ReleaseRequest, columns: int, rows: int, spectrum: Sequence[float]) -> OrbitForecast:
    """Bound the error of `orbit` or `orbit-lowrank`, from public numbers only."""
    if rows < 1:
        raise UsageError("A forecast needs at least one row.", parameter="n")
    if request.chooses:
        raise UsageError(
            f"The forecast of {request.mechanism} needs a public clip norm and scale: pass {parameter('clip', 'C')} "
            "only."
        )
    require_schema(request, None)
    plan = planned(request, Dimensions(columns, rows if request.neighbours is Neighbours.REPLACE_ONE else None))
    bound = plan.bound
    largest = bound.row_norm**2
    guessed = np.array(spectrum, dtype=np.float64)
    if (
        not 1 <= guessed.size <= columns
        or not np.all(guessed > 0)
        or np.any(np.diff(guessed) > 0)
        or guessed.sum() > largest * (1 + 1e-9)
    ):
        raise UsageError(
            f"The error of {request.mechanism} depends on the spectrum. Pass a guess of 1 to {columns} positive "
            f"numbers, descending, with a sum of at most the squared clip norm, {largest:g}.",
            parameter="spectrum",
        )
    levels = np.zeros(columns)
    levels[: guessed.size] = rows * guessed / largest  # in squared clip norms, as in the bounds
    calibrated, unit = plan.moment, bound.unit**2 / largest
    epsilon = request.loss.epsilon
    # exchanging one row removes one and adds one
    epsilon *= 1 if request.neighbours is Neighbours.REPLACE_ONE else 2
    of_components: dict[str, Any] = {}
    if isinstance(calibrated, CalibratedOrbit):
        goal = np.array(calibrated.spectrum)
        spread = float(goal[0] - goal[-1])
        off = float(np.sum((levels - goal) ** 2))
        upper = first_order = math.sqrt(off)
        if spread:
            exponent = calibrated.rate / unit / spread
            upper = math.sqrt(off + 2 * utility_bound(levels, goal, exponent, FAILURE))
            first_order = first_order_error(levels, goal, exponent)
            if len(set(goal)) == 2:
                count = int(np.count_nonzero(goal == goal[0]))
                of_components = subspace_forecast(levels, goal, count, exponent)
    elif isinstance(calibrated, CalibratedLowRankOrbit):
        k, rate, scale = calibrated.components, calibrated.rate / unit, calibrated.scale * unit
        goal = np.where(np.arange(columns) < k, levels, 0.0)
        upper = low_rank_bound(levels, k, scale, rate, FAILURE)
        exponent = rate / float(goal[0])
        first_order = first_order_error(levels, goal, exponent, 2 * scale**2)
        of_components = subspace_forecast(levels, goal, k, exponent) if k < columns else {}
    else:
        raise UsageError(f"{request.mechanism} does not sample from an orbit. Use orbit or orbit-lowrank.")
    errors = (upper, first_order, lower_bound(levels, goal, epsilon), np.linalg.norm(levels))
    upper, first_order, least, zero = (float(value) * largest / rows for value in errors)
    return OrbitForecast(request, bound.clip_norm, columns, rows, upper, first_order, least, zero, **of_components)
