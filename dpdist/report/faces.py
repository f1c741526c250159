"""The picture of the demo: components of small images, private above exact, each drawn as the image that it is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Components = npt.NDArray[np.float64]
_PIXEL, _GAP, _LEFT, _TOP = 12, 24, 72, 32
_LOW, _HIGH = (33, 102, 172), (178, 24, 43)
"""Blue and red, which no common colour blindness confuses, for entries below and above 0; 0 is white."""


def _colour(value: float) -> str:
    """Return the colour of an entry from -1 to 1."""
    end = _HIGH if value > 0 else _LOW
    return "#" + "".join(f"{round(255 + abs(value) * (channel - 255)):02x}" for channel in end)


def _image(component: Components, side: int, left: int, top: int) -> list[str]:
    values = component / np.abs(component).max()
    return [
        f'<rect x="{left + _PIXEL * (i % side)}" y="{top + _PIXEL * (i // side)}" width="{_PIXEL}" height="{_PIXEL}" '
        f'fill="{_colour(value)}"/>'
        for i, value in enumerate(values.tolist())
    ]


def side_by_side(private: Components, exact: Components, side: int) -> str:
    """Draw private components above the exact ones, with how well each agrees with the one below it."""
    count, width = len(private), side * _PIXEL
    cosines = (private * exact).sum(axis=1)
    second = _TOP + width + 2 * _GAP
    size = (_LEFT + count * (width + _GAP), second + width + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" role="img">',
        "<title>Components as images: private ones in the first row, exact ones in the second</title>",
        '<g font-family="sans-serif" font-size="15" fill="#767676" shape-rendering="crispEdges">',
    ]
    for words, top in (("private", _TOP), ("exact", second)):
        parts.append(f'<text x="4" y="{top + width // 2}">{words}</text>')
    for i, (one, other) in enumerate(zip(private, exact * np.sign(cosines)[:, None], strict=True)):
        left = _LEFT + i * (width + _GAP)
        middle = left + width // 2
        for component, top in ((one, _TOP), (other, second)):
            parts += _image(component, side, left, top)
            parts.append(f'<path d="M{left} {top}h{width}v{width}h-{width}z" fill="none" stroke="#767676"/>')
        parts.append(f'<text x="{middle}" y="{_TOP - 12}" text-anchor="middle">{i + 1}</text>')
        agrees = f"cos² {cosines[i] ** 2:.2f}"
        parts.append(f'<text x="{middle}" y="{_TOP + width + _GAP + 5}" text-anchor="middle">{agrees}</text>')
    return "\n".join([*parts, "</g></svg>"]) + "\n"
