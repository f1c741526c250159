"""What is said of mechanisms, forecasts, costs and components, as text for a terminal."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpdist._util.text import AMOUNTS, counted, listed, wrapped
from dpdist.mechanisms.info import MechanismInfo, Output
from dpdist.moment.cost import INGEST, ClusterCost
from dpdist.naming import parameter, step
from dpdist.pca.alignment import SHOWN, Alignment
from dpdist.pca.correlation import Correlation
from dpdist.pca.forecast import GOOD, Forecast, Person
from dpdist.pca.noise_edge import CONFIDENCE
from dpdist.pca.orbit import FAILURE, OrbitForecast
from dpdist.privacy.checks import in_words
from dpdist.release.request import Parts, ReleaseRequest

_FIELDS = ("output", "law", "sensitivity", "claimed", "proved", "arithmetic", "cost", "reference")
_GAP = "  "
_SHOWN = 25
_LOADINGS = 5
_NARROWEST = 20
ALIGNED = (
    "The squared cosine says how well a component points along the exact one: 1 is the same direction, 0 a right angle."
)
SURE = "In nine of ten releases or more it lies between the two ends."
_NOT_TOLD = (
    "A component is not told where its eigenvalue lies too close to noise, or to what else the table holds: it may "
    "point anywhere."
)


def comparison(statements: Sequence[MechanismInfo], others: int = 0) -> str:
    """Return what each mechanism claims and what is proved, as wide as the terminal; and how many others there are."""
    lines = []
    for each in statements:
        kind = "positive semidefinite, " * each.semidefinite
        lines.append(wrapped(f"{each.name} ({each.output}, {kind}{each.arithmetic})", "", "  "))
        for word, text in (("claimed", each.claimed), ("proved", each.proved)):
            lines.append(wrapped(text, f"  {word:<8} ", " " * 11))
        lines.append("")
    if others:
        lines.append(wrapped(f"These are recommended. There are {others} others: {step('mechanisms', all='')}"))
    return "\n".join(lines).rstrip()


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    pieces = [textwrap.wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, pieces))
    padded = [lines + [""] * (height - len(lines)) for lines in pieces]
    return "\n".join(
        _GAP.join(f"{line:<{width}}" for line, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*padded, strict=True)
    )


def alignment(told: Alignment) -> str:
    """Return a table of eigenvalues beside the noise: of each component, how well it is aligned with the exact one."""
    heads = ("no.", "eigenvalue", "without noise", "exact one of clipped rows", "squared cosine", "between")
    rows: list[tuple[str, ...]] = []
    for i, value in enumerate(told.eigenvalues[:_SHOWN]):
        cells = ("-", "-", "not told", "-")
        if told.group_of(i) is not None:
            low, high = told.intervals[i]
            cosine = f"{told.squared_cosines[i]:.3f}{mark(told, i)}"
            ends = between(told.cosine_intervals[i])
            cells = f"{told.strengths[i]:.4g}", f"{low:.4g} .. {high:.4g}", cosine, ends
        rows.append((str(i + 1), f"{value:.6g}", *cells))
    rows += _dots(len(told.eigenvalues), heads)
    # Heads are wrapped, so that the table fits a terminal of 80 columns.
    narrow = [*heads[:2], *(max(head.split(), key=len) for head in heads[2:])]
    widths = [max(len(cell) for cell in column) for column in zip(narrow, *rows, strict=True)]
    legend = [
        "" if told.rounding is None else told.rounding.describe(),
        f"{ALIGNED} {SURE}" if told.counted else "",
        _NOT_TOLD if told.counted < len(told.eigenvalues) else "",
    ]
    table = [_row(row, widths) for row in (heads, *rows)]
    return "\n".join([*table, wrapped(counted_words(told)), wrapped(" ".join(filter(None, legend)))])


def _dots(count: int, heads: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the row that stands for those that are not shown, if there are any."""
    return [("...", *[""] * (len(heads) - 1))] if count > _SHOWN else []


def mark(told: Alignment, component: int) -> str:
    """Return what stands beside a number that is that of a whole group; nothing of a component alone."""
    group = told.group_of(component)
    return "" if group is None or len(group) == 1 else f" ({group.start + 1}-{group.stop})"


def counted_words(told: Alignment) -> str:
    """Say how many components can be told from noise, and which of them not from one another."""
    if told.counted:
        said = f"{counted(told.counted, 'component')} can be told from noise, and from the rest of the table."
        for group in told.groups:
            if len(group) > 1 and group.start < len(told.eigenvalues):
                cosine = told.squared_cosines[group.start]
                said += (
                    f" Components {group.start + 1} to {group.stop} cannot be told apart: the squared cosine is that "
                    f"of the space they span, {cosine:.3f} on average."
                )
        return said
    if told.edge is None:
        return "No single component can be told from noise, and from what is beside it."
    said = "Nothing here can be told from noise."
    if told.eigenvalues.size and told.eigenvalues[0] > told.edge:
        said = (
            "No single component can be told. There is more here than noise: the largest eigenvalue of noise alone "
            f"stays below {told.edge:.6g} (confidence {CONFIDENCE:g})."
        )
    return f"{said} A larger epsilon or more rows would lift some: {step('forecast')} says how much, free."


