"""Components as text for a terminal: those of a second moment, and those of correlations."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpdist.answers.alignment import SHOWN, Alignment
from dpdist.answers.bias import ClippedRows, clipped_rows
from dpdist.answers.correlation import Correlation
from dpdist.answers.noise_edge import CONFIDENCE
from dpdist.core.naming import step
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted, listed, wrapped
from dpdist.report.text import ALIGNED, GAP, NARROWEST, aligned, row_of

_SHOWN = 25
_LOADINGS = 5
_SURE_LOADINGS = 3
SURE = "It is between the two ends in at least nine of ten releases."
_UNDISTINGUISHED = (
    "The alignment is unknown if an eigenvalue is too close to the noise or to other eigenvalues: the component may "
    "point anywhere."
)


def alignment(result: Alignment, lengths: ClippedRows) -> str:
    """Return a table of eigenvalues, and of the alignment of components with the exact ones."""
    heads = ("no.", "eigenvalue", "without noise", "true value, 95 %", "alignment", "between")
    rows: list[tuple[str, ...]] = []
    for i, value in enumerate(result.eigenvalues[:_SHOWN]):
        cells = ("-", "-", "unknown", "-")
        if result.group_of(i) is not None:
            low, high = result.intervals[i]
            cosine = f"{result.squared_cosines[i]:.3f}{mark(result, i)}"
            ends = between(result.cosine_intervals[i])
            cells = f"{result.strengths[i]:.4g}", f"{low:.4g} .. {high:.4g}", cosine, ends
        rows.append((str(i + 1), f"{value:.6g}", *cells))
    rows += _dots(len(result.eigenvalues), heads)
    # heads are wrapped to fit 80 columns
    narrow = [*heads[:2], *(max(head.split(), key=len) for head in heads[2:])]
    widths = [max(len(cell) for cell in column) for column in zip(narrow, *rows, strict=True)]
    legend = [
        lengths.unknown
        and f"A true value is that of the {lengths.noun}; for the rows as they are it is {lengths.unknown}.",
        "" if result.rounding is None else result.rounding.describe(),
        f"{ALIGNED} {SURE}" if result.counted else "",
        _UNDISTINGUISHED if result.counted < len(result.eigenvalues) else "",
    ]
    table = [row_of(row, widths) for row in (heads, *rows)]
    return "\n".join([*table, wrapped(count_text(result)), wrapped(" ".join(filter(None, legend)))])


def _dots(count: int, heads: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a row that represents omitted rows, if there are any."""
    return [("...", *[""] * (len(heads) - 1))] if count > _SHOWN else []


def mark(result: Alignment, component: int) -> str:
    """Return a note for the number of a group of components; empty for a single component."""
    group = result.group_of(component)
    return "" if group is None or len(group) == 1 else f" ({group.start + 1}-{group.stop})"


def count_text(result: Alignment) -> str:
    """Return how many components can be distinguished from noise, and which not from one another."""
    if result.counted:
        text = (
            f"{counted(result.counted, 'component')} can be distinguished from noise and from the rest of the table. "
            "This holds for these rows: a sample of independent columns has such components, too."
        )
        for group in result.groups:
            if len(group) > 1 and group.start < len(result.eigenvalues):
                cosine = result.squared_cosines[group.start]
                text += (
                    f" Components {group.start + 1} to {group.stop} cannot be told apart: their alignment is "
                    f"that of the space they span, {cosine:.3f} on average."
                )
        return text
    if result.edge is None:
        return "No single component can be distinguished from noise and from its neighbours."
    text = "No component can be distinguished from noise."
    if result.eigenvalues.size and result.eigenvalues[0] > result.edge:
        text = (
            "No single component can be distinguished, but there is more than noise: the largest eigenvalue of noise "
            f"alone is below {result.edge:.6g} (confidence {CONFIDENCE:g})."
        )
    return f"{text} A larger epsilon or more rows may reveal some: {step('forecast')} estimates how many, at no cost."


