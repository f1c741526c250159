"""How the pictures of the papers look: one colour, line and marker per method in all of them.

Dashed is what a paper published, solid what is proved here; two methods of one colour are such a pair. The colours are
those of Okabe and Ito, and some of Paul Tol, which people with a colour deficiency tell apart.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist import UsageError
from dpdist.core.storage.atomic import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
"""For what is no method."""
_WINE, _INDIGO, _OLIVE, _TEAL, _GREY = "#882255", "#332288", "#999933", "#44AA99", "0.4"
"""Of Paul Tol's muted scheme, for methods that the six colours are not enough for."""
_LOOKS = {
    "SVD": ("black", "-.", ""),
    "AG": (BLUE, "--", "o"),
    "PPM": (GREEN, "--", "^"),
    "PPM, delta 0": (GREEN, ":", "v"),
    "PPCA": (PURPLE, "--", "P"),
    "SN": (RED, "--", "o"),
    "Jiang et al.": (SKY, "--", "X"),
    "Sheffet": (ORANGE, "--", "v"),
    "dp_stats": (_GREY, "--", "d"),
    "Laplace": (_WINE, "--", "d"),
    "SULQ": (_GREY, "--", "P"),
    "algorithm 1": (_TEAL, "-", "o"),
    "algorithm 2": (_INDIGO, "-", "s"),
    "Amin et al.": (_OLIVE, "-", "^"),
    "gaussian": (BLUE, "-", "s"),
    "wishart": (ORANGE, "-", "s"),
    "power": (GREEN, "-", "s"),
    "laplace": (_WINE, "-", "s"),
    "nuclear": (_INDIGO, "-", "^"),
    "two-sided-wishart": (RED, "-", "s"),
    "random": ("0.55", "-", ""),
}
_PUBLISHED = {
    "analyze-gauss": "AG", "sn": "SN", "jiang-wishart": "Jiang et al.", "ppca": "PPCA", "sulq": "SULQ",
    "laplace-published": "Laplace", "two-sided Wishart": "two-sided-wishart",
}  # fmt: skip
"""Mechanisms and methods under another name."""


def style(label: str) -> dict[str, Any]:
    """Return the colour, line and marker of a method, as keywords of ``Axes.plot``.

    Examples
    --------
    >>> style("SN")["ls"], style("two-sided-wishart")["ls"], style("sn") == style("SN")
    ('--', '-', True)
    """
    colour, line, marker = _LOOKS[_PUBLISHED.get(label, label)]
    return {"color": colour, "ls": line, "marker": marker, "lw": 1.3, "ms": 4}


def panels(columns: int, rows: int = 1, width: float = 4.6, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its axes, row by row.

    Raises
    ------
    UsageError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, only for pictures
    except ImportError:
        raise UsageError("Pictures need matplotlib. In the clone of dpdist: pip install '.[plots]'") from None
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    found: Any = figure.subplots(rows, columns, squeeze=False)
    return figure, list(found.ravel())


def mark(ax: Axes, values: Sequence[float], names: Mapping[float, str] | None = None) -> None:
    """Label the points of a logarithmic axis where there is something, and no others; some by other names."""
    ax.set_xscale("log")
    numbers = {value: f"{value:g}" if value < 10000 else f"{value / 1000:g}k" for value in values}
    ax.set_xticks(list(values), list((numbers | dict(names or {})).values()))
    ax.set_xticks([], minor=True)


def legend_below(figure: Figure, ax: Axes, columns: int) -> None:
    """Put the legend of one of several panels below all of them."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def finish_single(figure: Figure, ax: Axes, values: Sequence[float], path: Path) -> None:
    """Mark the points of the only panel of a figure, put the legend beside it, and write it."""
    mark(ax, values)
    ax.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    content = io.BytesIO()
    figure.savefig(content, dpi=95, format="png", metadata={"Software": None})
    replace_file(path, content.getvalue(), "picture")
