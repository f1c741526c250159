"""Charts of columns on the page about a release: the correlation circle, loadings, and coefficients, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from dpdist.report.charts import (
    WIDTH,
    Axis,
    Values,
    box,
    cell,
    chart,
    line,
    path,
    rule,
    shortened_name,
    tenths,
    text,
)

_LETTERS = 17
_NAMED = 12
"""Largest number of columns named in the circle: those with the longest arrows."""


def circle(arrows: Values, names: Sequence[str]) -> Markup:
    """Draw the correlations of columns with two components, (d, 2), as arrows in the unit circle."""
    radius, middle = 140.0, WIDTH / 2
    centre = radius + 18
    length = np.hypot(*arrows.T)
    order = np.argsort(-length, kind="stable")
    turns = np.linspace(0, 2 * np.pi, 91)
    ring = line((middle + radius * np.cos(turn), centre - radius * np.sin(turn)) for turn in turns)
    heads = [(middle + radius * x, centre - radius * y) for x, y in np.clip(arrows, -1, 1).tolist()]
    parts = [
        path("grid", [ring, rule(middle - radius, centre, dx=2 * radius), rule(middle, 18, dy=2 * radius)]),
        path("sure", [line([(middle, centre), heads[i]]) for i in order]),
        path("dots", [rule(*heads[i]) for i in order]),
        text(middle + radius + 4, centre + 4, "1", kind="soft"),
        text(middle, 12, "2", anchor="middle", kind="soft"),
    ]
    taken: list[tuple[float, float]] = []
    for i in order[:_NAMED].tolist():
        x, y = heads[i]
        left = x < middle
        y += 4
        if any(abs(y - other) < 11 and (a < middle) is left for a, other in taken):
            continue  # names would overlap
        taken.append((x, y))
        parts.append(
            text(
                x - 6 if left else x + 6,
                y,
                shortened_name(names[i], _LETTERS),
                anchor="end" if left else "start",
                kind="halo",
            )
        )
    ends = (f"{names[i]} {arrows[i, 0]:.2f}, {arrows[i, 1]:.2f}" for i in order[:_NAMED])
    words = f"Columns as arrows: {'; '.join(ends)}"
    return chart("circle", "Correlations of the columns with components 1 and 2", f"{words}.", 2 * centre, parts)


def loading_heat(vectors: Values, sure: np.typing.NDArray[np.bool_], names: Sequence[str]) -> Markup:
    """Draw the loadings, (k, d), of components on columns as squares; grey: the interval contains 0 or is unknown."""
    count, columns = vectors.shape
    left, side = 126.0, min(30.0, (WIDTH - 126) / count)
    parts = [text(0, 18 + (j + 0.7) * side, shortened_name(name, _LETTERS)) for j, name in enumerate(names)]
    parts += [text(left + (i + 0.5) * side, 11, i + 1, anchor="middle") for i in range(count)]
    for i in range(count):
        for j in range(columns):
            kind = "noise" if not sure[i, j] else "plus" if vectors[i, j] > 0 else "minus"
            square = box(left + i * side, 18 + j * side, side - 1, side - 1)
            parts.append(cell(kind, abs(float(vectors[i, j])), square))
    words = f"{int(sure.sum())} of {sure.size} loadings have an interval without 0."
    return chart("loadings", "Loadings of the components", words, 20 + columns * side, parts)


def forest(rows: Sequence[tuple[str, float, float, float]]) -> Markup:
    """Draw estimates with their intervals over 0: (name, value, low, high) of each."""
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
    return chart("forest", "Coefficients in standard deviations", words, height + 18, parts)
