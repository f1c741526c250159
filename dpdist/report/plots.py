"""Charts of columns on the page about a release: correlations, their circle, loadings and coefficients, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from dpdist.answers.covariance import Correlations
from dpdist.report.charts import (
    WIDTH,
    Axis,
    Values,
    box,
    chart,
    line,
    path,
    rule,
    shaded,
    shortened_name,
    tenths,
    text,
)

_LETTERS = 17
"""Letters of the name of a row."""
_LETTER = 6.2
"""Width of a letter, about."""
_LEFT = 126.0
"""Room for the names of rows."""
_LEAST, _MOST = 13.0, 30.0
"""Sides of a square: two digits fit into the smallest."""
_ROW = 20.0
"""Height of a row of loadings."""
_NAMED = 12
"""Largest number of columns named in the circle: those with the longest arrows."""
_SHORTEST = 0.1
"""Least length of an arrow with a name."""
_RADIUS = 104.0


def circle(arrows: Values, names: Sequence[str], axes: tuple[str, str]) -> Markup:
    """Draw the correlations of columns with two components, (d, 2), as arrows in the unit circle."""
    middle, centre = WIDTH / 2, _RADIUS + 24
    length = np.hypot(*arrows.T)
    order = np.argsort(-length, kind="stable")
    turns = np.linspace(0, 2 * np.pi, 91)
    ring = line((middle + _RADIUS * np.cos(turn), centre - _RADIUS * np.sin(turn)) for turn in turns)
    heads = [(middle + _RADIUS * x, centre - _RADIUS * y) for x, y in np.clip(arrows, -1, 1).tolist()]
    across, up = rule(middle - _RADIUS, centre, dx=2 * _RADIUS), rule(middle, 24, dy=2 * _RADIUS)
    parts = [
        path("grid", [ring, across, up]),
        path("sure", [line([(middle, centre), heads[i]]) for i in order]),
        path("dots", [rule(*heads[i]) for i in order]),
        text(middle, 2 * centre - 4, f"across: {axes[0]}", anchor="middle", kind="soft"),
        text(middle, 12, f"up: {axes[1]}", anchor="middle", kind="soft"),
        *_labels(heads, [i for i in order[:_NAMED].tolist() if length[i] > _SHORTEST], names, middle),
    ]
    ends = (f"{names[i]} {arrows[i, 0]:.2f}, {arrows[i, 1]:.2f}" for i in order[:_NAMED])
    words = f"Columns as arrows: {'; '.join(ends)}"
    return chart("circle", "Correlations of the columns with components 1 and 2", f"{words}.", 2 * centre, parts)


def _labels(
    heads: Sequence[tuple[float, float]], order: Sequence[int], names: Sequence[str], middle: float
) -> list[Markup]:
    """Return the names of arrows, outside of their heads, without those that would overlap or be cut."""
    taken: list[tuple[float, float]] = []
    labels = []
    for i in order:
        x, y = heads[i]
        left = x < middle
        if any(abs(y - other) < 11 and (a < middle) is left for a, other in taken):
            continue
        taken.append((x, y))
        room = (x if left else WIDTH - x) - 8
        name = shortened_name(names[i], min(_LETTERS, int(room / _LETTER)))
        place = x - 6 if left else x + 6
        labels.append(text(place, y + 4, name, anchor="end" if left else "start", kind="halo"))
    return labels


def heat(result: Correlations, names: Sequence[str]) -> tuple[Markup, Markup]:
    """Draw correlations, and half the width of the interval of each on the same scale, below the diagonal."""
    size = len(result.columns)
    side = max(_LEAST, min(_MOST, (WIDTH - _LEFT) / size))
    width = max(WIDTH, _LEFT + size * side)
    own = [names[j] for j in result.columns]
    labels = [text(0, 6 + (i + 0.7) * side, f"{i + 1}  {shortened_name(name, _LETTERS)}") for i, name in enumerate(own)]
    labels += [
        text(_LEFT + (i + 0.5) * side, 6 + (i + 0.7) * side, i + 1, anchor="middle", kind="soft") for i in range(size)
    ]
    low, high = result.intervals[..., 0], result.intervals[..., 1]
    sure, off = (low > 0) | (high < 0), (high - low) / 2
    pairs = [(i, j) for i in range(size) for j in range(i)]
    steps = [box(_LEFT + j * side, 6 + i * side, side - 1, side - 1) for i, j in pairs]
    signs = ["noise" if not sure[p] else "plus" if result.values[p] > 0 else "minus" for p in pairs]
    drawn = shaded((kind, abs(float(result.values[p])), d) for kind, p, d in zip(signs, pairs, steps, strict=True))
    noise = shaded(("noise", float(off[p]), d) for p, d in zip(pairs, steps, strict=True))
    clear = f"{sum(kind != 'noise' for kind in signs)} of {len(pairs)} correlations have an interval without 0."
    widest = f"Half of each interval: {max(off[p] for p in pairs):.2g} at most."
    height = 8 + size * side
    return (
        chart("heat", "Correlations", clear, height, [*labels, *drawn], width=width),
        chart("off", "Effect of the noise on each correlation", widest, height, [*labels, *noise], width=width),
    )


def loading_heat(
    vectors: Values, sure: np.typing.NDArray[np.bool_], names: Sequence[str], numbers: Sequence[int]
) -> Markup:
    """Draw the loadings, (k, d), of components on columns as squares; grey: the interval contains 0."""
    count, columns = vectors.shape
    side = min(_ROW, (WIDTH - _LEFT) / count)
    parts = [text(0, 18 + (j + 0.7) * side, shortened_name(name, _LETTERS)) for j, name in enumerate(names)]
    parts += [text(_LEFT + (i + 0.5) * side, 11, number, anchor="middle") for i, number in enumerate(numbers)]
    parts += shaded(
        (
            "noise" if not sure[i, j] else "plus" if vectors[i, j] > 0 else "minus",
            abs(float(vectors[i, j])),
            box(_LEFT + i * side, 18 + j * side, side - 1, side - 1),
        )
        for i in range(count)
        for j in range(columns)
    )
    words = f"{int(sure.sum())} of {sure.size} loadings have an interval without 0."
    return chart("loadings", "Loadings of the components", words, 20 + columns * side, parts)


def forest(rows: Sequence[tuple[str, float, float, float]], number: int) -> Markup:
    """Draw estimates with their intervals over 0: (name, value, low, high) of each.

    The number tells the charts of a page apart.
    """
    left, right, step = 130.0, WIDTH - 12, 22.0
    reach = max(1e-12, *(max(abs(low), abs(high)) for _, _, low, high in rows))
    x = Axis(-reach, reach, left, right)
    height = 14 + step * len(rows)
    parts = [path("limit", [rule(x(0), 6, dy=height - 6)])]
    for i, (name, value, low, high) in enumerate(rows):
        y = 20 + step * i
        clear = low > 0 or high < 0
        parts += [
            text(0, y + 4, shortened_name(name, _LETTERS)),
            path("sure" if clear else "noisy", [rule(x(low), y, dx=max(1.0, x(high) - x(low)))]),
            path("dots" if clear else "dots faint", [rule(x(value), y)]),
        ]
    parts += [
        text(x(0), height + 12, "0", anchor="middle"),
        text(left, height + 12, f"\N{MINUS SIGN}{reach:.2g}", anchor="start"),
        text(right, height + 12, f"{reach:.2g}", anchor="end"),
    ]
    sure = sum(low > 0 or high < 0 for _, _, low, high in rows)
    words = f"{sure} of {len(rows)} coefficients have an interval without 0; {tenths(reach)} at most."
    return chart(f"forest-{number}", "Coefficients in standard deviations", words, height + 18, parts)
