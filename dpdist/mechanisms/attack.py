"""Attacks: neighbouring tables that are hard to hide, and the number an attacker computes from a release.

**Number.** The log-likelihood ratio of the mechanism (:meth:`~dpdist.mechanisms.base.Calibrated.log_ratio`); no other
is better (Neyman & Pearson 1933). Where none is known it is the inner product of the release with the change, which is
valid for every mechanism and optimal for Gaussian noise in the Frobenius metric.

**Tables.** A row v or several take the place of as many rows w (replace-one), or of none (add-remove), on top of a base
of other rows. The change attains the sensitivity: rows of full norm that are orthogonal, or along the sign pattern of
the largest l1 change, or one of them zero. The base is what makes a change informative for a mechanism that samples a
direction: rows in the plane of v and w keep the other directions out, more of them along one put the change where the
release hardly ever falls, and a large row halfway between lets the power method amplify the change.

**Which.** All of a list are tried on a few draws, and the one that promises most is attacked. This is a choice of the
attacker; what is then measured comes from other draws.

**View.** The attacker sees the release, and every frame the moment is multiplied with: those go to the workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import numpy.typing as npt

from dpdist.mechanisms import registry
from dpdist.mechanisms.base import Additive, Calibrated, LogRatio, Matrix
from dpdist.mechanisms.info import Options
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import SYSTEM, Entropy
from dpdist.privacy import audit
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.triangle import Triangle, packed, unpacked

_FARTHEST = 12  # largest ``j epsilon`` of tables j rows apart: no number of draws in reach shows more
_APART = (1, 2, 3, 4, 6, 8)
_ALONG, _FAR = (0.0, 1.0, 2.0, 4.0), (8.0, 32.0)
"""Rows along one of the two directions, in units of ``2 / epsilon``; the last for weighted draws only."""
_TILTS = (1, 4, 16, 64)  # rows by which the table that weighted releases are drawn from differs from the first
_HALFWAY = 4096  # rows halfway between v and w for iterations, over epsilon where that is below 1
_MOST = 1 << 24  # most rows of a kind
PILOT = 48  # draws of either table by which an attack is chosen
_FEW = 2  # the largest numbers of a pilot are not taken for an event
_NO_MORE = 700.0  # largest exponent


@dataclass
class KnownMoment:
    """An exact moment that is known to the auditor: synthetic, not private."""

    values: npt.NDArray[np.int64]

    def triangle(self) -> Triangle:
        """Return the packed integers."""
        return packed(self.values)

    def matrix(self) -> Matrix:
        """Return the matrix as float64, (d, d)."""
        return self.values.astype(np.float64)

    def times(self, vectors: Matrix) -> Matrix:
        """Return the product with (d, k) vectors."""
        return self.matrix() @ vectors


@dataclass
class _Watched(KnownMoment):
    """A moment that remembers the frames it was multiplied with, as the workers see them."""

    frames: list[Matrix] = field(default_factory=list)

    def times(self, vectors: Matrix) -> Matrix:
        self.frames.append(vectors.T)
        return super().times(vectors)


@dataclass(frozen=True)
class Scene:
    """Two tables and where releases are drawn."""

    first: KnownMoment
    second: KnownMoment
    apart: int = 1
    drawn: KnownMoment | None = None


@dataclass(frozen=True)
class AuditTask:
    """So many draws of one mechanism in one scene; it travels to a worker."""

    mechanism: str
    query: LatticeQuery
    loss: PrivacyLoss
    options: Options
    draws: int
    scene: Scene | None = None

    def calibrated(self) -> Calibrated:
        """Return the mechanism as a release would use it."""
        return registry.calibrated(self.mechanism, self.query, self.loss, self.options)


def _rows(query: LatticeQuery, vectors: Matrix, amount: float) -> npt.NDArray[np.int64]:
    """Return the moment of so many rows along a unit vector; a part of a row is a shorter one."""
    whole = min(math.floor(amount), _MOST)
    parts = [(whole, 1.0), (1, math.sqrt(min(amount - whole, 1)))]
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
    signs += np.diag(np.sign(np.diag(signs)))  # the triangle counts the diagonal once, the rest is mirrored
    vectors = np.linalg.eigh(signs)[1]
    if query.neighbours is Neighbours.ADD_REMOVE:
        return np.full(d, d**-0.5), vectors[:, 0]
    return vectors[:, -1], vectors[:, 0]


_Pair = tuple[Matrix, Matrix | None, npt.NDArray[np.int64]]
"""The directions of v and of w (None: a row of zeros, or none), and the base."""


def _anywhere(query: LatticeQuery) -> Iterator[_Pair]:
    """Yield pairs over an empty base, for noise that does not depend on the moment."""
    d, replaced = query.size, query.neighbours is Neighbours.REPLACE_ONE
    empty = np.zeros((d, d), dtype=np.int64)
    v, w = np.eye(d)[0], np.eye(d)[-1]
    yield v, w if replaced and d > 1 else None, empty
    if d > 1:
        plus, minus = _sign_rows(query)
        yield plus, minus if replaced else None, empty
        if replaced:
            yield v, None, empty


def _amplified(query: LatticeQuery, epsilon: float) -> Iterator[_Pair]:
    """Yield rows on either side of a large one: products with frames along it show their whole difference."""
    d, replaced = query.size, query.neighbours is Neighbours.REPLACE_ONE
    halfway, across = np.full(d, d**-0.5), (np.eye(d)[0] - np.eye(d)[1]) / math.sqrt(2)
    plus, minus = ((halfway + sign * across) / math.sqrt(2) for sign in (1, -1))
    yield plus, minus if replaced else None, _rows(query, halfway, _HALFWAY / min(1, epsilon))


def _concentrated(query: LatticeQuery, epsilon: float, amounts: Iterable[float]) -> Iterator[_Pair]:
    """Yield pairs over bases that keep a sampled direction in their plane, or away from where they differ."""
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
    """Yield the tables that are tried."""
    empty = np.zeros((query.size, query.size), dtype=np.int64)
    sampled = not (additive or iterated)
    if additive or query.size == 1:
        pairs = _anywhere(query)
    elif iterated:
        pairs = _amplified(query, epsilon)
    else:
        pairs = _concentrated(query, epsilon, (*_ALONG, *_FAR) if weighted else _ALONG)
    for (plus, minus, base), apart in product(pairs, (1,) if weighted else _APART):
        if apart > 1 and apart * epsilon > _FARTHEST:
            continue
        more, less = _rows(query, plus, apart), empty if minus is None else _rows(query, minus, apart)
        first, second = KnownMoment(base + more), KnownMoment(base + less)
        if not weighted:
            yield Scene(first, second, apart)
            continue
        yield Scene(first, second, drawn=first)
        for change, tilt in product([more] if sampled else [more - less, less - more], _TILTS):
            yield Scene(first, second, drawn=KnownMoment(first.values + tilt * change))
        if sampled:
            # the columns in reverse, so v and w exchanged: a table of the same eigenvalues and other directions
            mirrored = first.values[::-1, ::-1]
            yield Scene(first, second, drawn=KnownMoment(mirrored))
            yield Scene(first, second, drawn=KnownMoment((first.values + mirrored) // 2))


def statistic(calibrated: Calibrated, first: KnownMoment, second: KnownMoment) -> LogRatio:
    """Return the attacker's number; large values speak for the first table."""
    a, b = first.matrix(), second.matrix()
    ratio = calibrated.log_ratio(a, b)
    if ratio is not None:
        return ratio
    change = (a - b) / float(np.sum((a - b) ** 2))

    def inner(seen: Matrix) -> float:
        matrix = seen if seen.shape == change.shape and np.array_equal(seen, seen.T) else seen.T @ seen
        return float(np.sum(matrix * change))

    return inner


