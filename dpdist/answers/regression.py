r"""Ridge regression from one released second moment, with intervals: post-processing, free of charge.

Let h be the regressors of a bounded row, with the constant if the release has one, y its target, and
``A0 = sum h h^T``, ``b0 = sum h y`` the exact sums. The estimand is the ridge regression of the rows *as they were
bounded*: shortened to the clip norm,

    t0 = (A0 + L)^-1 b0,    L = ridge times the identity, but 0 for the constant.

The release has ``A = A0 + E``, ``b = b0 + e``. The plain inverse of A is useless where columns are nearly collinear:
noise turns small eigenvalues of A0 into smaller ones, or negative ones. By default there is no ridge where every
eigenvalue is above 2.5 times the edge of the noise at confidence 0.95 (:mod:`dpdist.pca.noise_edge`). Else the ridge is
that edge: what lies below it cannot be seen anyway.

**Clipping.** A row that is longer than the clip norm is shortened, and its constant is not: t0 is not the regression of
the rows as they are. About a centre this matters little. On seven tables whose rows were centred, slopes of clipped
rows were off by .007 to .2 of the largest slope at the norm of ``auto`` (3 to 6 % clipped), and the same with the
constant clipped with its row (weighted least squares). About zero, with 35 to 100 % clipped, slopes were off by .05 to
16 times the largest. So rows are to be centred, publicly or by a private scale, and a bounding rule that clips the
constant, which would help the others only, is not there.

**The estimate.** ``t = G b``, ``G = (A + L + shift)^-1``. The mean of ``(A0 + L + E - z)^-1`` is, for many columns,
``(A0 + L - w)^-1``, ``w = z - R(g)``. Here R is the R-transform of the noise and g the mean of the eigenvalues of
``(A + L - z)^-1``, negated (free subordination: Biane 1998; Bun, Allez, Bouchaud & Potters 2016). So noise lowers the
ridge by R. The shift is the one at which w is 0; without it the estimand would be a ridge that nobody asked for. Of a
semicircle it is the variance off the diagonal times the trace of G, which is the second order of the expansion in E for
any number of columns. A ridge below the edge is refused where the columns vary less than the edge along some direction,
ridge included; and so is any where A + L is so near to singular that a change of z moves w four times as much.

**Noise, to first order.** Let ``u = (-t, 1)``, and E the noise on the moment of (h, y). From ``dG = -G E G``

    dt = G (e - E_hh t) = G (E u)_h,

and with uncorrelated entries of variance v off and 2 v on the diagonal ``Cov(E u) = v (|u|² I + u u^T)``, so that

    Cov(t) = v ((|t|² + 1) G G + G t t^T G).

Entries of the diagonal with another variance than twice that add ``(on - 2 v) t_i²`` to the middle, the exact n takes
its own part away (:class:`dpdist.answers.block.EntryNoise`), and rounding adds to v and on. An interval is 1.96
standard deviations to each side. It is about t0, the noise being drawn again and the rows being what they are. With a
ridge, t0 is drawn to 0 along directions in which the columns vary less than the edge of the noise.

**Sampling.** If the rows are a sample of independent rows, t0 itself varies, to first order by the sandwich
``s² G A+ G``, with ``s²`` the residual variance and A+ the positive part of A (Huber 1967; Hoerl & Kennard 1970). It
takes residuals of equal variance: a second moment knows no fourth ones. Noise makes A+ too large rather than too small.
The interval for the population adds both variances.

**R².** That of the coefficients t on the bounded rows, as they are: ``1 - u^T M0 u / T0``, with M0 the exact moment of
(h, y) and T0 that of the target about its mean (about the public centre, if the release has no mean). The coefficients
have adapted to the noise, so ``u^T E u`` is negative on average: by Stein's identity, with X an independent copy of E,

    E u^T E u = -2 E u^T X G X u = -2 E v (tr G |u|² + t^T G t),

where G stands for 0 in the row of y, and v tr G is the shift. That is added. The variance of ``u^T E u`` is
``2 v |u|^4`` by its linear part and at most ``8 v² |u|^4 tr G²`` by that mean's own spread.

On principal components (:func:`dpdist.answers.design.principal_design`) all of this holds with another G.

Measured (`benchmarks/regression.py`, `benchmarks/answers.py`): for `gaussian` and `two-sided-wishart`, weak and strong
signals, few and clipped rows, the intervals of the coefficients hold in 93 % of releases or more on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist._util.text import counted, listed
from dpdist.answers.block import NORMAL, Block, EntryNoise, block_of, deviation, references
from dpdist.answers.design import LARGER, Design, principal_design, ridge_design
from dpdist.errors import BelowNoiseError, UsageError
from dpdist.naming import parameter
from dpdist.pca.correlation import drowned
from dpdist.release.advice import cure, weightless
from dpdist.release.artefact import Release

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with its errors: standard deviations of what the noise and sampling make of it."""

    value: float
    noise: float
    sampling: float | None = None  # if the rows are a sample; None where that is not known: see _in_units

    @property
    def interval(self) -> tuple[float, float]:
        """Between which it lies for the rows of the release, with probability 0.95."""
        return self.value - NORMAL * self.noise, self.value + NORMAL * self.noise

    @property
    def population_interval(self) -> tuple[float, float] | None:
        """Between which it lies for the population that the rows are a sample of, with probability 0.95."""
        if self.sampling is None:
            return None
        reach = NORMAL * math.hypot(self.noise, self.sampling)
        return self.value - reach, self.value + reach

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        low, high = self.interval if math.isfinite(self.noise) else (None, None)
        population = self.population_interval
        said: dict[str, object] = {"value": self.value, "low": low, "high": high}
        if population is None:
            return {**said, "population_low": None, "population_high": None}
        return {**said, "population_low": population[0], "population_high": population[1]}


