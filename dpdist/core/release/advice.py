"""Accuracy of a private quantile of the norms: forecast before the charge, and reported with the answer.

**Rank error.** R bounds the error of the number of rows above an edge (:mod:`dpdist.core.mechanisms.quantile`), for all
edges of the grid together, at the stated confidence. It depends on the noise and the grid only, so it is the same
number before and after the answer.

**Theorem.** Let Q(p) be the p-quantile of the norms of n rows, and let the chosen edge be the first whose estimate is
at most ``(1 - q) n`` rows. At the confidence of R it is at least ``Q(q - R/n)``, and the edge before it, if any, is
below ``Q(q + R/n)``, if ``q + R/n < 1``. Proof: at most ``(1 - q) n + R`` rows are above the chosen edge, and more than
``(1 - q) n - R`` above the one before it. ∎

So the clip norm is between these quantiles, rounded up to the grid. If ``R > (1 - q) n``, the number of rows above the
quantile, nothing bounds it from above, and such a histogram is refused. If ``2 R <= (1 - q) n`` and no row is beyond
the grid, a clip norm is always found, because the estimate at the last edge is below ``(1 - q) n`` by at least R. If
also ``2 R <= q n``, the answer is called useful.

The module also describes the columns about which a private choice of the scale learnt too little
(:mod:`dpdist.core.mechanisms.columns`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from dpdist.core.errors import RefusedError
from dpdist.core.mechanisms.quantile import CONFIDENCE, rank_error
from dpdist.core.moment.histograms import NormGrid
from dpdist.core.naming import parameter
from dpdist.core.options import ROWS_AT_MOST
from dpdist.core.privacy.checks import LARGEST_EPSILON
from dpdist.core.privacy.guarantee import MICRO, Guarantee, Neighbours, PrivacyLoss
from dpdist.core.release.artefact import Heading, Release
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.norm_histogram import NormsRequest
from dpdist.core.release.plan import Plan, planned
from dpdist.core.release.request import CLIP_GRID, ReleaseRequest
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import Table
from dpdist.core.text import counted, exactly, listed


def blindly_scaled_message(heading: Heading) -> str:
    """Describe the columns that were scaled without a measured variance, or got no weight; may be empty."""
    columns = () if heading.schema is None else heading.schema.columns
    ranged = {column.value_name for column in columns if column.stored and column.range is not None}
    return describe(*heading.blindly_scaled, ranged)


def describe(unseen: Sequence[str], weightless: Sequence[str], ranged: Collection[str] = ()) -> str:
    """Return the sentences of :func:`blindly_scaled_message` for columns given by name, some of them with a range."""
    sentences = []
    if unseen:
        remedy = "or (values far from 0 with little variation) a public range in a schema, or a public centre and scale"
        if set(unseen) <= set(ranged):
            remedy = "or a range that holds the values: at one end of it, or beyond, they have no spread"
        sentences.append(
            f"The spread of {counted(len(unseen), 'column')} is lost in the noise, so a default scale was used: "
            f"{listed(unseen)}. It may become visible with more rows, a larger {parameter('epsilon')}, {remedy}."
        )
    if weightless:
        sentences.append(
            f"{counted(len(weightless), 'column')} had numbers beyond 2^20, and got no weight: {listed(weightless)}. "
            f"The release contains no information about them. {cure()}"
        )
    return " ".join(sentences)


def blindly_scaled_json(heading: Heading) -> dict[str, list[str]]:
    """Return the columns of :func:`blindly_scaled_message` as JSON values."""
    unseen, weightless = heading.blindly_scaled
    return {"no_variance_seen": list(unseen), "weigh_nothing": list(weightless)}


def weightless(heading: Heading, columns: Sequence[int]) -> tuple[int, ...]:
    """Return those of the given columns that have no weight."""
    names = set(heading.blindly_scaled[1])
    return tuple(i for i in columns if heading.names[i] in names)


def cure() -> str:
    """Return advice about columns without weight."""
    return (
        f"Change their units, or declare a public range ({parameter('schema')}), in a release with a charge of its own."
    )


_MAX_MICRO = LARGEST_EPSILON * MICRO
"""The largest recommended epsilon, in millionths."""
_SHORT_GRID = NormGrid(1, 1024, 1)
"""A grid for a quantile that is publicly known to within ten octaves."""


@dataclass(frozen=True)
class QuantileAccuracy:
    """Accuracy of a quantile from a noisy histogram."""

    quantile: Fraction
    error: float  # R, in rows
    rows: int | None  # n, or an estimate; None if unknown
    confidence: float = CONFIDENCE
    noun: str = "rows"  # what is counted

    @property
    def useful(self) -> bool | None:
        """Whether R is at most half of the rows above the quantile and half of those below; None if n is unknown."""
        return None if self.rows is None else 2 * self.error <= min(self.quantile, 1 - self.quantile) * self.rows

    @property
    def between(self) -> tuple[float, float] | None:
        """The two quantiles that enclose the clip norm, from 0 to 1; None if n is unknown."""
        if not self.rows or self.rows < 0:
            return None
        moved = self.error / self.rows
        return max(0.0, float(self.quantile) - moved), min(1.0, float(self.quantile) + moved)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {"error_rows": self.error, "between": self.between, "useful": self.useful}

    @property
    def moved(self) -> str:
        """The effect of the noise on ranks, as part of a sentence."""
        return f"moves ranks by up to {self.error:.0f} {self.noun} (confidence {self.confidence:g})"

    def ends(self) -> str:
        """Return the range of the clip norm in quantiles, rounded outwards, as part of a sentence."""
        if self.between is None:
            return "anywhere"
        low, high = math.floor(1000 * self.between[0]) / 1000, math.ceil(1000 * self.between[1]) / 1000
        if high >= 1:
            return f"anywhere from the {low:g}-quantile on" if low > 0 else "anywhere"
        return f"between the {low:g}- and the {high:g}-quantile" if low > 0 else f"anywhere up to the {high:g}-quantile"


def forecast_accuracy(request: NormsRequest, table: Table, quantile: Fraction) -> QuantileAccuracy:
    """Forecast the accuracy of a quantile from public numbers: n is used under replace-one only."""
    public = request.neighbours is Neighbours.REPLACE_ONE and not table.together  # else counts are of units
    noise = request.calibrated(table).noise
    error = rank_error(noise, len(request.grid.edges), quantile, rows_known=public)
    noun = "privacy units" if table.together else "rows"
    return QuantileAccuracy(quantile, error, table.rows if public else None, noun=noun)


RequestT = TypeVar("RequestT", ReleaseRequest, NormsRequest)


def at_epsilon(request: RequestT, micro: int) -> RequestT:
    """Return the request with another epsilon, in millionths."""
    return replace(request, loss=replace(request.loss, epsilon_micro=micro))


def enough_epsilon(request: RequestT, excess: Callable[[RequestT], float]) -> int | None:
    """Return a sufficient epsilon, in millionths, with ``excess`` at most 1; None if 10 is too small."""
    while (factor := excess(request)) > 1:
        if request.loss.epsilon_micro >= _MAX_MICRO:
            return None
        micro = two_digits(request.loss.epsilon_micro * max(1.05, factor))
        request = at_epsilon(request, min(_MAX_MICRO, micro))
    return request.loss.epsilon_micro


def two_digits(value: float) -> int:
    """Round a positive number up to two significant digits, and at least to an integer."""
    unit = int(10 ** max(0, math.floor(math.log10(value)) - 1))
    return math.ceil(value / unit) * unit


def choice_refused(
    request: ReleaseRequest, columns: int, rows: int, max_rows: int = 1, *, together: bool = False
) -> str | None:
    """Explain why a release could choose no clip norm, with a sufficient epsilon; None if it could."""
    private = request.neighbours is not Neighbours.REPLACE_ONE
    if request.clip_norm != "private" or (private and request.rows_at_most == ROWS_AT_MOST):
        return None
    rows = request.rows_at_most if private else rows

    def median(trial: ReleaseRequest) -> tuple[PrivacyLoss, float]:
        """Return the loss of the stage that chooses a clip norm, and the rank error of the median, in rows."""
        stage = planned(trial, Dimensions(columns, rows, max_rows, max_rows, together=together)).stages["clip norm"]
        error = rank_error(stage.noise, len(CLIP_GRID.edges), Fraction(1, 2), rows_known=True)
        return stage.guarantee.loss, error

    loss, error = median(request)
    if 2 * error <= rows:
        return None
    enough = enough_epsilon(request, lambda trial: 2 * median(trial)[1] / max(rows, 1))
    cure = f"The table is too small: epsilon {LARGEST_EPSILON} is not enough. Choose"
    if enough is not None:
        cure = f"Use {parameter('epsilon', f'{enough / MICRO:g}')} or more, or choose"
    return (
        f"The clip norm would be chosen with {loss}, a part of the loss, so the noise moves ranks by up to {error:.0f} "
        f"{'privacy units; the table has' if together else 'rows; the table has'} {rows}{' rows' * together}. "
        f"{cure} the clip norm from public knowledge ({parameter('clip')})."
    )


def count_refused(plan: Plan, rows: int) -> str | None:
    """Explain why the sum of the weights of whole privacy units could not be seen; None if it could, or is unknown."""
    bound, variance = plan.bound, plan.moment.noise.variance_diagonal
    private = plan.request.neighbours is not Neighbours.REPLACE_ONE
    if private or plan.request.clip_norm == "private" or not (bound.unit_norm and bound.constant and variance):
        return None
    deviation = math.sqrt(variance) / bound.constant**2
    if 4 * deviation <= rows:
        return None
    return (
        f"All {rows} rows together weigh at most {rows}, and the noise on the sum of their weights would have the "
        f"standard deviation {deviation:.0f}: means and covariances would drown. Use a smaller clip norm "
        f"({parameter('clip')}; {parameter('clip', 'private')} chooses one), or a larger epsilon."
    )


def useful_epsilon(request: NormsRequest, table: Table, quantile: Fraction) -> int | None:
    """Return an epsilon, in millionths, for a useful answer; None if 10 is too small or n is private."""
    if request.neighbours is not Neighbours.REPLACE_ONE or table.together:
        return None
    goal = max(float(min(quantile, 1 - quantile) * table.rows / 2), 1e-9)
    return enough_epsilon(request, lambda trial: forecast_accuracy(trial, table, quantile).error / goal)


def forecast(request: NormsRequest, table: Table, requested: Fraction | None, left_micro: int | None = None) -> str:
    """Describe the accuracy of the answer before anything is spent; refuse a useless one."""
    quantile = Fraction(1, 2) if requested is None else requested
    accuracy = forecast_accuracy(request, table, quantile)
    if accuracy.rows is None:
        return (
            f"Forecast: the noise {accuracy.moved}. The number of {accuracy.noun} is private; the answer is useful for "
            f"{math.ceil(2 * accuracy.error / min(quantile, 1 - quantile))} or more."
            f"{free_norm(table, request)}"
        )
    if accuracy.error > (1 - quantile) * accuracy.rows:  # the clip norm would not be bounded from above
        raise RefusedError(
            f"At {request.loss} the noise {accuracy.moved}, and only {float((1 - quantile) * table.rows):.0f} of "
            f"{table.rows} rows are above the {float(quantile):g}-quantile: the answer would be useless. Nothing was "
            f"spent. {_advice(request, table, quantile, left_micro)}"
        )
    message = f"Forecast: the noise {accuracy.moved} of {accuracy.rows}"
    if requested is not None:
        message += f". The clip norm will be {accuracy.ends()}, rounded up to the grid"
    if accuracy.useful:
        return f"{message}.{free_norm(table, request)}"
    return f"{message}, which is rough. {_advice(request, table, quantile, left_micro)}"


def _advice(request: NormsRequest, table: Table, quantile: Fraction, left_micro: int | None) -> str:
    """Advise how to get a useful answer: a larger epsilon, if the budget allows it, or a shorter grid."""
    limit = _MAX_MICRO if left_micro is None else min(left_micro, _MAX_MICRO)
    enough, short = useful_epsilon(request, table, quantile), None
    if enough is not None and enough <= limit:
        ends = forecast_accuracy(at_epsilon(request, enough), table, quantile).ends()
        message = f"With {parameter('epsilon', f'{enough / MICRO:g}')} or more, the clip norm is {ends}."
    else:
        needed = f"more than {LARGEST_EPSILON}" if enough is None else f"{enough / MICRO:g}"
        has = "" if left_micro is None else f", and the budget has {left_micro / MICRO:.4g} left"
        message = f"The table is too small for this grid and quantile: the answer needs epsilon {needed}{has}."
    if len(request.grid.edges) > len(_SHORT_GRID.edges):
        short = useful_epsilon(replace(request, grid=_SHORT_GRID), table, quantile)
    if short is not None and short <= limit:
        message += (
            f" Or use {parameter('epsilon', f'{short / MICRO:g}')} and a grid of ten octaves ({parameter('grid')} "
            "LOW:HIGH:1, HIGH 1024 times LOW), if the quantile is publicly known to be in it."
        )
    message += f" Or use a smaller {parameter('quantile')}, or choose the clip norm from public knowledge."
    return message + free_norm(table, request)


def require_centre_of_dropped(schema: Schema | None, *, centred: bool) -> None:
    """Refuse to count rows that the schema drops while their centre is unknown."""
    names = () if schema is None or centred else (schema.uncentred or schema.dropping)
    if names:
        raise RefusedError(
            f"By the schema, a missing value of {listed(names)} counts as the centre, which must be "
            f"known before rows are summed. Let the release choose a centre ({parameter('scale', 'private')}), pass a "
            f"public one ({parameter('centre')}), or let missing values count as the middle of the public range: "
            'ingest the source again with missing = "fill" at the top of the schema. Nothing was spent.'
        )


def norm_by_schema(table: Table, request: NormsRequest | ReleaseRequest) -> float | None:
    """Return the largest norm that the schema allows; None if rows are shifted or scaled."""
    schema = table.schema
    return None if schema is None or request.centre is not None or request.scale is not None else schema.clip_norm


def free_norm(table: Table, request: NormsRequest | ReleaseRequest) -> str:
    """Return a sentence, after a space, about a clip norm that the schema provides at no cost; may be empty."""
    if norm_by_schema(table, request) is None or table.together:
        return ""
    return f" By the schema, {parameter('clip', 'schema')} clips no row in the release, and choosing it costs nothing."


def stage_words(release: Release) -> str:
    """Describe the private choices of a release and their share of the loss, after a space; empty without choices."""
    if release.stage is None or release.guarantee is None:
        return ""
    stage_guarantee = Guarantee.from_json(release.stage.guarantee)
    if stage_guarantee.mu_squared is not None and release.guarantee.mu_squared is not None:
        part = f"{float(stage_guarantee.mu_squared / release.guarantee.mu_squared):.1%} of its mu²"
    else:
        part = f"epsilon {stage_guarantee.loss.epsilon:g} of it"
    text = f" Chosen first, privately, by {release.stage.mechanism} ({part}): "
    share = release.stage.chosen.get("quantile")
    if "scale" in release.stage.chosen:
        chosen = "centre and scale" if "centre" in release.stage.chosen else "the scale"
        clip = f", clip norm {exactly(release.bound.clip_norm)}" if "clip_norm" in release.stage.chosen else ""
        if share is not None and not release.bound.unit_norm:  # of units the noise hides which quantile it is
            clip += f", about the {share:g}-quantile of the norms of scaled rows"
        return f"{text}{chosen} of each column{clip}. {blindly_scaled_message(release)}".rstrip()
    if share is None:
        position = "which by the schema no row exceeds"
    elif release.bound.unit_norm:
        position = "of all rows of each privacy unit"
    else:
        position = f"about the {share:g}-quantile of the norms"
    return f"{text}clip norm {exactly(release.bound.clip_norm)}, {position}."
