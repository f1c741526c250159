"""Stages of a release, which choose centre and scale of its columns, its clip norm, or count the rows that it clips.

Stages and release have one id and are charged together (:mod:`dpdist.core.privacy.staged`). What a stage uses from the
previous one, and the release from both, is a function of committed bytes and public facts, so a resumed release uses
the same values.

The scale is chosen first. Centre and scale of each column follow from the committed histograms of the columns; the
norms are those of the rows shifted and scaled by them, as the release bounds them. From the count of clipped rows
nothing follows: it is published with the release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dpdist.core.errors import RefusedError
from dpdist.core.ledger.state import Part
from dpdist.core.mechanisms import columns, quantile
from dpdist.core.mechanisms.skew import transform_of
from dpdist.core.moment.histograms import ColumnCounting, OneNorm
from dpdist.core.naming import parameter
from dpdist.core.options import ROWS_AT_MOST
from dpdist.core.privacy.checks import LARGEST_EPSILON
from dpdist.core.privacy.guarantee import MICRO, Neighbours, PrivacyLoss
from dpdist.core.release.advice import enough_epsilon, norm_by_schema
from dpdist.core.release.attributes import Stage
from dpdist.core.release.bounds import Dimensions, UsualRow, auto_clip, with_clip_norm
from dpdist.core.release.clip_trade import ForComponents, clip_for, occupied_bins
from dpdist.core.release.histograms import ColumnHistograms, ColumnsStage
from dpdist.core.release.norm_histogram import NormHistogram, NormsRequest, NormsStage
from dpdist.core.release.plan import Plan, planned, proved
from dpdist.core.release.request import CLIP_GRID, Choice, ReleaseRequest
from dpdist.core.release.trusted import MomentTransaction, Realised
from dpdist.core.rows.bounding import RowBound, unclipped_norm

_OF_CLIP_NORM = 0.25
"""Standard deviation of a scaled target over the clip norm."""
_MOST_NOISE = 0.02
"""Largest standard deviation of a noisy count, over n, with which a scale is chosen."""
_USUAL = 10
"""Components for which the clip norm of whole privacy units is chosen, unless a number is given."""
_SEEN = 2
"""Bins of a column that show its spread."""
_PUBLIC = 2
"""Bins of a column whose scale is public."""
Chosen = dict[str, float | tuple[float, ...]]


def stage_of(transaction: MomentTransaction, choice: Choice) -> ColumnsStage | NormsStage:
    """Return the stage of a release that makes one of its choices; earlier stages are committed."""
    return columns_of(transaction) if choice == "scale" else _norms(transaction)


def columns_of(transaction: MomentTransaction) -> ColumnsStage:
    """Return the stage that chooses centre and scale."""
    return ColumnsStage(transaction.plan, transaction.table, transaction.ledger, transaction.release_id)


def _norms(transaction: MomentTransaction) -> NormsStage:
    """Return the stage of the norms, about zero or the centre of the scale: the mean is not known yet."""
    plan, table = transaction.plan, transaction.table
    part, bound = Part.STAGE, plan.bound
    if "scale" in plan.stages:
        part = Part.SECOND
        bound = standardised(plan, columns_of(transaction).read(), table.names)[0]
    return NormsStage(_norms_request(plan, bound), table, transaction.ledger, transaction.release_id, part)


def _norms_request(plan: Plan, bound: RowBound) -> NormsRequest:
    """Return the request of the stage of the norms, for rows shifted and scaled as in the release."""
    request, chosen = plan.request, plan.stages.get("clip norm")
    stage, grid = (plan.stages["clipped rows"], OneNorm(bound.clip_edge)) if chosen is None else (chosen, CLIP_GRID)
    constant = UsualRow.of(request, plan.dimensions.schema).constant(bound)
    return NormsRequest(
        stage.guarantee.loss, grid, request.neighbours, bound.centre, bound.scale, request.accept_large_delta,
        bound.unit_norm, constant,
    )  # fmt: skip


def resolved(transaction: MomentTransaction) -> MomentTransaction:
    """Read the committed stages, and return the release that follows from them; every repetition returns the same."""
    plan, table = transaction.plan, transaction.table
    realised = _realised(
        plan,
        table.names,
        lambda: columns_of(transaction).read(),
        lambda _: _norms(transaction).read(),
        norm_by_schema(table, plan.request),
    )
    return replace(transaction, realised=realised)


def _realised(
    plan: Plan,
    names: Sequence[str],
    read_columns: Callable[[], ColumnHistograms],
    read_norms: Callable[[RowBound], NormHistogram],
    norm_limit: float | None = None,
) -> Realised:
    """Return what follows from the stages of a plan; no row is longer than ``norm_limit``."""
    request, width = plan.request, len(names)
    bound, chosen, by, answer = plan.bound, Chosen(), [], {}
    if "scale" in plan.stages:
        histograms = read_columns()
        bound, chosen = standardised(plan, histograms, names)
        by, answer = [columns.NAME], histograms.to_json()
    if "clip norm" in plan.stages:
        norms = read_norms(bound)
        number = request.clip_components
        if bound.unit_norm and number is None:
            number = min(_USUAL, max(1, width // 2))
        if not number or number >= width:
            clip_norm, share = norms.clip_norm()
        else:
            purpose = ForComponents(number, plan.loss)
            clip_norm, share = clip_for(purpose, norms, width, plan.dimensions.changed_rows)
        chosen |= {"clip_norm": clip_norm, "quantile": float(share)}
        if norm_limit is not None:
            unclipped = norm_limit if plan.dimensions.whole else unclipped_norm(norm_limit, width, bound.grid_bits)
            if unclipped <= clip_norm and not bound.unit_norm:  # public, and a larger norm would only add noise
                del chosen["quantile"]
                chosen["clip_norm"] = clip_norm = unclipped
        usual = replace(UsualRow.of(request, plan.dimensions.schema), blind=_blind(chosen))
        least = usual.least_clip_norm(bound) if bound.unit_norm else 0.0
        if least and not occupied_bins(norms):  # nothing was seen: a norm far out would only add noise
            clip_norm, share = least, norms.share_up_to(least)
            chosen["quantile"] = float(share)
        chosen["clip_norm"] = clip_norm = max(clip_norm, least)
        bound = with_clip_norm(bound, clip_norm, usual)
        answer = {**answer, "norms": norms.counting_json()} if by else norms.counting_json()
        by.append(quantile.NAME)
    if "clipped rows" in plan.stages:
        answer = {**answer, "norms": read_norms(bound).counting_json()}
        by.append(quantile.CLIPPED)
    return Realised(bound, Stage(", ".join(by), proved(plan.choice).to_json(), chosen, answer))


def standardised(plan: Plan, histograms: ColumnHistograms, names: Sequence[str]) -> tuple[RowBound, Chosen]:
    """Return the bound of a plan with centre and scale from the histograms of its columns, and the chosen values."""
    request, seen = plan.request, histograms.standardised
    # for short columns a larger norm would only add noise; of columns in which nothing was seen, values may be long
    auto = auto_clip(sum(not column.short for column in seen))
    clip = auto if isinstance(request.clip_norm, str) else request.clip_norm
    weight = max(1.0, _OF_CLIP_NORM * clip)
    # rows with large values of a skewed target would be clipped more often: twice the error of slopes at worst
    schema = plan.dimensions.schema
    places = range(len(names)) if schema is None else schema.numbers
    counted = zip(places, histograms.grids, histograms.counting, strict=True)
    skewed = {names[place] for place, grid, counts in counted if transform_of(grid, counts) is not None}
    numbers, whole, scalings = iter(seen), set(plan.dimensions.whole), list[columns.Standardised]()
    for place, name in enumerate(names):
        column = (
            columns.Standardised((plan.bound.centre or ())[place], (plan.bound.scale or ())[place], _PUBLIC)
            if place in whole
            else next(numbers)
        )
        if name in request.targets and column.seen and name not in skewed:
            column = replace(column, scale=float(f"{column.scale / weight:.6g}"))
        scalings.append(column)
    chosen: Chosen = {} if request.centre is not None else {"centre": tuple(column.centre for column in scalings)}
    chosen |= {
        "scale": tuple(column.scale for column in scalings),
        "bins": tuple(float(column.bins) for column in scalings),
    }
    vectors: dict[str, Any] = {name: chosen[name] for name in ("centre", "scale") if name in chosen}
    bound = replace(plan.bound, **vectors)
    if request.clip_norm == "private":
        return bound, chosen
    if request.clip_norm == "auto":
        chosen["clip_norm"] = auto
    return with_clip_norm(bound, clip, replace(UsualRow.of(request, schema), blind=_blind(chosen))), chosen


def _blind(chosen: Chosen) -> bool:
    """Whether a private scale saw too little of a column."""
    bins = chosen.get("bins", ())
    return not isinstance(bins, float) and any(count < _SEEN for count in bins)


def require_seen(
    request: ReleaseRequest, counting: ColumnCounting, rows: int, max_rows: int = 1, *, together: bool = False
) -> None:
    """Refuse a choice that cannot see: noise above 2 % of n on a count, or no bin with half of all rows would count.

    It reads no row and uses public numbers only: a private n is not used, but a stated limit of it is.
    """
    private = request.neighbours is not Neighbours.REPLACE_ONE
    if private and request.rows_at_most == ROWS_AT_MOST:
        return
    rows = request.rows_at_most if private else rows
    size = Dimensions(len(counting.grids), rows, max_rows, max_rows, together=together)
    loss, least = least_rows(request, counting, size)
    if rows >= least:
        return

    def excess(trial: ReleaseRequest) -> float:
        return min(2.0, least_rows(trial, counting, size)[1] / max(rows, 1))

    enough = enough_epsilon(request, excess)
    cure = f"The table is too small: epsilon {LARGEST_EPSILON} is not enough. Scale"
    if enough is not None:
        cure = (
            f"Take more rows, or {parameter('epsilon', f'{enough / MICRO:g}')} or more, which protects less, or scale"
        )
    needed = f"{least} privacy units" if together else f"{least} rows"
    ranges = ""
    if _in_ranges(counting):
        ranges = f", or use its public ranges ({parameter('clip', 'schema')}; a schema with missing = "
        ranges += '"centre" then takes "fill", their middle)'
    raise RefusedError(
        f"The scale would be chosen with {loss}, a part of the loss, which requires at least {needed}; the table "
        f"has {'at most ' if private else ''}{rows}{' rows' * together}. Nothing was spent. {cure} the "
        f"columns by public knowledge{ranges}."
    )


def _in_ranges(counting: ColumnCounting) -> bool:
    """Whether all counted columns have public ranges."""
    return all(grid != columns.Grid() for grid in counting.grids)


def least_rows(request: ReleaseRequest, counting: ColumnCounting, size: Dimensions) -> tuple[PrivacyLoss, int]:
    """Return the loss of the stage that chooses a scale, and how many rows, or whole privacy units, it requires.

    The noise depends on the counted columns alone, so ``size`` is without a schema.
    """
    stage = planned(replace(request, centre=None), size).stages["scale"]
    least = columns.least_rows(stage.noise, counting.grids)
    return stage.guarantee.loss, max(least, math.ceil(math.sqrt(stage.noise.variance) / _MOST_NOISE))
