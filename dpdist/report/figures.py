"""Pictures with matplotlib, an extra: forecasts, scree plots, privacy profiles of audits, and component images."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.answers.alignment import Alignment
from dpdist.answers.correlation import Correlation
from dpdist.answers.forecast import GOOD, Forecast
from dpdist.core.errors import DataError, UsageError, quiet
from dpdist.core.paths import AnyPath, local
from dpdist.core.privacy.accounting import gaussian_delta
from dpdist.core.privacy.guarantee import MICRO, Guarantee
from dpdist.core.storage.atomic import replace_file
from dpdist.literature import loss_bounds as audit
from dpdist.literature.audit import Audit

_POINTS = 200
EXTRA = "Pictures need matplotlib. Install it in the clone of dpdist: pip install '.[plots]'"


@contextmanager
def picture(path: AnyPath, *, size: tuple[float, float] = (7, 4.5)) -> Iterator[Any]:
    """Draw on the axes of the block, which are saved atomically at its end in the format of the file name."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError(EXTRA) from None
    figure = Figure(figsize=size, layout="constrained")
    yield figure.add_subplot()
    path = local(path)
    drawn = io.BytesIO()
    try:
        with quiet():  # a letter missing in the font is drawn as a box, which is visible
            figure.savefig(drawn, dpi=150, format=path.suffix[1:] or "png")
    except ValueError as error:
        raise DataError(f"The picture {path} cannot be written: {error}.") from None
    replace_file(path, drawn.getvalue(), "picture")


def draw_forecast(result: Forecast, path: AnyPath) -> None:
    """Draw the expected squared cosine of each component by the number of rows."""
    expected = result.expected
    reach = [count or result.rows for e in expected for count in (e.rows_to_see, e.rows_for_good)] + [result.rows]
    rows = np.geomspace(max(1, 0.5 * min(reach)), 2 * max(reach), _POINTS)
    with picture(path) as axes:
        for i, component in enumerate(expected):
            share = f"a component with {100 * component.variance / result.largest:g} % of the variance"
            name = f"component {i + 1}" if result.guessed else share
            axes.plot(rows, [result.cosine_at(n, i) for n in rows], label=name)
        axes.axvline(result.rows, color="black", lw=0.8, ls=":")
        axes.annotate(f" n = {result.rows}", (result.rows, 0.01), fontsize=8)
        axes.axhline(GOOD, color="tab:gray", lw=0.6, ls="--")
        axes.set(xscale="log", xlabel="rows", ylabel="expected alignment with the exact one (1: the same)", ylim=(0, 1))
        axes.set_title(f"{result.request.mechanism}, {result.plan.loss}, {result.columns} columns", fontsize=10)
        if len(expected) <= 10:
            about = None if result.guessed else "if all rows are as long as the clip norm:"
            axes.legend(title=about, title_fontsize=8, alignment="left", frameon=False, fontsize=8)


def draw_scree(result: Alignment, path: AnyPath) -> None:
    """Draw eigenvalues with their intervals, and the values of counted ones without the noise."""
    with picture(path) as axes:
        scree(axes, result)


