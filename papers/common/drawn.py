"""Releases of public rows whose exact moment is known, drawn as often as one likes: charged to nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.mechanisms.base import Calibrated
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.artefact import Release
from dpdist.core.release.attributes import Coverage
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dither import DitherKey, Dithers
from dpdist.core.triangle import unpacked
from dpdist.literature.attack import KnownMoment

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Drawn:
    """Rows that may be released again and again.

    Attributes
    ----------
    request, calibrated, bound, names, schema
        How they are released.
    lattice
        (w, w): the exact second moment of the bounded rows, in lattice units.
    bounded
        (n, w): these rows in their own units, the constant last if there is one.
    """

    request: ReleaseRequest
    calibrated: Calibrated
    bound: RowBound
    names: tuple[str, ...]
    lattice: npt.NDArray[np.int64]
    bounded: Floats
    schema: Any = None

    @property
    def moment(self) -> Floats:
        """(w, w): the exact second moment in the units of the bounded rows."""
        return self.lattice.astype(np.float64) * self.bound.unit**2

    def release(self, number: int = 0) -> Release:
        """Draw the noise once."""
        values = np.asarray(self.calibrated.answer(KnownMoment(self.lattice), SYSTEM), dtype=np.int64)
        public = self.request.neighbours is Neighbours.REPLACE_ONE
        release = Release(
            release_id=f"r-{number}",
            mechanism=self.request.mechanism,
            names=self.names,
            neighbours=self.request.neighbours,
            claim=self.calibrated.claim,
            guarantee=self.calibrated.guarantee,
            bound=self.bound,
            noise=self.calibrated.noise,
            rows=len(self.bounded) if public else None,
            answer=(answer := unpacked(values, self.bound.width)),
            extents=(Coverage("d" * 32, number, number + 1, f"{number}", f"{number}"),),
            schema=self.schema,
        )
        if release.corner is not None:
            answer[-1, -1] = release.corner
        return release


def drawn(
    rows: Floats,
    clip: float,
    epsilon: str = "1",
    *,
    mechanism: str = "gaussian",
    neighbours: Neighbours = Neighbours.REPLACE_ONE,
    centring: Centring = Centring.PRIVATE,
    names: Sequence[str] | None = None,
    schema: Any = None,
    **request: Any,
) -> Drawn:
    """Bound rows, and make what draws releases of them."""
    delta = "1e-6" if mechanism == "gaussian" else "0"
    asked = ReleaseRequest(
        mechanism, PrivacyLoss.parse(epsilon, delta), clip, neighbours, centring=centring, **{"grid_bits": 16} | request
    )
    plan = planned(asked, Dimensions(rows.shape[1], schema=schema))
    bound, calibrated = plan.bound, plan.moment
    bounded = bound.apply(rows, np.empty((len(rows), bound.width)), Dithers(DitherKey(bytes(32)), 0))
    lattice = np.rint(bounded.T @ bounded).astype(np.int64)
    called = tuple(names) if names else tuple(f"c{i}" for i in range(rows.shape[1]))
    return Drawn(asked, calibrated, bound, called, lattice, bounded * bound.unit, schema)
