"""How rows are bounded by a request and public facts, and the mechanism for them, before anything is chosen.

**Grid bits.** The clip norm is ``2**b`` grid steps, with the smallest b from 10 on that keeps the stated rounding error
below 5 % of the noise (:mod:`dpdist.core.rows.rounding`), or the largest that 64-bit integers allow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.mechanisms import registry
from dpdist.core.mechanisms.base import Calibrated, is_private_as_claimed
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.naming import parameter
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.bounding import RowBound, unclipped_norm
from dpdist.core.rows.rounding import LARGEST_SHARE, LEAST_BITS, SIMPLE_BITS, is_little
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import Table
from dpdist.core.text import listed

_BLIND = 16  # largest clip norm over the constant if the size of rows is unknown: n would drown
AUTO_CLIP = 1.75  # default clip norm of scaled columns over sqrt(d)
_MAX_BITS = 24


@dataclass(frozen=True)
class Dimensions:
    """What a plan uses of a table, all of it public."""

    columns: int
    rows: int | None = None  # n, if it is public and of one table; None: at most `ReleaseRequest.rows_at_most`
    unit_rows: int = 1  # most rows of a privacy unit in a sum of ``rows``
    changed_rows: int = 1  # most rows in which the sums of neighbours differ, counted by their weights
    schema: Schema | None = None
    counted: bool = True  # whether clipped rows may be counted: not in a series of periods
    together: bool = False  # whether all rows of a privacy unit are kept, and bounded together

    @classmethod
    def of(cls, table: Table, neighbours: Neighbours) -> Dimensions:
        """Return the dimensions of a table."""
        # releases of periods are added, so their grid bits follow from the same public number, not from n
        public = neighbours is Neighbours.REPLACE_ONE and not table.periodic
        return cls(
            table.columns, table.rows if public else None, table.max_rows, table.changed_rows, table.schema,
            not table.periodic, table.together,
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


def by_schema(request: ReleaseRequest, size: Dimensions) -> ReleaseRequest:
    """Return a request with what follows from the schema of the rows, or from there being none; idempotent."""
    schema = size.schema
    if size.together and request.clip_norm == "auto":  # how many rows a unit has is private
        request = replace(request, clip_norm="private")
    if schema is not None and request.chooses and not size.numbers:
        if request.targets:
            raise UsageError("These rows have no numbers to scale, only categories and booleans.", parameter="targets")
        scale = None if request.scale == "private" else request.scale
        if size.together:
            return _centred_by_schema(replace(request, scale=scale, scale_share=None), size)
        request = replace(  # nothing to choose: the norms of such rows are public
            request, clip_norm=float(schema.clip_norm or 1), scale=scale, scale_share=None, clip_share=None,
            clip_components=None,
        )  # fmt: skip
    if request.clip_norm == "schema" and schema is not None and schema.clip_norm is not None and not size.together:
        bits = request.grid_bits if size.whole else grid_bits_of(request, size)
        norm = schema.clip_norm if size.whole else unclipped_norm(schema.clip_norm, size.columns, bits or 0)
        request = replace(request, clip_norm=norm, grid_bits=bits)
    return _centred_by_schema(request, size)


def _centred_by_schema(request: ReleaseRequest, size: Dimensions) -> ReleaseRequest:
    """Return a request whose centring is decided."""
    vectors, centring = request.centre is not None or isinstance(request.scale, tuple), request.centring
    gaps = () if size.schema is None else tuple(size.schema.pairwise)
    if centring is None:
        # gaps are counted beside the mean, also about a public centre; and of whole units n is known by it alone
        needed = gaps or (size.together and UsualRow.of(request, size.schema).known)
        by_default = Centring.PRIVATE if needed and request.mechanism_info.additive else Centring.NONE
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
        unit_norm=request.mechanism_info.unit_norm if size.together else "",
    )
    rows = UsualRow.of(request, size.schema)
    clip = auto_clip(size.numbers) if request.clip_norm == "auto" else request.clip_norm
    if clip == "schema" and size.together and size.schema is not None:
        whole = size.schema.clipped(bound, size.schema.clip_norm or 1.0).whole_norm
        longest = math.hypot(size.schema.numbers_norm or 0.0, whole, rows.constant(bound))
        clip = unclipped_norm(longest, size.columns, grid_bits)
    if isinstance(clip, str):
        rows.constant(bound)  # refuses rows of unknown size
        return bound
    return with_clip_norm(bound, clip, rows)


@dataclass(frozen=True)
class UsualRow:
    """The size of a usual row beside whole privacy units, whose clip norm says nothing of it."""

    schema: Schema | None
    scaled: bool  # whether numbers are divided by a scale, so that they have the deviation 1
    blind: bool = False  # whether a private scale did not see some of them, which may then have any size

    @classmethod
    def of(cls, request: ReleaseRequest, schema: Schema | None) -> UsualRow:
        """Return the size of rows bounded by a request."""
        return cls(schema, request.scale is not None)

    @property
    def known(self) -> bool:
        """Whether the size is known."""
        schema = self.schema
        return self.scaled or (schema is not None and schema.numbers_norm is not None)

    def _numbers(self, bound: RowBound) -> int:
        return bound.columns if self.schema is None else len(self.schema.numbers)

    def _whole(self, bound: RowBound) -> float:
        return 0.0 if self.schema is None else self.schema.whole(bound.centre, bound.scale).norm

    def constant(self, bound: RowBound) -> float:
        """Return the constant of private centring in the units of bounded rows: a quarter of the norm of a usual row.

        Ranges are half of their largest norm. It is 0 for a bound of single rows, or without private centring.
        """
        numbers, schema = self._numbers(bound), self.schema
        if not (bound.unit_norm and bound.constant):
            return 0.0
        if not numbers or self.scaled:
            return math.hypot(math.sqrt(numbers), self._whole(bound)) / 4
        if schema is None or schema.numbers_norm is None:
            raise UsageError(
                "The mean of privacy units whose rows are all kept takes columns of a known size. Add "
                f"{parameter('scale', 'private')}, a public scale, or a schema with ranges."
            )
        return math.hypot(schema.numbers_norm / 2, self._whole(bound)) / 4

    def least_clip_norm(self, bound: RowBound) -> float:
        """Return the least clip norm to choose: that of rows alone, where it is known without a choice."""
        numbers = self._numbers(bound)
        longest = auto_clip(numbers) if numbers and self.scaled else 0.0
        longest = math.hypot(longest, 1.01 * self._whole(bound), self.constant(bound))
        return unclipped_norm(longest, bound.columns, bound.grid_bits) if longest else 0.0


def with_clip_norm(bound: RowBound, clip_norm: float, rows: UsualRow) -> RowBound:
    """Return a bound whose numbers are clipped to a norm, and whose categories never are."""
    if constant := rows.constant(bound):
        constant = max(constant, clip_norm / _BLIND if rows.blind else 0.0)
        steps = round(constant * 2**bound.grid_bits / clip_norm)
        bound = replace(bound, constant=max(1, min(steps, 2 ** (bound.grid_bits - 1))))
    schema = rows.schema
    return replace(bound, clip_norm=clip_norm) if schema is None else schema.clipped(bound, clip_norm)


def without_choices(request: ReleaseRequest) -> ReleaseRequest:
    """Return the request of a moment alone: with a clip norm of 1 and no scale for what a release would choose."""
    if not request.chooses:
        return request
    return replace(
        request, clip_norm=1.0 if isinstance(request.clip_norm, str) else request.clip_norm,
        scale=None if isinstance(request.scale, str) else request.scale, scale_share=None, clip_share=None,
        clip_components=None, targets=(),
    )  # fmt: skip


def calibrated(request: ReleaseRequest, bound: RowBound, changed_rows: int = 1) -> Calibrated:
    """Return the mechanism for bounded rows; neighbours differ in at most ``changed_rows`` rows of the sum.

    UsageError for unsuitable options; RefusedError if the guarantee is weaker than the claim and not for reproduction.
    """
    query = LatticeQuery(bound.width, bound.norm_bound, request.neighbours, changed_rows, bool(bound.unit_norm))
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


def grid_bits_of(request: ReleaseRequest, size: Dimensions) -> int:
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
            # of whole units with a private n, no released number is that of the rows that were rounded
            exact = not (size.together and size.rows is None and deviation)
            if exact or row_limit / 4 <= LARGEST_SHARE * (deviation or 0) * 4**bits:
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


def auto_clip(columns: int) -> float:
    """Return the default clip norm of scaled columns, to four digits; it clips some 6 % of skewed, correlated rows."""
    return float(f"{AUTO_CLIP * math.sqrt(max(1, columns)):.4g}")
