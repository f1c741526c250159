"""Draw pictures of the pages: epsilon, digits, the strip of a report, and the cards of the landing page.

The table of the cards is made here: customers, as in the tutorial on CSV files. Each run draws other noise. The strip
needs Debian's package chromium.

    python docs/pictures.py
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.datasets import load_digits

from dpdist import PrivatePCA, private_pca
from dpdist.answers.block import beside, source_units
from dpdist.answers.eigen import top_eigenpairs
from dpdist.core.privacy.accounting import gaussian_sigma
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.report.charts import guesses as guesses_of
from dpdist.report.correlations import standardised_of
from dpdist.report.explained import explained_of
from dpdist.report.saved import standalone

WIDTH, HEIGHT = 640, 470
Floats = npt.NDArray[np.float64]
CLIP = 64.0  # public: pixels are 0 to 16, and an image with a quarter of its 64 pixels at 16 has this norm
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
        "guarantee": guesses_of(release.guarantee, release.unit),
    }  # fmt: skip
    return {name: standalone(chart) + "\n" for name, chart in charts.items()}


_PIXEL, _GAP, _LEFT, _TOP = 12, 24, 72, 32
_LOW, _HIGH = (33, 102, 172), (178, 24, 43)
"""Blue and red, which no common colour blindness confuses, for entries below and above 0; 0 is white."""


def _colour(value: float) -> str:
    """Return the colour of an entry from -1 to 1."""
    end = _HIGH if value > 0 else _LOW
    return "#" + "".join(f"{round(255 + abs(value) * (channel - 255)):02x}" for channel in end)


def _image(component: Floats, side: int, left: int, top: int) -> list[str]:
    values = component / np.abs(component).max()
    return [
        f'<rect x="{left + _PIXEL * (i % side)}" y="{top + _PIXEL * (i // side)}" width="{_PIXEL}" height="{_PIXEL}" '
        f'fill="{_colour(value)}"/>'
        for i, value in enumerate(values.tolist())
    ]


def side_by_side(private: Floats, exact: Floats, side: int) -> str:
    """Draw private components above the exact ones, with the squared cosine of each pair."""
    count, width = len(private), side * _PIXEL
    cosines = (private * exact).sum(axis=1)
    second = _TOP + width + 2 * _GAP
    size = (_LEFT + count * (width + _GAP), second + width + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" role="img">',
        "<title>Components as images: private ones in the first row, exact ones in the second</title>",
        '<g font-family="sans-serif" font-size="15" fill="#767676" shape-rendering="crispEdges">',
    ]
    for label, top in (("private", _TOP), ("exact", second)):
        parts.append(f'<text x="4" y="{top + width // 2}">{label}</text>')
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


def digits() -> str:
    """Return components of scikit-learn's 1797 handwritten digits at epsilon 1, above the exact ones."""
    rows = load_digits().data * np.minimum(1, CLIP / np.linalg.norm(load_digits().data, axis=1, keepdims=True))
    fitted = PrivatePCA(5, epsilon=1, delta=1e-6, clip=CLIP).fit(load_digits().data)
    return side_by_side(fitted.components_, top_eigenpairs(rows.T @ rows, 5)[1], 8)


def strip(image: Path) -> None:
    """Write the beginning of the page that the demo makes, as a browser shows it."""
    with TemporaryDirectory() as folder:
        home = {**os.environ, "DPDIST_STATE_HOME": f"{folder}/state"}
        subprocess.run([sys.executable, "-m", "dpdist", "demo", folder], check=True, env=home)  # noqa: S603 - ours
        shown = f"file://{folder}/customers.html"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1000,540"]
        command = ["chromium", *options, f"--screenshot={image}", shown]
        subprocess.run(command, check=True)  # noqa: S603 - ours


def main() -> None:
    """Write the pictures."""
    images = Path(__file__).parent / "images"
    strip(images / "report.png")
    (images / "components.svg").write_text(digits())
    for name, chart in cards().items():
        (images / f"card_{name}.svg").write_text(chart)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="16"><rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    )
    (images / "epsilon.svg").write_text("\n".join([head, *guesses(), *bells(), "</svg>", ""]))


if __name__ == "__main__":
    main()