def _without_loadings(told: Alignment) -> str:
    """Name the components that can be told, and whose loadings cannot; a sentence, or nothing."""
    if told.loadings is None:
        return ""
    places = range(min(told.counted, len(told.loadings), SHOWN))
    names = [str(i + 1) for i in places if not np.isfinite(told.loadings[i]).any()]
    if not names:
        return ""
    which = "component" if len(names) == 1 else "components"
    return f"Loadings of {which} {listed(names)} are not told: the noise may have mixed in a neighbour."


def loadings(vectors: npt.NDArray[np.float64], told: Alignment, names: Sequence[str]) -> str:
    """Return a table of the largest loadings of the components of which they are told, and name the others."""
    if told.loadings is None:
        return ""
    rows = [
        (str(i + 1), largest_loadings(vector, ends, names))
        for i, (vector, ends) in enumerate(zip(vectors, told.loadings, strict=True))
        if np.isfinite(ends).any()
    ]
    untold = _without_loadings(told)
    if not rows:
        return wrapped(untold)
    first = max(len(number) for number, _ in rows)
    width = max(shutil.get_terminal_size().columns - first - len(_GAP), _NARROWEST)
    lines = [_row(row, (first, width)) for row in rows]
    said = (
        "Largest loadings, and between which ends that of the exact matrix lies in nine of ten releases or more, with "
        f"respect to the noise. {untold}"
    )
    return "\n".join([wrapped(said.rstrip()), *lines])


def largest_loadings(vector: npt.NDArray[np.float64], ends: npt.NDArray[np.float64], names: Sequence[str]) -> str:
    """Return the largest loadings of a component by name, each with its ends where these are known."""
    said = []
    for j in np.argsort(-np.abs(vector), kind="stable")[:_LOADINGS]:
        if vector[j]:
            low, high = 100 * ends[j]  # rounded outwards
            known = f" ({np.floor(low) / 100:+.2f} .. {np.ceil(high) / 100:+.2f})" if np.isfinite(low) else ""
            said.append(f"{names[j]} {vector[j]:+.2f}{known}")
    return ", ".join(said)


def standardised(found: Correlation, names: Sequence[str]) -> str:
    """Return a table of components of a correlation matrix: their shares of variance, and their largest loadings."""
    heads, told = ("no.", "share of variance", "between", "squared cosine", "largest loadings"), found.alignment
    rows: list[tuple[str, ...]] = [heads]
    for i, (share, vector) in enumerate(zip(found.shares, found.components.components[:_SHOWN], strict=False)):
        ends = "-" if found.intervals is None or np.isnan(found.intervals[i, 0]) else between(found.intervals[i])
        reach, cosine, shown = np.full((len(vector), 2), np.nan), "-", True
        if told is not None:
            cosine = "not told"
            if told.group_of(i) is not None:
                cosine = f"{told.squared_cosines[i]:.3f}{mark(told, i)} ({between(told.cosine_intervals[i])})"
            if told.loadings is not None:
                reach = told.loadings[i]
                shown = bool(np.isfinite(reach).any())
        most = largest_loadings(vector, reach, names) if shown else "-"
        rows.append((str(i + 1), f"{share:.3f}", ends, cosine, most))
    rows += _dots(len(found.shares), heads)
    widths = max(len(each[0]) for each in rows), 8, 14, 14
    width = max(shutil.get_terminal_size().columns - sum(widths) - len(widths) * len(_GAP), _NARROWEST)
    lines = [_row(row, (*widths, width)) for row in rows]
    said = (
        "Components of the correlation matrix, of columns standardised by what was released. A share, a squared cosine "
        "or a loading lies between its two ends in about nine of ten releases or more, with respect to the noise."
    )
    if told is not None:
        said += f" {counted_words(told)} {ALIGNED} {_without_loadings(told)}".rstrip()
    if found.left_out:
        were = "was" if len(found.left_out) == 1 else "were"
        why = " or came first of a variable" if found.drop_first else ""
        said += (
            f" {counted(len(found.left_out), 'column')} did not stand above the noise{why} and {were} left out: "
            f"{listed(found.left_out)}."
        )
    return "\n".join([*lines, wrapped(said)])


