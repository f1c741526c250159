"""A fitted PrivatePCA as text and as pictures: functions of its release only."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdist.answers.alignment import Alignment, alignment
from dpdist.answers.bias import clipped_rows
from dpdist.answers.components import Components, components
from dpdist.answers.correlation import correlation as correlation_of
from dpdist.core.errors import UsageError
from dpdist.core.html import table
from dpdist.core.release.advice import blindly_scaled_message
from dpdist.core.text import counted, wrapped
from dpdist.report import text
from dpdist.report.figures import EXTRA, scree

if TYPE_CHECKING:
    from dpdist.estimators.pca import PrivatePCA

KINDS = ("scree", "loadings", "circle")
_COMPONENTS = 10
"""Largest number of components in the table of a notebook."""
_APART = 0.08
"""Least distance of two names in the circle, in either direction."""
_NAMED = 25
"""Largest number of columns in a picture: those with the longest arrows or bars."""


def summary_of(pca: PrivatePCA) -> str:
    """Return the components, their alignment and loadings, and the guarantee as text."""
    release, names = pca.release_, pca.release_.names
    lengths, unseen = clipped_rows(release), blindly_scaled_message(release)
    lines = [wrapped(f"{release.mechanism}, {release.guarantee_words()}. {lengths.warning()}".rstrip())]
    if pca.correlation:
        lines.append(text.standardised(correlation_of(release, pca.n_components_), release))
    else:
        result, aligned = _components_of(pca)
        lines.append(wrapped(f"{counted(len(result.components), 'component')} {lengths.filled.describe()}."))
        if aligned is not None:
            loadings = text.loadings(result.components, aligned, names)
            lines += [text.alignment(aligned, lengths), *([loadings] if loadings else [])]
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
            facts.append(text.largest_loadings(vector, unknown if ends is None else ends[i], pca.release_.names))
        rows[f"component {i + 1}"] = "; ".join(facts)
    return table("Components", rows)


def _components_of(pca: PrivatePCA) -> tuple[Components, Alignment | None]:
    result = components(pca.release_, pca.n_components_)
    return result, alignment(pca.release_, result)


def plotted(pca: PrivatePCA, kind: str, component: int, axes: Any) -> Any:
    """Draw on matplotlib's axes, new ones if None, and return them."""
    if kind not in KINDS:
        raise UsageError(f"kind must be one of {', '.join(map(repr, KINDS))}, not {kind!r}.")
    if not 0 <= component < pca.n_components_:
        raise UsageError(f"component must be between 0 and {pca.n_components_ - 1}.")
    if axes is None:
        try:
            from matplotlib import pyplot as plt  # noqa: PLC0415 - an extra
        except ImportError:
            raise UsageError(EXTRA) from None
        axes = plt.figure(layout="constrained").add_subplot()
    if kind == "scree":
        _scree(pca, axes)
    elif kind == "loadings":
        _loadings(pca, component, axes)
    else:
        _circle(pca, axes)
    return axes


def _is_known(pca: PrivatePCA, column: int) -> bool:
    return pca.release_.names[column] not in pca.left_out_


def _scree(pca: PrivatePCA, axes: Any) -> None:
    """Draw the whole spectrum: with the edge of the noise, or for correlations the shares that are known."""
    release = pca.release_
    if not pca.correlation:
        every = alignment(release, components(release, release.bound.columns))
        if every is None:
            raise UsageError("The distribution of this mechanism's noise is unknown, so there is no level to draw.")
        scree(axes, every)
        return
    every_share = correlation_of(release, release.bound.columns - len(pca.left_out_))
    numbers, shares, ends = np.arange(1, len(every_share.shares) + 1), every_share.shares, every_share.intervals
    above = np.zeros(len(shares), dtype=np.bool_)
    if ends is not None:
        above = np.isfinite(ends[:, 0])
        axes.vlines(numbers[above], ends[above, 0], ends[above, 1], color="tab:blue", alpha=0.25, lw=3)
    axes.plot(numbers[above], shares[above], "o", color="tab:blue", ms=4, label="above the noise")
    axes.plot(numbers[~above], shares[~above], "o", color="tab:gray", ms=3, label="may be only noise")
    axes.set(xlabel="component", ylabel="share of variance", ylim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize=8)


def _intervals(pca: PrivatePCA) -> Any:
    """Return intervals of the loadings, (k, d, 2), NaN where noise may have mixed components; None if unknown."""
    found = correlation_of(pca.release_, pca.n_components_).alignment if pca.correlation else _components_of(pca)[1]
    return None if found is None else found.loadings


def _loadings(pca: PrivatePCA, component: int, axes: Any) -> None:
    vector, every = pca.components_[component], _intervals(pca)
    ends = np.full((len(vector), 2), np.nan) if every is None else every[component]
    known = [j for j in np.argsort(-np.abs(vector), kind="stable").tolist() if _is_known(pca, j)]
    largest = np.array(known[:_NAMED][::-1])
    places = np.arange(len(largest))
    colours = np.where(vector[largest] > 0, "tab:orange", "tab:blue")
    axes.barh(places, vector[largest], color=colours, alpha=0.6)
    axes.hlines(places, ends[largest, 0], ends[largest, 1], color="black", lw=1)
    axes.axvline(0, color="black", lw=0.6)
    axes.set_yticks(places, [pca.release_.names[j] for j in largest])
    mixed = every is not None and not np.isfinite(ends).any()
    about = ": the noise may have mixed it with a neighbour" if mixed else ""
    axes.set(title=f"Loadings of component {component + 1}{about}", xlim=(-1.05, 1.05))


def _circle(pca: PrivatePCA, axes: Any) -> None:
    """Draw the correlations of the columns with the first two components."""
    if not pca.correlation or pca.n_components_ < 2:
        raise UsageError("The correlation circle needs correlation=True and two components.")
    values = np.asarray(pca.explained_variance_)[:2]
    arrows = (pca.components_[:2] * np.sqrt(np.maximum(values, 0))[:, None]).T
    axes.add_patch(_patches().Circle((0, 0), 1, fill=False, color="tab:gray", lw=0.8))
    named: list[Any] = []
    for j in filter(partial(_is_known, pca), np.argsort(-np.hypot(*arrows.T), kind="stable").tolist()):
        axes.annotate("", arrows[j], (0, 0), arrowprops={"arrowstyle": "->", "color": "tab:blue"})
        if len(named) == _NAMED or any(np.abs(arrows[j] - other).max() < _APART for other in named):
            continue  # names would overlap
        named.append(arrows[j])
        axes.annotate(pca.release_.names[j], arrows[j] * 1.04, fontsize=8, ha="left" if arrows[j, 0] >= 0 else "right")
    axes.axhline(0, color="tab:gray", lw=0.5)
    axes.axvline(0, color="tab:gray", lw=0.5)
    axes.set(xlabel="component 1", ylabel="component 2", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")


def _patches() -> Any:
    from matplotlib import patches  # noqa: PLC0415 - an extra

    return patches
