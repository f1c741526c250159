"""Draw docs/images/epsilon.svg: what a guess can gain, and two releases that differ in one row.

python docs/pictures.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from dpdist.privacy.accounting import gaussian_sigma
from dpdist.privacy.guarantee import PrivacyLoss

WIDTH, HEIGHT = 640, 470
BLUE, RED, GREY = "#0b5394", "#b3261e", "#555555"


def line(curve: Callable[[float], float], low: float, high: float, place: Callable[[float, float], str]) -> str:
    """Return the points of a curve."""
    steps = [low + (high - low) * i / 200 for i in range(201)]
    return " ".join(place(x, curve(x)) for x in steps)


def text(x: float, y: float, words: str, anchor: str = "middle", colour: str = GREY) -> str:
    """Return words at a place."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def guesses() -> list[str]:
    """Return the upper half: how right a guess can become."""

    def place(x: float, y: float) -> str:
        return f"{60 + x * 52:.1f},{210 - (y - 0.5) * 340:.1f}"

    parts = [f'<polyline points="60,40 60,210 590,210" fill="none" stroke="{GREY}"/>']
    curve = line(lambda x: 1 / (1 + math.exp(-x)), 0, 10, place)
    parts.append(f'<polyline points="{curve}" fill="none" stroke="{BLUE}" stroke-width="2.5"/>')
    for epsilon in (0, 1, 3, 10):
        right = 1 / (1 + math.exp(-epsilon))
        x, y = map(float, place(epsilon, right).split(","))
        parts += [f'<circle cx="{x}" cy="{y}" r="4" fill="{BLUE}"/>', text(x, 228, f"{epsilon}")]
        over, under = (20, -8) if epsilon == 0 else (8, 18)  # not upon the axis
        parts.append(
            text(x + over, y + under, f"{right:.2f}".replace("1.00", "almost 1"), "middle" if epsilon > 3 else "start")
        )
    parts.append(text(325, 246, "epsilon"))
    parts.append(text(60, 26, "how often the best guess about one row is right, if it was 1/2 before", "start"))
    return parts


def bells() -> list[str]:
    """Return the lower half: the laws of two releases that differ in one row."""
    parts = [text(60, 292, "what is published, with that row and with another in its place", "start")]
    for left, epsilon in ((60, 1), (240, 3), (420, 10)):
        mu = 1 / gaussian_sigma(PrivacyLoss.parse(epsilon, "1e-6"))

        def place(x: float, y: float, left: float = left) -> str:
            return f"{left + 85 + x * 13:.1f},{420 - y * 240:.1f}"

        for centre, colour in ((-mu / 2, BLUE), (mu / 2, RED)):
            bell = line(lambda x, at=centre: math.exp(-((x - at) ** 2) / 2) / math.sqrt(2 * math.pi), -6.2, 6.2, place)
            parts.append(f'<polyline points="{bell}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(left + 85, 440, f"epsilon {epsilon}, delta 1e-6"))
        parts.append(text(left + 85, 457, f"mu {mu:.2f}"))
    return parts


def main() -> None:
    """Write the picture."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="16"><rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    )
    target = Path(__file__).parent / "images" / "epsilon.svg"
    target.write_text("\n".join([head, *guesses(), *bells(), "</svg>", ""]))


if __name__ == "__main__":
    main()
