"""A private histogram of the rows' norms, for the choice of a clip norm: requested, charged, drawn and committed once.

It is drawn as described in :mod:`dpdist.core.release.histograms`. A quantile of it is free post-processing: the id
follows from the data set's identity and public parameters, as that of a release, and not from the quantile. A request
without a delta gets that of the budget (:func:`resolved`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpdist.core.errors import DataError
from dpdist.core.ledger.ledger import Account
from dpdist.core.ledger.state import Part, State
from dpdist.core.mechanisms.counts import CalibratedHistogram, CountNoise, Counts, noise_from_json
from dpdist.core.mechanisms.quantile import NAME, QuantileEstimate, calibrated, quantile_of
from dpdist.core.mechanisms.sensitivity import UnitNorm
from dpdist.core.moment.histograms import NormCounting, NormGrid, OneNorm
from dpdist.core.privacy.checks import cautions
from dpdist.core.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss, neighbours_of
from dpdist.core.release.histograms import HistogramDraw
from dpdist.core.release.request import common_parameters, id_of
from dpdist.core.release.transaction import ReleaseTransaction
from dpdist.core.rows.bounding import RowBound, unit_norm_of
from dpdist.core.rows.table import Table

FORMAT = "dpdist-norms/1"


@dataclass(frozen=True)
class NormsRequest:
    """Request for a private histogram of the norms of the rows, which chooses a clip norm.

    Parameters
    ----------
    loss : PrivacyLoss
        Its price, a small part of the budget: Gaussian noise with a delta, discrete Laplace noise without.
    grid : NormGrid, default NormGrid()
        The public norms to choose from.
    neighbours : Neighbours or str, default Neighbours.REPLACE_ONE
        The neighbouring relation.
    centre : tuple of float, default None
        Public shift, one number for each of the d columns, as in the release. None: no shift.
    scale : tuple of float, default None
        Public divisor, one positive number for each of the d columns. None: no divisor.
    accept_large_delta : bool, default False
        Whether a delta of 1/n or more is intended, if n is public.
    unit_norm : {"", "frobenius", "trace"}, default ""
        Counts privacy units of which all rows are kept, by the root of this norm of their second moment: as the
        mechanism of the release bounds it. "": counts rows; units, if all their rows are kept, as for ``gaussian``, or
        without a delta as for ``two-sided-wishart``.
    constant : float, default 0.0
        Constant of each row of a unit, in units of the shifted and scaled rows, if its mean is released too.

    Raises
    ------
    UsageError
        If the neighbouring relation is unknown.

    See Also
    --------
    choose_clip_norm : Takes such a request.
    ReleaseRequest : The release that uses the clip norm.

    Examples
    --------
    >>> import dpdist
    >>> request = dpdist.NormsRequest(dpdist.PrivacyLoss.parse(0.1), dpdist.NormGrid(1, 1000))
    >>> str(request.loss), request.grid.edges[:3]
    ('epsilon 0.1, delta 0', (1.0, 1.414, 2.0))
    """

    loss: PrivacyLoss
    grid: NormGrid | OneNorm = NormGrid()  # noqa: RUF009 - frozen
    neighbours: Neighbours = Neighbours.REPLACE_ONE
    centre: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    accept_large_delta: bool = False
    unit_norm: UnitNorm = ""
    constant: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "neighbours", neighbours_of(self.neighbours))

    def bound(self, columns: int, *, centred: bool = False) -> RowBound:
        """Return shift and scale for rows with this number of columns; UsageError if they do not match."""
        zero = (0.0,) * columns if centred else None  # the value of missing cells
        return RowBound(columns, self.grid.edges[-1], centre=self.centre or zero, scale=self.scale)

    def calibrated(self, table: Table) -> CalibratedHistogram:
        """Return the noise for a table."""
        return calibrated(self.loss, self.neighbours, table.max_rows)


class NormsDraw(HistogramDraw):
    """A histogram of norms."""

    request: NormsRequest

    def counting(self) -> NormCounting:
        """Return the definition of the counts."""
        whole = () if self.table.schema is None else self.table.schema.whole().columns
        bound = self.request.bound(self.table.columns, centred=self.table.centring)
        if self.table.together:
            kind = self.request.unit_norm or ("frobenius" if self.request.loss.delta_atto else "trace")
            return NormCounting(bound, self.request.grid.edges, unit_norm=kind, constant=self.request.constant)
        return NormCounting(bound, self.request.grid.edges, whole)

    def calibrated(self) -> CalibratedHistogram:
        """Return the noise."""
        return self.request.calibrated(self.table)

    def content(self, noisy: Counts, ledger_head: str) -> dict[str, object]:
        """Return the committed document, with all noisy counts."""
        public = self.request.neighbours is Neighbours.REPLACE_ONE and not self.table.together
        rows = self.table.rows if public else None
        edges, calibrated = self.request.grid.edges, self.calibrated()
        return NormHistogram.of_noisy(
            noisy, calibrated, edges, rows, self.release_id, ledger_head, self.account().condition,
            self.counting().unit_norm,
        ).to_json()  # fmt: skip

    def read(self) -> NormHistogram:
        """Read the committed histogram, verified, and record its publication; idempotent."""
        return NormHistogram.from_json(self.published())


@dataclass(frozen=True)
class NormsStage(NormsDraw):
    """The histogram as a stage of a release, which is charged for it; of scaled rows if a scale is chosen first."""

    request: NormsRequest
    table: Table
    ledger: Account
    of: str
    stage: Part

    @property
    def release_id(self) -> str:
        """The id of the release."""
        return self.of

    @property
    def part(self) -> Part:
        """The first stage, or the second after that of the scale."""
        return self.stage


@dataclass(frozen=True)
class NormsTransaction(NormsDraw, ReleaseTransaction):
    """The histogram as a release of its own."""

    request: NormsRequest
    table: Table
    ledger: Account

    @property
    def release_id(self) -> str:
        """The id, which follows from the parameters."""
        return id_of("n", self.parameters)

    @property
    def parameters(self) -> dict[str, object]:
        """The parameters of the histogram besides the rows, as JSON values."""
        request = self.request
        vectors = {"centre": request.centre, "scale": request.scale}
        return {
            **common_parameters(self.table, NAME, request.loss, request.neighbours),
            "grid": request.grid.to_json(),
            **({"unit_norm": request.unit_norm, "constant": request.constant} if request.unit_norm else {}),
            **{name: None if vector is None else list(vector) for name, vector in vectors.items()},
        }

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the histogram."""
        return self.calibrated().guarantee

    @property
    def accepts_large_delta(self) -> bool:
        """Whether a delta of 1/n or more is intended."""
        return self.request.accept_large_delta


