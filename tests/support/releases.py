"""Releases put together by hand, and what was committed, for the tests."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.ledger.ledger import Ledger
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.guarantee import Guarantee, Neighbours
from dpdist.core.release.archive import archived
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions, by_schema
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.schema import Schema
from dpdist.core.triangle import Band, packed, unpacked
from dpdist.literature.attack import KnownMoment


def assemble(*, answer: npt.NDArray[Any], rows: int, neighbours: Neighbours, **heading: Any) -> Release:
    known = rows if neighbours is Neighbours.REPLACE_ONE else None
    values = unpacked(answer, heading["bound"].width) if answer.ndim == 1 else answer
    release = Release(answer=values, rows=known, neighbours=neighbours, **heading)
    if answer.ndim == 1 and release.corner is not None:
        values[-1, -1] = release.corner
    return release


def of_two_columns(number: int, guarantee: Guarantee, noise: Noise, **others: Any) -> Release:
    return Release(
        release_id=f"r-{number}", mechanism="frobenius", names=("a", "b"), neighbours=Neighbours.REPLACE_ONE,
        claim=guarantee.loss, guarantee=guarantee, bound=RowBound(2, clip_norm=8.0, grid_bits=4), noise=noise, **others,
    )  # fmt: skip


def drawn_over(
    request: ReleaseRequest, exact: npt.NDArray[np.int64], columns: int, rows: int, names: tuple[str, ...] = ()
) -> Release:
    calibrated = planned(request, Dimensions(columns)).moment
    return assemble(
        release_id="x", mechanism=request.mechanism, names=names or tuple(map(str, range(columns))),
        neighbours=request.neighbours, claim=calibrated.claim, guarantee=calibrated.guarantee,
        bound=planned(request, Dimensions(columns)).bound, noise=calibrated.noise, rows=rows,
        answer=calibrated.answer(KnownMoment(exact), SYSTEM),
    )  # fmt: skip


def assemble_drawn(request: ReleaseRequest, schema: Schema, frame: Any) -> Iterator[Release]:
    """Yield releases of a table with a schema, whose rows are not rounded, drawn anew."""
    rows, n = schema.transform(frame).to_numpy(float), len(frame)
    size = Dimensions(rows.shape[1], n if request.neighbours is Neighbours.REPLACE_ONE else None, schema=schema)
    plan = planned(by_schema(request, size), size)
    centre, scale = plan.bound.input_units
    rows = np.nan_to_num((rows - centre) / scale) / plan.bound.unit
    if plan.bound.constant:
        rows = np.column_stack([rows, np.full(n, plan.bound.constant)])
    exact = np.rint(rows.T @ rows).astype(np.int64)
    exact[range(size.columns), range(size.columns)] += n // 4  # as rounding leaves it
    while True:
        yield assemble(
            release_id="x", mechanism=request.mechanism, names=schema.features, neighbours=request.neighbours,
            claim=plan.moment.claim, guarantee=plan.guarantee, bound=plan.bound, noise=plan.moment.noise, rows=n,
            answer=plan.moment.answer(KnownMoment(exact), SYSTEM), schema=schema, rows_at_most=request.rows_at_most,
        )  # fmt: skip


def archive_of(release: Release) -> io.BytesIO:
    if release.subspace is not None:
        return io.BytesIO(b"".join(archived(release, release.subspace)))
    width = release.bound.width
    return io.BytesIO(b"".join(archived(release, [(Band.whole(width), packed(release.lattice))])))


def content_of(ledger: Ledger, release_id: str) -> bytes:
    with ledger.opened(release_id) as content:
        return content.read()
