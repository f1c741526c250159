"""What a release draws first, and what follows from it: centre and scale of its columns, its clip norm, or all of them.

The stages and the release stand under one id and are charged together (:mod:`dpdist.privacy.staged`). What a stage
takes from the one before it, and the release from both, is a function of the bytes that were committed, and of public
facts. So whoever resumes it takes the same.

Where both are chosen the scale comes first. Centre and scale of each column follow from the committed histograms of the
columns; then norms are counted of the rows that are shifted and scaled by these, as the release bounds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from dpdist._util.text import rounded_up
from dpdist.errors import RefusedError
from dpdist.mechanisms import columns, quantile
from dpdist.mechanisms.counts import Counts
from dpdist.moment.histograms import ColumnCounting, Counting, NormCounting, grids_of_numbers
from dpdist.naming import parameter
from dpdist.privacy.caution import LARGEST_EPSILON
from dpdist.privacy.guarantee import MICRO, Neighbours, PrivacyLoss
from dpdist.release import norm_histogram
from dpdist.release.attributes import Stage
from dpdist.release.clip_trade import ForComponents, clip_for
from dpdist.release.histograms import ColumnHistograms, ColumnsStage, HistogramTransaction, drawn
from dpdist.release.norm_histogram import NormHistogram, NormsRequest, NormsStage, SecondNormsStage
from dpdist.release.request import CLIP_GRID, FIRST_RULE, Choice, Parts, ReleaseRequest, auto_clip
from dpdist.release.trusted import MomentTransaction, Staged
from dpdist.release.worth import two_digits

_COLUMNS, _NORMS = 0.005, 0.004


_OF_CLIP_NORM = 0.25
"""What a deviation of a target is made of the clip norm."""
Chosen = dict[str, float | tuple[float, ...]]


def stage_of(transaction: MomentTransaction, choice: Choice) -> HistogramTransaction[Any]:
    """Return the stage of a release that makes one of its choices; those before it are committed."""
    return _columns(transaction) if choice == "scale" else norms_of(transaction)


def norms_of(transaction: MomentTransaction) -> NormsStage:
    """Return the stage that chooses the clip norm.

    With private centring the rows are clipped about zero, before their mean is known; so are their norms.
    """
    parts, asked = _parts(transaction), transaction.request
    second = asked.scale == "private"
    bounded = parts.moment
    if second:
        bounded = standardising(asked, parts, _columns(transaction).read(), transaction.table.names)[0]
    request = _norms_request(parts, bounded, transaction.table.columns)
    kind = SecondNormsStage if second else NormsStage
    return kind(request, transaction.table, transaction.ledger, transaction.release_id)


def _norms_request(parts: Parts, bounded: ReleaseRequest, width: int) -> NormsRequest:
    """Return what the stage of the norms is, of rows that are shifted and scaled as those of the release."""
    bound = bounded.bound(width)
    return NormsRequest(
        parts.stages["clip norm"].guarantee.loss, CLIP_GRID, bounded.neighbours, bound.centre, bound.scale,
        bounded.accept_large_delta,
    )  # fmt: skip


def _columns(transaction: MomentTransaction) -> ColumnsStage:
    return ColumnsStage(transaction.request, transaction.table, transaction.ledger)


def _parts(transaction: MomentTransaction) -> Parts:
    return _parts_of(transaction.request, transaction.table.columns, transaction.table.max_rows)


def _parts_of(request: ReleaseRequest, width: int, max_rows: int) -> Parts:
    found = request.parts(width, max_rows)
    if found is None:
        raise AssertionError("it has no stage")
    return found


def settled(transaction: MomentTransaction) -> MomentTransaction:
    """Read the stages that were committed, and return the release that follows from them, under the same id.

    Its parameters are those that were charged, and what the committed stages tell. Whoever repeats this gets the same:
    it is post-processing of these bytes.
    """
    parts, asked = _parts(transaction), transaction.request
    columns_found = _columns(transaction).read() if "scale" in asked.chooses else None
    norms_found = norm_histogram.published(norms_of(transaction)) if "clip norm" in asked.chooses else None
    table = transaction.table
    request, staged = _following(
        asked, parts, columns_found, norms_found, table.names, table.max_rows, _norm_by_schema(transaction)
    )
    return replace(transaction, request=replace(request, name=transaction.release_id), staged=staged)


def _following(
    asked: ReleaseRequest,
    parts: Parts,
    columns_found: ColumnHistograms | None,
    norms_found: NormHistogram | None,
    names: Sequence[str],
    max_rows: int = 1,
    known: float | None = None,
) -> tuple[ReleaseRequest, Staged]:
    """Return the release that follows from its stages, and what it tells of them."""
    request, chosen, by, answer = parts.moment, Chosen(), [], {}
    if columns_found is not None:
        request, chosen = standardising(asked, parts, columns_found, names)
        by, answer = [columns.NAME], columns_found.to_json()
    if norms_found is not None:
        taken = _taken(asked, parts, norms_found, len(names), max_rows)
        request, clipping = _clipping(request, taken, known)
        told = {
            "edges": list(norms_found.edges), "counts": list(norms_found.counts), "noise": norms_found.noise.to_json()
        }  # fmt: skip
        chosen, answer = chosen | clipping, {**answer, "norms": told} if by else told
        by.append(quantile.NAME)
    stage = Stage(", ".join(by), parts.choice.to_json(), chosen, answer)
    return request, Staged(stage, parts.guarantee)


def standardising(
    asked: ReleaseRequest, parts: Parts, found: ColumnHistograms, names: Sequence[str]
) -> tuple[ReleaseRequest, Chosen]:
    """Return the release with the centre and scale that follow from its columns, and what it takes from them."""
    each = found.standardised
    chosen: Chosen = {} if asked.centre is not None else {"centre": tuple(column.centre for column in each)}
    chosen |= {"scale": tuple(column.scale for column in each), "bins": tuple(float(column.bins) for column in each)}
    clip = 1.0 if isinstance(parts.moment.clip_norm, str) else parts.moment.clip_norm
    # the columns that were not seen are scaled to be short: a larger norm would only add noise
    auto = auto_clip(max(1, sum(column.seen for column in each)), asked.choice_rule)
    if asked.clip_norm == "auto":
        clip = chosen["clip_norm"] = auto
    if asked.targets:
        weight = max(1.0, _OF_CLIP_NORM * (auto if asked.clip_norm == "private" else clip))
        chosen["scale"] = tuple(
            float(f"{column.scale / weight:.6g}") if name in asked.targets and column.seen else column.scale
            for name, column in zip(names, each, strict=True)
        )
    vectors: dict[str, Any] = {name: chosen[name] for name in ("centre", "scale") if name in chosen}
    return replace(parts.moment, clip_norm=clip, **vectors), chosen


def _taken(
    asked: ReleaseRequest, parts: Parts, found: NormHistogram, width: int, max_rows: int
) -> tuple[float, Fraction]:
    """Return the clip norm that follows from the norms of the rows, and the quantile that it is about."""
    if asked.components is None or asked.components >= width:
        return found.clip_norm(interpolated=asked.choice_rule != FIRST_RULE)
    return clip_for(ForComponents(asked.components, parts.moment.loss), found, width, max_rows)


def _clipping(
    request: ReleaseRequest, taken: tuple[float, Fraction], known: float | None
) -> tuple[ReleaseRequest, Chosen]:
    """Return the release with the clip norm that follows from the norms of its rows, and what it takes from them."""
    clip_norm, share = taken
    chosen: Chosen = {"clip_norm": clip_norm, "quantile": float(share)}
    if known is not None and known <= clip_norm:  # public: no row is longer, and a larger norm would only add noise
        clip_norm = known
        chosen = {"clip_norm": clip_norm}
    return replace(request, clip_norm=clip_norm), chosen


def _norm_by_schema(transaction: MomentTransaction) -> float | None:
    """Return the norm that no row exceeds by the schema of the table, where rows are taken as they are."""
    schema, asked = transaction.table.schema, transaction.request
    if schema is None or schema.norm is None or asked.centre is not None or asked.scale is not None:
        return None
    return float(rounded_up(schema.norm))


def require_columns_seen(transaction: MomentTransaction) -> None:
    """Refuse histograms of columns in which not even a bin with half of all rows would count; it reads no row."""
    table = transaction.table
    require_seen(transaction.request, _columns(transaction).counting(), table.rows, table.max_rows)


def require_seen(request: ReleaseRequest, counting: ColumnCounting, rows: int, max_rows: int = 1) -> None:
    """Do the same of a request, of n rows, which are looked at where n is public only."""
    if request.neighbours is not Neighbours.REPLACE_ONE:
        return
    loss, least = _least_rows(request, counting, rows, max_rows)
    if rows >= least:
        return
    enough, found = request, least
    while found > rows and enough.loss.epsilon_micro < LARGEST_EPSILON * MICRO:
        micro = two_digits(enough.loss.epsilon_micro * max(1.05, min(2.0, found / max(rows, 1))))
        enough = replace(enough, loss=replace(enough.loss, epsilon_micro=min(LARGEST_EPSILON * MICRO, micro)))
        _, found = _least_rows(enough, counting, rows, max_rows)
    cure = f"Ask for {parameter('epsilon', f'{enough.loss.epsilon:g}')} or more, or scale"
    if found > rows:
        cure = f"The table is too small: epsilon {LARGEST_EPSILON} is not enough. Scale"
    raise RefusedError(
        f"A scale would be chosen at {loss}, a part of the loss, where tables of fewer than {least} rows are lost in "
        f"the noise; the table has {rows}. Nothing was read or spent. {cure} the columns by what is publicly known."
    )


def _least_rows(request: ReleaseRequest, counting: ColumnCounting, rows: int, max_rows: int) -> tuple[PrivacyLoss, int]:
    """Return the loss of the stage that chooses a scale, and how many rows it takes."""
    width = counting.columns
    stage = _parts_of(request.on_grid(width, rows, max_rows), width, max_rows).stages["scale"]
    first = request.choice_rule == FIRST_RULE
    return stage.guarantee.loss, columns.least_rows(stage.noise, counting.grids, first_rule=first)


def draw_unrecorded(
    request: ReleaseRequest, names: Sequence[str], rows: int, counts: Callable[[Counting], Counts]
) -> tuple[ReleaseRequest, Staged]:
    """Draw the stages of a release, once, over rows that no ledger knows: called twice, it costs twice.

    Whoever calls this has charged all draws before, and passes on what it returns
    (:func:`dpdist.release.trusted.draw_unrecorded`).
    """
    width = len(names)
    parts = _parts_of(request, width, 1)
    columns_found = norms_found = None
    bounded = parts.moment
    if "scale" in request.chooses:
        counting = ColumnCounting(grids_of_numbers(width))
        stage = parts.stages["scale"]
        noisy = drawn(stage, counts(counting))
        columns_found = ColumnHistograms.of_noisy(counting, noisy, stage.noise, request.choice_rule)
        bounded = standardising(request, parts, columns_found, names)[0]
    if "clip norm" in request.chooses:
        stage = parts.stages["clip norm"]
        norms = NormCounting(_norms_request(parts, bounded, width).bound(width), CLIP_GRID.edges)
        norms_found = NormHistogram(
            release_id="", guarantee=stage.guarantee, edges=norms.edges,
            counts=tuple(drawn(stage, counts(norms)).tolist()), noise=stage.noise,
            rows=rows if request.neighbours is Neighbours.REPLACE_ONE else None, ledger_head="",
        )  # fmt: skip
    return _following(request, parts, columns_found, norms_found, names)
