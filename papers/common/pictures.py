"""How the pictures of the papers look: one colour and line per method, dashed where it is not private as claimed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist import UsageError
from dpdist.storage.atomic import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        raise UsageError("Pictures need matplotlib: pip install 'dpdist[plots]'.") from None
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    found: Any = figure.subplots(rows, columns, squeeze=False)
    return figure, list(found.ravel())


def mark(ax: Axes, values: Sequence[float]) -> None:
    """Label the points of a logarithmic axis where there is something, and no others."""
    ax.set_xscale("log")
    ax.set_xticks(list(values), [f"{value:g}" if value < 10000 else f"{value / 1000:g}k" for value in values])
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