def scree(axes: Any, result: Alignment) -> None:
    """Draw eigenvalues with their intervals, and where the count ends, on matplotlib's axes."""
    # A component is counted by its distances from all later ones, for which no level of eigenvalues stands: the edge of
    # the noise, a bound for an empty table, may lie above counted ones.
    numbers, edge = np.arange(1, result.eigenvalues.size + 1), result.edge or 0.0
    low, high = result.intervals.T
    logarithmic = result.eigenvalues.max() > 10 * edge
    floor = edge / 10 if logarithmic else 0.0
    axes.vlines(
        numbers,
        np.maximum(low, floor),
        high,
        color="tab:blue",
        alpha=0.25,
        lw=3,
        label="exact eigenvalue of clipped rows",
    )
    axes.plot(numbers, result.eigenvalues, "o", color="tab:blue", ms=4, mfc="white", label="as released")
    clear = np.isfinite(result.strengths)
    axes.plot(numbers[clear], result.eigenvalues[clear], "o", color="tab:blue", ms=4, label="distinguished from noise")
    axes.plot(numbers[clear], result.strengths[clear], "_", color="black", ms=9, label="without the noise")
    if 0 < result.counted < numbers.size:
        axes.axvline(result.counted + 0.5, color="tab:red", lw=1, label="after it: may be only noise")
    axes.set(xlabel="component", ylabel="eigenvalue", yscale="log" if logarithmic else "linear", ylim=(floor, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    _title(axes, int(clear.sum()), result.eigenvalues.size)
    axes.legend(frameon=False, fontsize=8)


def _title(axes: Any, counted: int, of: int) -> None:
    axes.set_title(f"{counted} of {of} components can be distinguished from noise", fontsize=10)


def draw_scree_of_correlations(result: Correlation, path: AnyPath) -> None:
    """Draw the shares of the components of a correlation matrix, with their intervals."""
    with picture(path) as axes:
        scree_of_correlations(axes, result)


def scree_of_correlations(axes: Any, result: Correlation) -> None:
    """Draw shares of variance with their intervals, and where the count ends, on matplotlib's axes."""
    numbers, shares = np.arange(1, len(result.shares) + 1), 100 * result.shares
    above = np.zeros(len(shares), dtype=np.bool_)
    if result.intervals is not None:
        above = np.isfinite(result.intervals[:, 0])
        low, high = 100 * result.intervals[above].T
        axes.vlines(numbers[above], low, high, color="tab:blue", alpha=0.25, lw=3, label="share of clipped rows")
    axes.plot(numbers[above], shares[above], "o", color="tab:blue", ms=4, label="distinguished from noise")
    if not above.all():
        axes.plot(numbers[~above], shares[~above], "o", color="tab:gray", ms=3, label="may be only noise")
    axes.set(xlabel="component of the correlations", ylabel="share of the variance, percent", ylim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    if result.alignment is not None:
        columns = int((result.components.components != 0).any(axis=0).sum())
        _title(axes, result.alignment.counted, columns)
    axes.legend(frameon=False, fontsize=8)


_GRID = 41


def draw_profile(result: Audit, path: AnyPath) -> None:
    """Draw the privacy profile: delta by epsilon, claimed, proved and measured."""
    loss = result.task.loss
    grid = np.linspace(0, 2 * loss.epsilon, _GRID)
    first, second = result.sample
    error, distance = result.counted.error, result.counted.distance
    measured = [audit.examine(first, second, error, epsilon=e, distance=distance).delta(e) for e in grid]
    low, middle, _ = np.array(measured).T
    with picture(path) as axes:
        if result.claim is not None:
            claim = result.claim
            axes.plot(grid, [audit.implied_delta(claim, e) for e in grid], "--", color="tab:gray", label="claimed")
        if result.guarantee is not None:
            proved = [_proved_delta(result.guarantee, e) for e in grid]
            axes.plot(grid, proved, color="tab:blue", label="proved (upper bound)")
        axes.fill_between(grid, low, np.maximum(low, middle), color="tab:red", alpha=0.25, lw=0)
        confidence = 1 - error
        axes.plot(grid, low, color="tab:red", label=f"counted lower bound, confidence {confidence:g} at each epsilon")
        axes.axvline(loss.epsilon, color="black", lw=0.6, ls=":")
        axes.set(xlabel="epsilon", ylabel="delta", xlim=(0, grid[-1]), ylim=(0, None))
        axes.set_title(f"{result.task.mechanism}: claimed {loss}, {result.task.query.neighbours}")
        axes.legend(frameon=False)


def _proved_delta(guarantee: Guarantee, epsilon: float) -> float:
    """Return the proved delta at another epsilon, from the exact Gaussian profile if there is one."""
    implied = audit.implied_delta(guarantee.loss, epsilon)
    if guarantee.mu_squared is None:
        return implied
    return min(implied, gaussian_delta(Fraction(round(epsilon * MICRO), MICRO), guarantee.mu_squared))
