r"""Ridge regression from one released second moment, with intervals: post-processing, free of charge.

Let h be the regressors of a bounded row, with the constant if the release has one, y its target, and
``A0 = sum h h^T``, ``b0 = sum h y`` the exact sums. The estimand is the ridge regression of the *bounded* rows, clipped
to the clip norm,

    t0 = (A0 + L)^-1 b0,    L = ridge times the identity, but 0 for the constant.

The release has ``A = A0 + E``, ``b = b0 + e``. The plain inverse of A is useless if columns are nearly collinear: noise
turns small eigenvalues of A0 into smaller or negative ones. By default there is no ridge if every eigenvalue is above
2.5 times the edge of the noise at confidence 0.95 (:mod:`dpdist.answers.noise_edge`). Otherwise the ridge is that edge,
because directions below it are invisible in any case. With a few thousand rows that is the rule: at epsilon 1, 145 of
187 default fits of 1500 to 6000 correlated normal rows of 3 to 13 columns used it, and the median fit kept .71 of the
slopes of least squares. Each result therefore states its **shrinkage**, the diagonal of ``(A0 + L)^-1 A0 = I - (A0 +
L)^-1 L``, estimated by ``I - G L``: the factor of a slope of least squares whose column is not correlated with the
others. On 40 of these tables the estimate was off by .036 (root mean square) from factors of .40 to 1.

**Clipping.** A row longer than the clip norm is clipped, but its constant is not, so t0 is not the regression of the
original rows. About a centre this matters little. On seven tables with centred rows, slopes of clipped rows were off by
.007 to .2 of the largest slope at the norm of ``auto`` (3 to 6 % clipped), and the same with the constant clipped with
its row (weighted least squares). About zero, with 35 to 100 % clipped, slopes were off by .05 to 16 times the largest.
So rows should be centred, publicly or by a private scale. A bounding rule that also clips the constant would help only
uncentred rows, and does not exist.

**The estimate.** ``t = G b``, ``G = (A + L + shift)^-1``. The mean of ``(A0 + L + E - z)^-1`` is, for many columns,
``(A0 + L - w)^-1``, ``w = z - R(g)``. Here R is the R-transform of the noise and g the mean of the eigenvalues of
``(A + L - z)^-1``, negated (free subordination: Biane 1998; Bun, Allez, Bouchaud & Potters 2016). So noise lowers the
ridge by R. The shift makes w zero; without it the estimand would have another ridge than requested. For a semicircle it
is the variance off the diagonal times the trace of G, the second order of the expansion in E for any number of columns.
A ridge below the edge is refused if the columns, ridge included, vary less than the edge along some direction. Any
ridge is refused if A + L is so close to singular that a change of z changes w by four times as much.

**Noise, to first order.** Let ``u = (-t, 1)``, and E the noise on the moment of (h, y). From ``dG = -G E G``

    dt = G (e - E_hh t) = G (E u)_h,

and with uncorrelated entries of variance v off and 2 v on the diagonal ``Cov(E u) = v (|u|² I + u u^T)``, so that

    Cov(t) = v ((|t|² + 1) G G + G t t^T G).

Diagonal entries whose variance is not twice that of the others add ``(on - 2 v) t_i²`` to the middle, an exact n
removes its part (:class:`dpdist.answers.block.EntryNoise`), and rounding adds to v and on. An interval of t0 is 1.96
standard deviations to each side, over repeated noise for fixed rows. A ridge shrinks t0 towards 0 along directions in
which the columns vary less than the edge of the noise.

**Sampling.** If the rows are a sample of independent rows, t0 itself varies, to first order by the sandwich
``s² G A+ G``, with ``s²`` the residual variance and A+ the positive part of A (Huber 1967; Hoerl & Kennard 1970). This
assumes residuals of equal variance, as a second moment contains no fourth moments. Noise makes A+ too large rather than
too small. The interval for the population adds both variances.

**R².** The R² of the coefficients t on the bounded rows is ``1 - u^T M0 u / T0``, with M0 the exact moment of (h, y)
and T0 that of the target about its mean (about the public centre, if the release has no mean). The coefficients have
adapted to the noise, so ``u^T E u`` is negative on average: by Stein's identity, with X an independent copy of E,

    E u^T E u = -2 E u^T X G X u = -2 E v (tr G |u|² + t^T G t),

where G is 0 in the row of y, and v tr G is the shift. This bias is corrected. The variance of ``u^T E u`` is
``2 v |u|^4`` from its linear part and at most ``8 v² |u|^4 tr G²`` from the spread of the correction.

The same holds on principal components (:func:`dpdist.answers.design.principal_design`) with their G.

Measured (`benchmarks/regression.py`, `benchmarks/answers.py`): for `gaussian` and `two-sided-wishart`, weak and strong
signals, few and clipped rows, the intervals of the coefficients hold in 93 % of releases or more on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist.answers.block import NORMAL, Block, EntryNoise, block_of, deviation, incomplete, references
from dpdist.answers.correlation import drowned
from dpdist.answers.design import LARGER, Design, principal_design, ridge_design
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.naming import parameter
from dpdist.core.release.advice import cure, weightless
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted, listed

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with the standard deviations due to noise and sampling."""

    value: float
    noise: float
    sampling: float | None = None  # if the rows are a sample; None if unknown (see _in_units)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the value for the rows of the release."""
        return self.value - NORMAL * self.noise, self.value + NORMAL * self.noise

    @property
    def population_interval(self) -> tuple[float, float] | None:
        """95 % interval of the value for the sampled population."""
        if self.sampling is None:
            return None
        reach = NORMAL * math.hypot(self.noise, self.sampling)
        return self.value - reach, self.value + reach

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        low, high = self.interval if math.isfinite(self.noise) else (None, None)
        below, above = self.population_interval or (None, None)
        return {"value": self.value, "low": low, "high": high, "population_low": below, "population_high": above}


