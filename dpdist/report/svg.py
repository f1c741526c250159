"""Charts as SVG that stands in a page: text is text, colours are those of the page, dark or light, screen or paper.

Widths are in units of about a pixel of a small screen, so that a chart is as readable there. Colours are classes, which
the style sheet of the page names.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

Values = npt.NDArray[np.float64]
WIDTH = 360.0
"""Of a chart."""
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """A scale from values to places."""

    low: float
    high: float
    start: float
    stop: float
    warp: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        """Return the place of a value; one beyond an end is put there."""
        low, high = self.warp(self.low), self.warp(self.high)
        share = (self.warp(min(max(value, self.low), self.high)) - low) / (high - low)
        return self.start + share * (self.stop - self.start)


def chart(name: str, title: str, words: str, height: float, parts: Iterable[str], width: float = WIDTH) -> Markup:
    """Return a chart."""
    body = Markup("").join(parts)
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-labelledby="{n}-title {n}-words">'
        '<title id="{n}-title">{title}</title><desc id="{n}-words">{words}</desc>{body}</svg>'
    ).format(w=place(width), h=place(height), n=name, title=title, words=words, body=body)


def text(x: float, y: float, words: object, *, anchor: str = "start", kind: str = "") -> Markup:
    """Return words at a place; ``anchor`` is start, middle or end."""
    return Markup('<text x="{}" y="{}" text-anchor="{}" class="{}">{}</text>').format(
        place(x), place(y), anchor, kind, words
    )


def path(kind: str, steps: Iterable[str]) -> Markup:
    """Return a line or an area of some class; empty where there are no steps."""
    drawn = "".join(steps)
    return Markup('<path class="{}" d="{}"/>').format(kind, drawn) if drawn else Markup("")


def box(x: float, y: float, width: float, height: float) -> str:
    """Return the steps of a rectangle."""
    return f"M{place(x)} {place(y)}h{place(width)}v{place(height)}h{place(-width)}z"


def line(points: Iterable[tuple[float, float]]) -> str:
    """Return the steps of a line through points."""
    return "M" + "L".join(f"{place(x)} {place(y)}" for x, y in points)


def rule(x: float, y: float, dx: float = 0, dy: float = 0) -> str:
    """Return the steps of a line that goes across or down; a dot where it goes nowhere."""
    return f"M{place(x)} {place(y)}" + (f"v{place(dy)}" if dy else f"h{place(dx)}")


def place(value: float) -> str:
    """Return a length to a tenth.

    Examples
    --------
    >>> place(12.04), place(-0.001), place(3.14159)
    ('12', '0', '3.1')
    """
    return f"{round(value, 1) + 0.0:g}"


def power_words(power: int) -> str:
    """Say by what the numbers of a chart were divided.

    Examples
    --------
    >>> power_words(6), power_words(0)
    (', in 10⁶', '')
    """
    return f", in 10{str(power).translate(_SUPERSCRIPT)}" if power else ""


def shortened_name(name: str, letters: int) -> str:
    """Return a name that is no longer than so many letters.

    Examples
    --------
    >>> shortened_name("age", 8), shortened_name("a long name", 8)
    ('age', 'a long …')
    """
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def image(values: Values, words: str, limit: float) -> Markup:
    """Return a small picture: orange where values are positive, blue where they are negative, as dense as they are."""
    height, width = values.shape
    dots = np.empty((height, width, 4), dtype=np.uint8)
    dots[..., :3] = np.where(values[..., None] > 0, (222, 107, 31), (47, 129, 247))
    dots[..., 3] = np.round(255 * np.minimum(np.abs(values) / limit, 1))
    rows = b"".join(b"\0" + row.tobytes() for row in dots)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(words, base64.b64encode(png).decode())
