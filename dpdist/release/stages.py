"""What a release draws first, and what follows from it: its clip norm, or centre and scale of its columns.

The stage and the release stand under one id and are charged together (:mod:`dpdist.privacy.staged`). What the release
takes from its stage is a function of the bytes that were committed, and of public facts. So whoever resumes it takes
the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpdist._util.text import rounded_up
from dpdist.errors import RefusedError
from dpdist.mechanisms import columns, quantile
from dpdist.mechanisms.counts import Counts
from dpdist.moment.column_histogram import ColumnCounting
from dpdist.naming import parameter
from dpdist.privacy.guarantee import Neighbours
from dpdist.release import norm_histogram
from dpdist.release.attributes import Stage
from dpdist.release.column_histogram import ColumnHistograms, ColumnsStage
from dpdist.release.histogram import HistogramTransaction, drawn
from dpdist.release.norm_histogram import NormsRequest, NormsStage
from dpdist.release.request import CLIP_GRID, Parts, ReleaseRequest, auto_clip
from dpdist.release.trusted import MomentTransaction, Staged

Chosen = dict[str, float | tuple[float, ...]]


def first_of(transaction: MomentTransaction) -> HistogramTransaction[Any]:
    """Return the stage of a release that has one."""
    return _columns(transaction) if transaction.request.chooses == "scale" else norms_of(transaction)


def norms_of(transaction: MomentTransaction) -> NormsStage:
    """Return the stage that chooses the clip norm.

    With private centring the rows are clipped about zero, before their mean is known; so are their norms.
    """
    asked = transaction.request
    if asked.scale == "private":
        raise AssertionError("it chooses a scale, and no clip norm")
    request = NormsRequest(
        _parts(transaction).stage.guarantee.loss, CLIP_GRID, asked.neighbours, asked.centre, asked.scale,
        asked.accept_large_delta,
    )  # fmt: skip
    return NormsStage(request, transaction.table, transaction.ledger, transaction.release_id)


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
    """Read the stage that was committed, and return the release that follows from it, under the same id.

    Its parameters are those that were charged, and what the committed stage tells. Whoever repeats this gets the same:
    it is post-processing of these bytes.
    """
    parts = _parts(transaction)
    if transaction.request.chooses == "scale":
        request, stage = standardising(transaction.request, parts, _columns(transaction).read())
    else:
        request, stage = _clipping(transaction, parts)
    request = replace(request, name=transaction.release_id)
    return replace(transaction, request=request, staged=Staged(stage, parts.guarantee))


def standardising(asked: ReleaseRequest, parts: Parts, found: ColumnHistograms) -> tuple[ReleaseRequest, Stage]:
    """Return the release that follows from the histograms of its columns, and what it tells of them."""
    each = found.standardised
    chosen: Chosen = {} if asked.centre is not None else {"centre": tuple(column.centre for column in each)}
    chosen |= {"scale": tuple(column.scale for column in each), "bins": tuple(float(column.bins) for column in each)}
    clip = asked.clip_norm
    if clip == "auto":  # the other columns are scaled to be short: a larger norm would only add noise
        clip = auto_clip(max(1, sum(column.seen for column in each)))
        chosen["clip_norm"] = clip
    stage = Stage(columns.NAME, parts.stage.guarantee.to_json(), chosen, found.to_json())
    vectors: dict[str, Any] = {name: chosen[name] for name in ("centre", "scale") if name in chosen}
    return replace(parts.moment, clip_norm=clip, **vectors), stage


def _clipping(transaction: MomentTransaction, parts: Parts) -> tuple[ReleaseRequest, Stage]:
    """Return the release that follows from the histogram of norms, and what it tells of that."""
    found = norm_histogram.published(norms_of(transaction))
    clip_norm, share = found.clip_norm()
    chosen: Chosen = {"clip_norm": clip_norm, "quantile": float(share)}
    known = _norm_by_schema(transaction)
    if known is not None and known <= clip_norm:  # public: no row is longer, and a larger norm would only add noise
        clip_norm = known
        chosen = {"clip_norm": clip_norm}
    answer = {"edges": list(found.edges), "counts": list(found.counts), "noise": found.noise.to_json()}
    stage = Stage(quantile.NAME, found.guarantee.to_json(), chosen, answer)
    return replace(parts.moment, clip_norm=clip_norm), stage


def _norm_by_schema(transaction: MomentTransaction) -> float | None:
    """Return the norm that no row exceeds by the schema of the table, where rows are taken as they are."""
    schema, asked = transaction.table.schema, transaction.request
    if schema is None or schema.norm is None or asked.centre is not None or asked.scale is not None:
        return None
    return float(rounded_up(schema.norm))


def require_columns_seen(transaction: MomentTransaction) -> None:
    """Refuse histograms of columns in which not even a bin with half of all rows would count; it reads no row.

    Raises
    ------
    RefusedError
        If n is public and that is so.
    UsageError
        If the table is too wide for them.
    """
    table = transaction.table
    require_seen(transaction.request, _columns(transaction).counting(), table.rows, table.max_rows)


def require_seen(request: ReleaseRequest, counting: ColumnCounting, rows: int, max_rows: int = 1) -> None:
    """Do the same of a request, of n rows, which are looked at where n is public only."""
    parts = _parts_of(request, counting.columns, max_rows)
    least = columns.threshold(parts.stage.noise, counting.bins)
    if request.neighbours is Neighbours.REPLACE_ONE and 2 * least > rows:
        raise RefusedError(
            f"A scale would be chosen at {parts.stage.guarantee.loss}, a part of the loss, where {least} rows in one "
            f"bin are lost in the noise; the table has {rows}. Nothing was read or spent. Ask for a larger epsilon or "
            f"{parameter('scale_share')}, or scale the columns by what is publicly known."
        )


def draw_unrecorded(request: ReleaseRequest, counting: ColumnCounting, exact: Counts) -> tuple[ReleaseRequest, Staged]:
    """Draw the stage that chooses a scale, once, over rows that no ledger knows: called twice, it costs twice.

    Whoever calls this has charged both draws before, and passes on what it returns
    (:func:`dpdist.release.trusted.draw_unrecorded`).
    """
    parts = _parts_of(request, counting.columns, 1)
    found = ColumnHistograms.of_noisy(counting, drawn(parts.stage, exact), parts.stage.noise)
    request, stage = standardising(request, parts, found)
    return request, Staged(stage, parts.guarantee)
