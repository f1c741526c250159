"""Attacks: neighbouring tables that are hard to distinguish, and the test statistic of an attacker.

**Statistic.** The log-likelihood ratio of the mechanism (:func:`dpdist.literature.ratios.log_ratio`),
which is most powerful (Neyman & Pearson 1933). If it is unknown, the inner product of the release with the change,
which is valid for every mechanism and optimal for Gaussian noise in the Frobenius metric.

**Tables.** One or more rows v replace equally many rows w (replace-one) or are added (add-remove), on a base of other
rows. The change attains the sensitivity: the rows have full norm and are orthogonal, or follow the sign pattern of the
largest l1 change, or one of them is zero. The base makes the change informative for a mechanism that samples a
direction: rows in the plane of v and w exclude other directions, more rows along one of them move the change to where
releases are rare, and a large row halfway between v and w lets the power method amplify the change.

**Selection.** A few draws on each of a list of tables select the most promising one. The measurement uses other draws.

**View.** The attacker sees the release and every frame multiplied with the moment, because the workers see those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import numpy.typing as npt

from dpdist.core.mechanisms import registry
from dpdist.core.mechanisms.base import Additive, Calibrated, Matrix
from dpdist.core.mechanisms.info import Options
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import SYSTEM, Entropy
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.triangle import Triangle, packed, unpacked
from dpdist.literature import loss_bounds as audit
from dpdist.literature.ratios import LogRatio, log_ratio

_MAX_LOSS = 12  # largest ``j epsilon`` of tables that differ in j rows: no feasible number of draws shows more
_DISTANCES = (1, 2, 3, 4, 6, 8)
_ALONG, _FAR = (0.0, 1.0, 2.0, 4.0), (8.0, 32.0)
"""Rows along one of the two directions, in units of ``2 / epsilon``; the second tuple for weighted draws only."""
_TILTS = (1, 4, 16, 64)  # rows in which the third table, the source of weighted releases, differs from the first
_HALFWAY = 4096  # rows halfway between v and w for iterative mechanisms, divided by epsilon if it is below 1
_MAX_ROWS = 1 << 24  # rows of one kind
PILOT = 48  # draws of each table that select an attack
_SKIPPED = 2  # an event has more than this many of the pilot's draws
_MAX_EXPONENT = 700.0


@dataclass
class KnownMoment:
    """An exact moment of synthetic rows: not private."""

    values: npt.NDArray[np.int64]

    def triangle(self) -> Triangle:
        return packed(self.values)

    def matrix(self) -> Matrix:
        return self.values.astype(np.float64)

    def times(self, vectors: Matrix) -> Matrix:
        return self.matrix() @ vectors


@dataclass
class _RecordingMoment(KnownMoment):
    """A moment that records the frames it is multiplied with, which the workers see."""

    frames: list[Matrix] = field(default_factory=list)

    def times(self, vectors: Matrix) -> Matrix:
        self.frames.append(vectors.T)
        return super().times(vectors)


@dataclass(frozen=True)
class Scene:
    """Two tables, the rows in which they differ, and the third table that is the source of weighted releases."""

    first: KnownMoment
    second: KnownMoment
    apart: int = 1
    drawn: KnownMoment | None = None


@dataclass(frozen=True)
class AuditTask:
    """A number of draws of one mechanism in one scene, sent to a worker."""

    mechanism: str
    query: LatticeQuery
    loss: PrivacyLoss
    options: Options
    draws: int
    scene: Scene | None = None

    def calibrated(self) -> Calibrated:
        return registry.calibrated(self.mechanism, self.query, self.loss, self.options)


def _rows(query: LatticeQuery, vectors: Matrix, amount: float) -> npt.NDArray[np.int64]:
    """Return the moment of ``amount`` rows along a unit vector; a fraction of a row is a shorter row."""
    full = min(math.floor(amount), _MAX_ROWS)
    parts = [(full, 1.0), (1, math.sqrt(min(amount - full, 1)))]
    total = np.zeros((query.size, query.size), dtype=np.int64)
    for count, length in parts:
        row = np.trunc(math.isqrt(query.bound) * length * vectors).astype(np.int64)
        total += count * np.outer(row, row)
    return total


def _sign_rows(query: LatticeQuery) -> tuple[Matrix, Matrix]:
    """Return the directions of the largest change in the l1 norm of the triangle."""
    d = query.size
    half = (d + 1) // 2
    signs = np.ones((d, d))
    signs[half:, half:] = -1
    signs += np.diag(np.sign(np.diag(signs)))  # doubled, because the matrix contains all other entries twice
    vectors = np.linalg.eigh(signs)[1]
    if query.neighbours is Neighbours.ADD_REMOVE:
        return np.full(d, d**-0.5), vectors[:, 0]
    return vectors[:, -1], vectors[:, 0]


_Pair = tuple[Matrix, Matrix | None, npt.NDArray[np.int64]]
"""The directions of v and w (None: a zero row, or no row), and the base."""


def _empty_base_pairs(query: LatticeQuery) -> Iterator[_Pair]:
    """Yield pairs on an empty base, for noise that does not depend on the moment."""
    d, replaced = query.size, query.neighbours is Neighbours.REPLACE_ONE
    empty = np.zeros((d, d), dtype=np.int64)
    v, w = np.eye(d)[0], np.eye(d)[-1]
    yield v, w if replaced and d > 1 else None, empty
    if d > 1:
        plus, minus = _sign_rows(query)
        yield plus, minus if replaced else None, empty
        if replaced:
            yield v, None, empty


def _amplified_pairs(query: LatticeQuery, epsilon: float) -> Iterator[_Pair]:
    """Yield rows on either side of a large one: products with frames along it contain their full difference."""
    d, replaced = query.size, query.neighbours is Neighbours.REPLACE_ONE
    halfway, across = np.full(d, d**-0.5), (np.eye(d)[0] - np.eye(d)[1]) / math.sqrt(2)
    plus, minus = ((halfway + sign * across) / math.sqrt(2) for sign in (1, -1))
    yield plus, minus if replaced else None, _rows(query, halfway, _HALFWAY / min(1, epsilon))


def _concentrated_pairs(query: LatticeQuery, epsilon: float, amounts: Iterable[float]) -> Iterator[_Pair]:
    """Yield pairs on bases that keep a sampled direction in their plane, or away from their difference."""
    d, replaced = query.size, query.neighbours is Neighbours.REPLACE_ONE
    v, w = np.eye(d)[0], np.eye(d)[-1]
    other = w if replaced else None
    empty = np.zeros((d, d), dtype=np.int64)
    yield v, other, empty
    plane = _rows(query, v, 8 * d / epsilon) + _rows(query, w, 8 * d / epsilon) if d > 2 else empty
    for amount, axis in product(amounts, (w,) if replaced else (w, v)):
        if amount or d > 2:
            yield v, other, plane + _rows(query, axis, 2 * amount / epsilon)


def scenes(query: LatticeQuery, epsilon: float, *, additive: bool, iterated: bool, weighted: bool) -> Iterator[Scene]:
    """Yield the candidate scenes."""
    empty = np.zeros((query.size, query.size), dtype=np.int64)
    sampled = not (additive or iterated)
    if additive or query.size == 1:
        pairs = _empty_base_pairs(query)
    elif iterated:
        pairs = _amplified_pairs(query, epsilon)
    else:
        pairs = _concentrated_pairs(query, epsilon, (*_ALONG, *_FAR) if weighted else _ALONG)
    for (plus, minus, base), distance in product(pairs, (1,) if weighted else _DISTANCES):
        if distance > 1 and distance * epsilon > _MAX_LOSS:
            continue
        added, removed = _rows(query, plus, distance), empty if minus is None else _rows(query, minus, distance)
        first, second = KnownMoment(base + added), KnownMoment(base + removed)
        if not weighted:
            yield Scene(first, second, distance)
            continue
        yield Scene(first, second, drawn=first)
        for change, tilt in product([added] if sampled else [added - removed, removed - added], _TILTS):
            yield Scene(first, second, drawn=KnownMoment(first.values + tilt * change))
        if sampled:
            # the columns reversed, so v and w exchanged: same eigenvalues, other directions
            mirrored = first.values[::-1, ::-1]
            yield Scene(first, second, drawn=KnownMoment(mirrored))
            yield Scene(first, second, drawn=KnownMoment((first.values + mirrored) // 2))


def statistic(calibrated: Calibrated, first: KnownMoment, second: KnownMoment) -> LogRatio:
    """Return the attacker's test statistic; large values favour the first table."""
    a, b = first.matrix(), second.matrix()
    ratio = log_ratio(calibrated, a, b)
    if ratio is not None:
        return ratio
    change = (a - b) / float(np.sum((a - b) ** 2))

    def inner(release: Matrix) -> float:
        symmetric = release.shape == change.shape and np.array_equal(release, release.T)
        matrix = release if symmetric else release.T @ release
        return float(np.sum(matrix * change))

    return inner


