"""Plans: whatever a release decides before its first draw, from its request and public facts, decided once.

**The default share of a private histogram in the loss.** Noise on a count has a standard deviation of
``Delta / (mu sqrt(share))``, or ``sqrt(2) Delta / (epsilon share)`` if the loss has no mu, with the sensitivity
``Delta`` of the histogram. The share is the smallest whole percent at which that is at most .005 n for the histograms
of the columns, whose sums then give a scale within some 20 %, and .004 n for that of the norms. It is at least .01 and
at most .25: the release has ``1 / (1 - share)`` times the variance. More does not pay: at epsilon .1 and K = 10, a
tenth of mu² for the norms of 48,842 x 123 numbers captured .958, and .02 captured .963. n is public, or given as
``rows_at_most``; if it is unknown, the share is a tenth. So it is where all rows of a privacy unit are kept, as counts
are then of units, and their number is private. All of this is public and fixed before the first draw, so the
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
from dpdist.core.mechanisms import quantile
from dpdist.core.mechanisms.base import Calibrated
from dpdist.core.mechanisms.counts import CalibratedHistogram
from dpdist.core.naming import parameter
from dpdist.core.options import ROWS_AT_MOST
from dpdist.core.privacy.accounting import gaussian_sigma
from dpdist.core.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss
from dpdist.core.privacy.staged import divided, together
from dpdist.core.release.bounds import Dimensions, bound_of, by_schema, calibrated, grid_bits_of, require_schema
from dpdist.core.release.request import (
    CLIP_GRID,
    LARGEST_SHARE,
    Centring,
    Choice,
    ReleaseRequest,
    common_parameters,
    id_of,
)
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.table import Table
from dpdist.core.text import counted, listed

UNKNOWN = Fraction(1, 10)  # share of a histogram if n is unknown
_COLUMNS, _NORMS = 0.005, 0.004  # allowed noise of a count over n
_LONGEST = 10  # lengths that rows have about, with a scale; the noise is then a hundred times as large as they need
_CLIPPED, _OF_CLIPPED = 0.01, Fraction(1, 100)  # the same for the count of clipped rows, and its share


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
            components = {} if request.clip_components is None else {"components": request.clip_components}
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


def planned(request: ReleaseRequest, size: Dimensions) -> Plan:
    """Plan a release of a table with these dimensions."""
    request = by_schema(request, size)
    _require_fitting_clip(request, size)
    bits = grid_bits_of(request, size)
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


def _require_fitting_clip(request: ReleaseRequest, size: Dimensions) -> None:
    """Refuse a clip norm in other units than those of a private scale: the budget would be spent on noise."""
    clip, length = request.clip_norm, math.sqrt(max(size.numbers, 1))
    if request.scale != "private" or isinstance(clip, str) or size.together or clip <= _LONGEST * length:
        return
    raise UsageError(
        "A private scale divides numbers by their standard deviations, so rows of "
        f"{counted(size.numbers, 'number')} have a length of about {length:.2g}. A clip norm of {clip:g} would make "
        f"the noise {round((clip / length) ** 2, -1):.0f} times as large as they need. Nothing was spent. Use "
        f"{parameter('clip', 'auto')}, which chooses it, or at most "
        f"{math.floor(_LONGEST * length)}."
    )


def _shares(request: ReleaseRequest, size: Dimensions, *, gaussian: bool) -> dict[Choice, Fraction]:
    """Return the share of the loss for each choice: as given, or by the rule of the module."""
    rows = None if size.together else size.rows  # the number of units is private
    if rows is None and not size.together and request.rows_at_most != ROWS_AT_MOST:
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


def has_centre(plan: Plan) -> bool:
    """Whether missing values have a centre: one chosen or given or, of rows without numbers, contrasts."""
    request = plan.request
    given = request.centre is not None or "scale" in request.chooses
    return given or (not plan.dimensions.numbers and plan.bound.centre is not None)
