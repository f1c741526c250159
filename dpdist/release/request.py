"""What is asked for: one private second moment of one table, completely described by public parameters.

The release id is a hash of the data set's identity, these parameters and the period. It never depends on a job id,
a restart count, the clock or the data, so a job that is repeated for whatever reason asks for the same release. The
number of rows is left out as well: under add-remove it is private, and a hash can be inverted by trial.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import Any

from dpdist.errors import UsageError
from dpdist.mechanisms.base import Calibrated
from dpdist.mechanisms.registry import mechanism_named
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.privacy.journal import canonical
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import RowsTable


class Centring(enum.StrEnum):
    """How the mean is dealt with."""

    NONE = "none"
    """Second moment about zero, or about a public centre."""
    PRIVATE = "private"
    """Rows are augmented to [x; C/2]; one release gives second moment and sum of the rows."""


@dataclass(frozen=True)
class ReleaseRequest:
    """A request for one release.

    Parameters
    ----------
    mechanism
        Name of a mechanism.
    loss
        The (epsilon, delta) it may cost.
    clip_norm
        Public clip norm C, in units of the shifted and scaled rows.
    neighbours
        The neighbouring relation.
    centring
        Whether the mean is released too.
    centre, scale
        Public shift and divisor per column, or None.
    grid_bits
        b; the clip norm is ``2**b`` grid steps.
    period
        Names one of several releases with the same parameters; empty for the only one.
    name
        An id chosen by the caller instead of the derived one, or None.
    """

    mechanism: str
    loss: PrivacyLoss
    clip_norm: float
    neighbours: Neighbours = Neighbours.REPLACE_ONE
    centring: Centring = Centring.NONE
    centre: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    grid_bits: int = 16
    period: str = ""
    name: str | None = None

    def __post_init__(self) -> None:
        statement = mechanism_named(self.mechanism).statement
        if statement.needs_delta and not self.loss.delta_atto:
            raise UsageError(
                f"{self.mechanism} needs a positive delta: pass --delta, or take --mechanism two-sided-wishart, "
                "which is purely private."
            )
        if not statement.needs_delta and self.loss.delta_atto:
            raise UsageError(
                f"{self.mechanism} is purely private and takes no delta: leave --delta out, or take "
                "--mechanism gaussian, which adds less noise when a delta is allowed."
            )

    def bound(self, columns: int) -> RowBound:
        """Return how rows of so many columns are bounded; private centring appends the constant ``2^(b-1)``.

        The constant C/2 is within 3 % of the best choice for means of norm at least C/4.
        """
        return RowBound(
            columns=columns,
            clip_norm=self.clip_norm,
            grid_bits=self.grid_bits,
            centre=self.centre,
            scale=self.scale,
            constant=2 ** (self.grid_bits - 1) if self.centring is Centring.PRIVATE else 0,
        )

    def calibrated(self, columns: int) -> Calibrated:
        """Return the mechanism calibrated for a table of so many columns."""
        bound = self.bound(columns)
        query = LatticeQuery(bound.width, bound.norm_bound, self.neighbours)
        return mechanism_named(self.mechanism).calibrate(query, self.loss)

    def parameters(self, table: RowsTable) -> dict[str, Any]:
        """Return everything the release depends on besides the rows, as JSON values."""
        return {
            "dataset_id": table.dataset_id,
            "columns": list(table.names),
            "mechanism": self.mechanism,
            "epsilon_micro": self.loss.epsilon_micro,
            "delta_atto": self.loss.delta_atto,
            "neighbours": self.neighbours.value,
            "centring": self.centring.value,
            "bound": self.bound(table.columns).to_json(),
            "period": self.period,
        }

    def release_id(self, table: RowsTable) -> str:
        """Return the chosen id, or the one that follows from the parameters."""
        if self.name is not None:
            return self.name
        digest = hashlib.sha256(canonical(self.parameters(table)).encode()).hexdigest()
        return f"r-{digest[:32]}"
