"""Stages of a release, which choose centre and scale of its columns, its clip norm, or all of them.

Stages and release have one id and are charged together (:mod:`dpdist.core.privacy.staged`). What a stage uses from the
previous one, and the release from both, is a function of committed bytes and public facts, so a resumed release uses
the same values.

The scale is chosen first. Centre and scale of each column follow from the committed histograms of the columns; the
norms are those of the rows shifted and scaled by them, as the release bounds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dpdist.core.errors import RefusedError
from dpdist.core.ledger.state import Part
from dpdist.core.mechanisms import columns, quantile
from dpdist.core.mechanisms.counts import Counts
from dpdist.core.moment.histograms import ColumnCounting, Counting, NormCounting, grids_of_numbers
from dpdist.core.naming import parameter
from dpdist.core.options import ROWS_AT_MOST
from dpdist.core.privacy.checks import LARGEST_EPSILON
from dpdist.core.privacy.guarantee import MICRO, Neighbours, PrivacyLoss
from dpdist.core.release.advice import enough_epsilon, norm_by_schema
from dpdist.core.release.attributes import Stage
from dpdist.core.release.clip_trade import ForComponents, clip_for
from dpdist.core.release.histograms import ColumnHistograms, ColumnsStage, drawn
from dpdist.core.release.norm_histogram import NormHistogram, NormsRequest, NormsTransaction
from dpdist.core.release.request import (
    CLIP_GRID,
    Choice,
    Parts,
    ReleaseRequest,
    auto_clip,
    clip_norm_without_clipping,
    parts_of,
)
from dpdist.core.release.trusted import MomentTransaction, Staged

_OF_CLIP_NORM = 0.25
"""Standard deviation of a scaled target over the clip norm."""
_MOST_NOISE = 0.02
"""Largest standard deviation of a noisy count, over n, with which a scale is chosen."""
Chosen = dict[str, float | tuple[float, ...]]


def stage_of(transaction: MomentTransaction, choice: Choice) -> ColumnsStage | NormsTransaction:
    """Return the stage of a release that makes one of its choices; earlier stages are committed."""
    return columns_of(transaction) if choice == "scale" else _norms(transaction)


def columns_of(transaction: MomentTransaction) -> ColumnsStage:
    """Return the stage that chooses centre and scale."""
    request, table = transaction.request, transaction.table
    return ColumnsStage(request, table, transaction.ledger, Part.STAGE, transaction.release_id)


def _norms(transaction: MomentTransaction) -> NormsTransaction:
    """Return the stage that chooses the clip norm, from norms about zero: the mean is not known yet."""
    request, table = transaction.request, transaction.table
    parts = parts_of(request, table.columns, table.max_rows)
    part, bounded = Part.STAGE, parts.moment
    if "scale" in request.chooses:
        part = Part.SECOND
        bounded = standardising(request, parts, columns_of(transaction).read(), table.names)[0]
    norms_request = _norms_request(parts, bounded, table.columns)
    return NormsTransaction(norms_request, table, transaction.ledger, part, transaction.release_id)


def _norms_request(parts: Parts, bounded: ReleaseRequest, width: int) -> NormsRequest:
    """Return the request of the stage of the norms, for rows shifted and scaled as in the release."""
    bound = bounded.bound(width)
    return NormsRequest(
        parts.stages["clip norm"].guarantee.loss, CLIP_GRID, bounded.neighbours, bound.centre, bound.scale,
        bounded.accept_large_delta,
    )  # fmt: skip


def resolved(transaction: MomentTransaction) -> MomentTransaction:
    """Read the committed stages, and return the release that follows from them; every repetition returns the same."""
    request, table = transaction.request, transaction.table
    norm_limit = norm_by_schema(table, request)
    following, staged = _following(
        request,
        table.names,
        table.max_rows,
        lambda: columns_of(transaction).read(),
        lambda _: _norms(transaction).read(),
        norm_limit,
    )
    return replace(transaction, request=replace(following, name=transaction.release_id), staged=staged)


def _following(
    request: ReleaseRequest,
    names: Sequence[str],
    max_rows: int,
    read_columns: Callable[[], ColumnHistograms],
    read_norms: Callable[[ReleaseRequest], NormHistogram],
    norm_limit: float | None = None,
) -> tuple[ReleaseRequest, Staged]:
    """Return the release that follows from its stages, and their description; no row is longer than ``norm_limit``."""
    width = len(names)
    parts = parts_of(request, width, max_rows)
    following, chosen, by, answer = parts.moment, Chosen(), [], {}
    if "scale" in request.chooses:
        histograms = read_columns()
        following, chosen = standardising(request, parts, histograms, names)
        by, answer = [columns.NAME], histograms.to_json()
    if "clip norm" in request.chooses:
        norms = read_norms(following)
        if request.components is None or request.components >= width:
            clip_norm, share = norms.clip_norm()
        else:
            purpose = ForComponents(request.components, parts.moment.loss)
            clip_norm, share = clip_for(purpose, norms, width, max_rows)
        chosen |= {"clip_norm": clip_norm, "quantile": float(share)}
        if norm_limit is not None and following.grid_bits is not None:
            unclipped = clip_norm_without_clipping(norm_limit, width, following.grid_bits)
            if unclipped <= clip_norm:  # public, and a larger norm would only add noise
                del chosen["quantile"]
                chosen["clip_norm"] = clip_norm = unclipped
        following = replace(following, clip_norm=clip_norm)
        norms_json = {"edges": list(norms.edges), "counts": list(norms.counts), "noise": norms.noise.to_json()}
        answer = {**answer, "norms": norms_json} if by else norms_json
        by.append(quantile.NAME)
    stage = Stage(", ".join(by), parts.choice.to_json(), chosen, answer)
    return following, Staged(stage, parts.guarantee)


def standardising(
    request: ReleaseRequest, parts: Parts, histograms: ColumnHistograms, names: Sequence[str]
) -> tuple[ReleaseRequest, Chosen]:
    """Return the release with centre and scale from the histograms of its columns, and the chosen values."""
    scalings = histograms.standardised
    chosen: Chosen = {} if request.centre is not None else {"centre": tuple(column.centre for column in scalings)}
    chosen |= {
        "scale": tuple(column.scale for column in scalings),
        "bins": tuple(float(column.bins) for column in scalings),
    }
    clip = 1.0 if isinstance(parts.moment.clip_norm, str) else parts.moment.clip_norm
    # for short columns a larger norm would only add noise; of columns in which nothing was seen, values may be long
    auto = auto_clip(max(1, sum(not column.short for column in scalings)))
    if request.clip_norm == "auto":
        clip = chosen["clip_norm"] = auto
    if request.targets:
        weight = max(1.0, _OF_CLIP_NORM * (auto if request.clip_norm == "private" else clip))
        chosen["scale"] = tuple(
            float(f"{column.scale / weight:.6g}") if name in request.targets and column.seen else column.scale
            for name, column in zip(names, scalings, strict=True)
        )
    vectors: dict[str, Any] = {name: chosen[name] for name in ("centre", "scale") if name in chosen}
    return replace(parts.moment, clip_norm=clip, **vectors), chosen


def require_seen(request: ReleaseRequest, counting: ColumnCounting, rows: int, max_rows: int = 1) -> None:
    """Refuse a choice that cannot see: noise above 2 % of n on a count, or no bin with half of all rows would count.

    It reads no row and uses public numbers only: a private n is not used, but a stated limit of it is.
    """
    private = request.neighbours is not Neighbours.REPLACE_ONE
    if private and request.rows_at_most == ROWS_AT_MOST:
        return
    rows = request.rows_at_most if private else rows
    loss, least = _least_rows(request, counting, rows, max_rows)
    if rows >= least:
        return

    def excess(trial: ReleaseRequest) -> float:
        return min(2.0, _least_rows(trial, counting, rows, max_rows)[1] / max(rows, 1))

    enough = enough_epsilon(request, excess)
    cure = f"The table is too small: epsilon {LARGEST_EPSILON} is not enough. Scale"
    if enough is not None:
        cure = f"Use {parameter('epsilon', f'{enough / MICRO:g}')} or more, or scale"
    raise RefusedError(
        f"The scale would be chosen with {loss}, a part of the loss, which requires at least {least} rows; the table "
        f"has {'at most ' if private else ''}{rows}. Nothing was spent. {cure} the "
        "columns by public knowledge."
    )


def _least_rows(request: ReleaseRequest, counting: ColumnCounting, rows: int, max_rows: int) -> tuple[PrivacyLoss, int]:
    """Return the loss of the stage that chooses a scale, and the number of rows that it requires."""
    width = counting.columns
    stage = parts_of(request.on_grid(width, rows, max_rows), width, max_rows).stages["scale"]
    least = columns.least_rows(stage.noise, counting.grids)
    return stage.guarantee.loss, max(least, math.ceil(math.sqrt(stage.noise.variance) / _MOST_NOISE))


def draw_unrecorded(
    request: ReleaseRequest, names: Sequence[str], rows: int, counts: Callable[[Counting], Counts]
) -> tuple[ReleaseRequest, Staged]:
    """Draw the stages of a release once, over rows without a ledger; the caller has charged all draws."""
    width = len(names)
    parts = parts_of(request, width, 1)

    def columns_drawn() -> ColumnHistograms:
        counting, stage = ColumnCounting(grids_of_numbers(width)), parts.stages["scale"]
        return ColumnHistograms.of_noisy(counting, drawn(stage, counts(counting)), stage.noise)

    def norms_drawn(bounded: ReleaseRequest) -> NormHistogram:
        stage, edges = parts.stages["clip norm"], CLIP_GRID.edges
        noisy = drawn(stage, counts(NormCounting(_norms_request(parts, bounded, width).bound(width), edges)))
        public = rows if request.neighbours is Neighbours.REPLACE_ONE else None
        return NormHistogram.of_noisy(noisy, stage, edges, public)

    return _following(request, names, 1, columns_drawn, norms_drawn)
