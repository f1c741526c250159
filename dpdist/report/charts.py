"""Charts of the page about a release as SVG, in units of about one pixel of a small screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from dpdist.answers.alignment import Alignment
from dpdist.answers.regression import Regression
from dpdist.core.privacy.guarantee import Guarantee
from dpdist.core.rows.units import Unit
from dpdist.report.answers import common_power, digits
from dpdist.report.promise import accuracy, hits, share_up

Values = npt.NDArray[np.float64]
WIDTH = 360.0
_WIDEST, _PER_REM = 56.0, 12.0
"""Largest width of a chart on a page, in rem, and units of a wide chart for one rem."""
_ORANGE, _BLUE = "#de6b1f", "#2f81f7"
LEVELS = 32
"""Levels of opacity of a colour."""
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """A scale from values to positions."""

    low: float
    high: float
    start: float
    stop: float
    warp: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        """Return the position of a value, limited to the ends."""
        low, high = self.warp(self.low), self.warp(self.high)
        share = (self.warp(min(max(value, self.low), self.high)) - low) / (high - low)
        return self.start + share * (self.stop - self.start)


def chart(
    name: str, title: str, description: str, height: float, parts: Iterable[str], *, width: float = WIDTH
) -> Markup:
    """Return a chart; ``name`` is unique on a page."""
    body = Markup("").join(parts)
    large = "" if width <= WIDTH else Markup(' style="max-width: {}rem"').format(tenths(min(_WIDEST, width / _PER_REM)))
    return Markup(
        '<svg class="chart"{large} viewBox="0 0 {w} {h}" role="img" aria-labelledby="{n}-title {n}-words">'
        '<title id="{n}-title">{title}</title><desc id="{n}-words">{words}</desc>{body}</svg>'
    ).format(large=large, w=tenths(width), h=tenths(height), n=name, title=title, words=description, body=body)


def text(x: float, y: float, content: object, *, anchor: str = "start", kind: str = "") -> Markup:
    """Return text at a position; ``anchor`` is start, middle or end."""
    return Markup('<text x="{}" y="{}" text-anchor="{}" class="{}">{}</text>').format(
        tenths(x), tenths(y), anchor, kind, content
    )


def path(kind: str, steps: Iterable[str]) -> Markup:
    """Return a line or an area with a CSS class; empty without steps."""
    drawn = "".join(steps)
    return Markup('<path class="{}" d="{}"/>').format(kind, drawn) if drawn else Markup("")


def shaded(squares: Iterable[tuple[str, float, str]]) -> list[Markup]:
    """Return squares, (class, opacity from 0 to 1, steps), with one path for those that look the same."""
    alike: dict[tuple[str, int], list[str]] = {}
    for kind, share, steps in squares:
        alike.setdefault((kind, math.ceil(LEVELS * min(1.0, share))), []).append(steps)
    return [
        Markup('<path class="{}" fill-opacity="{}" d="{}"/>').format(kind, f"{level / LEVELS:.2g}", "".join(steps))
        for (kind, level), steps in alike.items()
        if level
    ]


def box(x: float, y: float, width: float, height: float) -> str:
    """Return the steps of a rectangle."""
    return f"M{tenths(x)} {tenths(y)}h{tenths(width)}v{tenths(height)}h{tenths(-width)}z"


def line(points: Iterable[tuple[float, float]]) -> str:
    """Return the steps of a line through points."""
    return "M" + "L".join(f"{tenths(x)} {tenths(y)}" for x, y in points)


def rule(x: float, y: float, dx: float = 0, dy: float = 0) -> str:
    """Return the steps of a horizontal or vertical line, or of a dot."""
    return f"M{tenths(x)} {tenths(y)}" + (f"v{tenths(dy)}" if dy else f"h{tenths(dx)}")


def tenths(value: float) -> str:
    """Return a length with one decimal.

    >>> tenths(12.04), tenths(-0.001), tenths(3.14159)
    ('12', '0', '3.1')
    """
    return f"{round(value, 1) + 0.0:g}"


def power_text(power: int) -> str:
    """Return the unit of the numbers of a chart.

    >>> power_text(6), power_text(0)
    (', in 10⁶', '')
    """
    return f", in 10{str(power).translate(_SUPERSCRIPT)}" if power else ""


def shortened_name(name: str, letters: int) -> str:
    """Return a name cut to a number of letters.

    >>> shortened_name("age", 8), shortened_name("a long name", 8)
    ('age', 'a long …')
    """
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def image(values: Values, alt: str, limit: float) -> Markup:
    """Return a small picture: orange for positive values, blue for negative ones, with opacity by magnitude."""
    height, width = values.shape
    levels = np.rint(LEVELS * np.clip(values / limit, -1, 1)).astype(int)
    dots = [
        Markup('<path fill="{}" fill-opacity="{}" d="{}"/>').format(
            _ORANGE if level > 0 else _BLUE,
            f"{abs(level) / LEVELS:g}",
            "".join(f"M{x} {y}h1v1h-1z" for y, x in np.argwhere(levels == level).tolist()),
        )
        for level in np.unique(levels[levels != 0]).tolist()
    ]
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}" shape-rendering="crispEdges">{}</svg>').format(
        width, height, alt, Markup("").join(dots)
    )


_GUESSES = 100
_ACROSS = 20
_FEW = 40
"""Largest number of components on a linear axis; more have a logarithmic one."""
_LEFT = 52.0
"""Left margin of the spectrum, for labels."""
_CURVE = np.concatenate([[0.0], np.geomspace(1e-4, 0.01, 12), np.linspace(0.015, 1, 60)])
"""Shares of false alarms of the points of the curve."""


def guesses(guarantee: Guarantee, unit: Unit | None) -> Markup:
    """Draw 100 guesses about one row, or a unit, at even odds: right by chance, and right due to the release."""
    right = 100 * accuracy(guarantee)
    added = min(_GUESSES, math.ceil(right - 1e-6))
    step = (WIDTH + 4) / _ACROSS
    side = step - 4.5
    cells = [box(i % _ACROSS * step, i // _ACROSS * step, side, side) for i in range(_GUESSES)]
    below = 5 * step
    description = (
        f"Of 100 guesses, 50 are right by chance. With the release at most {share_up(accuracy(guarantee))} are."
    )
    more = f"{math.ceil(10 * (right - 50) - 1e-6) / 10:g}"
    legend = [("noise", "right by chance: 50"), ("seen", f"more with this release: {more} at most")]
    if added < _GUESSES:
        legend.append(("open", "wrong nevertheless"))
    parts = [path("noise", cells[:50]), path("seen", cells[50:added]), path("open", cells[added:])]
    for i, (kind, label) in enumerate(legend):
        top = below + 8 + 17 * i
        parts += [path(kind, [box(0, top, 11, 11)]), text(18, top + 10, label)]
    whose = "one row" if unit is None else f"the rows of one {unit.column}"
    return chart("guesses", f"100 guesses about {whose}", description, below + 8 + 17 * len(legend), parts)


def tests(guarantee: Guarantee) -> Markup:
    """Draw the bound on any test of one row: true against false alarms."""
    x, y = Axis(0, 1, 42, WIDTH - 8), Axis(0, 1, 232, 12)
    ticks = (0.0, 0.25, 0.5, 0.75, 1.0)
    curve = [(x(a), y(hits(guarantee, float(a)))) for a in _CURVE]
    parts = [
        path("grid", [rule(x(0), y(t), dx=x(1) - x(0)) for t in ticks]),
        path("area", [line([*curve, (x(0), y(0))]) + "z"]),
        path("guess", [line([(x(0), y(0)), (x(1), y(1))])]),
        path("edge", [line(curve)]),
        *(text(x(0) - 6, y(t) + 4, f"{100 * t:g} %", anchor="end") for t in ticks),
        *(text(x(t), 248, f"{100 * t:g} %", anchor="end" if t == 1 else "middle") for t in ticks),
        text((x(0) + x(1)) / 2, 266, "false alarms", anchor="middle"),
        text(x(0.97), y(0.06), "grey line: guessing", anchor="end", kind="soft"),
        text(x(0.97), y(0.15), "blue line: most with this release", anchor="end", kind="soft"),
    ]
    description = "; ".join(f"{share_up(hits(guarantee, a))} % at {100 * a:g} % false alarms" for a in (0.05, 0.1, 0.5))
    return chart(
        "tests", "True alarms of any test, at most, by its false alarms", f"At most {description}.", 272, parts
    )


def spectrum(result: Alignment, per_row: bool, total: int) -> Markup:
    """Draw eigenvalues with their intervals, and the edge of the noise."""
    values, edge = result.eigenvalues, result.edge or 0.0
    low, high = result.intervals.T
    bottom, top = min(float(values.min()), 0.0), max(float(high.max()), edge)

    def warp(value: float) -> float:
        return math.asinh(2 * value / edge) if edge > 0 else value

    power = common_power([bottom, top])
    scale = 10.0**power
    count = len(values)
    few = count <= _FEW
    x = Axis(0.5, count + 0.5, _LEFT, WIDTH - 8) if few else Axis(0.8, count, _LEFT, WIDTH - 12, math.log)
    y = Axis(bottom, top, 232, 20, warp)
    clear = np.arange(count) < result.counted
    parts = [
        path("drown", [box(_LEFT, y(edge), WIDTH - _LEFT - 8, y.start - y(edge))]),
        path("noisy", _segments(x, y, low, high, ~clear)),
        path("sure", _segments(x, y, low, high, clear)),
        path("dots faint", _segments(x, y, values, values, ~clear)),
        path("dots", _segments(x, y, values, values, clear)),
        path("limit", [rule(_LEFT, y(edge), dx=WIDTH - _LEFT - 8)]),
        *_value_ticks(y, edge, scale),
        *(text(x(i), 248, f"{i}", anchor="middle") for i in _component_ticks(count)),
        text((_LEFT + WIDTH) / 2, 266, "component", anchor="middle"),
        text(WIDTH - 10, y(edge) - 5, "noise alone stays below", anchor="end", kind="soft halo"),
        text(_LEFT, 9, f"eigenvalue{' per row' if per_row else ''}{power_text(power)}", kind="soft"),
    ]
    description = (
        f"{result.counted} of {total} components can be distinguished from noise, whose eigenvalues are below "
        f"{digits(edge / scale)}{power_text(power)}. The largest is {digits(float(values[0]) / scale)}."
    )
    return chart("spectrum", "Eigenvalues over the noise", description, 272, parts)


def _component_ticks(count: int) -> list[int]:
    if count <= _FEW:
        step = max(1, -(-count // 10))
        return list(range(1, count + 1, step))
    ticks = [digit * 10**power for power in range(len(str(count))) for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if tick <= count]
    return ticks if count < 1000 else [tick for tick in ticks if str(tick)[0] == "1"]


def _value_ticks(y: Axis, edge: float, scale: float) -> list[Markup]:
    """Label 0, the edge, and round values above it that fit."""
    highest = y.high
    values = [0.0, edge]
    if edge > 0:
        first, last = math.floor(math.log10(edge)), math.ceil(math.log10(highest))
        decades = [factor * 10.0**p for p in range(first, last + 1) for factor in (1, 2, 5)]
        values += sorted((v for v in decades if edge < v <= highest), reverse=True)
    heights: list[float] = []
    parts = []
    for value in values:
        height = y(value)
        if any(abs(height - other) < 15 for other in heights) and value:
            continue
        heights.append(height)
        parts.append(text(_LEFT - 6, height + 4, digits(float(f"{value / scale:.3g}")), anchor="end"))
    return parts


def _segments(x: Axis, y: Axis, low: Values, high: Values, mask: np.typing.NDArray[np.bool_]) -> list[str]:
    """Return a line from each low to its high, without lines that coincide."""
    drawn = {}
    for i in np.flatnonzero(mask).tolist():
        top, end = round(y(float(high[i])), 1), round(y(float(low[i])), 1)
        drawn[round(2 * x(i + 1)), round(top), round(end)] = rule(x(i + 1), top, dy=end - top)
    return list(drawn.values())


def explained(result: Regression, number: int) -> Markup:
    """Draw R² and its interval from 0 to 1; the number tells the charts of a page apart."""
    low, high = result.r2_interval
    x = Axis(0, 1, 12, WIDTH - 12)
    ends = x(low), x(high)
    parts = [
        path("grid", [rule(x(0), 24, dx=x(1) - x(0))]),
        path("sure", [rule(ends[0], 24, dx=max(1.0, ends[1] - ends[0]))]),
        path("dots", [rule(x(result.r2.value), 24)]),
        text(x(0), 46, "0: nothing"),
        text(x(1), 46, "1: everything", anchor="end"),
    ]
    return chart(f"explained-{number}", "Share of the variance explained", f"R² is {result.r2.value:.3f}.", 52, parts)


def bar(value: float, reach: float) -> Markup:
    """Draw a loading as a bar to the left or right."""
    length = 50 * value / reach
    start = min(0.0, length)
    return Markup(
        '<svg class="bar" viewBox="-51 0 102 10" preserveAspectRatio="none" aria-hidden="true">'
        '<path class="grid" d="M0 0v10"/>'
        '<path class="{}" d="M{} 1h{}v8h-{}z"/></svg>'
    ).format("plus" if value > 0 else "minus", tenths(start), tenths(abs(length)), tenths(abs(length)))
