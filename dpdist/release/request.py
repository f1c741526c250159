"""What is asked for: one private second moment of one table, completely described by public parameters.

The release id is a hash of the data set's identity, these parameters and the period. It never depends on a job id,
a restart count, the clock or the data, so a job that is repeated for whatever reason asks for the same release. The
number of rows is left out as well: under add-remove it is private, and a hash can be inverted by trial.

**The share of the loss that a private histogram takes**, where nobody names one. Noise on a count has a standard
deviation of ``Delta / (mu sqrt(share))``, or ``sqrt(2) Delta / (epsilon share)`` where the loss has no mu, with the
sensitivity ``Delta`` of the histogram. The share is the least whole percent at which that is at most .005 n for the
histograms of the columns, whose sums then give a scale within some 20 %, and .004 n for that of the norms. It is at
least .01 and at most .25: the release has ``1 / (1 - share)`` times the variance. More does not pay: at epsilon .1 and
K = 10 a tenth of mu² on the norms of 48,842 x 123 numbers captured .958, .02 captured .963. n is public, or
``rows_at_most`` where somebody names it. Where nothing is known of n the share is a tenth. All of it is public and
fixed before anything is drawn, so the theorem of :mod:`dpdist.privacy.staged` holds at any share.
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

from dpdist._util.text import canonical, has_control, listed
from dpdist.errors import RefusedError, UsageError
from dpdist.mechanisms import columns as column_histograms
from dpdist.mechanisms import quantile
from dpdist.mechanisms.base import Calibrated, is_private_as_claimed
from dpdist.mechanisms.counts import CalibratedHistogram
from dpdist.mechanisms.info import MechanismInfo
from dpdist.mechanisms.registry import calibrated, mechanism_named
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.moment.histograms import NormGrid
from dpdist.naming import parameter
from dpdist.options import ROWS_AT_MOST, Word
from dpdist.privacy.accounting import gaussian_sigma
from dpdist.privacy.guarantee import MICRO, Guarantee, Neighbours, PrivacyLoss, neighbours_of
from dpdist.privacy.staged import divided, together
from dpdist.rows.bounding import DITHERED, TRUNCATED, RowBound
from dpdist.rows.rounding import LEAST_BITS, OLD_BITS, SIMPLE_BITS, is_little
from dpdist.rows.table import Table

_MAX_BITS = 24
CLIP_GRID = NormGrid()
"""The norms that it chooses from."""
FIRST_RULE, CHOICE_RULE = 1, 2
"""How clip norm and scale are chosen: by versions up to 0.1.0, and now."""
AUTO_CLIP = {FIRST_RULE: 1.5, CHOICE_RULE: 1.75}
"""By the rule, times the square root of the number of columns: the clip norm of scaled columns, if nobody names one."""
UNKNOWN = Fraction(1, 10)
"""The share of a histogram where nothing is known of n; and by the first rule."""
_LARGEST_SHARE = Fraction(1, 4)
_COLUMNS, _NORMS = 0.005, 0.004
"""What the noise of a count may be of n."""
Choice = Literal["scale", "clip norm"]
"""What a release may choose first, each in a draw of its own."""


@dataclass(frozen=True)
class Parts:
    """A release that chooses its clip norm, or centre and scale, or all of them, in its parts."""

    stages: Mapping[Choice, CalibratedHistogram]  # by what each chooses, at its loss
    choice: Guarantee  # of all stages together
    moment: ReleaseRequest  # the release that follows: `ReleaseRequest.with_placeholders`, at its part of the loss
    guarantee: Guarantee  # of all together

    @property
    def share_words(self) -> str:
        """The part of the loss that the stages take, as part of a sentence."""
        choice, both = self.choice, self.guarantee
        if choice.mu_squared is not None and both.mu_squared is not None:
            return f"mu² {float(choice.mu_squared):.3g} of {float(both.mu_squared):.3g}"
        return f"epsilon {choice.loss.epsilon:g} of {both.loss.epsilon:g}"

    def to_json(self) -> dict[str, object]:
        """Return what is proved of the stages together, and of all, as JSON values."""
        return {"stage": self.choice.to_json(), "both": self.guarantee.to_json()}


class Centring(enum.StrEnum):
    """Whether a release tells the mean as well.

    Attributes
    ----------
    NONE : str
        ``"none"``: the second moment about zero, or about a public centre.
    PRIVATE : str
        ``"private"``: each row x gets one more entry, half the clip norm, and one release gives the second moment and
        the sum of the rows.

    See Also
    --------
    ReleaseRequest : Takes it.

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
    """What to release: one private second moment, completely described by public parameters.

    Parameters
    ----------
    mechanism : str
        Name of a mechanism, one of those that :func:`dpdist.list_mechanisms` lists. ``gaussian`` is recommended where a
        delta is allowed, ``two-sided-wishart`` where none is.
    loss : PrivacyLoss
        The (epsilon, delta) it may cost.
    clip_norm : float, "private" or "auto"
        Public clip norm C > 0, in units of the shifted and scaled rows: longer rows are shortened to it. Never computed
        from the rows, unless by :func:`dpdist.choose_clip_norm`. ``"private"``: the release chooses it first, from a
        private histogram of the norms: the one that suits ``components``, else the 0.95-quantile, or the largest
        smaller one that the noise lets through. ``"auto"``: 1.75 times the square root of d, which suits columns that
        were divided by a scale; with a private one, of the number of columns of which that choice saw a variance.
    neighbours : Neighbours or str, default Neighbours.REPLACE_ONE
        The neighbouring relation.
    centring : Centring or str, default Centring.NONE
        Whether the mean is released too, for the one price.
    centre : tuple of float, default None
        Public shift, one number for each of the d columns. None: no shift.
    scale : tuple of float or "private", default None
        Public divisor, one positive number for each of the d columns. None: no divisor. ``"private"``: the release
        chooses it first, from private histograms of all columns, and a centre too, unless one is given.
    grid_bits : int, default None
        b, from 2 to 24: the clip norm is ``2**b`` grid steps. None: as few, from 10 on, as make the stated error of
        rounding less than 5 % of the noise in spectral norm (:mod:`dpdist.rows.rounding`), or as many as 64-bit
        integers hold; 12 for a mechanism that does not add noise of a known deviation.
    period : str, default ""
        Names one of several releases with the same parameters; empty for the only one.
    name : str, default None
        The release id: 1 to 64 letters, digits, hyphens or underscores. None: it follows from the parameters.
    options : mapping of str, default {}
        Public parameters of the mechanism, by name; those left out take their defaults.
    for_reproduction : bool, default False
        Whether a mechanism whose claim is not proved is meant. Its release is charged to no ledger, says that it is
        not private as claimed, and is made only of rows that never had a budget.
    accept_large_delta : bool, default False
        Whether a delta of 1/n or more is meant, where n is public. It is no part of the id.
    rows_at_most : int, default 10000000
        A public upper bound on n, from which grid bits and the share of a private choice follow where n is private, or
        where rows come in periods. It has no part in the guarantee.
    rule : int, default 2
        How rows are rounded to the grid: 2 rounds without bias (:mod:`dpdist.rows.dither`). 1 truncates them to 16
        bits, as versions up to 0.1.0 did.
    scale_share : Fraction, str or float, default None
        With a private scale: the share of mu² (of epsilon, where the mechanism has no mu) that its histograms take.
        None: between .01 and .25, by n, epsilon and d.
    clip_share : Fraction, str or float, default None
        Likewise with a private clip norm.
    components : int, default None
        With a private clip norm: the number K of leading components that it is chosen for
        (:mod:`dpdist.release.clip_trade`). None: the 0.95-quantile.
    targets : tuple of str, default ()
        With a private scale: columns that a regression will explain. Their scale is made smaller, so that a standard
        deviation is about a quarter of the clip norm, and noise hides less of them. In components they weigh more.
    choice_rule : int, default 2
        How private choices follow from their histograms: 2 by sums over intervals of bins; 1 by single bins, at a tenth
        of the loss each, as versions up to 0.1.0 did.

    Raises
    ------
    UsageError
        If mechanism, delta, neighbours, centring and options do not go together, or there is no such mechanism.

    See Also
    --------
    release_rows : Takes it.
    forecast_release : Says what it will show.
    choose_clip_norm : Chooses its clip norm.

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
    rule: int = DITHERED
    scale_share: Fraction | None = None
    clip_share: Fraction | None = None
    components: int | None = None
    targets: tuple[str, ...] = ()
    choice_rule: int = CHOICE_RULE

    def __post_init__(self) -> None:
        # what a caller may write as a word or a whole number is compared, and hashed into the id, as what it stands for
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
        info.filled(self.options)  # refuses what it does not know
        if not 1 <= self.rows_at_most < 2**63:
            raise UsageError(f"{parameter('rows_at_most')} is a number of rows, at least 1.")
        labels = {f"id ({parameter('id')})": self.name, "period": self.period}
        if wrong := [label for label, text in labels.items() if has_control(text or "")]:
            raise UsageError(f"The {wrong[0]} holds a control character: it is published, and shown on terminals.")
        if self.for_reproduction and self.name is not None:
            raise UsageError(
                "A release for reproduction takes no chosen id, because no ledger keeps ids apart: leave "
                f"{parameter('id')} out."
            )
        if self.centring is Centring.PRIVATE and not info.additive:
            raise UsageError(
                f"{self.mechanism} cannot release the mean as well ({parameter('centre', 'private')}): only mechanisms "
                "that add noise to the moment can. Pass a public centre, or take gaussian or two-sided-wishart."
            )

    def _require_choices(self) -> None:
        if self.chooses and self.for_reproduction:
            raise UsageError(f"A release for reproduction has no guarantee to choose a {self.chooses[0]} by: name one.")
        shares = (self.scale_share or _LARGEST_SHARE, self.clip_share or _LARGEST_SHARE)
        if len(self.chooses) > 1 and sum(shares) >= 1:
            raise UsageError(
                f"The histogram of the norms takes a share of up to {float(shares[1]):g} as well: "
                f"{parameter('scale_share')} is less than {float(1 - shares[1]):g} then."
            )
        if self.clip_norm == "auto" and self.scale is None:
            raise UsageError(
                f"{parameter('clip', 'auto')} is for columns that are divided by a scale: add "
                f"{parameter('scale', 'private')} or a public scale, or name a clip norm."
            )
        if self.scale_share is not None and self.scale != "private":
            raise UsageError(
                f"{parameter('scale_share')} is the part of a private choice: add {parameter('scale', 'private')}."
            )
        if self.targets and self.scale != "private":
            raise UsageError(
                f"{parameter('targets')} is for a private scale: add {parameter('scale', 'private')}; or divide them "
                "by a public scale of about 4 / C of their deviation."
            )
        if self.clip_norm != "private" and (self.components is not None or self.clip_share is not None):
            raise UsageError(
                f"{parameter('components')} and {parameter('clip_share')} are for a private choice of the clip norm: "
                f"add {parameter('clip', 'private')}."
            )
        if self.components is not None and self.components < 1:
            raise UsageError("At least one component is asked for.", parameter="components")

    @property
    def chooses(self) -> tuple[Choice, ...]:
        """What it chooses first, each in a draw of its own, in the order of these draws; none: nothing.

        The scale comes first: norms are those of scaled rows.
        """
        settings: dict[Choice, object] = {"scale": self.scale, "clip norm": self.clip_norm}
        return tuple(
            choice for choice, setting in settings.items() if isinstance(setting, str) and setting == "private"
        )

    @property
    def mechanism_info(self) -> MechanismInfo:
        """What is said of the mechanism in public."""
        return mechanism_named(self.mechanism).info

    @property
    def by_products(self) -> bool:
        """Whether the mechanism was told to work from products with the moment, which is then never formed."""
        return self.options.get("route") == "products"

    def on_grid(self, columns: int, rows: int | None = None, max_rows: int = 1) -> ReleaseRequest:
        """Return the request with grid bits and shares: those asked for, else those that follow from public numbers.

        ``rows`` is n, where it is public; None takes ``rows_at_most``. It raises what :meth:`calibrated` does.
        """
        if self.clip_norm == "auto" and self.scale != "private":
            return replace(self, clip_norm=auto_clip(columns, self.choice_rule)).on_grid(columns, rows, max_rows)
        if self.chooses:
            shares, bits = (
                self._shares(columns, rows, max_rows),
                self.with_placeholders.on_grid(columns, rows, max_rows).grid_bits,
            )
            return replace(
                self, grid_bits=bits, scale_share=shares.get("scale"), clip_share=shares.get("clip norm")
            )  # fmt: skip
        if self.grid_bits is not None:
            return self
        if self.rule == TRUNCATED:
            return replace(self, grid_bits=OLD_BITS)
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
        """Say whether 64-bit integers hold the sum of so many rows on a grid of so many bits, and the noise."""
        trial = replace(self, grid_bits=bits)
        try:
            trial.calibrated(columns, max_rows)
            return rows <= trial.bound(columns).total_rows
        except UsageError:
            return False

    def _shares(self, columns: int, rows: int | None, max_rows: int) -> dict[Choice, Fraction]:
        """Return the share of the loss that each choice takes: the one named, else by the rule of the module."""
        if rows is None and self.rows_at_most != ROWS_AT_MOST:
            rows = self.rows_at_most
        named: dict[Choice, Fraction | None] = {"scale": self.scale_share, "clip norm": self.clip_share}
        shares = {choice: named[choice] or UNKNOWN for choice in self.chooses}
        if rows is None or self.choice_rule == FIRST_RULE:
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
        """Return the request with the number of grid bits that it has for a table; refuse targets it does not have.

        Releases of periods are added up: so the bits of each follow from the same public number, and not from its own.
        How often rows are added is left out: a total has the noise and the rounding of rows that are added once.
        """
        if missing := [name for name in self.targets if name not in table.names]:
            raise UsageError(
                f"There is no column {', '.join(missing)}; there are {listed(table.names)}.", parameter="targets"
            )
        public = self.neighbours is Neighbours.REPLACE_ONE and not table.periodic
        return self.on_grid(table.columns, table.rows if public else None, table.max_rows)

    def older(self) -> tuple[ReleaseRequest, ...]:
        """Return what the same words asked for by older rules, the newest first."""
        if not self.chooses and self.clip_norm != "auto":
            return (self.truncating(),)
        first = replace(self, choice_rule=FIRST_RULE, clip_share=None, components=None, targets=())
        return first, first.truncating()

    def truncating(self) -> ReleaseRequest:
        """Return what the same words asked for while rows were truncated to the grid."""
        return replace(self, rule=TRUNCATED, grid_bits=OLD_BITS if self.grid_bits is None else self.grid_bits)

    def bound(self, columns: int) -> RowBound:
        """Return how rows of so many columns are bounded; private centring appends the constant ``2^(b-1)``.

        The constant C/2 is within 3 % of the best choice for means of norm at least C/4. Grid bits that were not asked
        for are those for ``rows_at_most`` rows. No row can be bounded before what is chosen is known: UsageError.
        """
        if self.clip_norm == "private" or self.scale == "private":
            raise UsageError(f"The {self.chooses[0]} is not chosen yet: the release itself does that, privately.")
        bits = self.grid_bits
        if bits is None or self.clip_norm == "auto":
            return self.on_grid(columns).bound(columns)
        return RowBound(
            columns=columns,
            clip_norm=self.clip_norm,
            grid_bits=bits,
            centre=self.centre,
            scale=self.scale,
            constant=2 ** (bits - 1) if self.centring is Centring.PRIVATE else 0,
            rule=self.rule,
        )

    @property
    def with_placeholders(self) -> ReleaseRequest:
        """It, with a clip norm of 1 and no scale where these are not chosen yet.

        No width and no noise in grid steps depends on them.
        """
        if not self.chooses:
            return self
        clip = 1.0 if self.clip_norm in get_args(Word) else self.clip_norm
        return replace(
            self, clip_norm=clip, scale=None if self.scale == "private" else self.scale, scale_share=None,
            clip_share=None, components=None, targets=(),
        )  # fmt: skip

    def parts(self, columns: int, max_rows: int = 1) -> Parts | None:
        """Return the parts of a release that chooses something first, of a table of so many columns; None of others.

        Where the mechanism has a mu, a stage takes its share of mu² and has Gaussian noise. Where it has none, it takes
        that share of epsilon and has discrete Laplace noise. Two stages are divided from the release, and then from
        each other: the theorem of :mod:`dpdist.privacy.staged`, applied twice. A loss that is too small to be divided
        is a UsageError.
        """
        if not self.chooses:
            return None
        gaussian = self._gaussian(columns, max_rows)
        shares = self._shares(columns, None, max_rows)
        share = sum(shares.values(), Fraction(0))

        def histogram(choice: Choice, loss: PrivacyLoss) -> CalibratedHistogram:
            if choice == "scale":
                return column_histograms.calibrated(loss, self.neighbours, columns, max_rows)
            return quantile.calibrated(loss, self.neighbours, max_rows)

        def stages_at(loss: PrivacyLoss) -> tuple[dict[Choice, CalibratedHistogram], Guarantee]:
            """Return the stages that share a loss, and what is proved of them together."""
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
        """Return the mechanism calibrated for a table of so many columns.

        ``max_rows`` is how many rows of the sum neighbours differ in at most: those of one privacy unit, as often as
        each is added.

        Raises
        ------
        UsageError
            If the options make no sense for so many columns, the noise would leave the lattice, or a mechanism that
            is private as claimed is asked for as if it were not.
        RefusedError
            If what is proved falls short of what is claimed and that is not what was asked for, or nothing is proved
            for several rows of one unit.
        """
        bound = self.bound(columns)
        query = LatticeQuery(bound.width, bound.norm_bound, self.neighbours, max_rows)
        result = calibrated(self.mechanism, query, self.loss, self.options)
        private = is_private_as_claimed(result)
        if private and self.for_reproduction:
            raise UsageError(
                f"{self.mechanism} is private as claimed at {self.loss}: leave {parameter('for_reproduction')} out, so "
                "that it is charged to the ledger."
            )
        if not private and not self.for_reproduction:
            raise RefusedError(self._unproved(result))
        return result

    def _unproved(self, result: Calibrated) -> str:
        text = f"{self.mechanism} was published as {result.claim}"
        if result.claim is None:
            text = f"{self.mechanism} is not private and was never claimed to be"
        elif result.guarantee is None:
            text += "; nothing is proved of it as it is computed"
        else:
            true = result.guarantee.loss
            text += f"; what is proved is epsilon {true.epsilon:g}, delta {true.delta:.4g}"
        return (
            f"{text}. Take {parameter('mechanism', self.mechanism_info.replacement)} instead, or pass "
            f"{parameter('for_reproduction')}, of rows that were ingested without a budget: the release is then "
            "charged to no ledger and marked as not private as claimed."
        )

    def guarantee(self, table: Table) -> Guarantee | None:
        """Return what is proved of a release of a table; None where nothing is.

        A privacy unit with rows in several periods is refused where the mechanism has no mu to count them by.
        """
        guarantee = self.of_table(table).proved(table.columns, table.changed_rows)
        if guarantee is not None and guarantee.mu_squared is None and table.unit and table.unit.max_periods is not None:
            raise RefusedError(
                f"{self.mechanism} cannot be charged for a privacy unit with rows in several periods: take "
                f"{parameter('mechanism', 'gaussian')}."
            )
        return guarantee

    def proved(self, columns: int, max_rows: int = 1) -> Guarantee | None:
        """Return what is proved of a release of so many columns, of all its parts together; None where nothing is."""
        parts = self.parts(columns, max_rows)
        return self.calibrated(columns, max_rows).guarantee if parts is None else parts.guarantee

    def parameters(self, table: Table) -> dict[str, object]:
        """Return everything the release depends on besides the rows, as JSON values."""
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
        # what was stored before there was another rule has none, and keeps its ids
        rule: dict[str, object] = {} if self.choice_rule == FIRST_RULE else {"rule": self.choice_rule}
        if "scale" in shares:
            grid, targets = column_histograms.GRID, {"targets": list(self.targets)} if self.targets else {}
            scale = {"mechanism": column_histograms.NAME, "grid": grid, "share": shares["scale"], **rule, **targets}
            values |= {"clip_norm": self.clip_norm, "scale": scale}
        if "clip norm" in shares:
            components = {} if self.components is None else {"components": self.components}
            values["clip_norm"] = {
                "mechanism": quantile.NAME, "grid": CLIP_GRID.to_json(), "share": shares["clip norm"], **rule,
                **components,
            }  # fmt: skip
        return values

    def release_id(self, table: Table) -> str:
        """Return the chosen id, or the one that follows from the parameters."""
        return id_of("r", self.parameters(table)) if self.name is None else self.name


def common_parameters(
    table: Table, mechanism: str, loss: PrivacyLoss, neighbours: Neighbours
) -> dict[str, object]:  # fmt: skip
    """Return what every release depends on besides the rows, as JSON values."""
    return {
        "dataset_id": table.dataset_id,
        "columns": list(table.names),
        "mechanism": mechanism,
        "epsilon_micro": loss.epsilon_micro,
        "delta_atto": loss.delta_atto,
        "neighbours": neighbours.value,
        **({} if table.unit is None else {"unit": table.unit.to_json()}),
    }


def id_of(kind: str, parameters: Mapping[str, object]) -> str:
    """Return the id that follows from the parameters of a release of a kind."""
    return f"{kind}-{hashlib.sha256(canonical(parameters).encode()).hexdigest()[:32]}"


def parts_of(request: ReleaseRequest, columns: int, max_rows: int) -> Parts:
    """Return the parts of a request that is known to choose something."""
    parts = request.parts(columns, max_rows)
    if parts is None:
        raise AssertionError("it has no stage")
    return parts


def _proved(calibrated: Calibrated) -> Guarantee:
    if calibrated.guarantee is None:
        raise AssertionError("what is charged is proved")
    return calibrated.guarantee


def auto_clip(columns: int, rule: int = CHOICE_RULE) -> float:
    """Return the clip norm that is taken of so many columns in their own units: public, to four digits.

    Of skewed columns with correlations of .4 it shortens some 6 % of the rows (the first rule some 10 %).
    """
    return float(f"{AUTO_CLIP[rule] * math.sqrt(columns):.4g}")


def exact_fraction(number: object) -> Fraction:
    """Return a number exactly, of a float with the digits with which it is written; 0 for what is no number."""
    try:
        value = Decimal(str(number))
    except ArithmeticError:
        return Fraction(0)
    # the exponent is looked at first, because 1e-999999999 has too many digits
    return Fraction(value) if value.is_finite() and abs(value.adjusted()) < 10 else Fraction(0)


def share_from(value: object, name: str = "scale_share") -> Fraction:
    """Return a share exactly."""
    share = value if isinstance(value, Fraction) else exact_fraction(value)
    if not 0 < share < 1 or share.denominator > MICRO:
        raise UsageError(
            f"{parameter(name)} lies between 0 and 1, both excluded, in steps of a millionth, such as 0.1."
        )
    return share
