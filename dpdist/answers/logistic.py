"""Logistic regression of a category from one released moment: post-processing, free of charge.

The model is ``P(y = 1) = s(eta)``, ``eta = b0 + x'b``, with the logistic function s. The maximum of the likelihood
solves ``E (y - s(eta)) x = 0``, with a mean over the rows. A moment does not have it for any b, but has, for every b,
the mean and variance of eta, its covariance with each number, and its mean in each category of a variable. With these,

    E s(eta) 1_g  =  p_g E s(m_g + v Z),    E s(eta) x_q - E s(eta) E x_q  =  E s'(eta) cov(eta, x_q),

where p_g and m_g are the share and the mean of eta in category g, v² the variance of eta within the categories of that
variable, alike in all, and Z standard normal: the first is exact for one variable, the second if eta and x_q are
jointly normal (Stein). The equations ``E y x - E s(eta) x = ridge b`` are solved with the bound S/4 on the derivative,
S the covariance of x, so that every step is safe (Böhning 1992). A target of several categories has one model for each.

S is that of the nearest moment that rows can have (:mod:`dpdist.answers.feasible`). There is no ridge if the columns
vary along every direction by 2.5 times the edge of the noise, and otherwise a tenth of the edge.

**Errors.** The equations are functions of c = cov(x, y), of S b, of b'S b and of the means of x and y, each of which
has noise that is linear in that of the moment:

    dc = N_xy d - dm (d.m_y) - m (d.dm_y),    d(S b) = N_xx b - dm (b.m) - m (b.dm),    d(b'S b) = b.d(S b),

with the means m and m_y, and y = d.(coordinates of the target). Their derivatives, by differences, give the errors of
the equations, and the inverse of their derivative by b those of b. Intervals account for the noise alone, and are those
of this model: of columns that are dependent in other ways than by their covariance, and with the ridge, which makes
coefficients smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import chi2

from dpdist.answers.block import NORMAL
from dpdist.answers.categories import Categorical, Matrix
from dpdist.answers.feasible import Layout, feasible
from dpdist.answers.variables import Variables
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.naming import parameter

_RIDGE, _CLEAR = 0.1, 2.5
"""Ridge in edges of the noise, and least variance of every direction for which there is none."""
_STEPS, _TOLERANCE = 500, 1e-5
_SEEN = 5.0
"""Least rows with a category and without it, in deviations of a count: a share within the noise has no odds."""
_FARTHEST = 30.0
_STEP = 1e-4
"""Of differences, in the spread of what is varied."""
_SEPARATED = 15.0
"""Standard deviation of eta beyond which no row is in doubt."""
_Z = np.linspace(-8, 8, 401)  # dense enough for steep curves, for which Gauss's nodes are too far apart
_W = np.exp(-(_Z**2) / 2)
_W /= _W.sum()


@dataclass(frozen=True)
class Effect:
    """A coefficient with the ends of its 95 % interval, with respect to the noise."""

    name: str  # of a number, or NAME=CATEGORY
    value: float  # per unit of the source; of a category the difference from the first one
    interval: tuple[float, float]

    @property
    def odds(self) -> tuple[float, float, float]:
        """The odds ratio, with the ends of its interval."""
        low, high = self.interval
        value, low, high = (math.exp(max(-700.0, min(each, 700.0))) for each in (self.value, low, high))
        return value, low, high

    def to_json(self) -> dict[str, float]:
        """Return JSON values."""
        (low, high), (ratio, least, most) = self.interval, self.odds
        return {
            "value": self.value, "low": low, "high": high, "odds_ratio": ratio, "odds_low": least, "odds_high": most,
        }  # fmt: skip


@dataclass(frozen=True)
class Logistic:
    """The logistic regression of one category on other variables."""

    target: str  # NAME=CATEGORY
    share: float
    intercept: float  # where all numbers are 0 and all categories the first
    effects: tuple[Effect, ...]
    references: tuple[str, ...]  # the first category of each variable
    ridge: float

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "target": self.target, "share": self.share, "intercept": self.intercept, "reference": list(self.references),
            "coefficients": {each.name: each.to_json() for each in self.effects}, "ridge": self.ridge,
        }  # fmt: skip


def logistic(
    held: Variables, target: str, on: Sequence[str] | None = None, ridge: float | None = None
) -> tuple[Logistic, ...]:
    """Return the logistic regression of a variable with categories: one for each, or for the second of two.

    Categories about which nothing is seen above the noise are left out; refused, if that holds for all.

    ``ridge`` is added to the covariance of the bounded rows; None: a tenth of the edge of the noise, or 0 where
    the columns are clear of it.
    """
    model = model_of(held, target, on, ridge)
    categories = [1] if model.target.size == 2 else range(model.target.size)
    found, refused = list[Logistic](), list[BelowNoiseError]()
    for category in categories:
        try:
            found.append(model.fitted(category))
        except BelowNoiseError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return tuple(found)


def model_of(held: Variables, target: str, on: Sequence[str] | None = None, ridge: float | None = None) -> Model:
    """Return what all categories of a target share; refuse a target without categories."""
    if held.named(target) not in held.categorical:
        raise UsageError(f"A logistic regression is of categories, and {target!r} is a number.", parameter="target")
    names = held.explaining(target) if on is None else [held.named(name) for name in on]
    if target in names or not names:
        raise UsageError(f"Name columns to explain {target} by other than itself ({parameter('on')}).")
    return Model(held, target, names, ridge)


class Model:
    """What all categories of a target share."""

    def __init__(self, held: Variables, target: str, names: Sequence[str], ridge: float | None) -> None:
        self.held, self.target, self.names = held, held.categorical[target], names
        layout = Layout(held)
        found = feasible(held)
        reduced = layout.onto.T @ found.moment @ layout.onto
        n, c = held.rows, held.precision.constant
        self.at: dict[str, slice] = {}
        places: list[int] = []
        for name in names:
            own = layout.places(name)
            self.at[name] = slice(len(places), len(places) + len(own))
            places += own
        self.places, self.of_target = places, layout.places(target)
        self.mean = reduced[:, 0] / (c * n)
        covariance = reduced / n - np.outer(self.mean, self.mean)
        self.s = covariance[np.ix_(places, places)]
        self.with_target = covariance[np.ix_(places, self.of_target)]
        edge = math.sqrt(2 * held.precision.noise * len(reduced)) / n
        clear = bool(np.linalg.eigvalsh(self.s)[0] > _CLEAR * edge)
        self.ridge = (0.0 if clear else _RIDGE * edge) if ridge is None else ridge

    @cached_property
    def labels(self) -> list[str]:
        """The names of the p columns that have a coefficient: numbers, and NAME=CATEGORY but for first categories."""
        return [
            label
            for name in self.names
            for label in (
                [f"{name}={category}" for category in self.held.categorical[name].categories[1:]]
                if name in self.held.categorical
                else [name]
            )
        ]

    @cached_property
    def units(self) -> tuple[Matrix, Matrix]:
        """What maps b to coefficients in units of the source, (p, len(b)), and where these columns are 0, (len(b),)."""
        onto, zero = np.zeros((len(self.labels), len(self.places))), np.zeros(len(self.places))
        row = 0
        for name, at in self.at.items():
            if name in self.held.categorical:
                variable = self.held.categorical[name]
                onto[row : row + variable.size - 1, at] = (variable.basis[1:] - variable.basis[0]) * variable.weight
                zero[at] = variable.basis[0] * variable.weight
                row += variable.size - 1
            else:
                number = self.held.numeric[name]
                onto[row, at], zero[at] = 1 / number.unit, -number.shift / number.unit
                row += 1
        return onto, zero

    def shares(self, variable: Categorical, own: Matrix) -> Matrix:
        """Return the shares of the categories of a variable, from the means of its coordinates."""
        least = min(1 / self.held.rows, 1 / 4)
        return np.clip(1 / variable.size + variable.basis @ own / variable.weight, least, 1 - least)

    def fitted(self, category: int) -> Logistic:
        """Return the model of one category."""
        direction = self.target.basis[category] / self.target.weight
        share = float(self.shares(self.target, self.mean[self.of_target])[category])
        rows, deviation = self.held.rows, math.sqrt(self.held.precision.of_count(self.target))
        if min(share, 1 - share) * rows < _SEEN * deviation:
            raise BelowNoiseError(
                f"Too few rows have {self.target.name}={self.target.categories[category]}, or too few lack it, for the "
                f"noise: a logistic regression takes {math.ceil(_SEEN * deviation)} of each. Use a larger epsilon or "
                "more rows."
            )
        c = self.with_target @ direction
        b, middle = self._solved(c, share)
        errors = self._errors(b, c, share, direction)
        if float(b @ np.linalg.solve(errors, b)) < chi2.ppf(0.95, len(b)):  # b is not told from 0
            raise BelowNoiseError(
                f"Nothing about {self.target.name} is seen above the noise, so no logistic regression can be computed. "
                "Use a larger epsilon, more rows or fewer columns."
            )
        onto, zero = self.units
        values, variances = onto @ b, np.einsum("ij,jk,ik->i", onto, errors, onto)
        effects = map(_effect, self.labels, values, variances)
        first = [f"{name}={v.categories[0]}" for name, v in self.held.categorical.items() if name in self.at]
        label = f"{self.target.name}={self.target.categories[category]}"
        intercept = middle + float(b @ (zero - self.mean[self.places]))
        return Logistic(label, share, intercept, tuple(effects), tuple(first), self.ridge)

    def _solved(self, c: Matrix, share: float) -> tuple[Matrix, float]:
        """Return b and the mean of eta."""
        b, middle, mean = np.zeros(len(c)), 0.0, self.mean[self.places]
        step = np.linalg.inv(self.s / 4 + self.ridge * np.eye(len(c)))
        for _ in range(_STEPS):
            along = self.s @ b
            square = float(b @ along)
            if square > _SEPARATED**2:
                raise UsageError(
                    f"No logistic curve has this moment: the other columns determine {self.target.name} without error, "
                    "as far as the noise lets see, or rows were clipped so much that numbers are far from normal. "
                    "Leave out a column that determines it, or release with a larger clip norm."
                )
            left, middle = self._left(c, along, square, share, mean)
            moved = step @ (left - self.ridge * b)
            b = b + moved
            if np.abs(moved).max() < _TOLERANCE * max(1.0, np.abs(b).max()):
                break
        return b, middle

    def _left(self, c: Matrix, along: Matrix, square: float, share: float, mean: Matrix) -> tuple[Matrix, float]:
        """Return ``E y x - E s(eta) x`` of all coordinates x, and the mean of eta.

        It is a function of ``c = cov(y, x)``, ``along = cov(eta, x)``, the variance of eta, and the means of y and x.
        """
        deviation = math.sqrt(max(square, 0.0))
        middle = float(brentq(lambda a: _W @ expit(a + deviation * _Z) - share, -60, 60))
        curve = expit(middle + deviation * _Z)
        left = c - float(_W @ (curve * (1 - curve))) * along
        for name, at in self.at.items():
            variable = self.held.categorical.get(name)
            if variable is None:
                continue
            shares = self.shares(variable, mean[at])
            shares = shares / shares.sum()
            above = np.clip(variable.basis @ along[at] / variable.weight / shares, -_FARTHEST, _FARTHEST)
            within = math.sqrt(max(square - float(shares @ above**2), 0.0))
            expected = shares * (expit(middle + above[:, None] + within * _Z) @ _W)
            expected *= share / expected.sum()  # the mean of y stays
            target = variable.basis @ c[at] / variable.weight + shares * share
            left[at] = variable.weight * (variable.basis.T @ (target - expected))
        return left, middle

    def _errors(self, b: Matrix, c: Matrix, share: float, direction: Matrix) -> Matrix:
        """Return the covariance of the errors of b, from the noise of the moment."""
        along, mean, p = self.s @ b, self.mean[self.places], len(b)
        square, spread = float(b @ along), np.sqrt(np.maximum(np.diagonal(self.s), 1e-12))

        def left(along: Matrix = along, square: float = square, share: float = share, mean: Matrix = mean) -> Matrix:
            return self._left(c, along, square, share, mean)[0]

        def slope(high: Matrix, low: Matrix, step: float) -> Matrix:
            found: Matrix = (high - low) / (2 * step)
            return found

        unit, by_along, by_mean = np.eye(p), np.empty((p, p)), np.empty((p, p))
        for i in range(p):
            step = _STEP * spread[i]
            move = step * unit[i]
            by_along[:, i] = slope(left(along=along + move), left(along=along - move), step)
            by_mean[:, i] = slope(left(mean=mean + move), left(mean=mean - move), step)
        step = _STEP * (square + 0.01)
        by_square = slope(left(square=square + step), left(square=square - step), step)
        step = _STEP * share * (1 - share)
        by_share = slope(left(share=share + step), left(share=share - step), step)
        # of E S b with the noise E of S, the variance of eta is b' E b; of a step of b, twice along
        of_noise = by_along + np.outer(by_square, b)
        jacobian = by_along @ self.s + 2 * np.outer(by_square, along) - self.ridge * unit
        of_y = float(self.mean[self.of_target] @ direction)
        of_means = by_mean - of_y * unit - of_noise @ (float(mean @ b) * unit + np.outer(mean, b))
        with_share = by_share - mean
        entry = self.held.precision.noise / 2 / self.held.rows**2
        of_mean = entry / self.held.precision.constant**2
        length = float(direction @ direction)
        covariance = entry * (length * unit + of_noise @ (float(b @ b) * unit + np.outer(b, b)) @ of_noise.T)
        covariance += of_mean * (of_means @ of_means.T + length * np.outer(with_share, with_share))
        inverse = np.linalg.inv(jacobian)
        errors: Matrix = inverse @ covariance @ inverse.T
        return errors


def _effect(name: str, value: float, variance: float) -> Effect:
    reach = NORMAL * math.sqrt(max(variance, 0.0))
    return Effect(name, float(value), (float(value) - reach, float(value) + reach))