def between(ends: npt.NDArray[np.float64]) -> str:
    """Return the ends of an interval of squared cosines or shares, rounded outwards.

    Examples
    --------
    >>> between(np.array([0.1239, 0.8761])), between(np.array([0.0, 1.0]))
    ('0.123 .. 0.877', '0 .. 1')
    """
    low, high = math.floor(1000 * ends[0]) / 1000, math.ceil(1000 * ends[1]) / 1000
    return f"{low:.3g} .. {high:.3g}"


def forecast(found: Forecast) -> str:
    """Return a forecast as text: the noise, the components, and the mechanisms compared."""
    request, rounding = found.request, []
    if found.rounding is not None and found.rounding_share is not None:
        share = f"{100 * found.rounding_share:.2g} % of the noise, grid bits {request.grid_bits}"
        rounding = [f"  error of rounding   {found.rounding:.4g} at most ({share})"]
    lines = [
        wrapped(_asked(request, found.rows, found.columns) + _person_words(found.person)),
        f"Per row, in squared units of the rows (the clip norm's square is {found.largest:g}):",
        f"  noise on an entry   {found.error:.4g} (standard deviation)",
        f"  edge of the noise   {found.edge:.4g} (confidence {CONFIDENCE})",
        *rounding,
        f"  told from noise     components of variance above {found.threshold:.4g}, if alone",
        "",
    ]
    heads = ("component", "variance") if found.guessed else ("share of C²", "variance")
    rows = [(*heads, "squared cosine", "rows to tell it", f"rows for {GOOD:g}")]
    for i, one in enumerate(found.expected):
        name = str(i + 1) if found.guessed else f"{100 * one.variance / found.largest:g} %"
        cosine = f"{one.squared_cosine:.3f}" if one.told else "not told"
        see, good = ("never" if count is None else str(count) for count in (one.rows_to_see, one.rows_for_good))
        rows.append((name, f"{one.variance:.4g}", cosine, see, good))
    lines += aligned(rows)
    lines.append(wrapped(ALIGNED))
    if found.guessed:
        lines.append(f"{found.seen} of {len(found.expected)} components will be told from noise.")
    if found.nothing:
        lines.append(wrapped(found.nothing))
    if found.cautions:
        lines += ["", wrapped(in_words(found.cautions).strip())]
    lines += _trade_lines(found)
    lines += ["", *aligned([("mechanism", "told above"), *((n, f"{v:.4g}") for n, v in found.alternatives)])]
    return "\n".join(lines)


def _person_words(person: Person) -> str:
    """Return what a privacy unit counts for, as sentences; none where each row stands alone."""
    rows = counted(person.max_rows, "row")
    if person.max_periods is None:
        return "" if person.max_rows == 1 else f" Protects a privacy unit of up to {rows} as a whole."
    periods = counted(person.max_periods, "period")
    return (
        f" Protects a privacy unit of up to {rows} in each of up to {periods} as a whole. The figures are of a release "
        f"of one period, for which it counts as {counted(person.counted_once, 'row')}; where {periods} or more are "
        f"added up, and with weights, it counts as {person.counted_at_most}."
    )


def orbit_forecast(found: OrbitForecast) -> str:
    """Return a forecast of an answer on an orbit as text: the bounds of its error."""
    lines = [
        wrapped(_asked(found.request, found.rows, found.columns)),
        "Error of the matrix per row, Frobenius norm, in squared units of the rows:",
        f"  at most             {found.upper:.4g} (confidence {1 - FAILURE:g})",
        f"  about               {found.about:.4g} (if the signal is strong; the real part errs by less)",
        f"  lower bound         {found.least:.4g}",
        f"  of answering zero   {found.zero:.4g}",
        wrapped(
            "The lower bound is of every mechanism of this loss, and for some moment of the guessed spectrum: it errs "
            "by more with probability 1/2, measured from the matrix of the eigenvalues released and the true "
            "eigenvectors."
        ),
    ]
    return "\n".join(lines)


def _asked(request: ReleaseRequest, rows: int, columns: int) -> str:
    return f"{request.mechanism}, {request.loss} under {request.neighbours}, n = {rows}, d = {columns}."


def _trade_lines(found: Forecast) -> list[str]:
    """Return what clip norms cost, if norms were guessed; else how noise grows, and what to guess."""
    if not found.trades:
        said = "Noise grows with the square of the clip norm. What a shorter one would cost:"
        return ["", wrapped(f"{said} {parameter('norms')}, a public guess of how long rows are.")]
    counts = tuple(found.trades[0].losses)
    rows = [("clip norm", "longer", "squares lost", "noise", *(f"K = {k}" for k in counts))]
    for each in found.trades:
        shares = (f"{100 * share:.3g} %" for share in (each.longer, each.lost, each.noise))
        rows.append((f"{each.clip_norm:g}", *shares, *(f"{each.losses[k]:.3f}" for k in counts)))
    least = [f"{min(found.trades, key=lambda t: t.losses[k]).clip_norm:g} for K = {k}" for k in counts]
    legend = (
        "If rows are as long as guessed. longer: rows that are shortened; squares lost: what that takes of the sum of "
        "their squared norms; noise: its edge over the mean squared norm that is left; K: what K components lose of "
        f"their captured variance, by a rule of thumb. Least: {', '.join(least)}. Where the whole matrix counts "
        "(Frobenius error), take one that few rows exceed."
    )
    return ["", *aligned(rows), wrapped(legend)]


