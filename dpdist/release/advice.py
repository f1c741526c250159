"""What a private quantile of the norms is worth: said before anything is spent, and again of the answer.

**Rank error.** R is the error bound of the number of rows above an edge (:mod:`dpdist.mechanisms.quantile`), the
largest of all edges of the grid, at a confidence that holds for all of them together. It follows from the noise and the
grid alone, so it is one number, before the answer and after it.

**Theorem.** Of n rows let Q(p) be the p-quantile of the norms, and let the chosen edge be the first one whose estimate
is not above ``(1 - q) n`` rows. At the confidence of R it is not below ``Q(q - R/n)``, and the edge before it, if any,
is below ``Q(q + R/n)``, if ``q + R/n < 1``. Proof: at most ``(1 - q) n + R`` rows are above the chosen edge, and more
than ``(1 - q) n - R`` above the one before it. ∎

So the clip norm lies between the two quantiles, rounded up to the grid. With ``R > (1 - q) n``, the rows above the
quantile, nothing bounds it from above: such a histogram is refused. With ``2 R <= (1 - q) n`` and no row beyond the
grid a clip norm is also always claimed, because at the last edge the estimate is below ``(1 - q) n`` by R or more. From
there on, and with ``2 R <= q n`` likewise, the answer is called useful.

What is said of columns of which a private choice of the scale saw too little (:mod:`dpdist.mechanisms.columns`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from dpdist._util.text import counted, listed, rounded_up
from dpdist.errors import RefusedError
from dpdist.mechanisms.quantile import CONFIDENCE, rank_error
from dpdist.moment.histograms import NormGrid
from dpdist.naming import parameter
from dpdist.privacy.checks import LARGEST_EPSILON
from dpdist.privacy.guarantee import MICRO, Neighbours, PrivacyLoss
from dpdist.release.artefact import Heading
from dpdist.release.norm_histogram import NormsRequest
from dpdist.release.request import CLIP_GRID, ReleaseRequest, parts_of
from dpdist.rows.table import Table


def blindly_scaled_words(heading: Heading) -> str:
    """Name the columns of which no variance was seen, and those that weigh nothing; sentences, or nothing."""
    return describe(*heading.blindly_scaled)


def describe(unseen: Sequence[str], weightless: Sequence[str]) -> str:
    """Say the same of columns that are known by name."""
    sentences = []
    if unseen:
        scaled = "a public rule scaled it" if len(unseen) == 1 else "public rules scaled them"
        columns = counted(len(unseen), "column")
        sentences.append(f"No variance was seen, over the noise, of {columns}, so {scaled}: {listed(unseen)}.")
    if weightless:
        sentences.append(
            f"{counted(len(weightless), 'column')} had numbers beyond 2^20, and weigh nothing: {listed(weightless)}. "
            f"Nothing is known of them. {cure()}"
        )
    return " ".join(sentences)


def blindly_scaled_json(heading: Heading) -> dict[str, list[str]]:
    """Return the same as JSON values."""
    unseen, weightless = heading.blindly_scaled
    return {"no_variance_seen": list(unseen), "weigh_nothing": list(weightless)}


def weightless(heading: Heading, columns: Sequence[int]) -> tuple[int, ...]:
    """Return those of some columns that weigh nothing."""
    names = set(heading.blindly_scaled[1])
    return tuple(i for i in columns if heading.names[i] in names)


def cure() -> str:
    """Say what to do about columns that weigh nothing."""
    return f"Give them other units, or a public range ({parameter('schema')}), and release anew."


_MAX_MICRO = LARGEST_EPSILON * MICRO
"""The largest epsilon that is recommended, in millionths: beyond it little is private."""
_SHORT_GRID = NormGrid(1, 1024, 1)
"""So many norms are enough where ten octaves are publicly known to hold the quantile."""


@dataclass(frozen=True)
class Worth:
    """What a quantile from a noisy histogram is worth."""

    quantile: Fraction
    error: float  # R, in rows
    rows: int | None  # n, or an estimate of it; None where nothing is known of it
    confidence: float = CONFIDENCE

    @property
    def tells(self) -> bool | None:
        """Whether anything bounds the clip norm from above; None where n is not known."""
        return None if self.rows is None else self.error <= (1 - self.quantile) * self.rows

    @property
    def useful(self) -> bool | None:
        """Whether R is at most half of the rows above the quantile, and of those up to it; None likewise."""
        return None if self.rows is None else 2 * self.error <= min(self.quantile, 1 - self.quantile) * self.rows

    @property
    def between(self) -> tuple[float, float] | None:
        """The two quantiles, between 0 and 1; None likewise."""
        if not self.rows or self.rows < 0:
            return None
        moved = self.error / self.rows
        return max(0.0, float(self.quantile) - moved), min(1.0, float(self.quantile) + moved)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {"error_rows": self.error, "between": self.between, "useful": self.useful}

    @property
    def moved(self) -> str:
        """What the noise does to ranks, as part of a sentence."""
        return f"moves ranks by up to {self.error:.0f} rows (confidence {self.confidence:g})"

    def ends(self) -> str:
        """Say between which quantiles the clip norm lies, rounded outwards; part of a sentence."""
        if self.between is None:
            return "anywhere"
        low, high = math.floor(1000 * self.between[0]) / 1000, math.ceil(1000 * self.between[1]) / 1000
        if high >= 1:
            return f"anywhere from the {low:g}-quantile on" if low > 0 else "anywhere"
        return f"between the {low:g}- and the {high:g}-quantile" if low > 0 else f"anywhere up to the {high:g}-quantile"


def worth_of(request: NormsRequest, table: Table, quantile: Fraction) -> Worth:
    """Return what an answer will be worth, from what is public: of the table, n under replace-one alone."""
    public = request.neighbours is Neighbours.REPLACE_ONE
    noise = request.calibrated(table).noise
    error = rank_error(noise, len(request.grid.edges), quantile, rows_known=public)
    return Worth(quantile, error, table.rows if public else None)


RequestT = TypeVar("RequestT", ReleaseRequest, NormsRequest)


def at_epsilon(request: RequestT, micro: int) -> RequestT:
    """Return a request at another epsilon, in millionths."""
    return replace(request, loss=replace(request.loss, epsilon_micro=micro))


def enough_epsilon(request: RequestT, excess: Callable[[RequestT], float]) -> int | None:
    """Return an epsilon, in millionths and not below the request's, that is enough; None: none up to 10 is.

    ``excess`` is above 1 where it is not, and falls as 1 / epsilon, or a little slower.
    """
    while (factor := excess(request)) > 1:
        if request.loss.epsilon_micro >= _MAX_MICRO:
            return None
        micro = two_digits(request.loss.epsilon_micro * max(1.05, factor))
        request = at_epsilon(request, min(_MAX_MICRO, micro))
    return request.loss.epsilon_micro


def two_digits(value: float) -> int:
    """Return a positive number rounded up to two significant digits, at least to a whole one."""
    unit = int(10 ** max(0, math.floor(math.log10(value)) - 1))
    return math.ceil(value / unit) * unit


def choice_refused(request: ReleaseRequest, columns: int, rows: int, max_rows: int = 1) -> str | None:
    """Say why a release could choose no clip norm of a table, which epsilon is enough, and what else helps."""
    if request.clip_norm != "private" or request.neighbours is not Neighbours.REPLACE_ONE:
        return None

    def median(trial: ReleaseRequest) -> tuple[PrivacyLoss, float]:
        """Return the loss of the stage that chooses a clip norm, and the rank error of the median, in rows."""
        stage = parts_of(trial.on_grid(columns, rows, max_rows), columns, max_rows).stages["clip norm"]
        error = rank_error(stage.noise, len(CLIP_GRID.edges), Fraction(1, 2), rows_known=True)
        return stage.guarantee.loss, error

    loss, error = median(request)
    if 2 * error <= rows:
        return None
    enough = enough_epsilon(request, lambda trial: 2 * median(trial)[1] / max(rows, 1))
    cure = f"The table is too small: epsilon {LARGEST_EPSILON} is not enough. Choose"
    if enough is not None:
        cure = f"Ask for {parameter('epsilon', f'{enough / MICRO:g}')} or more, or choose"
    return (
        f"A clip norm would be chosen at {loss}, a part of the loss, where the noise moves ranks by up to {error:.0f} "
        f"rows; the table has {rows}. {cure} the clip norm from what is publicly known ({parameter('clip')})."
    )


def useful_epsilon(request: NormsRequest, table: Table, quantile: Fraction) -> int | None:
    """Return an epsilon, in millionths and not below the request's, with which the answer is useful.

    None: none up to 10 is enough, or n is private.
    """
    if request.neighbours is not Neighbours.REPLACE_ONE:
        return None
    goal = max(float(min(quantile, 1 - quantile) * table.rows / 2), 1e-9)
    return enough_epsilon(request, lambda trial: worth_of(trial, table, quantile).error / goal)


def forecast(request: NormsRequest, table: Table, requested: Fraction | None, left_micro: int | None = None) -> str:
    """Say what an answer will be worth, before anything is spent."""
    quantile = Fraction(1, 2) if requested is None else requested
    accuracy = worth_of(request, table, quantile)
    if accuracy.rows is None:
        return (
            f"Forecast: the noise {accuracy.moved}. Whether this is little depends on the number of rows, which is "
            f"private: the answer is useful from {math.ceil(2 * accuracy.error / min(quantile, 1 - quantile))} rows on."
            f"{free_norm(table, request)}"
        )
    if not accuracy.tells:
        raise RefusedError(
            f"At {request.loss} the noise {accuracy.moved}, and only {float((1 - quantile) * table.rows):.0f} of "
            f"{table.rows} rows lie above the {float(quantile):g}-quantile: the answer would be worth nothing. Nothing "
            f"was read or spent. {_advice(request, table, quantile, left_micro)}"
        )
    message = f"Forecast: the noise {accuracy.moved} of {accuracy.rows}"
    if requested is not None:
        message += f". The clip norm will lie {accuracy.ends()}, rounded up to the grid"
    if accuracy.useful:
        return f"{message}.{free_norm(table, request)}"
    return f"{message}, which is rough. {_advice(request, table, quantile, left_micro)}"


def _advice(request: NormsRequest, table: Table, quantile: Fraction, left_micro: int | None) -> str:
    """Say what makes the answer useful: a larger epsilon, if the budget has it, or a shorter grid."""
    limit = _MAX_MICRO if left_micro is None else min(left_micro, _MAX_MICRO)
    enough, short = useful_epsilon(request, table, quantile), None
    if enough is not None and enough <= limit:
        ends = worth_of(at_epsilon(request, enough), table, quantile).ends()
        message = f"Take {parameter('epsilon', f'{enough / MICRO:g}')} or more: the clip norm then lies {ends}."
    else:
        needed = f"more than {LARGEST_EPSILON}" if enough is None else f"{enough / MICRO:g}"
        has = "" if left_micro is None else f", and the budget has {left_micro / MICRO:.4g} left for it"
        message = f"The table is too small for this grid and quantile: it would take epsilon {needed}{has}."
    if len(request.grid.edges) > len(_SHORT_GRID.edges):
        short = useful_epsilon(replace(request, grid=_SHORT_GRID), table, quantile)
    if short is not None and short <= limit:
        message += (
            f" Or take {parameter('epsilon', f'{short / MICRO:g}')} and a grid of ten octaves ({parameter('grid')} "
            "LOW:HIGH:1, HIGH 1024 times LOW), if public knowledge says that the quantile lies in it."
        )
    message += f" Or take a smaller {parameter('quantile')}, or choose the clip norm from what is publicly known."
    return message + free_norm(table, request)


def require_centre_of_dropped(table: Table, *, centred: bool) -> None:
    """Refuse to count rows of which some are dropped where nothing public or private says where they stand."""
    names = () if table.schema is None else table.schema.dropping
    if names and not centred and table.dropped == "nan":
        raise RefusedError(
            f"Rows that lack {listed(names)} are dropped by the schema: they count as the centre of the others, which "
            f"must be known before rows are summed. Let the release choose one ({parameter('scale', 'private')}), name "
            f"a public one ({parameter('centre')}), or ingest anew with a public constant in place of what is missing "
            '(missing = "fill"). Nothing was read or spent.'
        )


def dropped(table: Table) -> str:
    """Say what dropped rows are in a table that an older version made; or nothing."""
    names = () if table.schema is None else table.schema.dropping
    if not names or table.dropped == "nan":
        return ""
    return (
        f"Rows that lack {listed(names)} are rows of zeros in this table, which an older version made, and count in "
        "centre, scale and mean. Ingested anew they count as the centre of the others."
    )


def norm_by_schema(table: Table, request: NormsRequest | ReleaseRequest) -> str | None:
    """Return the norm that no row exceeds by the schema of the table, where rows are taken as they are; rounded up."""
    schema = table.schema
    if schema is None or schema.norm is None or request.centre is not None or request.scale is not None:
        return None
    return rounded_up(schema.norm)


def free_norm(table: Table, request: NormsRequest | ReleaseRequest) -> str:
    """Say which clip norm need not be paid for, as the schema bounds the rows; a sentence after a space, or nothing."""
    norm = norm_by_schema(table, request)
    if norm is None:
        return ""
    free = parameter("clip", norm)
    return f" In the release, {free} shortens no row, by the schema, and costs nothing to choose."