def views(
    calibrated: Calibrated, moment: KnownMoment, draws: int, entropy: Entropy, noises: Sequence[Triangle] = ()
) -> Iterator[Matrix]:
    """Draw so often and yield what the attacker sees: the matrix, or the rows of every frame in their order.

    An additive mechanism may be given the noise that was drawn, to try several moments with it.
    """
    if isinstance(calibrated, Additive):
        exact = moment.triangle()
        for noise in noises or calibrated.draws(draws, entropy):
            yield unpacked(exact + noise, len(moment.values)).astype(np.float64)
        return
    for _ in range(draws):
        watched = _Watched(moment.values)
        answer = calibrated.answer(watched, entropy)
        if answer.ndim == 1:
            yield unpacked(answer.astype(np.int64, copy=False), len(moment.values)).astype(np.float64)
        else:
            yield np.vstack([*watched.frames, answer.astype(np.float64, copy=False)])


def attack(
    calibrated: Calibrated, scene: Scene, draws: int, entropy: Entropy = SYSTEM, noises: Sequence[Triangle] = ()
) -> npt.NDArray[np.float64]:
    """Draw releases and return the attacker's numbers, shape (2, draws).

    Counted: the number of releases of the first table, and of the second. A release outside the support of one of the
    tables gives an infinite number: the attacker is certain. Weighted: of the same releases of the third table, the
    log-likelihood ratio of the first to it, and of the second.
    """
    if scene.drawn is None:
        number = statistic(calibrated, scene.first, scene.second)
        moments = (scene.first, scene.second)
        return np.array(
            [[number(seen) for seen in views(calibrated, moment, draws, entropy, noises)] for moment in moments]
        )
    first, second = (statistic(calibrated, moment, scene.drawn) for moment in (scene.first, scene.second))
    return np.array([[first(seen), second(seen)] for seen in views(calibrated, scene.drawn, draws, entropy, noises)]).T