def parts(found: Parts, request: ReleaseRequest) -> str:
    """Say what both parts of a release cost that chooses its clip norm, or a scale, and of what the figures are."""
    columns = "centre and scale of each column, by a private histogram of it"
    norms = "its clip norm, by a private histogram of the norms"
    chosen = ", and then ".join(columns if choice == "scale" else norms for choice in request.chooses)
    units = "in units of the clip norm" if "clip norm" in request.chooses else "in scaled units"
    return wrapped(
        f"The release first chooses {chosen}: {found.share_words}. The figures are of the moment that follows, at "
        f"{found.moment.loss}, {units}. {'Both' if len(request.chooses) == 1 else 'All'} together cost "
        f"{found.guarantee.loss}."
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines of columns that are as wide as their widest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [_row(row, widths) for row in rows]


def details(info: MechanismInfo) -> str:
    """Return all that is said of one mechanism, its options included."""
    about = [(field, getattr(info, field)) for field in _FIELDS]
    about.append(("delta", info.delta))
    if info.output is Output.SECOND_MOMENT:
        about.append(("semidefinite", "yes: no negative eigenvalue" if info.semidefinite else "no"))
    if info.replacement:
        about.append(("instead", f"{info.replacement}, where the claim is not proved"))
    lines = [info.name, *(wrapped(text, f"  {field:<12} ", " " * 15) for field, text in about)]
    for option in info.options:
        default = "required" if option.default is None else f"default {option.default or 'none'}"
        choices = f" ({', '.join(option.choices)})" if option.choices else ""
        text = f"{option.kind}{choices}, {default}: {option.meaning}"
        lines.append(wrapped(text, f"  {parameter(f'options.{option.name}')}  ", " " * 15))
    return "\n".join(lines)


def costs(found: Sequence[ClusterCost]) -> str:
    """Return tables of what releases cost a cluster, a line for each number of workers."""
    lines: list[tuple[str, ...]] = [("workers", "bands", "tasks", "read", "between", "sent", "worker", "trusted")]
    for each in found:
        layout = each.layout
        moved = (layout.bytes_read, layout.bytes_between_workers, layout.bytes_to_trusted)
        counts = layout.workers, len(layout.bands), layout.partitions + layout.additions
        lines.append((*map(str, counts), *map(amount, (*moved, layout.worker_bytes, layout.trusted_bytes))))
    legend = (
        "read: bytes read; between: bytes sent between workers; sent: bytes sent to the trusted node; worker, trusted: "
        "their most memory."
    )
    times = [("workers", *(f"from {kind}" for kind in INGEST), "one read", "release", "lost worker")]
    for each in found:
        seconds = (*map(each.ingest_seconds, INGEST), each.read_seconds, each.seconds, each.lost_worker_seconds)
        times.append((str(each.layout.workers), *map(duration, seconds)))
    about = (
        "from: an ingest of such files, of about as many bytes as the rows; one read: a private clip norm, or a "
        "projection without its writing; lost worker: what a release takes longer at most if one dies or hangs."
    )
    if not math.isinf(bandwidth := found[0].bandwidth):
        about += f" The store of the rows gives all workers together {amount(round(bandwidth))} a second."
    return "\n".join([*aligned(lines), wrapped(legend), "", *aligned(times), wrapped(about)])


def amount(count: int) -> str:
    """Return a number of bytes, rounded up to three digits.

    Examples
    --------
    >>> amount(999), amount(1_000_001), amount(4 * 10**12)
    ('999 B', '1.01 MB', '4 TB')
    """
    step = 10 ** max(0, len(str(count)) - 3)
    rounded = -(-count // step) * step
    power = min(len(AMOUNTS) - 1, (len(str(rounded)) - 1) // 3)
    return f"{rounded / 1000**power:.15g} {AMOUNTS[power]}"


def duration(seconds: float) -> str:
    """Return a time, rounded up.

    Examples
    --------
    >>> duration(0.2), duration(61), duration(9000)
    ('1 s', '2 min', '2.5 h')
    """
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    if seconds < 7200:
        return f"{math.ceil(seconds / 60)} min"
    return f"{math.ceil(seconds / 360) / 10:g} h"