@dataclass(frozen=True)
class Regression:
    """The regression of one target."""

    target: str
    names: tuple[str, ...]  # of the regressors, length p
    intercept: Estimate  # in units of the target; without a released mean it leads through the public centre
    coefficients: tuple[Estimate, ...]  # (p,), in units of the target per unit of the regressor
    r2: Estimate  # share of the target's variance about its mean, or the public centre, that they explain
    ridge: float  # added to the sum of squares of each regressor, in squared units of the bounded rows
    centred: bool  # whether the release has a mean
    seen: int  # directions among the regressors that vary more than the edge of the noise
    components: int | None = None  # principal components that it is on; None: on the regressors, with the ridge
    reference: tuple[str, ...] = ()  # regressors whose coefficient is 0: the first category of each variable
    unknown: tuple[str, ...] = ()  # regressors that do not stand above the noise: their intervals are open

    @property
    def r2_interval(self) -> tuple[float, float]:
        """Between which R² lies with probability 0.95."""
        low, high = self.r2.interval
        return low, min(1.0, high)

    @property
    def drowned(self) -> bool:
        """Whether it is not sure that the coefficients explain anything: neither R² nor any of them is above 0."""
        hold = (low <= 0 <= high for low, high in (each.interval for each in self.coefficients))
        return bool(self.r2_interval[0] <= 0) and all(hold)

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        low, high = self.r2_interval
        return {
            "target": self.target,
            "intercept": self.intercept.to_json(),
            "coefficients": {name: each.to_json() for name, each in zip(self.names, self.coefficients, strict=True)},
            "r2": {"value": self.r2.value, "low": low, "high": high},
            "ridge": self.ridge,
            "components": self.components,
            "reference": list(self.reference),
            "unknown": list(self.unknown),
            "fitted_intercept": self.centred,
            "directions": len(self.names),
            "directions_above_noise": self.seen,
            "drowned": self.drowned,
        }


def regressions(
    release: Release,
    targets: Sequence[int],
    on: Sequence[int],
    ridge: float | None = None,
    units: tuple[Matrix, Matrix] | None = None,
    *,
    components: int | str | None = None,
) -> tuple[Regression, ...]:
    """Return the regression of each target on the same columns."""
    if not on:
        raise UsageError(f"There is no column to regress on: name some ({parameter('on')}).")
    if both := set(targets) & set(on):
        names = ", ".join(release.names[i] for i in sorted(both))
        raise UsageError(f"{names}: a target cannot be regressed on itself: leave it out of {parameter('on')}.")
    if ridge is not None and not (math.isfinite(ridge) and ridge >= 0):
        raise UsageError("The ridge is a number, at least 0, or auto.", parameter="ridge")
    if ridge is not None and components is not None:
        raise UsageError(
            f"Components that stand above the noise need no ridge: leave {parameter('ridge')} or "
            f"{parameter('components')} out."
        )
    _require_weight(release, targets, on)
    left = references(release, on) if components is None and not ridge else ()
    on = [i for i in on if i not in left]
    block = block_of(release, [*on, *targets])
    _require_rows(block, len(on))
    if components is None:
        design = ridge_design(block, len(on), ridge)
    else:
        design = principal_design(block, len(on), None if isinstance(components, str) else components)
    units = release.bound.input_units if units is None else units
    reference = tuple(release.names[i] for i in left)
    return tuple(_regression(block, design, len(on) + i, units, reference) for i in range(len(targets)))


def _require_weight(release: Release, targets: Sequence[int], on: Sequence[int]) -> None:
    """Refuse columns of scale 2^64: a coefficient would be sure to be about 0 in their own units, whatever they say."""
    for places, said in ((targets, "cannot be explained"), (on, f"leave it out of {parameter('on')}")):
        if found := weightless(release, places):
            raise UsageError(
                f"{listed(release.names[i] for i in found)}: numbers beyond 2^20, so the release divided them by 2^64, "
                f"and nothing is known of them: {said}. {cure()}"
            )


def _require_rows(block: Block, count: int) -> None:
    if block.rows is None or block.rows >= count:
        return
    rows = counted(round(block.rows), "row") if block.release.rows is not None else "by its private count fewer rows"
    raise UsageError(
        f"The release is of {rows}, and {counted(count, 'column')} to regress on: there are fewer rows than columns. "
        f"Name fewer columns ({parameter('on')})."
    )