def views(
    calibrated: Calibrated, moment: KnownMoment, draws: int, entropy: Entropy, noises: Sequence[Triangle] = ()
) -> Iterator[Matrix]:
    """Draw releases and yield the attacker's views: the matrix, or the rows of all frames; ``noises`` can be reused."""
    if isinstance(calibrated, Additive):
        exact = moment.triangle()
        for noise in noises or calibrated.draws(draws, entropy):
            yield unpacked(exact + noise, len(moment.values)).astype(np.float64)
        return
    for _ in range(draws):
        watched = _RecordingMoment(moment.values)
        answer = calibrated.answer(watched, entropy)
        if answer.ndim == 1:
            yield unpacked(answer.astype(np.int64, copy=False), len(moment.values)).astype(np.float64)
        else:
            yield np.vstack([*watched.frames, answer.astype(np.float64, copy=False)])


def attack(
    calibrated: Calibrated, scene: Scene, draws: int, entropy: Entropy = SYSTEM, noises: Sequence[Triangle] = ()
) -> npt.NDArray[np.float64]:
    """Draw releases and return the attacker's statistics, shape (2, draws); infinite outside the support of a table."""
    # counted: the statistics of releases of the first and of the second table; weighted: of the same releases of the
    # third table, the log-likelihood ratios of the first and of the second table to the third
    if scene.drawn is None:
        number = statistic(calibrated, scene.first, scene.second)
        moments = (scene.first, scene.second)
        return np.array(
            [[number(release) for release in views(calibrated, moment, draws, entropy, noises)] for moment in moments]
        )
    first, second = (statistic(calibrated, moment, scene.drawn) for moment in (scene.first, scene.second))
    releases = views(calibrated, scene.drawn, draws, entropy, noises)
    return np.array([[first(release), second(release)] for release in releases]).T