@dataclass(frozen=True)
class Regression:
    """The regression of one target."""

    target: str
    names: tuple[str, ...]  # of the regressors, length p
    intercept: Estimate  # in units of the target; without a released mean, the line passes through the public centre
    coefficients: tuple[Estimate, ...]  # (p,), in units of the target per unit of the regressor
    r2: Estimate  # explained share of the target's variance about its mean, or about the public centre
    ridge: float  # added to the sum of squares of each regressor, in squared units of the bounded rows
    centred: bool  # whether the release has a mean
    seen: int  # number of directions among the regressors above the edge of the noise
    components: int | None = None  # number of principal components used; None: the regressors, with the ridge
    reference: tuple[str, ...] = ()  # regressors with coefficient 0: the first category of each variable
    unknown: tuple[str, ...] = ()  # regressors below the noise: their intervals are infinite
    shrinkage: tuple[float, ...] | None = None  # (p,): factors of the slopes of least squares; None with components

    @property
    def r2_interval(self) -> tuple[float, float]:
        """95 % interval of R²."""
        low, high = self.r2.interval
        return low, min(1.0, high)

    @property
    def drowned(self) -> bool:
        """Whether the intervals of R² and of all coefficients contain 0."""
        hold = (low <= 0 <= high for low, high in (estimate.interval for estimate in self.coefficients))
        return bool(self.r2_interval[0] <= 0) and all(hold)

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        low, high = self.r2_interval
        return {
            "target": self.target,
            "intercept": self.intercept.to_json(),
            "coefficients": {
                name: estimate.to_json() for name, estimate in zip(self.names, self.coefficients, strict=True)
            },
            "r2": {"value": self.r2.value, "low": low, "high": high},
            "ridge": self.ridge,
            "shrinkage": None if self.shrinkage is None else dict(zip(self.names, self.shrinkage, strict=True)),
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
        raise UsageError(f"There are no regressors: name some ({parameter('on')}).")
    if both := set(targets) & set(on):
        names = ", ".join(release.names[i] for i in sorted(both))
        raise UsageError(f"A target cannot be regressed on itself: leave {names} out of {parameter('on')}.")
    if ridge is not None and not (math.isfinite(ridge) and ridge >= 0):
        raise UsageError("The ridge must be a number of at least 0, or auto.", parameter="ridge")
    if ridge is not None and components is not None:
        raise UsageError(
            f"Components above the noise need no ridge: leave out {parameter('ridge')} or {parameter('components')}."
        )
    _require_weight(release, targets, on)
    dropped = references(release, on) if components is None and not ridge else ()
    on = [i for i in on if i not in dropped]
    block = block_of(release, [*on, *targets])
    _require_rows(block, len(on))
    if components is None:
        design = ridge_design(block, len(on), ridge)
    else:
        design = principal_design(block, len(on), None if isinstance(components, str) else components)
    units = release.bound.input_units if units is None else units
    reference = tuple(release.names[i] for i in dropped)
    try:
        return tuple(_regression(block, design, len(on) + i, units, reference) for i in range(len(targets)))
    except BelowNoiseError:
        below = set(drowned(release))  # of the release: a column with few pairs makes the noise of the block larger
        hidden = [release.names[i] for i in on if i in below]
        if hidden and not below & set(targets):
            raise BelowNoiseError(
                f"Less of {listed(hidden)} is seen than the noise of this release, which hides the target beside it. "
                f"Leave {listed(hidden)} out of {parameter('on')}."
            ) from None
        raise


def _require_weight(release: Release, targets: Sequence[int], on: Sequence[int]) -> None:
    """Refuse columns of scale 2^64, whose coefficients would always be about 0 in their own units."""
    for columns, advice in ((targets, "They cannot be targets."), (on, f"Leave them out of {parameter('on')}.")):
        if hidden := weightless(release, columns):
            raise UsageError(
                f"{listed(release.names[i] for i in hidden)}: numbers beyond 2^20, divided by 2^64 in the release, so "
                f"nothing is known about them. {advice} {cure()}"
            )


def _require_rows(block: Block, count: int) -> None:
    if block.rows is None or block.rows >= count:
        return
    rows = "by its private count, fewer rows"
    if block.release.exact_count is not None:
        rows = counted(round(block.rows), "row")
    raise UsageError(
        f"There are fewer rows than regressors: the release has {rows}, for {counted(count, 'column')}. Name fewer "
        f"columns ({parameter('on')})."
    )


def _regression(
    block: Block, design: Design, target: int, units: tuple[Matrix, Matrix], reference: tuple[str, ...]
) -> Regression:
    count = len(design.indices) - bool(block.kappa)
    order = np.array([*design.indices, target])
    noise = block.noise_of(count)
    moment = block.moment[np.ix_(order, order)]
    moment[:-1, :-1] = design.moment
    solved = design.inverse @ moment[:-1, -1]
    residual = np.append(-solved, 1.0)
    names = block.release.names
    rest, total, about = _sums_of_squares(block, design, noise, moment, residual)
    spread = deviation(noise.of_functional(np.outer(about, about)))
    if total <= NORMAL * spread:
        others = f" Or name only the other targets ({parameter('target')})." if len(block.columns) > count + 1 else ""
        if block.columns[target] in block.release.bound.numbers:
            others = f" Or release it anew, as one of the {parameter('targets')} of a private scale.{others}"
        raise BelowNoiseError(
            f"The variance of {names[block.columns[target]]!r} is below the noise of this release. {LARGER}{others}"
        )
    doubted, loose = design.component_noise(solved, noise.off)
    moved = noise.of_product(residual)[:-1, :-1] + doubted
    estimates = _in_units(block, design, (solved, moved, max(rest, 0.0)), target, units)
    unknown = set(block.columns[:count]) & set(drowned(block.release))
    return Regression(
        target=names[block.columns[target]],
        names=tuple(names[i] for i in block.columns[:count]),
        intercept=estimates[count],
        coefficients=tuple(  # the interval of an unknown column would describe the ridge alone
            Estimate(estimate.value, math.inf) if i in unknown or not estimate.noise else estimate
            for i, estimate in zip(block.columns[:count], estimates[:count], strict=True)
        ),
        r2=_r2(design, noise, (rest, residual), (total, about), loose),
        ridge=design.ridge,
        centred=bool(block.kappa),
        seen=design.seen,
        components=design.components,
        reference=reference,
        unknown=tuple(names[i] for i in sorted(unknown)),
        shrinkage=None if design.components is not None else _shrinkage(design, count),
    )


def _shrinkage(design: Design, count: int) -> tuple[float, ...]:
    """Return the estimated diagonal of ``(A0 + L)^-1 A0`` of the columns, from 0 to 1."""
    kept = np.clip(1 - design.ridge * np.diagonal(design.inverse)[:count], 0, 1)
    return tuple(kept.tolist())


def _sums_of_squares(
    block: Block, design: Design, noise: EntryNoise, moment: Matrix, residual: Matrix
) -> tuple[float, float, Matrix]:
    """Return the sums of squares of the residuals and of the target, and the vector of the latter's quadratic form."""
    solved, inverse = residual[:-1], design.inverse
    adapted = design.shift * float(residual @ residual) + (noise.off + noise.shared) * float(solved @ inverse @ solved)
    adapted += noise.diagonal_excess * float(solved**2 @ np.diagonal(inverse))
    rest = float(residual @ moment @ residual) + 2 * adapted
    about = np.zeros(len(residual))
    about[-1] = 1
    total = float(moment[-1, -1])
    if block.kappa:
        about[-2] = -moment[-1, -2] / moment[-2, -2]
        total += float(about[-2] * moment[-1, -2]) + noise.off / float(moment[-2, -2])
    return rest, total, about


def _r2(
    design: Design, noise: EntryNoise, residuals: tuple[float, Matrix], total: tuple[float, Matrix], loose: float
) -> Estimate:
    (residual_squares, u), (total_squares, v) = residuals, total
    share = residual_squares / total_squares
    linear = noise.of_functional(np.outer(u, u) - share * np.outer(v, v))
    adapted = 8 * noise.off**2 * float(u @ u) ** 2 * float((design.inverse**2).sum())
    return Estimate(1 - share, deviation(linear + adapted + loose) / total_squares)


def _in_units(
    block: Block, design: Design, solution: tuple[Matrix, Matrix, float], target: int, units: tuple[Matrix, Matrix]
) -> list[Estimate]:
    """Return the coefficients c of ``y = intercept + sum c_j x_j`` in input units, and the intercept last.

    ``solution``: the coefficients, the covariance of E u, and the sum of squared residuals.
    """
    (solved, moved, rest), (centre, scale) = solution, units
    columns = np.array(block.columns)
    count = len(design.indices) - bool(block.kappa)
    x, y = columns[:count], columns[target]
    weights = np.zeros((count + 1, len(design.indices)))
    weights[range(count), range(count)] = scale[y] / scale[x]
    weights[count, :count] = -centre[x] @ weights[:count, :count]
    if block.kappa:
        weights[count, -1] = scale[y] * block.kappa
    values = weights @ solved
    values[count] += centre[y]
    passed = weights @ design.inverse
    noise = np.einsum("ij,jk,ik->i", passed, moved, passed, optimize=True)
    sampling: list[float | None] = [None] * (count + 1)
    # slopes with a ridge or components describe no population
    plain = not design.ridge and design.components is None
    used = [block.columns[place] for place in (*range(count), target)]
    if plain and block.rows is not None and not incomplete(block.release, used):
        eigenvalues, vectors = np.linalg.eigh(design.moment)
        spread = ((passed @ vectors) ** 2) @ np.maximum(eigenvalues, 0)
        sampling = [deviation(float(variance) * rest / block.rows) for variance in spread]
    return [Estimate(float(a), deviation(float(b)), c) for a, b, c in zip(values, noise, sampling, strict=True)]
