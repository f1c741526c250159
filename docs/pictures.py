"""Draw pictures of the pages: docs/images/epsilon.svg, and the cards of the landing page from a release.

The table of the cards is made here: customers, as in the tutorial on CSV files. Each run draws other noise.

    python docs/pictures.py
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd

from dpdist import private_pca
from dpdist.answers.block import beside, source_units
from dpdist.core.privacy.accounting import gaussian_sigma
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.report.charts import guesses as guesses_of
from dpdist.report.correlations import standardised_of
from dpdist.report.findings import explained_of

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


def customers() -> pd.DataFrame:
    """Return a table of 20,000 customers."""
    rng = np.random.default_rng(1)
    age, active = rng.integers(18, 90, 20_000), rng.normal(size=20_000)
    return pd.DataFrame({
        "age": age, "income": 1200 + 25 * age + 400 * rng.normal(size=len(age)),
        "visits": rng.poisson(np.exp(1 + 0.5 * active)), "minutes": 40 + 25 * active + 8 * rng.normal(size=len(age)),
        "spent": 60 + 30 * active + 0.02 * age + 25 * rng.normal(size=len(age)),
    })  # fmt: skip


def cards() -> dict[str, str]:
    """Return the charts of the landing page as SVG that needs no page around it."""
    release = private_pca(customers(), epsilon=1, delta=1e-6, n_components=2).release_
    found, target = standardised_of(release), release.names.index("spent")
    if found is None or release.guarantee is None:
        raise SystemExit("Nothing is above the noise.")
    (explained,) = explained_of(release, [target], beside(release, [target]), source_units(release))
    charts = {
        "circle": found.circle, "loadings": found.loadings, "coefficients": explained.forest,
        "guarantee": guesses_of(release.guarantee),
    }  # fmt: skip
    style = (files("dpdist.report") / "templates" / "release.css").read_text().split("@media screen")[0]
    colours = dict(re.findall(r"--(\w+): (#\w+)", style))
    rules = re.findall(r"\.(?:chart|noise|seen|plus|minus|open|grid|sure|noisy|dots|limit)[^{]*\{[^}]*\}",
                       (files("dpdist.report") / "templates" / "release.css").read_text())  # fmt: skip
    rules.append(".chart text { font: 11px sans-serif; fill: var(--ink); }")
    css = re.sub(r"var\(--(\w+)\)", lambda match: colours[match[1]], " ".join(rules)).replace(".chart ", "")
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    return {
        name: str(chart).replace("<svg ", head, 1).replace("<title", f"<style>{css}</style><title", 1) + "\n"
        for name, chart in charts.items()
    }


def main() -> None:
    """Write the pictures."""
    images = Path(__file__).parent / "images"
    for name, chart in cards().items():
        (images / f"card_{name}.svg").write_text(chart)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="16"><rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    )
    (images / "epsilon.svg").write_text("\n".join([head, *guesses(), *bells(), "</svg>", ""]))


if __name__ == "__main__":
    main()
