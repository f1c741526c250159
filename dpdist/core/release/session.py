"""Sessions of several sites: their terms, which are public and fixed before any row is read, and the plan of a share.

A session is one release of a second moment whose rows are at several sites. Its terms determine everything but the rows
and the noise: sites, columns or schema, privacy unit, how rows are bounded, loss, and how many sites may collude. Each
site plans its share by the code that plans any release (:mod:`dpdist.core.release.plan`), from its own table and the
request in the terms, and refuses terms that state another bound or another noise. So whoever wrote or altered the terms
can only ask for a release that this site would have been charged for anyway; its ledger limits the loss.

Terms that differ between two sites have different digests, and masks that do not cancel.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.mechanisms.noise_share import MOST_SITES, NoiseShare, noise_share, require_sites
from dpdist.core.naming import parameter, step
from dpdist.core.privacy import checks
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.attributes import NAME, SessionFacts, SiteName
from dpdist.core.release.bounds import Dimensions, require_schema
from dpdist.core.release.plan import Plan, plan_of, planned
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.bounding import BoundJson
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import Table, UnitAttributes
from dpdist.core.rows.units import Unit
from dpdist.core.storage.arrays import Text
from dpdist.core.text import has_control, repeated, visible

FORMAT = "dpdist-session/1"
LEAST_TOTAL = 2**30
"""Rows that the grid of a session with private numbers of rows must have room for, so that no site is refused by its
number of rows: the refusal would reveal it to whoever chose the grid."""
_Count = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class Site(Struct, frozen=True, forbid_unknown_fields=True):
    """A site of a session, and its number of rows, where that is public: under replace-one."""

    name: SiteName
    rows: _Count | None = None


class Bounding(Struct, frozen=True, forbid_unknown_fields=True):
    """How rows are bounded, as in a :class:`dpdist.ReleaseRequest`, without private choices."""

    clip_norm: float | Literal["auto", "schema"]
    centring: Centring | None
    centre: tuple[float, ...] | None
    scale: tuple[float, ...] | None
    grid_bits: Annotated[int, Meta(ge=2, le=24)]


class ShareNoise(Struct, frozen=True, forbid_unknown_fields=True):
    """Standard deviations of the noise of each site, in grid steps squared of an entry."""

    sigma_diagonal: int
    sigma_off_diagonal: int


class Terms(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The terms of a session, as stored in session.json. Public."""

    format: str
    nonce: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]  # distinguishes sessions of equal terms
    sites: Annotated[tuple[Site, ...], Meta(min_length=2, max_length=MOST_SITES)]
    colluding: Annotated[int, Meta(ge=0)]
    columns: tuple[Text, ...]
    schema: dict[str, Any] | None
    unit: UnitAttributes | None
    neighbours: Neighbours
    epsilon_micro: int
    delta_atto: int
    rows_at_most: _Count
    bounding: Bounding
    bound: BoundJson
    noise: ShareNoise

    @property
    def digest(self) -> str:
        """SHA-256 of session.json, after a line: the identity of the session, 64 hexadecimal digits."""
        return hashlib.sha256(b"dpdist session/1\n" + self.content).hexdigest()

    @cached_property
    def content(self) -> bytes:
        """The bytes of session.json. A file with other bytes is refused, whatever they mean."""
        return json.dumps(to_builtins(self), indent=2).encode() + b"\n"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sites, in order."""
        return tuple(site.name for site in self.sites)

    @property
    def rows(self) -> int | None:
        """The number of rows of all sites; None if it is private."""
        counts = [site.rows for site in self.sites if site.rows is not None]
        return sum(counts) if len(counts) == len(self.sites) else None

    @property
    def condition(self) -> str:
        """What the guarantee assumes of the sites, as the end of a sentence that begins with "if"."""
        return self.facts.condition(self.unit)

    @property
    def facts(self) -> SessionFacts:
        """What the release tells about the session."""
        return SessionFacts(self.digest, self.names, self.colluding)

    def index(self, name: str) -> int:
        """Return the number of a site, from 0."""
        if name not in self.names:
            raise UsageError(
                f"The session has no site {name!r}; its sites are {', '.join(self.names)}.", parameter="site"
            )
        return self.names.index(name)

    @property
    def request(self) -> ReleaseRequest:
        """The request that each site plans by."""
        bounding = self.bounding
        return ReleaseRequest(
            "gaussian",
            PrivacyLoss(self.epsilon_micro, self.delta_atto),
            bounding.clip_norm,
            self.neighbours,
            bounding.centring,
            bounding.centre,
            bounding.scale,
            bounding.grid_bits,
            rows_at_most=self.rows_at_most,
        )

    @cached_property
    def plan(self) -> Plan:
        """The plan of the session for the rows of all sites, checked against the terms, which may come from anyone."""
        self._require_sound()
        schema = None if self.schema is None else Schema.from_json(self.schema)
        if schema is not None and schema.features != self.columns:
            raise DataError("The columns of the session are not those of its schema. Get session.json anew.")
        require_schema(self.request, schema)
        unit = None if self.unit is None else self.unit.unit
        plan = self._agreed(planned(self.request, dimensions(self.columns, schema, unit, self.rows)))
        most = max(LEAST_TOTAL, self.rows_at_most) if self.rows is None else self.rows
        if most > plan.bound.total_rows:
            raise UsageError(
                f"The sum of {most} rows exceeds 64-bit integers at {plan.bound.grid_bits} grid bits. Use fewer.",
                parameter="grid_bits",
            )
        return plan

    def _require_sound(self) -> None:
        """Refuse terms that no session has."""
        require_sites(len(self.sites), self.colluding)
        _require_names(self.names)
        unit = () if self.unit is None else (self.unit.column,)
        if repeated(map(visible, self.columns)) or not all(
            name.strip() and not has_control(name) for name in (*self.columns, *unit)
        ):
            raise UsageError("The names of the columns must be different, and have letters.", parameter="columns")
        public = self.neighbours is Neighbours.REPLACE_ONE
        if any((site.rows is not None) is not public for site in self.sites):
            raise UsageError(
                "Under replace-one the number of rows of each site is public and part of the session, such as "
                "boston=1200; under add-remove it is private and must not be stated.",
                parameter="sites",
            )
        if self.rows is not None:
            loss = PrivacyLoss(self.epsilon_micro, self.delta_atto)
            checks.require_small_delta(loss, self.neighbours, self.rows, accepted=False)

    def plan_for(self, site: str, table: Table) -> Plan:
        """Return the plan of the share of a site; refuse a table that the terms are not about."""
        stated = self.sites[self.index(site)]
        if table.periodic:
            raise RefusedError(f"{table} has rows in periods, which a session does not support. Ingest them as one.")
        if table.names != self.columns or (table.schema and table.schema.to_json()) != self.schema:
            raise UsageError(
                f"{table} has another schema than the session, or other columns: {self._difference(table)}. Ingest "
                f"with those of the session ({parameter('schema', 'SESSION')}). Nothing was spent."
            )
        if unit_of(table.unit) != self.unit:
            own, wanted = ("single rows" if unit is None else str(unit.column) for unit in (table.unit, self.unit))
            raise UsageError(
                f"The privacy unit of {table} is {own}, that of the session {wanted}, or they keep other numbers of "
                "rows. Ingest with the unit of the session. Nothing was spent."
            )
        if stated.rows is not None and stated.rows != table.rows:
            raise UsageError(
                f"{table} has {table.rows} rows, and the session states {stated.rows} of {site}. If these are the rows "
                "of another site, or of an earlier state, name the right ones; otherwise make a session with the right "
                "numbers. Nothing was spent."
            )
        return self._agreed(plan_of(self.request, table))

    def _difference(self, table: Table) -> str:
        """Return the first column in which a table differs from the terms."""
        for number, (own, wanted) in enumerate(zip_longest(table.names, self.columns), 1):
            if own != wanted:
                return f"column {number} is {own or 'missing'}, and {wanted or 'none'} in the session"
        if table.schema is None or self.schema is None:
            return f"{'it' if table.schema is None else 'the session'} has no schema"
        mine, theirs = table.schema.to_json(), self.schema
        for own, wanted in [(mine, theirs), *zip(_columns_of(mine), _columns_of(theirs), strict=False)]:
            for key in sorted({*own, *wanted} - {"columns"}):
                if own.get(key) != wanted.get(key):
                    of = f" of {own['name']}" if "name" in own else ""
                    return (
                        f"{key}{of} is {own.get(key, 'not given')}, and {wanted.get(key, 'not given')} in the session"
                    )
        return "the columns of the source differ"

    def _agreed(self, plan: Plan) -> Plan:
        """Return a plan with the noise of a share, if it is that of the terms."""
        if plan.stages:
            raise UsageError(
                "The clip norm of all rows of a privacy unit would be chosen privately, which a session cannot do: "
                f"give a number ({parameter('clip', 'C')}), such as that of a pilot release, which "
                f"{step('inspect', 'PILOT')} shows."
            )
        share = noise_share(plan.moment, len(self.sites), self.colluding)
        noise = ShareNoise(share.sigma_diagonal, share.sigma_off_diagonal)
        if plan.bound.to_json() != self.bound or noise != self.noise:
            raise DataError(
                "The terms of the session contradict each other: by this version of dpdist rows are bounded, or noise "
                "is drawn, in another way. Get session.json anew, or make the session with this version at all sites."
            )
        return replace(plan, moment=share, guarantee=share.guarantee)

    @property
    def share(self) -> NoiseShare:
        """The noise of each site."""
        moment = self.plan.moment
        assert isinstance(moment, NoiseShare)  # noqa: S101 - as agreed
        return moment


def _columns_of(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(schema["columns"])


def dimensions(columns: Sequence[str], schema: Schema | None, unit: Unit | None, rows: int | None) -> Dimensions:
    """Return what a plan uses of the rows of all sites."""
    most = 1 if unit is None else unit.counted_rows
    together = unit is not None and unit.max_rows is None
    return Dimensions(len(columns), rows, most, most, schema, together=together)


def unit_of(unit: Unit | None) -> UnitAttributes | None:
    """Return what sites must agree on of a privacy unit: which rows are kept concerns each alone."""
    return None if unit is None else UnitAttributes(unit.column, unit.max_rows)


def _require_names(names: Sequence[str]) -> None:
    for name in names:
        if not re.fullmatch(NAME, name):
            raise UsageError(
                f"{name!r} cannot be the name of a site: use up to 64 letters, digits, hyphens or underscores.",
                parameter="sites",
            )
    if len({name.lower() for name in names}) < len(names):
        raise UsageError("Two sites have the same name, apart from capitals. Name each once.", parameter="sites")