@dataclass(frozen=True)
class NormHistogram:
    """A released histogram of norms. Public."""

    release_id: str
    guarantee: Guarantee
    edges: tuple[float, ...]  # the grid, increasing
    counts: tuple[int, ...]  # noisy counts of the norms up to each edge, and beyond the last
    noise: CountNoise  # of each count
    rows: int | None  # n under replace-one, None under add-remove
    ledger_head: str  # head of the ledger's journal before the draw; detects a ledger that has lost the histogram
    condition: str | None = None  # a statement about the ledger's past on which the guarantee depends
    unit_norm: UnitNorm = ""  # of the moments of privacy units, which are then counted; empty: rows are

    @classmethod
    def of_noisy(
        cls, noisy: Counts, calibrated: CalibratedHistogram, edges: tuple[float, ...], rows: int | None,
        release_id: str = "", ledger_head: str = "", condition: str | None = None, unit_norm: UnitNorm = "",
    ) -> NormHistogram:  # fmt: skip
        """Return a histogram from noisy counts; ``rows`` is n if it is public."""
        guarantee, noise = calibrated.guarantee, calibrated.noise
        return cls(
            release_id, guarantee, edges, tuple(noisy.tolist()), noise, rows, ledger_head, condition, unit_norm
        )  # fmt: skip

    @property
    def noun(self) -> str:
        """What is counted, in the plural."""
        return "privacy units" if self.unit_norm else "rows"

    @property
    def cautions(self) -> tuple[str, ...]:
        """Warnings about a weak guarantee, as in :class:`dpdist.core.release.artefact.Release`."""
        return cautions(self.guarantee.loss, self.guarantee.neighbours, self.rows)

    def quantile(self, quantile: Fraction) -> QuantileEstimate:
        """Estimate a quantile of the norms. Free."""
        return quantile_of(self.counts, self.noise, quantile, rows=self.rows)

    def answered(self, most: int) -> Fraction | None:
        """Return the largest quantile, in hundredths from 0.5 to ``most``, that is on the grid; None if none is."""
        for hundredths in range(most, 49, -1):
            estimate = self.quantile(Fraction(hundredths, 100))
            if estimate.edge is not None and estimate.up_to_edge is not None:
                return Fraction(hundredths, 100)
        return None

    def clip_norm(self) -> tuple[float, Fraction]:
        """Return the 0.95-quantile of the norms, or the largest smaller one on the grid, and which quantile it is."""
        quantile = self.answered(95) or Fraction(1, 2)
        estimate = self.quantile(quantile)
        if estimate.edge is None:
            return self.edges[-1], quantile
        clip = self.edges[estimate.edge]
        if estimate.edge:
            below = self.edges[estimate.edge - 1]
            clip = float(f"{below * (clip / below) ** estimate.within:.4g}")
        return clip, quantile

    def share_up_to(self, norm: float) -> Fraction:
        """Return the estimated share of the rows up to a norm, in hundredths, from .01 to .99."""
        index = bisect_left(self.edges, norm)
        below: float = sum(self.counts[:index])
        if 0 < index < len(self.edges):
            low, high = self.edges[index - 1 : index + 1]
            below += self.counts[index] * math.log(norm / low) / math.log(high / low)
        total = max(1, sum(self.counts) if self.rows is None else self.rows)
        return Fraction(min(99, max(1, round(100 * below / total))), 100)

    def counting_json(self) -> dict[str, object]:
        """Return the counts alone, as JSON values of a release."""
        return {"edges": list(self.edges), "counts": list(self.counts), "noise": self.noise.to_json()}

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {
            "format": FORMAT,
            "release_id": self.release_id,
            "mechanism": NAME,
            "guarantee": self.guarantee.to_json(),
            "noise": self.noise.to_json(),
            "edges": list(self.edges),
            "counts": list(self.counts),
            "n": self.rows,
            "ledger_head": self.ledger_head,
            **({} if self.condition is None else {"condition": self.condition}),
            **({"unit_norm": self.unit_norm} if self.unit_norm else {}),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> NormHistogram:
        """Read a document that :meth:`to_json` wrote."""
        if value["format"] != FORMAT:
            raise DataError(
                f"The histogram has format {value['format']!r}; this version reads {FORMAT}. Use the "
                "version that wrote it."
            )
        return cls(
            value["release_id"], Guarantee.from_json(value["guarantee"]), tuple(value["edges"]), tuple(value["counts"]),
            noise_from_json(value["noise"]), value["n"], value["ledger_head"], value.get("condition"),
            unit_norm_of(value.get("unit_norm", "")),
        )  # fmt: skip


def resolved(transaction: NormsTransaction) -> NormsTransaction:
    """Give a request without a delta that of the budget, unless a histogram without one was reserved."""
    request, ledger = transaction.request, transaction.account()
    losses = [replace(request.loss, delta_atto=delta) for delta in (0, ledger.budget.delta_atto)]
    candidates = [
        NormsTransaction(replace(request, loss=loss), transaction.table, transaction.ledger) for loss in losses
    ]  # fmt: skip
    by_id = {candidate.release_id: candidate for candidate in candidates}
    charged = (record.release_id for record in ledger.records if record.state is not State.ABORTED)
    return next((by_id[name] for name in charged if name in by_id), candidates[1])
