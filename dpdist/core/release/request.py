"""Requests: one private second moment of one table, completely described by public parameters.

What follows from a request and a table is decided once, in a plan (:mod:`dpdist.core.release.plan`).

The release id is a hash of the data set's identity, these parameters and the period. It does not depend on a job id, a
restart count, the clock or the data, so a repeated job requests the same release. The number of rows is left out as
well: under add-remove it is private, and a hash can be inverted by trial.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Literal, get_args

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.info import MechanismInfo
from dpdist.core.mechanisms.registry import mechanism_named
from dpdist.core.moment.histograms import NormGrid
from dpdist.core.naming import parameter
from dpdist.core.options import ROWS_AT_MOST, Word
from dpdist.core.privacy.guarantee import MICRO, Neighbours, PrivacyLoss, neighbours_of
from dpdist.core.rows.table import Table
from dpdist.core.text import canonical, has_control

CLIP_GRID = NormGrid()  # candidates for a private clip norm
LARGEST_SHARE = Fraction(1, 4)  # of a private histogram in the loss
Choice = Literal["scale", "clip norm", "clipped rows"]  # drawn first, each separately; the last one is a count


class Centring(enum.StrEnum):
    """Whether the mean is released as well.

    Attributes
    ----------
    NONE : str
        ``"none"``: the second moment about zero, or about a public centre.
    PRIVATE : str
        ``"private"``: each row x gets one more entry, half the norm C of a row or a quarter
        (:mod:`dpdist.core.rows.contrasts`), and one release contains the second moment and the sum
        of the rows. Categories and booleans of a schema are about their public middles.
    SCHEMA : str
        ``"schema"``: the same for rows with a schema; without the mean for mechanisms that cannot release it.

    See Also
    --------
    ReleaseRequest : Has this parameter.

    Examples
    --------
    >>> import dpdist
    >>> loss = dpdist.PrivacyLoss.parse(1, 1e-6)
    >>> dpdist.ReleaseRequest("gaussian", loss, 100, centring="private").centring
    <Centring.PRIVATE: 'private'>
    """

    NONE = "none"
    """Second moment about zero, or about a public centre."""
    PRIVATE = "private"
    """Rows are augmented to [x; constant]; one release gives second moment and sum of the rows."""
    SCHEMA = "schema"
    """Categories and booleans about the middles that follow from the schema, and the mean where it can be released."""


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
        best one for ``clip_components``, or else the 0.95-quantile or the largest smaller one that the noise allows,
        from a private histogram of the norms. ``"auto"``: 1.75 times the square root of d, for columns that are divided
        by a scale; with a private scale, d leaves out columns with nearly all values in one bin. ``"schema"``: the
        smallest one with which rounding to the grid shortens no row, as the schema of the table bounds all norms; for
        rows without centre and scale.
    neighbours : Neighbours or str, default Neighbours.REPLACE_ONE
        The neighbouring relation.
    centring : Centring or str, default None
        Whether the mean is released too, at no extra cost. None: as by a schema with categories or booleans, if neither
        a public centre nor a public scale is given; otherwise not.
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
    clip_components : int, default None
        With a private clip norm: the number K of leading components that it is optimised for
        (:mod:`dpdist.core.release.clip_trade`). None: the 0.95-quantile; ten, where all rows of a privacy unit are
        kept.
    targets : tuple of str, default ()
        With a private scale: target columns of a regression. Their scale is reduced so that a standard deviation is
        about a quarter of the clip norm, and noise hides less of them: from six numbers on, and unless the histogram
        shows that a target is skewed, which would clip it more. They weigh more in components.

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
    centring: Centring | None = None
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
    clip_components: int | None = None
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # normalised first, because values are compared and hashed into the id
        object.__setattr__(self, "neighbours", neighbours_of(self.neighbours))
        if self.centring is not None:
            if self.centring not in tuple(Centring):
                raise UsageError(f"centring must be one of {', '.join(Centring)}, not {self.centring!r}.")
            object.__setattr__(self, "centring", Centring(self.centring))
        if self.centring is Centring.SCHEMA and self.centre is not None:
            raise UsageError(f"{parameter('centre', 'schema')} is a public centre already: pass no other.")
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
        scale_share, clip_share = self.scale_share or LARGEST_SHARE, self.clip_share or LARGEST_SHARE
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
        if "clip norm" not in self.chooses and (self.clip_components is not None or self.clip_share is not None):
            raise UsageError(
                f"{parameter('clip_components')} and {parameter('clip_share')} require a private clip norm: "
                f"add {parameter('clip', 'private')}."
            )
        if self.clip_components is not None and self.clip_components < 1:
            raise UsageError("The number of components must be at least 1.", parameter="clip_components")

    @property
    def chooses(self) -> tuple[Choice, ...]:
        """The private choices in the order of their draws: the scale first, as norms are of scaled rows.

        The count of clipped rows is none, because nothing of the release follows from it.
        """
        settings: dict[Choice, object] = {"scale": self.scale, "clip norm": self.clip_norm}
        return tuple(name for name, value in settings.items() if isinstance(value, str) and value == "private")

    @property
    def centred(self) -> bool:
        """Whether answers are about a mean or a centre: released with the moment, chosen before it, or public."""
        released = self.centring in {Centring.PRIVATE, Centring.SCHEMA}
        return released or self.centre is not None or "scale" in self.chooses

    @property
    def mechanism_info(self) -> MechanismInfo:
        """Public description of the mechanism."""
        return mechanism_named(self.mechanism).info

    @property
    def by_products(self) -> bool:
        """Whether the mechanism works from products with the moment, which is then never formed."""
        return self.options.get("route") == "products"


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
