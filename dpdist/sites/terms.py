"""The terms of a new session: what is refused because no session could do it, and what follows from a request."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.mechanisms.noise_share import noise_share, require_sites
from dpdist.core.naming import parameter
from dpdist.core.release import advice
from dpdist.core.release.plan import has_centre, planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.release.session import FORMAT, Bounding, ShareNoise, Site, Terms, dimensions, unit_of
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Unit
from dpdist.core.text import listed, random_token


def terms_of(
    sites: Sequence[Site], request: ReleaseRequest, columns: Sequence[str], *,
    colluding: int | None = None, schema: Schema | None = None, unit: Unit | None = None,
) -> Terms:  # fmt: skip
    """Return the terms of a new session; refuse what could not be released."""
    colluding = _colluding(len(sites), colluding)
    bounding = _bounding(request)
    if unit is not None and unit.max_rows is None and request.clip_norm == "schema" and schema is not None:
        norm = f"{schema.norm or 1:.3g}"
        raise UsageError(
            f"All rows of one {unit.column} are bounded together, and {norm} is the norm of one row. Give "
            f"{parameter('clip', 'C')}: {norm} times the square root of the number of rows that should count in full; "
            "or write max_rows = M at the top of the schema."
        )
    rows = sum(site.rows or 0 for site in sites) or None
    plan = planned(request, dimensions(columns, schema, unit, rows))
    share = noise_share(plan.moment, len(sites), colluding)
    terms = Terms(
        format=FORMAT,
        nonce=random_token(),
        sites=tuple(sites),
        colluding=colluding,
        columns=tuple(columns),
        schema=None if schema is None else schema.to_json(),
        unit=unit_of(unit),
        neighbours=request.neighbours,
        epsilon_micro=request.loss.epsilon_micro,
        delta_atto=request.loss.delta_atto,
        rows_at_most=request.rows_at_most if rows is None else rows,
        bounding=msgspec.structs.replace(bounding, grid_bits=plan.bound.grid_bits),
        bound=plan.bound.to_json(),
        noise=ShareNoise(share.sigma_diagonal, share.sigma_off_diagonal),
    )  # fmt: skip
    plan = terms.plan  # which checks the terms
    if schema is not None and not has_centre(plan) and (names := schema.uncentred or schema.dropping):
        raise UsageError(
            f"By the schema, a missing value of {listed(names)} counts as the centre of its column, or drops its row, "
            'and a session chooses no centre. Use missing = "pairwise", "indicator" or "fill" in the schema, or pass '
            f"{parameter('centre', 'FILE')}."
        )
    if advice.count_refused(plan, rows or request.rows_at_most):
        raise RefusedError(
            "The noise would hide the number of rows, and with it means and covariances. Use a smaller clip norm "
            f"({parameter('clip')}), or a larger epsilon."
        )
    return terms


def _colluding(sites: int, colluding: int | None) -> int:
    if colluding is None and sites == 2:
        raise UsageError(
            "With two sites, each can subtract its own noise from the sum, and then sees the rows of the other behind "
            "half of the noise: the guarantee is for everybody else. If that is enough, state it with "
            f"{parameter('colluding', '0')}; or find a third site."
        )
    colluding = 1 if colluding is None else colluding
    require_sites(sites, colluding)
    return colluding


def _bounding(request: ReleaseRequest) -> Bounding:
    """Return how a request bounds rows; refuse private choices, other mechanisms and chosen ids."""
    clip_norm, scale = request.clip_norm, request.scale
    if clip_norm == "private" or scale == "private":
        raise UsageError(
            f"A session cannot choose a {request.chooses[0]} privately. Give {parameter('clip', 'C')} and, if needed, "
            f"{parameter('centre', 'FILE')} with a public centre and scale: by a schema with ranges "
            f"({parameter('clip', 'schema')}), by public knowledge, or of a pilot release that one site made of its "
            f"own rows, with {parameter('centre', 'pilot.zarr')} {parameter('clip', 'auto')}."
        )
    if request.mechanism != "gaussian":
        raise UsageError(
            f"Sites share the noise of gaussian, which needs {parameter('delta')}, and not of {request.mechanism}."
        )
    if request.name is not None or request.period or request.for_reproduction or request.accept_large_delta:
        raise UsageError(
            "A session has neither a chosen id nor a period nor a delta of 1/n, and is never for reproduction."
        )
    return Bounding(clip_norm, request.centring, request.centre, scale, request.grid_bits or 0)
