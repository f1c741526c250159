"""Requests: one private second moment of one table, completely described by public parameters.

The release id is a hash of the data set's identity, these parameters and the period. It does not depend on a job id, a
restart count, the clock or the data, so a repeated job requests the same release. The number of rows is left out as
well: under add-remove it is private, and a hash can be inverted by trial.

**The default share of a private histogram in the loss.** Noise on a count has a standard deviation of
``Delta / (mu sqrt(share))``, or ``sqrt(2) Delta / (epsilon share)`` if the loss has no mu, with the sensitivity
``Delta`` of the histogram. The share is the smallest whole percent at which that is at most .005 n for the histograms
of the columns, whose sums then give a scale within some 20 %, and .004 n for that of the norms. It is at least .01 and
at most .25: the release has ``1 / (1 - share)`` times the variance. More does not pay: at epsilon .1 and K = 10, a
tenth of mu² for the norms of 48,842 x 123 numbers captured .958, and .02 captured .963. n is public, or given as
``rows_at_most``; if it is unknown, the share is a tenth. All of this is public and fixed before the first draw, so the
theorem of :mod:`dpdist.core.privacy.staged` holds for any share.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Literal, get_args

from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.mechanisms import columns as column_histograms
from dpdist.core.mechanisms import quantile
from dpdist.core.mechanisms.base import Calibrated, is_private_as_claimed
from dpdist.core.mechanisms.counts import CalibratedHistogram
from dpdist.core.mechanisms.info import MechanismInfo
from dpdist.core.mechanisms.registry import calibrated, mechanism_named
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.moment.histograms import NormGrid
from dpdist.core.naming import parameter
from dpdist.core.options import ROWS_AT_MOST, Word
from dpdist.core.privacy.accounting import gaussian_sigma
from dpdist.core.privacy.guarantee import MICRO, Guarantee, Neighbours, PrivacyLoss, neighbours_of
from dpdist.core.privacy.staged import divided, together
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dither import Dithering
from dpdist.core.rows.rounding import LEAST_BITS, SIMPLE_BITS, is_little
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import Table
from dpdist.core.text import canonical, has_control, listed, rounded_up

_MAX_BITS = 24
CLIP_GRID = NormGrid()  # candidates for a private clip norm
AUTO_CLIP = 1.75  # default clip norm of scaled columns over sqrt(d)
UNKNOWN = Fraction(1, 10)  # share of a histogram if n is unknown
_LARGEST_SHARE = Fraction(1, 4)
_COLUMNS, _NORMS = 0.005, 0.004  # allowed noise of a count over n
Choice = Literal["scale", "clip norm"]  # chosen first, each in a separate draw


@dataclass(frozen=True)
class Parts:
    """The parts of a release that chooses its clip norm, or centre and scale, or all of them."""

    stages: Mapping[Choice, CalibratedHistogram]  # each with its part of the loss
    choice: Guarantee  # of all stages together
    moment: ReleaseRequest  # `ReleaseRequest.with_placeholders`, with its part of the loss
    guarantee: Guarantee  # of stages and moment together

    @property
    def share_message(self) -> str:
        """The share of the loss that the stages take, as part of a sentence."""
        choice, both = self.choice, self.guarantee
        if choice.mu_squared is not None and both.mu_squared is not None:
            return f"mu² {float(choice.mu_squared):.3g} of {float(both.mu_squared):.3g}"
        return f"epsilon {choice.loss.epsilon:g} of {both.loss.epsilon:g}"

    def to_json(self) -> dict[str, object]:
        """Return the guarantees of the stages, and of the release with them, as JSON values."""
        return {"stage": self.choice.to_json(), "both": self.guarantee.to_json()}


class Centring(enum.StrEnum):
    """Whether the mean is released as well.

    Attributes
    ----------
    NONE : str
        ``"none"``: the second moment about zero, or about a public centre.
    PRIVATE : str
        ``"private"``: each row x gets one more entry, half the clip norm, and one release contains the second moment
        and the sum of the rows.

    See Also
    --------
    ReleaseRequest : Has this parameter.

    Examples
    --------
    >>> import dpdist
    >>> loss = dpdist.PrivacyLoss.parse(1, 1e-6)
    >>> dpdist.ReleaseRequest("gaussian", loss, 100, centring=dpdist.Centring.PRIVATE).bound(columns=4).width
    5
    """

    NONE = "none"
    """Second moment about zero, or about a public centre."""
    PRIVATE = "private"
    """Rows are augmented to [x; C/2]; one release gives second moment and sum of the rows."""


@dataclass(frozen=True)
class ReleaseRequest:
    """Request for one private second moment, completely described by public parameters.

    Parameters
    ----------
    mechanism : str
        Name of a mechanism, as listed by :func:`dpdist.list_mechanisms`. ``gaussian`` is recommended with a delta,
        ``two-sided-wishart`` without.
    loss : PrivacyLoss
        Price of the release, (epsilon, delta).
    clip_norm : float, "private", "auto" or "schema"
        Public clip norm C > 0, in units of the shifted and scaled rows: longer rows are scaled down to it. Must not be
        computed from the rows, except by :func:`dpdist.choose_clip_norm`. ``"private"``: the release first chooses the
        best one for ``components``, or else the 0.95-quantile or the largest smaller one that the noise allows, from a
        private histogram of the norms. ``"auto"``: 1.75 times the square root of d, for columns that are divided by a
        scale; with a private scale, d leaves out columns with nearly all values in one bin. ``"schema"``: the
        smallest one with which rounding to the grid shortens no row, as the schema of the table bounds all norms; for
        rows without centre and scale.
    neighbours : Neighbours or str, default Neighbours.REPLACE_ONE
        The neighbouring relation.
    centring : Centring or str, default Centring.NONE
        Whether the mean is released too, at no extra cost.
    centre : tuple of float, default None
        Public shift, one number for each of the d columns. None: no shift.
    scale : tuple of float or "private", default None
        Public divisor, one positive number for each of the d columns. None: no divisor. ``"private"``: the release
        chooses it first, from private histograms of all columns, and a centre too, unless one is given.
    grid_bits : int, default None
        b, from 2 to 24: the clip norm is ``2**b`` grid steps. None: the smallest number from 10 on that keeps the
        stated rounding error below 5 % of the noise in spectral norm (:mod:`dpdist.core.rows.rounding`), or the largest
        that 64-bit integers allow; 12 for a mechanism without additive noise of known deviation.
    period : str, default ""
        Distinguishes several releases with the same parameters.
    name : str, default None
        The release id: 1 to 64 letters, digits, hyphens or underscores. None: it follows from the parameters.
    options : mapping of str, default {}
        Public parameters of the mechanism, by name; others take their defaults.
    for_reproduction : bool, default False
        Whether to allow a mechanism whose claim is not proved. The release is charged to no ledger, is marked as not
        private as claimed, and requires rows that never had a budget.
    accept_large_delta : bool, default False
        Whether a delta of 1/n or more is intended, if n is public. It does not affect the id.
    rows_at_most : int, default 10000000
        A public upper bound on n, which determines grid bits and the share of a private choice if n is private or rows
        come in periods. The guarantee does not depend on it.
    scale_share : Fraction, str or float, default None
        With a private scale: the share of mu² (of epsilon, if the mechanism has no mu) for its histograms. None: from
        .01 to .25, depending on n, epsilon and d.
    clip_share : Fraction, str or float, default None
        With a private clip norm: the share for its histogram, in the same way.
    components : int, default None
        With a private clip norm: the number K of leading components that it is optimised for
        (:mod:`dpdist.core.release.clip_trade`). None: the 0.95-quantile.
    targets : tuple of str, default ()
        With a private scale: target columns of a regression. Their scale is reduced so that a standard deviation is
        about a quarter of the clip norm, and noise hides less of them. They weigh more in components.

    Raises
    ------
    UsageError
        If parameters contradict each other, or the mechanism is unknown.

    See Also
    --------
    release_rows : Takes such a request.
    forecast_release : Forecasts the accuracy.
    choose_clip_norm : Chooses a clip norm.

    Examples
    --------
    >>> import dpdist
    >>> request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(1, 1e-6), clip_norm=100)
    >>> str(request.loss), str(request.neighbours), request.clip_norm
    ('epsilon 1, delta 1e-06', 'replace-one', 100.0)
    """

    mechanism: str
    loss: PrivacyLoss
    clip_norm: float | Word
    neighbours: Neighbours = Neighbours.REPLACE_ONE
    centring: Centring = Centring.NONE
    centre: tuple[float, ...] | None = None
    scale: tuple[float, ...] | Literal["private"] | None = None
    grid_bits: int | None = None
    period: str = ""
    name: str | None = None
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    for_reproduction: bool = False
    accept_large_delta: bool = False
    rows_at_most: int = ROWS_AT_MOST
    scale_share: Fraction | None = None
    clip_share: Fraction | None = None
    components: int | None = None
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # normalised first, because values are compared and hashed into the id
        object.__setattr__(self, "neighbours", neighbours_of(self.neighbours))
        if self.centring not in tuple(Centring):
            raise UsageError(f"centring must be one of {', '.join(Centring)}, not {self.centring!r}.")
        object.__setattr__(self, "centring", Centring(self.centring))
        object.__setattr__(self, "targets", tuple(sorted(set(self.targets))))
        for share in ("scale_share", "clip_share"):
            value = getattr(self, share)
            object.__setattr__(self, share, None if value is None else share_from(value, share))
        if self.clip_norm not in get_args(Word):
            object.__setattr__(self, "clip_norm", float(self.clip_norm))
        self._require_choices()
        info = self.mechanism_info
        info.require_delta_use(self.loss)
        info.filled(self.options)  # refuses unknown options
        if not 1 <= self.rows_at_most < 2**63:
            raise UsageError(f"{parameter('rows_at_most')} must be a number of rows, at least 1.")
        labels = {f"id ({parameter('id')})": self.name, "period": self.period}
        if wrong := [label for label, text in labels.items() if has_control(text or "")]:
            raise UsageError(
                f"The {wrong[0]} contains a control or invisible character. It is published; remove the character."
            )
        if self.for_reproduction and self.name is not None:
            raise UsageError(
                f"A release for reproduction cannot have a chosen id, because no ledger keeps ids unique: "
                f"leave {parameter('id')} out."
            )
        if self.centring is Centring.PRIVATE and not info.additive:
            raise UsageError(
                f"{self.mechanism} cannot release the mean as well ({parameter('centre', 'private')}): only mechanisms "
                "that add noise to the moment can. Pass a public centre, or use gaussian or two-sided-wishart."
            )

    def _require_choices(self) -> None:
        scale_share, clip_share = self.scale_share or _LARGEST_SHARE, self.clip_share or _LARGEST_SHARE
        add_scale, no_scale = f"add {parameter('scale', 'private')}", "scale" not in self.chooses
        if self.chooses and self.for_reproduction:
            raise UsageError(f"A release for reproduction cannot choose a {self.chooses[0]} privately: pass one.")
        if len(self.chooses) > 1 and scale_share + clip_share >= 1:
            raise UsageError(
                f"The histogram of the norms takes a share of up to {float(clip_share):g} as well: "
                f"{parameter('scale_share')} must be less than {float(1 - clip_share):g}."
            )
        if self.clip_norm == "auto" and self.scale is None:
            raise UsageError(
                f"{parameter('clip', 'auto')} requires a scale: {add_scale} or a public scale, or pass a clip norm."
            )
        if self.clip_norm == "schema" and (self.scale is not None or self.centre is not None):
            raise UsageError(
                f"{parameter('clip', 'schema')} is the largest norm of rows as the schema stores them: leave the "
                f"centre and {parameter('scale')} out, or pass another clip norm."
            )
        if self.scale_share is not None and no_scale:
            raise UsageError(f"{parameter('scale_share')} requires a private scale: {add_scale}.")
        if self.targets and no_scale:
            raise UsageError(
                f"{parameter('targets')} requires a private scale: {add_scale}; or divide these columns by a public "
                "scale of about 4 / C of their deviation."
            )
        if "clip norm" not in self.chooses and (self.components is not None or self.clip_share is not None):
            raise UsageError(
                f"{parameter('components')} and {parameter('clip_share')} require a private clip norm: "
                f"add {parameter('clip', 'private')}."
            )
        if self.components is not None and self.components < 1:
            raise UsageError("The number of components must be at least 1.", parameter="components")

    @property
    def chooses(self) -> tuple[Choice, ...]:
        """The private choices in the order of their draws: the scale first, as norms are of scaled rows."""
        settings: dict[Choice, object] = {"scale": self.scale, "clip norm": self.clip_norm}
        return tuple(name for name, value in settings.items() if isinstance(value, str) and value == "private")

    @property
    def centred(self) -> bool:
        """Whether answers are about a mean or a centre: released with the moment, chosen before it, or public."""
        return self.centring is Centring.PRIVATE or self.centre is not None or "scale" in self.chooses

    @property
    def mechanism_info(self) -> MechanismInfo:
        """Public description of the mechanism."""
        return mechanism_named(self.mechanism).info

    @property
    def by_products(self) -> bool:
        """Whether the mechanism works from products with the moment, which is then never formed."""
        return self.options.get("route") == "products"

    def on_grid(self, columns: int, rows: int | None = None, max_rows: int = 1) -> ReleaseRequest:
        """Return the request with its grid bits and shares; ``rows`` is n if it is public, None: ``rows_at_most``."""
        if self.clip_norm == "auto" and self.scale != "private":
            return replace(self, clip_norm=auto_clip(columns)).on_grid(columns, rows, max_rows)
        if self.clip_norm == "schema":  # which follows from the grid
            return replace(self.with_placeholders.on_grid(columns, rows, max_rows), clip_norm="schema")
        if self.chooses:
            shares = self._shares(columns, rows, max_rows)
            bits = self.with_placeholders.on_grid(columns, rows, max_rows).grid_bits
            return replace(self, grid_bits=bits, scale_share=shares.get("scale"), clip_share=shares.get("clip norm"))
        if self.grid_bits is not None:
            return self
        row_limit, deviation = self.rows_at_most if rows is None else rows, None
        if self.mechanism_info.additive:
            trial = replace(self, grid_bits=LEAST_BITS)
            variance = trial.calibrated(columns, max_rows).noise.variance_off_diagonal
            deviation = variance and math.sqrt(variance) / 4**LEAST_BITS
        grid_bits = LEAST_BITS
        for bits in range(LEAST_BITS, _MAX_BITS + 1):
            if not self._fits(bits, columns, row_limit, max_rows):
                break
            grid_bits = bits
            if is_little(row_limit, columns, bits, deviation) if deviation else bits == SIMPLE_BITS:
                break
        return replace(self, grid_bits=grid_bits)

    def _fits(self, bits: int, columns: int, rows: int, max_rows: int) -> bool:
        """Whether 64-bit integers hold the sum of this many rows with this many grid bits, and the noise."""
        trial = replace(self, grid_bits=bits)
        try:
            trial.calibrated(columns, max_rows)
            return rows <= trial.bound(columns).total_rows
        except UsageError:
            return False

    def _shares(self, columns: int, rows: int | None, max_rows: int) -> dict[Choice, Fraction]:
        """Return the share of the loss for each choice: as given, or by the rule of the module."""
        if rows is None and self.rows_at_most != ROWS_AT_MOST:
            rows = self.rows_at_most
        named: dict[Choice, Fraction | None] = {"scale": self.scale_share, "clip norm": self.clip_share}
        shares = {choice: named[choice] or UNKNOWN for choice in self.chooses}
        if rows is None:
            return shares
        gaussian = self._gaussian(columns, max_rows)
        exchanged = 2 if self.neighbours is Neighbours.REPLACE_ONE else 1
        for choice in [choice for choice in shares if named[choice] is None]:
            counts, part = (columns, _COLUMNS) if choice == "scale" else (1, _NORMS)
            allowed = rows * part / max_rows
            if gaussian:
                share = exchanged * counts * (float(gaussian_sigma(self.loss)) / allowed) ** 2
            else:
                share = math.sqrt(2) * exchanged * counts / (self.loss.epsilon * allowed)
            shares[choice] = min(_LARGEST_SHARE, Fraction(max(1, math.ceil(100 * min(share, 1))), 100))
        return shares

    def _gaussian(self, columns: int, max_rows: int) -> bool:
        return _proved(self.with_placeholders.calibrated(columns, max_rows)).mu_squared is not None

    def of_table(self, table: Table) -> ReleaseRequest:
        """Return the request with its grid bits for a table; UsageError for unknown targets."""
        if missing := [name for name in self.targets if name not in table.names]:
            raise UsageError(
                f"There is no column {', '.join(missing)}; there are {listed(table.names)}.", parameter="targets"
            )
        # releases of periods are added, so their grid bits follow from the same public number, not from n
        public = self.neighbours is Neighbours.REPLACE_ONE and not table.periodic
        request = self.on_grid(table.columns, table.rows if public else None, table.max_rows)
        return request.by_schema(table.schema) if self.clip_norm == "schema" else request

    def by_schema(self, schema: Schema | None) -> ReleaseRequest:
        """Return a request on a grid with the clip norm that follows from a schema."""
        if schema is None or schema.norm is None or self.grid_bits is None:
            lacks = "the schema leaves a range open" if schema is not None else "these rows have none"
            raise UsageError(
                f"{parameter('clip', 'schema')} needs a schema with a range for every number, and {lacks}."
            )
        return replace(self, clip_norm=clip_norm_without_clipping(schema.norm, len(schema.features), self.grid_bits))

    def bound(self, columns: int) -> RowBound:
        """Return how rows are bounded; private centring appends C/2. UsageError while a private choice is open."""
        if self.clip_norm == "private" or self.scale == "private":
            raise UsageError(f"The {self.chooses[0]} is unknown before the release chooses it. Pass a public one.")
        if self.clip_norm == "schema":
            raise UsageError(
                f"{parameter('clip', 'schema')} is for rows that were ingested with a schema. For rows in memory, "
                "pass a number slightly above the norm of their schema: 1.01 * schema.norm."
            )
        bits = self.grid_bits
        if bits is None or self.clip_norm == "auto":
            return self.on_grid(columns).bound(columns)
        return RowBound(
            columns=columns,
            clip_norm=self.clip_norm,
            grid_bits=bits,
            centre=self.centre,
            scale=self.scale,
            # C/2 is within 3 % of the best choice for means of norm at least C/4
            constant=2 ** (bits - 1) if self.centring is Centring.PRIVATE else 0,
        )

    @property
    def with_placeholders(self) -> ReleaseRequest:
        """The request with a clip norm of 1 and no scale for open choices: no width or noise in steps changes."""
        if not self.chooses and self.clip_norm != "schema":
            return self
        clip = 1.0 if self.clip_norm in get_args(Word) else self.clip_norm
        return replace(
            self, clip_norm=clip, scale=None if self.scale == "private" else self.scale, scale_share=None,
            clip_share=None, components=None, targets=(),
        )  # fmt: skip

    def parts(self, columns: int, max_rows: int = 1) -> Parts | None:
        """Return the parts of a release with private choices; None without."""
        if not self.chooses:
            return None
        # two stages are divided from the release, and then from each other (:mod:`dpdist.core.privacy.staged`)
        gaussian = self._gaussian(columns, max_rows)
        shares = self._shares(columns, None, max_rows)
        share = sum(shares.values(), Fraction(0))

        def histogram(choice: Choice, loss: PrivacyLoss) -> CalibratedHistogram:
            if choice == "scale":
                return column_histograms.calibrated(loss, self.neighbours, columns, max_rows)
            return quantile.calibrated(loss, self.neighbours, max_rows)

        def stages_at(loss: PrivacyLoss) -> tuple[dict[Choice, CalibratedHistogram], Guarantee]:
            """Return the stages that share a loss, and their joint guarantee."""
            first, *others = self.chooses
            if not others:
                stage = histogram(first, loss)
                return {first: stage}, stage.guarantee
            first_loss, second_loss = divided(
                loss, shares[first] / share, lambda part: histogram(first, part).guarantee, gaussian=gaussian
            )
            stages = {first: histogram(first, first_loss), others[0]: histogram(others[0], second_loss)}
            return stages, together(stages[first].guarantee, stages[others[0]].guarantee, loss)

        stage_loss, moment_loss = divided(self.loss, share, lambda loss: stages_at(loss)[1], gaussian=gaussian)
        stages, choice = stages_at(stage_loss)
        moment = replace(self.with_placeholders, loss=moment_loss)
        guarantee = together(choice, _proved(moment.calibrated(columns, max_rows)), self.loss)
        return Parts(stages, choice, moment, guarantee)

    def calibrated(self, columns: int, max_rows: int = 1) -> Calibrated:
        """Return the mechanism for a number of columns; neighbours differ in at most ``max_rows`` rows of the sum.

        UsageError for unsuitable options; RefusedError if the guarantee is weaker than the claim and not for
        reproduction.
        """
        bound = self.bound(columns)
        query = LatticeQuery(bound.width, bound.norm_bound, self.neighbours, max_rows)
        result = calibrated(self.mechanism, query, self.loss, self.options)
        private = is_private_as_claimed(result)
        if private and self.for_reproduction:
            raise UsageError(
                f"{self.mechanism} is private as claimed at {self.loss}: leave {parameter('for_reproduction')} out, so "
                "that the ledger is charged."
            )
        if not private and not self.for_reproduction:
            raise RefusedError(self._unproved(result))
        return result

    def _unproved(self, result: Calibrated) -> str:
        text = f"{self.mechanism} was published as {result.claim}"
        if result.claim is None:
            text = f"{self.mechanism} is not private and was never claimed to be"
        elif result.guarantee is None:
            text += "; there is no proof for the computed version"
        else:
            proved = result.guarantee.loss
            text += f"; the proved loss is epsilon {proved.epsilon:g}, delta {proved.delta:.4g}"
        return (
            f"{text}. Use {parameter('mechanism', self.mechanism_info.replacement)} instead, or pass "
            f"{parameter('for_reproduction')} with rows that were ingested without a budget: the release is then "
            "charged to no ledger and marked as not private as claimed."
        )

    def guarantee(self, table: Table) -> Guarantee | None:
        """Return the guarantee of a release of a table, if any; RefusedError if its unit requires a mu."""
        guarantee = self.of_table(table).proved(table.columns, table.changed_rows)
        if guarantee is not None and guarantee.mu_squared is None and table.unit and table.unit.max_periods is not None:
            raise RefusedError(
                f"{self.mechanism} cannot be charged for a privacy unit with rows in several periods: use "
                f"{parameter('mechanism', 'gaussian')}."
            )
        return guarantee

    def proved(self, columns: int, max_rows: int = 1) -> Guarantee | None:
        """Return the joint guarantee of all parts of a release; None if there is none."""
        parts = self.parts(columns, max_rows)
        return self.calibrated(columns, max_rows).guarantee if parts is None else parts.guarantee

    def parameters(self, table: Table) -> dict[str, object]:
        """Return the parameters of the release besides the rows, as JSON values."""
        return {
            **common_parameters(table, self.mechanism, self.loss, self.neighbours),
            "centring": self.centring.value,
            "bound": self.of_table(table)._bound_json(table.columns, table.max_rows),  # noqa: SLF001 - of its own kind
            "period": self.period,
            "options": self.mechanism_info.filled(self.options),
            **({"for_reproduction": True} if self.for_reproduction else {}),
            **({"weights": list(table.weights)} if table.weights else {}),
        }

    def _bound_json(self, columns: int, max_rows: int) -> dict[str, object]:
        values: dict[str, object] = dict(self.with_placeholders.bound(columns).to_json())
        if not self.chooses:
            return values
        shares = {choice: str(share) for choice, share in self._shares(columns, None, max_rows).items()}
        if "scale" in shares:
            grid, targets = column_histograms.GRID, {"targets": list(self.targets)} if self.targets else {}
            scale = {"mechanism": column_histograms.NAME, "grid": grid, "share": shares["scale"], **targets}
            values |= {"clip_norm": self.clip_norm, "scale": scale}
        if "clip norm" in shares:
            components = {} if self.components is None else {"components": self.components}
            values["clip_norm"] = {
                "mechanism": quantile.NAME, "grid": CLIP_GRID.to_json(), "share": shares["clip norm"], **components,
            }  # fmt: skip
        return values

    def release_id(self, table: Table) -> str:
        """Return the chosen id, or the one that follows from the parameters."""
        return id_of("r", self.parameters(table)) if self.name is None else self.name


def common_parameters(table: Table, mechanism: str, loss: PrivacyLoss, neighbours: Neighbours) -> dict[str, object]:
    """Return the parameters that all kinds of releases have, as JSON values."""
    return {
        "dataset_id": table.dataset_id,
        "columns": list(table.names),
        "mechanism": mechanism,
        "epsilon_micro": loss.epsilon_micro,
        "delta_atto": loss.delta_atto,
        "neighbours": neighbours.value,
        **({} if table.unit is None else {"unit": table.unit.to_json()}),
        **({} if table.variant is None else {"variant": table.variant}),
    }


def id_of(kind: str, parameters: Mapping[str, object]) -> str:
    """Return the id that follows from the parameters of a release of a kind."""
    return f"{kind}-{hashlib.sha256(canonical(parameters).encode()).hexdigest()[:32]}"


def parts_of(request: ReleaseRequest, columns: int, max_rows: int) -> Parts:
    """Return the parts of a request that has private choices."""
    parts = request.parts(columns, max_rows)
    if parts is None:
        raise AssertionError("a request without stages")
    return parts


def _proved(calibrated: Calibrated) -> Guarantee:
    if calibrated.guarantee is None:
        raise AssertionError("a charged release without a guarantee")
    return calibrated.guarantee


def clip_norm_without_clipping(norm: float, columns: int, grid_bits: int) -> float:
    """Return the least clip norm, of seven digits, with which no row of a norm is shortened before it is rounded.

    Rows are shortened to slightly less than the clip norm (:attr:`RowBound.shortened_norm`), and norms that are equal
    on paper differ by some 1e-15 in float64.
    """
    return float(rounded_up(norm * (1 + 1e-12) / Dithering(columns, grid_bits).inner, 7))


def auto_clip(columns: int) -> float:
    """Return the default clip norm of scaled columns, to four digits; it clips some 6 % of skewed, correlated rows."""
    return float(f"{AUTO_CLIP * math.sqrt(columns):.4g}")


def exact_fraction(number: object) -> Fraction:
    """Return a number exactly, a float by its shortest decimal text; 0 if it is not a number."""
    try:
        value = Decimal(str(number))
    except ArithmeticError:
        return Fraction(0)
    # checks the exponent first, because 1e-999999999 has too many digits
    return Fraction(value) if value.is_finite() and abs(value.adjusted()) < 10 else Fraction(0)


def share_from(value: object, name: str = "scale_share") -> Fraction:
    """Return a share exactly."""
    share = value if isinstance(value, Fraction) else exact_fraction(value)
    if not 0 < share < 1 or share.denominator > MICRO:
        raise UsageError(
            f"{parameter(name)} must be between 0 and 1, both excluded, in steps of a millionth, such as 0.1."
        )
    return share