def _without_loadings(result: Alignment) -> str:
    """Return a sentence about counted components with unknown loadings, or nothing."""
    if result.loadings is None:
        return ""
    indices = range(min(result.counted, len(result.loadings), SHOWN))
    mixed = [i for i in indices if not np.isfinite(result.loadings[i]).any()]
    names = [str(i + 1) for i in mixed if len(result.group_of(i) or ()) == 1]
    more = (
        f"Loadings beyond component {SHOWN} are not shown." if min(result.counted, len(result.loadings)) > SHOWN else ""
    )
    if not names:
        return more
    noun = "component" if len(names) == 1 else "components"
    untold = f"Loadings of {noun} {listed(names)} are not shown: the noise may have mixed them with a neighbour."
    return f"{untold} {more}".rstrip()


def loadings(vectors: npt.NDArray[np.float64], result: Alignment, names: Sequence[str]) -> str:
    """Return a table of the largest loadings of components, and name those with unknown loadings."""
    if result.loadings is None:
        return ""
    rows = [
        (str(i + 1), largest_loadings(vector, ends, names))
        for i, (vector, ends) in enumerate(zip(vectors, result.loadings, strict=True))
        if np.isfinite(ends).any()
    ]
    untold = _without_loadings(result)
    if not rows:
        return wrapped(untold)
    first = max(len(number) for number, _ in rows)
    width = max(shutil.get_terminal_size().columns - first - len(GAP), NARROWEST)
    lines = [row_of(row, (first, width)) for row in rows]
    legend = (
        "Largest loadings, with intervals that contain those of the exact matrix of these rows in at least nine of ten "
        f"releases with respect to the noise. {untold}"
    )
    return "\n".join([wrapped(legend.rstrip()), *lines])


def largest_loadings(vector: npt.NDArray[np.float64], ends: npt.NDArray[np.float64], names: Sequence[str]) -> str:
    """Return the largest loadings of a component by name, with their known intervals."""
    entries = []
    for j in np.argsort(-np.abs(vector), kind="stable")[:_LOADINGS]:
        if vector[j]:
            low, high = 100 * ends[j]  # rounded outwards
            interval = f" ({np.floor(low) / 100:+.2f} .. {np.ceil(high) / 100:+.2f})" if np.isfinite(low) else ""
            entries.append(f"{names[j]} {vector[j]:+.2f}{interval}")
    return ", ".join(entries)


def standardised(result: Correlation, release: Release) -> str:
    """Return a table of components of a correlation matrix, with their largest loadings below each."""
    lengths, directions = clipped_rows(release), result.alignment
    rows, below = [("no.", "share of variance", "between", "alignment", "between")], [""]
    for group in together(result)[:_SHOWN]:
        cosine, reach = ("-", "-") if directions is None else ("unknown", "-")
        if directions is not None and directions.group_of(group.start) is not None:
            cosine = f"{directions.squared_cosines[group.start]:.3f}"
            reach = between(directions.cosine_intervals[group.start])
        rows.append((_number(group), f"{result.shares[group.start : group.stop].sum():.3f}", _share(result, group),
                     cosine, reach))  # fmt: skip
        below.append(_loadings_of(result, group, release.names))
    table = [line for pair in zip(aligned(rows), below, strict=True) for line in pair if line]
    unknown = lengths.unknown and f" Without clipping, the values are {lengths.unknown}."
    about = (
        f"Components of the correlation matrix {lengths.describe()}. Each interval covers the exact value of these "
        f"rows in at least about nine of ten releases (noise only, not sampling).{unknown}"
    )
    legend = [
        about,
        "" if directions is None else f"{count_text(directions)} {ALIGNED} {_without_loadings(directions)}".rstrip(),
        omitted(result),
    ]
    return "\n".join([*table, *(wrapped(text) for text in legend if text)])


def brief(result: Correlation, release: Release) -> str:
    """Return a line for each component that explains more than one column and chance, and whose loadings are known."""
    rows = list[tuple[str, str, str]]()
    # what the largest eigenvalue of so many independent columns in a sample hardly exceeds (Marchenko & Pastur 1967)
    columns, sample = len(release.names) - len(result.left_out), release.row_count
    chance = (1 + math.sqrt(columns / sample)) ** 2 if sample is not None and sample > 0 else 1.0
    values = result.components.eigenvalues
    for group in together(result):
        sure = _sure_loadings(result, group, release.names)
        if sure and len(rows) < _BRIEF and values is not None and values[group.start] > chance:
            low, high = _share_ends(result, group)
            share = f"{math.floor(1000 * low) / 10:g} to {math.ceil(1000 * high) / 10:g} %"
            rows.append((_number(group), share, sure))
    count, rest = counted(len(result.shares), "component"), len(result.shares) - len(rows)
    if not rows:
        return wrapped(f"{count} of the correlations; all explain {_UNTOLD}.")
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    width = max(shutil.get_terminal_size().columns - first - second - 2 * len(GAP), NARROWEST)
    head = f"{count} of the correlations: share of variance, loadings above noise"
    lines = [wrapped(head), *(row_of(row, (first, second, width)) for row in rows)]
    others = "The other one explains" if rest == 1 else f"The other {rest} explain"
    untold = "less than these, or cannot be told apart" if len(rows) == _BRIEF else _UNTOLD
    return "\n".join([*lines, *([wrapped(f"{others} {untold}.")] if rest else [])])


