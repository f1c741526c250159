"""A fitted PrivatePCA as text and as pictures: functions of its release only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpdist.answers.alignment import Alignment, alignment
from dpdist.answers.bias import clipped_rows
from dpdist.answers.components import Components, components
from dpdist.answers.correlation import correlation as correlation_of
from dpdist.core.errors import UsageError
from dpdist.core.html import table
from dpdist.core.release.advice import blindly_scaled_message
from dpdist.core.text import counted, wrapped
from dpdist.report import components_text
from dpdist.report.correlations import kept_columns
from dpdist.report.figures import EXTRA, scree, scree_of_correlations

if TYPE_CHECKING:
    from dpdist.estimators.pca import PrivatePCA

KINDS = ("scree", "loadings", "circle")
_COMPONENTS = 10
"""Largest number of components in the table of a notebook."""
_APART, _LETTER = 0.09, 0.05
"""Height of a name in the circle, and width of a letter, about."""
_SHORTEST = 0.1
"""Least length of an arrow with a name."""
_REACH = 1.6
"""Half the width of the circle's picture."""
_MARGIN = 0.04
"""Part of the axis of loadings beyond the outermost one."""
_NAMED = 25
"""Largest number of columns in a picture: those with the longest arrows or bars."""


def summary_of(pca: PrivatePCA) -> str:
    """Return the components, their alignment and loadings, and the guarantee as text."""
    release, names = pca.release_, pca.release_.names
    lengths, unseen = clipped_rows(release), blindly_scaled_message(release)
    lines = [wrapped(f"{release.mechanism}, {release.guarantee_words()}. {lengths.warning()}".rstrip())]
    if pca.correlation:
        lines.append(components_text.standardised(correlation_of(release, pca.n_components_), release))
    else:
        result, aligned = _components_of(pca)
        lines.append(wrapped(f"{counted(len(result.components), 'component')} {lengths.filled.describe()}."))
        if aligned is not None:
            loadings = components_text.loadings(result.components, aligned, names)
            lines += [components_text.alignment(aligned, lengths), *([loadings] if loadings else [])]
    return "\n".join([*lines, *([wrapped(unseen)] if unseen else [])])


def table_of(pca: PrivatePCA) -> str:
    """Return an HTML table with the share, alignment and largest loadings of the first components."""
    shares, cosines, ends = pca.explained_variance_ratio_, pca.squared_cosines_, _intervals(pca)
    lengths = clipped_rows(pca.release_)
    rows = {"": f"Components and intervals are {(lengths if pca.correlation else lengths.filled).describe()}."}
    for i, vector in enumerate(pca.components_[:_COMPONENTS]):
        facts = [] if shares is None else [f"{shares[i]:.3f} of the variance"]
        if cosines is not None:
            facts.append(f"alignment {cosines[i]:.3f}" if np.isfinite(cosines[i]) else "below the noise")
        if ends is None or np.isfinite(ends[i]).any():
            unknown = np.full((len(vector), 2), np.nan)
            facts.append(
                components_text.largest_loadings(vector, unknown if ends is None else ends[i], pca.release_.names)
            )
        rows[f"component {i + 1}"] = "; ".join(facts)
    return table("Components", rows)


def _components_of(pca: PrivatePCA) -> tuple[Components, Alignment | None]:
    result = components(pca.release_, pca.n_components_)
    return result, alignment(pca.release_, result)


def plotted(pca: PrivatePCA, kind: str, component: int, axes: Any) -> Any:
    """Draw on matplotlib's axes, new ones if None, and return them."""
    if kind not in KINDS:
        raise UsageError(f"kind must be one of {', '.join(map(repr, KINDS))}, not {kind!r}.")
    if not 1 <= component <= pca.n_components_:
        raise UsageError(f"component must be between 1 and {pca.n_components_}.")
    axes = new_axes(axes)
    if kind == "scree":
        _scree(pca, axes)
    elif kind == "loadings":
        _loadings(pca, component - 1, axes)
    else:
        _circle(pca, axes)
    return axes


def new_axes(axes: Any) -> Any:
    """Return matplotlib's axes, those of a new figure for None."""
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot as plt  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError(EXTRA) from None
    return plt.figure(layout="constrained").add_subplot()


def _kept(pca: PrivatePCA) -> list[int]:
    """Return the columns that have loadings: for correlations without references and those below the noise."""
    if not pca.correlation:
        return list(range(pca.release_.bound.columns))
    return kept_columns(pca.release_, correlation_of(pca.release_, pca.n_components_))


