"""What is asked for: one private second moment of one table, completely described by public parameters.

The release id is a hash of the data set's identity, these parameters and the period. It never depends on a job id,
a restart count, the clock or the data, so a job that is repeated for whatever reason asks for the same release. The
number of rows is left out as well: under add-remove it is private, and a hash can be inverted by trial.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

from dpdist._util.text import canonical, has_control
from dpdist.errors import RefusedError, UsageError
from dpdist.mechanisms import quantile
from dpdist.mechanisms.base import Calibrated, is_private_as_claimed
from dpdist.mechanisms.info import MechanismInfo
from dpdist.mechanisms.registry import calibrated, mechanism_named
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.moment.norm_histogram import NormGrid
from dpdist.naming import parameter
from dpdist.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss, neighbours_of
from dpdist.privacy.staged import divided, together
from dpdist.rows.bounding import RowBound
from dpdist.rows.table import Table

CLIP_SHARE = Fraction(1, 10)
"""What a private choice of the clip norm takes of a release: of mu², or of epsilon where there is no mu."""
CLIP_GRID = NormGrid()
"""The norms that it chooses from."""


@dataclass(frozen=True)
class Parts:
    """A release that chooses its clip norm, in its two parts.

    Attributes
    ----------
    norms
        Loss of the histogram of norms.
    stage
        What is proved of it.
    moment
        The release that follows, with a clip norm of 1.
    guarantee
        What is proved of both together.
    """

    norms: PrivacyLoss
    stage: Guarantee
    moment: ReleaseRequest
    guarantee: Guarantee


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


def _centring_of(given: str) -> Centring:
    """Return what a word stands for.

    Raises
    ------
    UsageError
        If it is no such word.
    """
    try:
        return Centring(given)
    except ValueError:
        raise UsageError(f"centring must be one of {', '.join(Centring)}, not {given!r}.") from None


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
    clip_norm : float or "private"
        Public clip norm C > 0, in units of the shifted and scaled rows: longer rows are shortened to it. Never computed
        from the rows, unless by :func:`dpdist.choose_clip_norm`. ``"private"``: the release chooses it first, from a
        private histogram of the norms, which takes a tenth of mu² (of epsilon, where the mechanism has no mu). It is
        the 0.95-quantile of the norms, or the largest smaller one that the noise of the histogram lets through.
    neighbours : Neighbours or str, default Neighbours.REPLACE_ONE
        The neighbouring relation.
    centring : Centring or str, default Centring.NONE
        Whether the mean is released too, for the one price.
    centre : tuple of float, default None
        Public shift, one number for each of the d columns. None: no shift.
    scale : tuple of float, default None
        Public divisor, one positive number for each of the d columns. None: no divisor.
    grid_bits : int, default 16
        b, from 2 to 24: the clip norm is ``2**b`` grid steps.
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
        Whether a delta of 1/n or more is meant, where n is public. It is no part of the id: the release is the same.

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
    clip_norm: float | Literal["private"]
    neighbours: Neighbours = Neighbours.REPLACE_ONE
    centring: Centring = Centring.NONE
    centre: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    grid_bits: int = 16
    period: str = ""
    name: str | None = None
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    for_reproduction: bool = False
    accept_large_delta: bool = False

    def __post_init__(self) -> None:
        # what a caller may write as a word or a whole number is compared, and hashed into the id, as what it stands for
        object.__setattr__(self, "neighbours", neighbours_of(self.neighbours))
        object.__setattr__(self, "centring", _centring_of(self.centring))
        if self.clip_norm != "private":
            object.__setattr__(self, "clip_norm", float(self.clip_norm))
        elif self.for_reproduction:
            raise UsageError("A release for reproduction has no guarantee to choose a clip norm by: name one.")
        info = self.mechanism_info
        info.require_delta_use(self.loss)
        info.filled(self.options)  # refuses what it does not know
        told = {f"id ({parameter('id')})": self.name, "period": self.period}
        if wrong := [what for what, text in told.items() if has_control(text or "")]:
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

    @property
    def mechanism_info(self) -> MechanismInfo:
        """What is said of the mechanism in public."""
        return mechanism_named(self.mechanism).info

    @property
    def by_products(self) -> bool:
        """Whether the mechanism was told to work from products with the moment, which is then never formed."""
        return self.options.get("route") == "products"

    def bound(self, columns: int) -> RowBound:
        """Return how rows of so many columns are bounded; private centring appends the constant ``2^(b-1)``.

        The constant C/2 is within 3 % of the best choice for means of norm at least C/4.

        Raises
        ------
        UsageError
            If the release chooses its clip norm itself: no row can be bounded before that.
        """
        if self.clip_norm == "private":
            raise UsageError("The clip norm is not chosen yet: the release itself does that, privately.")
        return RowBound(
            columns=columns,
            clip_norm=self.clip_norm,
            grid_bits=self.grid_bits,
            centre=self.centre,
            scale=self.scale,
            constant=2 ** (self.grid_bits - 1) if self.centring is Centring.PRIVATE else 0,
        )

    @property
    def sized(self) -> ReleaseRequest:
        """It, with a clip norm of 1 if that is not chosen yet: no width and no noise in grid steps depends on it."""
        return replace(self, clip_norm=1.0) if self.clip_norm == "private" else self

    def parts(self, columns: int, max_rows: int = 1) -> Parts | None:
        """Return the parts of a release that chooses its clip norm, of a table of so many columns; None of others.

        The histogram of norms takes a tenth of mu², and has Gaussian noise. Where the mechanism has no mu it takes a
        tenth of epsilon, and has discrete Laplace noise.

        Raises
        ------
        UsageError, RefusedError
            As of :meth:`calibrated`; or if the loss is too small to be divided.
        """
        if self.clip_norm != "private":
            return None
        whole = _proved(self.sized.calibrated(columns, max_rows))

        def stage(loss: PrivacyLoss) -> Guarantee:
            return quantile.calibrated(loss, self.neighbours, max_rows).guarantee

        norms, rest = divided(self.loss, CLIP_SHARE, stage, gaussian=whole.mu_squared is not None)
        moment = replace(self.sized, loss=rest)
        both = together(stage(norms), _proved(moment.calibrated(columns, max_rows)), self.loss)
        return Parts(norms, stage(norms), moment, both)

    def calibrated(self, columns: int, max_rows: int = 1) -> Calibrated:
        """Return the mechanism calibrated for a table of so many columns.

        Parameters
        ----------
        columns
            Columns of the table.
        max_rows
            How many rows one privacy unit may own.

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
        found = calibrated(self.mechanism, query, self.loss, self.options)
        private = is_private_as_claimed(found)
        if private and self.for_reproduction:
            raise UsageError(
                f"{self.mechanism} is private as claimed at {self.loss}: leave {parameter('for_reproduction')} out, so "
                "that it is charged to the ledger."
            )
        if not private and not self.for_reproduction:
            raise RefusedError(self._unproved(found))
        return found

    def _unproved(self, found: Calibrated) -> str:
        said = f"{self.mechanism} was published as {found.claim}"
        if found.claim is None:
            said = f"{self.mechanism} is not private and was never claimed to be"
        elif found.guarantee is None:
            said += "; nothing is proved of it as it is computed"
        else:
            true = found.guarantee.loss
            said += f"; what is proved is epsilon {true.epsilon:g}, delta {true.delta:.4g}"
        return (
            f"{said}. Take {parameter('mechanism', self.mechanism_info.replacement)} instead, or pass "
            f"{parameter('for_reproduction')}, of rows that were ingested without a budget: the release is then "
            "charged to no ledger and marked as not private as claimed."
        )

    def guarantee(self, table: Table) -> Guarantee | None:
        """Return what is proved of a release of a table; None where nothing is."""
        return self.proved(table.columns, table.max_rows)

    def proved(self, columns: int, max_rows: int = 1) -> Guarantee | None:
        """Return what is proved of a release of so many columns, of all its parts together; None where nothing is."""
        parts = self.parts(columns, max_rows)
        return self.calibrated(columns, max_rows).guarantee if parts is None else parts.guarantee

    def parameters(self, table: Table) -> dict[str, object]:
        """Return everything the release depends on besides the rows, as JSON values."""
        return {
            "dataset_id": table.dataset_id,
            "columns": list(table.names),
            "mechanism": self.mechanism,
            "epsilon_micro": self.loss.epsilon_micro,
            "delta_atto": self.loss.delta_atto,
            "neighbours": self.neighbours.value,
            "centring": self.centring.value,
            "bound": self._bound_json(table.columns),
            "period": self.period,
            "options": self.mechanism_info.filled(self.options),
            **({"for_reproduction": True} if self.for_reproduction else {}),
            **({} if table.unit is None else {"unit": table.unit.to_json()}),
        }

    def _bound_json(self, columns: int) -> dict[str, object]:
        if self.clip_norm != "private":
            return dict(self.bound(columns).to_json())
        rule = {"mechanism": quantile.NAME, "grid": CLIP_GRID.to_json(), "share": str(CLIP_SHARE)}
        return {**self.sized.bound(columns).to_json(), "clip_norm": rule}

    def release_id(self, table: Table) -> str:
        """Return the chosen id, or the one that follows from the parameters."""
        if self.name is not None:
            return self.name
        digest = hashlib.sha256(canonical(self.parameters(table)).encode()).hexdigest()
        return f"r-{digest[:32]}"


def _proved(calibrated: Calibrated) -> Guarantee:
    if calibrated.guarantee is None:
        raise AssertionError("what is charged is proved")
    return calibrated.guarantee