def promise(sample: npt.NDArray[np.float64], scene: Scene, loss: PrivacyLoss, draws: int, error: float) -> float:
    """Guess from a few draws what so many draws would show; it decides nothing but which scene is attacked.

    Where the number is a likelihood ratio L, the probability of ``L >= t`` on the other table is the mean of
    ``exp(-L)`` there. So events are judged that are far too rare there to be seen in these draws.
    """
    if scene.drawn is not None:
        return audit.weighted_event(
            sample[0], sample[1], error, loss.delta, draws // 2, candidates=8, fewest=12
        ).shown_epsilon
    best = 0.0
    for own in (sample[0], -sample[1]):
        order = np.sort(own)[::-1]
        p = np.arange(1, order.size + 1) / order.size
        q = np.minimum(p, np.cumsum(np.exp(-np.clip(order, -_NO_MORE, _NO_MORE))) / order.size)
        low = audit.clopper_pearson(p * draws, draws, error / 2)[0]
        high = audit.clopper_pearson(q * draws, draws, error / 2)[1]
        best = max(best, float(audit.log_excess(low, loss.delta, high)[_FEW:].max(initial=0.0)) / scene.apart)
    return best


def choose(
    calibrated: Calibrated, query: LatticeQuery, loss: PrivacyLoss, draws: int, error: float, *, weighted: bool,
    entropy: Entropy = SYSTEM,
) -> Scene:  # fmt: skip
    """Return the scene that promises most for so many draws and this probability of error."""
    pilot = 2 * PILOT if weighted else PILOT  # of one table, or of each of two
    noises = list(calibrated.draws(pilot, entropy)) if isinstance(calibrated, Additive) else []
    watched = _Watched(_rows(query, np.eye(query.size)[0], 1))
    calibrated.answer(watched, entropy)
    shape = {"additive": bool(noises), "iterated": bool(watched.frames), "weighted": weighted}
    best: tuple[float, Scene] | None = None
    for scene in scenes(query, loss.epsilon, **shape):
        if loss.delta_atto and scene.apart > 1:
            continue
        promised = promise(attack(calibrated, scene, pilot, entropy, noises), scene, loss, draws // 2, error)
        if best is None or promised > best[0]:
            best = promised, scene
    if best is None:
        raise AssertionError("some table is always tried")
    return best[1]


def run(task: AuditTask) -> npt.NDArray[np.float64]:
    """Run one task on a worker; shape (2, draws)."""
    if task.scene is None:
        raise AssertionError("a task that is run has a scene")
    return attack(task.calibrated(), task.scene, task.draws)