def _scree(pca: PrivatePCA, axes: Any) -> None:
    """Draw the whole spectrum: eigenvalues, or for correlations the shares that are known."""
    release = pca.release_
    if pca.correlation:
        scree_of_correlations(axes, correlation_of(release, len(_kept(pca))))
        return
    every = alignment(release, components(release, release.bound.columns))
    if every is None:
        raise UsageError("The distribution of this mechanism's noise is unknown, so no component can be counted.")
    scree(axes, every)


def _intervals(pca: PrivatePCA) -> Any:
    """Return intervals of the loadings, (k, d, 2), NaN where noise may have mixed components; None if unknown."""
    found = correlation_of(pca.release_, pca.n_components_).alignment if pca.correlation else _components_of(pca)[1]
    return None if found is None else found.loadings


def _loadings(pca: PrivatePCA, component: int, axes: Any) -> None:
    vector, every, kept = pca.components_[component], _intervals(pca), set(_kept(pca))
    ends = np.full((len(vector), 2), np.nan) if every is None else every[component]
    known = [j for j in np.argsort(-np.abs(vector), kind="stable").tolist() if j in kept]
    largest = np.array(known[:_NAMED][::-1])
    places = np.arange(len(largest))
    colours = np.where(vector[largest] > 0, "tab:orange", "tab:blue")
    axes.barh(places, vector[largest], color=colours, alpha=0.6)
    axes.hlines(places, ends[largest, 0], ends[largest, 1], color="black", lw=1)
    axes.axvline(0, color="black", lw=0.6)
    axes.set_yticks(places, [pca.release_.names[j] for j in largest])
    mixed = every is not None and not np.isfinite(ends).any()
    about = ": the noise may have mixed it with a neighbour" if mixed else ""
    drawn = np.concatenate([vector[largest], ends[largest].ravel(), [0.0]])
    low, high = float(np.nanmin(drawn)), float(np.nanmax(drawn))
    margin = _MARGIN * (high - low)
    axes.set(title=f"Loadings of component {component + 1}{about}", xlabel=_axis_name(pca, component))
    axes.set_xlim(low - margin, high + margin)


def _axis_name(pca: PrivatePCA, component: int) -> str:
    """Return the name of a component with its share of the variance."""
    shares = pca.explained_variance_ratio_
    share = "" if shares is None else f" ({100 * shares[component]:.0f} %)"
    return f"component {component + 1}{share}"


def _circle(pca: PrivatePCA, axes: Any) -> None:
    """Draw the correlations of the columns with the first two components."""
    if not pca.correlation or pca.n_components_ < 2:
        raise UsageError("The correlation circle needs correlation=True and two components.")
    values = np.asarray(pca.explained_variance_)[:2]
    arrows = (pca.components_[:2] * np.sqrt(np.maximum(values, 0))[:, None]).T
    axes.add_patch(_patches().Circle((0, 0), 1, fill=False, color="tab:gray", lw=0.8))
    kept = set(_kept(pca))
    order = [j for j in np.argsort(-np.hypot(*arrows.T), kind="stable").tolist() if j in kept]
    for j in order:
        axes.annotate("", arrows[j], (0, 0), arrowprops={"arrowstyle": "->", "color": "tab:blue"})
    for j, name, place in _labels(order, arrows, pca.release_.names):
        axes.annotate(name, place, fontsize=8, ha="left" if arrows[j, 0] >= 0 else "right", va="center")
    axes.axhline(0, color="tab:gray", lw=0.5)
    axes.axvline(0, color="tab:gray", lw=0.5)
    axes.set(xlabel=_axis_name(pca, 0), ylabel=_axis_name(pca, 1), aspect="equal")
    axes.set(xlim=(-_REACH, _REACH), ylim=(-1.15, 1.15))


def _labels(
    order: Sequence[int], arrows: npt.NDArray[np.float64], names: Sequence[str]
) -> Iterator[tuple[int, str, tuple[float, float]]]:
    """Yield columns with name and position, the longest arrow first, without names that would overlap."""
    taken: list[tuple[float, float, float]] = []  # left and right end, and height
    for j in [j for j in order if np.hypot(*arrows[j]) > _SHORTEST][:_NAMED]:
        x, y = (arrows[j] * 1.04).tolist()
        room = math.floor((_REACH - abs(x)) / _LETTER)
        name = names[j] if len(names[j]) <= room else f"{names[j][: max(1, room - 1)]}…"
        width = len(name) * _LETTER
        left, right = (x, x + width) if arrows[j, 0] >= 0 else (x - width, x)
        if any(abs(y - other) < _APART and left < b and a < right for a, b, other in taken):
            continue
        taken.append((left, right, y))
        yield j, name, (x, y)


def _patches() -> Any:
    from matplotlib import patches  # noqa: PLC0415 - an extra

    return patches
