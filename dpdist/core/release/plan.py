"""Plans: whatever a release decides before its first draw, from its request and public facts, decided once.

**Grid bits.** The clip norm is ``2**b`` grid steps, with the smallest b from 10 on that keeps the stated rounding error
below 5 % of the noise (:mod:`dpdist.core.rows.rounding`), or the largest that 64-bit integers allow.

**The default share of a private histogram in the loss.** Noise on a count has a standard deviation of
``Delta / (mu sqrt(share))``, or ``sqrt(2) Delta / (epsilon share)`` if the loss has no mu, with the sensitivity
``Delta`` of the histogram. The share is the smallest whole percent at which that is at most .005 n for the histograms
of the columns, whose sums then give a scale within some 20 %, and .004 n for that of the norms. It is at least .01 and
at most .25: the release has ``1 / (1 - share)`` times the variance. More does not pay: at epsilon .1 and K = 10, a
tenth of mu² for the norms of 48,842 x 123 numbers captured .958, and .02 captured .963. n is public, or given as
``rows_at_most``; if it is unknown, the share is a tenth. All of this is public and fixed before the first draw, so the
theorem of :mod:`dpdist.core.privacy.staged` holds for any share.

**The count of clipped rows.** A release that chooses a scale, and no clip norm, counts the rows whose numbers it clips
in a further stage, once the scale is committed: the histogram of two bins. It gets a hundredth of mu² (or epsilon), for
which the noise of the moment grows by half a percent, if noise on the count then has a deviation of at most .01 n, or n
is unknown; otherwise rows are not counted. At epsilon 1 and delta 1e-6 that takes 4,200 rows. Periods share one scale,
which was chosen before, and have no such stage.

**The noise is known before the choices.** Mechanisms are calibrated in grid steps, for the norm bound of an integer
row. That follows from the number of columns and the grid bits, and not from the clip norm, centre or scale that a stage
chooses (:mod:`dpdist.core.release.stages`). So the plan of a release with stages has the mechanism of each draw and the
joint guarantee; the bound of its rows is open until the stages are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType

from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.mechanisms import columns as column_histograms
from dpdist.core.mechanisms import quantile, registry
from dpdist.core.mechanisms.base import Calibrated, is_private_as_claimed
from dpdist.core.mechanisms.counts import CalibratedHistogram
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.naming import parameter
from dpdist.core.options import ROWS_AT_MOST
from dpdist.core.privacy.accounting import gaussian_sigma
from dpdist.core.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss
from dpdist.core.privacy.staged import divided, together
from dpdist.core.release.request import (
    CLIP_GRID,
    LARGEST_SHARE,
    Centring,
    Choice,
    ReleaseRequest,
    common_parameters,
    id_of,
)
from dpdist.core.rows.bounding import RowBound, unclipped_norm
from dpdist.core.rows.rounding import LEAST_BITS, SIMPLE_BITS, is_little
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import Table
from dpdist.core.text import listed

AUTO_CLIP = 1.75  # default clip norm of scaled columns over sqrt(d)
UNKNOWN = Fraction(1, 10)  # share of a histogram if n is unknown
_MAX_BITS = 24
_COLUMNS, _NORMS = 0.005, 0.004  # allowed noise of a count over n
_CLIPPED, _OF_CLIPPED = 0.01, Fraction(1, 100)  # the same for the count of clipped rows, and its share


@dataclass(frozen=True)
class Dimensions:
    """What a plan uses of a table, all of it public."""

    columns: int
    rows: int | None = None  # n, if it is public and of one table; None: at most `ReleaseRequest.rows_at_most`
    unit_rows: int = 1  # most rows of a privacy unit in a sum of ``rows``
    changed_rows: int = 1  # most rows in which the sums of neighbours differ, counted by their weights
    schema: Schema | None = None
    counted: bool = True  # whether clipped rows may be counted: not in a series of periods

    @classmethod
    def of(cls, table: Table, neighbours: Neighbours) -> Dimensions:
        """Return the dimensions of a table."""
        # releases of periods are added, so their grid bits follow from the same public number, not from n
        public = neighbours is Neighbours.REPLACE_ONE and not table.periodic
        return cls(
            table.columns, table.rows if public else None, table.max_rows, table.changed_rows, table.schema,
            not table.periodic,
        )  # fmt: skip

    @property
    def whole(self) -> tuple[int, ...]:
        """Columns that are never shortened."""
        return () if self.schema is None else self.schema.whole().columns

    @property
    def numbers(self) -> int:
        """Number of columns that are clipped."""
        return self.columns if self.schema is None else len(self.schema.numbers)

    @property
    def constant_bits(self) -> int:
        """The constant of private centring is the norm of a row over two to this power."""
        return 1 if self.schema is None else self.schema.constant_bits


@dataclass(frozen=True)
class Plan:
    """One release before its first draw: how rows are bounded, what is drawn, and what it costs."""

    request: ReleaseRequest
    dimensions: Dimensions
    bound: RowBound  # with a clip norm of 1 and no scale for what is open; no width or noise in steps depends on it
    moment: Calibrated  # the mechanism of the second moment
    guarantee: Guarantee | None  # of all draws together
    loss: PrivacyLoss  # of the moment alone
    stages: Mapping[Choice, CalibratedHistogram] = field(default_factory=lambda: MappingProxyType({}))
    shares: Mapping[Choice, Fraction] = field(default_factory=lambda: MappingProxyType({}))
    choice: Guarantee | None = None  # of all stages together

    def noise_at(self, loss: PrivacyLoss, changed_rows: int | None = None) -> Calibrated:
        """Return the mechanism of the moment at another loss."""
        return calibrated(replace(self.request, loss=loss), self.bound, changed_rows or self.dimensions.changed_rows)

    @property
    def share_message(self) -> str:
        """The share of the loss that the stages take, as part of a sentence."""
        choice, both = proved(self.choice), proved(self.guarantee)
        if choice.mu_squared is not None and both.mu_squared is not None:
            return f"mu² {float(choice.mu_squared):.3g} of {float(both.mu_squared):.3g}"
        return f"epsilon {choice.loss.epsilon:g} of {both.loss.epsilon:g}"

    def parts_json(self) -> dict[str, object]:
        """Return the guarantees of the stages, and of the release with them, as JSON values."""
        return {"stage": proved(self.choice).to_json(), "both": proved(self.guarantee).to_json()}

    def parameters(self, table: Table) -> dict[str, object]:
        """Return the parameters of the release of a table besides its rows, as JSON values."""
        request = self.request
        return {
            **common_parameters(table, request.mechanism, request.loss, request.neighbours),
            "centring": (request.centring or Centring.NONE).value,
            "bound": self._bound_json(),
            "period": request.period,
            "options": request.mechanism_info.filled(request.options),
            **({"for_reproduction": True} if request.for_reproduction else {}),
            **({"weights": list(table.weights)} if table.weights else {}),
        }

    def _bound_json(self) -> dict[str, object]:
        """Return the rule of the bound: what is public, and how the rest is chosen."""
        request, values = self.request, dict[str, object](self.bound.to_json())
        if "scale" in self.shares:
            grid, targets = column_histograms.GRID, {"targets": list(request.targets)} if request.targets else {}
            share = str(self.shares["scale"])
            scale = {"mechanism": column_histograms.NAME, "grid": grid, "share": share, **targets}
            values |= {"clip_norm": request.clip_norm, "scale": scale}
        if "clip norm" in self.shares:
            components = {} if request.components is None else {"components": request.components}
            norms = {"mechanism": quantile.NAME, "grid": CLIP_GRID.to_json(), "share": str(self.shares["clip norm"])}
            values["clip_norm"] = {**norms, **components}
        if "clipped rows" in self.shares:
            values["clipped"] = {"mechanism": quantile.CLIPPED, "share": str(self.shares["clipped rows"])}
        return values

    def release_id(self, table: Table) -> str:
        """Return the chosen id, or the one that follows from the parameters."""
        return id_of("r", self.parameters(table)) if self.request.name is None else self.request.name


def plan_of(request: ReleaseRequest, table: Table) -> Plan:
    """Plan a release of a table."""
    if table.schema is not None and request.targets:
        stored = {column.name: name for name, column in table.schema.transformed.items()}
        request = replace(request, targets=tuple(stored.get(name, name) for name in request.targets))
    if missing := [name for name in request.targets if name not in table.names]:
        raise UsageError(
            f"There is no column {', '.join(missing)}; there are {listed(table.names)}.", parameter="targets"
        )
    size = Dimensions.of(table, request.neighbours)
    require_schema(request, table.schema)
    plan = planned(request, size)
    guarantee = plan.guarantee
    if guarantee is not None and guarantee.mu_squared is None and table.unit and table.unit.max_periods is not None:
        raise RefusedError(
            f"{request.mechanism} cannot be charged for a privacy unit with rows in several periods: use "
            f"{parameter('mechanism', 'gaussian')}."
        )
    return plan


def require_schema(request: ReleaseRequest, schema: Schema | None) -> None:
    """Refuse what follows from a schema where there is none, or one that leaves it open."""
    if request.clip_norm == "schema" and (schema is None or schema.clip_norm is None):
        lacks = "the schema leaves a range open."
        if schema is None:
            lacks = "these rows have none. For rows in memory, pass slightly more than its norm: 1.01 * schema.norm."
        raise UsageError(f"{parameter('clip', 'schema')} needs a schema with a range for every number, and {lacks}")
    if request.centring is Centring.SCHEMA and schema is None:
        raise UsageError(
            f"{parameter('centre', 'schema')} is for rows that were ingested with a schema. These have none: use "
            f"{parameter('centre', 'private')}."
        )


def planned(request: ReleaseRequest, size: Dimensions) -> Plan:
    """Plan a release of a table with these dimensions."""
    request = by_schema(request, size)
    bits = _grid_bits(request, size)
    bound = bound_of(request, size, bits)
    if not request.chooses:
        moment = calibrated(request, bound, size.changed_rows)
        return Plan(request, size, bound, moment, moment.guarantee, request.loss)
    # two stages are divided from the release, and then from each other (:mod:`dpdist.core.privacy.staged`)
    gaussian = proved(calibrated(request, bound, size.changed_rows).guarantee).mu_squared is not None
    shares = _shares(request, size, gaussian=gaussian)
    share = sum(shares.values(), Fraction(0))

    def histogram(choice: Choice, loss: PrivacyLoss) -> CalibratedHistogram:
        if choice == "scale":
            return column_histograms.calibrated(loss, request.neighbours, size.numbers, size.changed_rows)
        return quantile.calibrated(loss, request.neighbours, size.changed_rows)

    def stages_at(loss: PrivacyLoss) -> tuple[dict[Choice, CalibratedHistogram], Guarantee]:
        """Return the stages that share a loss, and their joint guarantee."""
        first, *others = shares
        if not others:
            stage = histogram(first, loss)
            return {first: stage}, stage.guarantee
        first_loss, second_loss = divided(
            loss, shares[first] / share, lambda part: histogram(first, part).guarantee, gaussian=gaussian
        )
        stages = {first: histogram(first, first_loss), others[0]: histogram(others[0], second_loss)}
        return stages, together(stages[first].guarantee, stages[others[0]].guarantee, loss)

    stage_loss, moment_loss = divided(request.loss, share, lambda loss: stages_at(loss)[1], gaussian=gaussian)
    stages, choice = stages_at(stage_loss)
    moment = calibrated(replace(request, loss=moment_loss), bound, size.changed_rows)
    guarantee = together(choice, proved(moment.guarantee), request.loss)
    return Plan(request, size, bound, moment, guarantee, moment_loss, stages, shares, choice)


def without_choices(request: ReleaseRequest) -> ReleaseRequest:
    """Return the request of a moment alone: with a clip norm of 1 and no scale for what a release would choose."""
    if not request.chooses:
        return request
    return replace(
        request, clip_norm=1.0 if isinstance(request.clip_norm, str) else request.clip_norm,
        scale=None if isinstance(request.scale, str) else request.scale, scale_share=None, clip_share=None,
        components=None, targets=(),
    )  # fmt: skip


def bound_of(request: ReleaseRequest, size: Dimensions, grid_bits: int) -> RowBound:
    """Return how rows are bounded, with placeholders for what is open; private centring appends a constant.

    Categories and booleans are contrasts where numbers are centred or scaled privately (:attr:`Schema.contrasts`).
    """
    by_schema = request.centring is Centring.SCHEMA
    private = request.centring is Centring.PRIVATE or (by_schema and request.mechanism_info.additive)
    centre, scale = request.centre, None if isinstance(request.scale, str) else request.scale
    contrasting = request.scale == "private" or (centre is None and (by_schema or (private and scale is None)))
    if contrasting and size.whole and size.schema is not None:
        middles, units = size.schema.contrasts(scaled=request.scale == "private")
        centre, scale = centre or middles, scale or units
    if centre is None and request.scale != "private" and size.schema is not None and size.schema.centring:
        centre = (0.0,) * size.columns  # the value of missing cells
    bound = RowBound(
        columns=size.columns,
        clip_norm=1.0,
        grid_bits=grid_bits,
        centre=centre,
        scale=scale,
        constant=2 ** (grid_bits - size.constant_bits) if private else 0,
    )
    clip = auto_clip(size.numbers) if request.clip_norm == "auto" else request.clip_norm
    if isinstance(clip, str):
        return bound
    return with_clip_norm(bound, clip, size.schema)


def with_clip_norm(bound: RowBound, clip_norm: float, schema: Schema | None) -> RowBound:
    """Return a bound whose numbers are clipped to a norm, and whose categories never are."""
    return replace(bound, clip_norm=clip_norm) if schema is None else schema.clipped(bound, clip_norm)


def calibrated(request: ReleaseRequest, bound: RowBound, changed_rows: int = 1) -> Calibrated:
    """Return the mechanism for bounded rows; neighbours differ in at most ``changed_rows`` rows of the sum.

    UsageError for unsuitable options; RefusedError if the guarantee is weaker than the claim and not for reproduction.
    """
    query = LatticeQuery(bound.width, bound.norm_bound, request.neighbours, changed_rows)
    result = registry.calibrated(request.mechanism, query, request.loss, request.options)
    private = is_private_as_claimed(result)
    if private and request.for_reproduction:
        raise UsageError(
            f"{request.mechanism} is private as claimed at {request.loss}: leave {parameter('for_reproduction')} out, "
            "so that the ledger is charged."
        )
    if not private and not request.for_reproduction:
        raise RefusedError(_unproved(request, result))
    return result


def _unproved(request: ReleaseRequest, result: Calibrated) -> str:
    text = f"{request.mechanism} was published as {result.claim}"
    if result.claim is None:
        text = f"{request.mechanism} is not private and was never claimed to be"
    elif result.guarantee is None:
        text += "; there is no proof for the computed version"
    else:
        proved = result.guarantee.loss
        text += f"; the proved loss is epsilon {proved.epsilon:g}, delta {proved.delta:.4g}"
    return (
        f"{text}. Use {parameter('mechanism', request.mechanism_info.replacement)} instead, or pass "
        f"{parameter('for_reproduction')} with rows that were ingested without a budget: the release is then "
        "charged to no ledger and marked as not private as claimed."
    )


def _grid_bits(request: ReleaseRequest, size: Dimensions) -> int:
    """Return the grid bits: as given, or by the rule of the module."""
    if request.grid_bits is not None:
        return request.grid_bits
    row_limit, deviation = request.rows_at_most if size.rows is None else size.rows, None
    if request.mechanism_info.additive:
        trial = calibrated(request, bound_of(request, size, LEAST_BITS), size.unit_rows)
        variance = trial.noise.variance_off_diagonal
        deviation = variance and math.sqrt(variance) / 4**LEAST_BITS
    grid_bits = LEAST_BITS
    for bits in range(LEAST_BITS, _MAX_BITS + 1):
        if not _fits(request, size, bits, row_limit):
            break
        grid_bits = bits
        if is_little(row_limit, size.columns, bits, deviation) if deviation else bits == SIMPLE_BITS:
            break
    return grid_bits


def _fits(request: ReleaseRequest, size: Dimensions, bits: int, rows: int) -> bool:
    """Whether 64-bit integers hold the sum of this many rows with this many grid bits, and the noise."""
    try:
        bound = bound_of(request, size, bits)
        calibrated(request, bound, size.unit_rows)
    except UsageError:
        return False
    return rows <= bound.total_rows


def _shares(request: ReleaseRequest, size: Dimensions, *, gaussian: bool) -> dict[Choice, Fraction]:
    """Return the share of the loss for each choice: as given, or by the rule of the module."""
    rows = size.rows
    if rows is None and request.rows_at_most != ROWS_AT_MOST:
        rows = request.rows_at_most
    named: dict[Choice, Fraction | None] = {"scale": request.scale_share, "clip norm": request.clip_share}
    shares = {choice: named[choice] or UNKNOWN for choice in request.chooses}
    exchanged = 2 if request.neighbours is Neighbours.REPLACE_ONE else 1

    def enough(counts: float, part: float) -> float:
        """Return the share of the loss with which noise on a count is a part of n."""
        allowed = (rows or 0) * part / size.changed_rows
        if gaussian:
            return exchanged * counts * (float(gaussian_sigma(request.loss)) / allowed) ** 2
        return math.sqrt(2) * exchanged * counts / (request.loss.epsilon * allowed)

    for choice in [choice for choice in shares if rows and named[choice] is None]:
        share = enough(size.numbers, _COLUMNS) if choice == "scale" else enough(1, _NORMS)
        shares[choice] = min(LARGEST_SHARE, Fraction(max(1, math.ceil(100 * min(share, 1))), 100))
    # a public n halves the variance of the count
    of_count = 1 / exchanged if gaussian else exchanged**-0.5
    if size.counted and list(shares) == ["scale"] and (not rows or enough(of_count, _CLIPPED) <= _OF_CLIPPED):
        shares["clipped rows"] = _OF_CLIPPED
    return shares


def proved(guarantee: Guarantee | None) -> Guarantee:
    """Return the guarantee of a charged release."""
    if guarantee is None:
        raise AssertionError("a charged release without a guarantee")
    return guarantee


def by_schema(request: ReleaseRequest, size: Dimensions) -> ReleaseRequest:
    """Return a request with what follows from the schema of the rows, or from there being none; idempotent."""
    schema = size.schema
    if schema is not None and request.chooses and not size.numbers:
        if request.targets:
            raise UsageError("These rows have no numbers to scale, only categories and booleans.", parameter="targets")
        scale = None if request.scale == "private" else request.scale
        request = replace(  # nothing to choose: the norms of such rows are public
            request, clip_norm=float(schema.clip_norm or 1), scale=scale, scale_share=None, clip_share=None,
            components=None,
        )  # fmt: skip
    if request.clip_norm == "schema" and schema is not None and schema.clip_norm is not None:
        bits = request.grid_bits if size.whole else _grid_bits(request, size)
        norm = schema.clip_norm if size.whole else unclipped_norm(schema.clip_norm, size.columns, bits or 0)
        request = replace(request, clip_norm=norm, grid_bits=bits)
    return _centred_by_schema(request, size)


def has_centre(plan: Plan) -> bool:
    """Whether missing values have a centre: one chosen or given or, of rows without numbers, contrasts."""
    request = plan.request
    given = request.centre is not None or "scale" in request.chooses
    return given or (not plan.dimensions.numbers and plan.bound.centre is not None)


def _centred_by_schema(request: ReleaseRequest, size: Dimensions) -> ReleaseRequest:
    """Return a request whose centring is decided."""
    vectors, centring = request.centre is not None or isinstance(request.scale, tuple), request.centring
    gaps = () if size.schema is None else tuple(size.schema.pairwise)
    if centring is None:  # gaps are counted beside the mean, also about a public centre
        by_default = Centring.PRIVATE if gaps and request.mechanism_info.additive else Centring.NONE
        centring = Centring.SCHEMA if size.whole and not vectors else by_default
    if gaps and (centring is Centring.NONE or not request.mechanism_info.additive):
        raise UsageError(
            f'missing = "pairwise" of {listed(gaps)} needs the mean: leave {parameter("centre", "none")} out, and use '
            "gaussian or two-sided-wishart."
        )
    if centring is not Centring.SCHEMA:
        return replace(request, centring=centring)
    if request.mechanism_info.additive and not isinstance(request.scale, tuple):
        return replace(request, centring=Centring.PRIVATE)  # the same, with the same id
    return replace(request, centring=centring)


def auto_clip(columns: int) -> float:
    """Return the default clip norm of scaled columns, to four digits; it clips some 6 % of skewed, correlated rows."""
    return float(f"{AUTO_CLIP * math.sqrt(max(1, columns)):.4g}")