def pilot_bound(sample: npt.NDArray[np.float64], scene: Scene, loss: PrivacyLoss, draws: int, error: float) -> float:
    """Estimate from a pilot the result of ``draws`` draws; it only selects the scene."""
    # for a likelihood ratio L, the probability of ``L >= t`` under the other table is the mean of ``exp(-L)`` over
    # that event under the first, which estimates probabilities too small to be observed in the pilot
    if scene.drawn is not None:
        return audit.weighted_event(
            sample[0], sample[1], error, loss.delta, draws // 2, candidates=8, fewest=12
        ).shown_epsilon
    best = 0.0
    for numbers in (sample[0], -sample[1]):
        order = np.sort(numbers)[::-1]
        p = np.arange(1, order.size + 1) / order.size
        q = np.minimum(p, np.cumsum(np.exp(-np.clip(order, -_MAX_EXPONENT, _MAX_EXPONENT))) / order.size)
        low = audit.clopper_pearson(p * draws, draws, error / 2)[0]
        high = audit.clopper_pearson(q * draws, draws, error / 2)[1]
        best = max(best, float(audit.log_excess(low, loss.delta, high)[_SKIPPED:].max(initial=0.0)) / scene.apart)
    return best


def choose(
    calibrated: Calibrated, query: LatticeQuery, loss: PrivacyLoss, draws: int, error: float, *, weighted: bool,
    entropy: Entropy = SYSTEM,
) -> Scene:  # fmt: skip
    """Return the scene with the best pilot for a number of draws and a probability of error."""
    pilot = 2 * PILOT if weighted else PILOT  # of one table, or of each of two
    noises = list(calibrated.draws(pilot, entropy)) if isinstance(calibrated, Additive) else []
    watched = _RecordingMoment(_rows(query, np.eye(query.size)[0], 1))
    calibrated.answer(watched, entropy)
    shape = {"additive": bool(noises), "iterated": bool(watched.frames), "weighted": weighted}
    best: tuple[float, Scene] | None = None
    for scene in scenes(query, loss.epsilon, **shape):
        if loss.delta_atto and scene.apart > 1:
            continue
        bound = pilot_bound(attack(calibrated, scene, pilot, entropy, noises), scene, loss, draws // 2, error)
        if best is None or bound > best[0]:
            best = bound, scene
    if best is None:
        raise AssertionError("at least one scene is tried")
    return best[1]


def run(task: AuditTask) -> npt.NDArray[np.float64]:
    """Run one task on a worker; shape (2, draws)."""
    if task.scene is None:
        raise AssertionError("the task has no scene")
    return attack(task.calibrated(), task.scene, task.draws)