_BRIEF = 5
_UNTOLD = "hardly more than one column does, or cannot be told apart"


def together(result: Correlation) -> list[range]:
    """Return the components in groups that cannot be told apart."""
    groups, start = list[range](), 0
    while start < len(result.shares):
        group = None if result.alignment is None else result.alignment.group_of(start)
        stop = start + 1 if group is None else min(group.stop, len(result.shares))
        groups.append(range(start, stop))
        start = stop
    return groups


def _number(group: range) -> str:
    return str(group.stop) if len(group) == 1 else f"{group.start + 1}-{group.stop}"


def _share_ends(result: Correlation, group: range) -> npt.NDArray[np.float64]:
    """Return an interval of the share of components together; NaN if it is unknown."""
    unknown = np.full(2, np.nan)  # the deviation of a sum is at most the sum of the deviations
    return unknown if result.intervals is None else result.intervals[group.start : group.stop].sum(axis=0)


def _share(result: Correlation, group: range) -> str:
    ends = _share_ends(result, group)
    return between(ends) if np.isfinite(ends).all() else "-"


def _reach(result: Correlation, group: range) -> npt.NDArray[np.float64] | None:
    """Return the intervals of the loadings of a component, (d, 2); None if they are unknown."""
    every = None if result.alignment is None else result.alignment.loadings
    if every is None or len(group) > 1 or group.start >= len(every) or not np.isfinite(every[group.start]).any():
        return None
    reach: npt.NDArray[np.float64] = every[group.start]
    return reach


def _loadings_of(result: Correlation, group: range, names: Sequence[str]) -> str:
    """Return the largest loadings of a component as lines below it."""
    reach, vector = _reach(result, group), result.components.components[group.start]
    if reach is None and result.alignment is not None:
        return ""
    unknown = np.full((len(vector), 2), np.nan)
    return wrapped(largest_loadings(vector, unknown if reach is None else reach, names), "     ", "     ")


def _sure_loadings(result: Correlation, group: range, names: Sequence[str]) -> str:
    """Return the largest loadings whose intervals exclude 0; empty if there are none, or the share is unknown."""
    reach, vector = _reach(result, group), result.components.components[group.start]
    if reach is None or not np.isfinite(_share_ends(result, group)).all():
        return ""
    order = np.argsort(-np.abs(vector), kind="stable")[:_SURE_LOADINGS]
    sure = [j for j in order if reach[j, 0] > 0 or reach[j, 1] < 0]
    return ", ".join(f"{names[j]} {vector[j]:+.2f}" for j in sure)


def omitted(result: Correlation) -> str:
    """Return sentences about the columns that have no loadings; empty if there are none."""
    below = [name for name in result.left_out if name not in result.references]
    sentences = []
    if result.references:
        first = "The first category of each variable is left out, as the others determine it"
        sentences.append(f"{first}: {listed(result.references)}.")
    if below:
        sentences.append(
            f"Not above the noise: {listed(below)}. A share is of the variance of all columns, each counted "
            "once, even below the noise, except other and missing values there; an alignment is with the component of "
            "the others."
        )
    return " ".join(sentences)


def between(ends: npt.NDArray[np.float64]) -> str:
    """Return an interval of squared cosines or shares, rounded outwards.

    >>> between(np.array([0.1239, 0.8761])), between(np.array([0.0, 1.0]))
    ('0.123 .. 0.877', '0 .. 1')
    """
    low, high = math.floor(1000 * ends[0]) / 1000, math.ceil(1000 * ends[1]) / 1000
    return f"{low:.3g} .. {high:.3g}"