def _regression(
    block: Block, design: Design, target: int, units: tuple[Matrix, Matrix], reference: tuple[str, ...]
) -> Regression:
    count = len(design.places) - bool(block.kappa)
    order = np.array([*design.places, target])
    noise = block.noise_of(count)
    moment = block.moment[np.ix_(order, order)]
    moment[:-1, :-1] = design.moment
    solved = design.inverse @ moment[:-1, -1]
    residual = np.append(-solved, 1.0)
    names = block.release.names
    rest, total, about = _sums_of_squares(block, design, noise, moment, residual)
    spread = deviation(noise.of_functional(np.outer(about, about)))
    if total <= NORMAL * spread:
        others = (
            f" Or leave it out: name other targets ({parameter('target')})." if len(block.columns) > count + 1 else ""
        )
        raise BelowNoiseError(
            f"The variance of {names[block.columns[target]]!r} is drowned in the noise of this release. {LARGER} "
            f"Or release it anew, as one of the {parameter('targets')} of a private scale.{others}"
        )
    doubted, loose = design.doubt(solved, noise.off)
    moved = noise.of_product(residual)[:-1, :-1] + doubted
    estimates = _in_units(block, design, (solved, moved, max(rest, 0.0)), target, units)
    unknown = set(block.columns[:count]) & set(drowned(block.release))
    return Regression(
        target=names[block.columns[target]],
        names=tuple(names[i] for i in block.columns[:count]),
        intercept=estimates[count],
        coefficients=tuple(  # an interval of a column of which nothing is known would be about the ridge alone
            Estimate(found.value, math.inf) if i in unknown else found
            for i, found in zip(block.columns[:count], estimates[:count], strict=True)
        ),
        r2=_r2(design, noise, (rest, residual), (total, about), loose),
        ridge=design.ridge,
        centred=bool(block.kappa),
        seen=design.seen,
        components=design.components,
        reference=reference,
        unknown=tuple(names[i] for i in sorted(unknown)),
    )


def _sums_of_squares(
    block: Block, design: Design, noise: EntryNoise, moment: Matrix, residual: Matrix
) -> tuple[float, float, Matrix]:
    """Return that of the residuals, that of the target, and the vector that the latter is a quadratic form of."""
    solved, inverse = residual[:-1], design.inverse
    adapted = design.shift * float(residual @ residual) + (noise.off + noise.shared) * float(solved @ inverse @ solved)
    adapted += noise.own * float(solved**2 @ np.diagonal(inverse))
    rest = float(residual @ moment @ residual) + 2 * adapted
    about = np.zeros(len(residual))
    about[-1] = 1
    total = float(moment[-1, -1])
    if block.kappa:
        about[-2] = -moment[-1, -2] / moment[-2, -2]
        total += float(about[-2] * moment[-1, -2]) + noise.off / float(moment[-2, -2])
    return rest, total, about


def _r2(
    design: Design, noise: EntryNoise, rest: tuple[float, Matrix], total: tuple[float, Matrix], loose: float
) -> Estimate:
    (left, u), (whole, v) = rest, total
    share = left / whole
    linear = noise.of_functional(np.outer(u, u) - share * np.outer(v, v))
    adapted = 8 * noise.off**2 * float(u @ u) ** 2 * float((design.inverse**2).sum())
    return Estimate(1 - share, deviation(linear + adapted + loose) / whole)


def _in_units(
    block: Block, design: Design, known: tuple[Matrix, Matrix, float], target: int, units: tuple[Matrix, Matrix]
) -> list[Estimate]:
    """Return the coefficients c, and the intercept last, of ``y = intercept + sum c_j x_j``, rows as they were given.

    What is known of them: the solution, the covariance of E u, and the sum of squared residuals.
    """
    (solved, moved, rest), (centre, scale) = known, units
    places = np.array(block.columns)
    count = len(design.places) - bool(block.kappa)
    x, y = places[:count], places[target]
    weights = np.zeros((count + 1, len(design.places)))
    weights[range(count), range(count)] = scale[y] / scale[x]
    weights[count, :count] = -centre[x] @ weights[:count, :count]
    if block.kappa:
        weights[count, -1] = scale[y] * block.kappa
    values = weights @ solved
    values[count] += centre[y]
    passed = weights @ design.inverse
    noise = np.einsum("ij,jk,ik->i", passed, moved, passed, optimize=True)
    sampling: list[float | None] = [None] * (count + 1)
    schema = block.release.schema
    # rows that count as the centre have no residual, and no population has the slopes that a ridge or components give
    plain = not design.ridge and design.components is None
    if plain and block.rows is not None and not (schema is not None and schema.dropping):
        eigenvalues, vectors = np.linalg.eigh(design.moment)
        spread = ((passed @ vectors) ** 2) @ np.maximum(eigenvalues, 0)
        sampling = [deviation(float(each) * rest / block.rows) for each in spread]
    return [Estimate(float(a), deviation(float(b)), c) for a, b, c in zip(values, noise, sampling, strict=True)]
