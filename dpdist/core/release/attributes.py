"""Types of the attributes of release.zarr, which may come from anyone, and are validated.

:meth:`dpdist.core.release.artefact.Heading.attributes` writes them; attributes of older versions are read as well. They
include the rows of a release: a table, or consecutive periods of one, identified by public names.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Any, NotRequired  # noqa: F401

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from dpdist.core.errors import RefusedError
from dpdist.core.mechanisms.noise_share import MOST_SITES
from dpdist.core.privacy.accounting import composed_epsilon_micro
from dpdist.core.privacy.guarantee import MICRO, Guarantee, GuaranteeJson, Neighbours, Ratio  # noqa: F401
from dpdist.core.rows.bounding import BoundJson
from dpdist.core.rows.periods import Span
from dpdist.core.rows.table import Table, UnitAttributes
from dpdist.core.rows.units import Unit
from dpdist.core.storage.arrays import Text
from dpdist.core.text import repeated, rounded_up, schema_of

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
SiteName = Annotated[str, Meta(pattern=rf"^{NAME}\Z")]
"""The name of a site of a session."""


class _Guarantee(GuaranteeJson):
    proof: Text  # without lone surrogates


class Stage(Struct, frozen=True):
    """The stages of a release: what was drawn first, and the values that the release took from it. Public."""

    mechanism: Text
    guarantee: GuaranteeJson  # of the stages alone; the guarantee of the release includes them
    chosen: dict[Text, float | tuple[float, ...]]  # by name, such as clip_norm: a number, or one for each column
    answer: dict[str, Any]


class SessionFacts(Struct, frozen=True):
    """The session of several sites that a release is the sum of."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]  # digest of its terms
    sites: Annotated[tuple[SiteName, ...], Meta(min_length=2, max_length=MOST_SITES)]
    colluding: Annotated[int, Meta(ge=0)]  # most sites that may collude, by assumption

    def __post_init__(self) -> None:
        """Refuse what no session has: so many sites that collude."""
        if self.colluding > len(self.sites) - 2 or repeated(map(str.lower, self.sites)):
            raise ValueError(self.sites)

    @property
    def trust(self) -> str:
        """The assumption of the guarantee, as the end of a sentence that begins with "if"."""
        names = f"{len(self.sites)} sites ({', '.join(self.sites)})"
        if not self.colluding:
            return f"none of the {names} reveals its noise or its key, or uses them against another"
        verb = "reveal their noise or keys" if self.colluding > 1 else "reveals its noise or its key"
        return f"at most {self.colluding} of the {names} {verb}"

    def condition(self, unit: Unit | UnitAttributes | None) -> str:
        """Return what the guarantee assumes of the sites, as the end of a sentence that begins with "if"."""
        owner = "row is" if unit is None else f"{unit.column} has rows"
        return f"{self.trust}, and no {owner} at two of them"

    def exposed_epsilon(self, guarantee: Guarantee) -> str:
        """Return epsilon of a site, rounded up, if all others collude: its share has the noise of one site alone."""
        honest = Fraction(len(self.sites) - self.colluding)
        alone = dataclasses.replace(guarantee, mu_squared=(guarantee.mu_squared or Fraction(0)) * honest)
        return rounded_up(composed_epsilon_micro([alone], guarantee.loss.delta_atto) / MICRO, 3)

    def worst_case(self, guarantee: Guarantee) -> str:
        """Return what the rows of a site lose if all others collude, in words."""
        return f"epsilon {self.exposed_epsilon(guarantee)} for a site, if all others work against it"

    def describe(self) -> str:
        """Return who was trusted with what."""
        return f"{', '.join(self.sites)}: each was trusted with its own rows, and nobody with a sum without noise"


class Attributes(Struct, frozen=True):
    """Attributes of one release; those with a default are stored only if they differ from it."""

    release_id: Text
    mechanism: Text
    status: str
    columns: tuple[Text, ...]
    neighbours: Neighbours
    claim: dict[str, int] | None
    guarantee: _Guarantee | None
    bound: BoundJson
    noise: dict[str, Any]  # each distribution has its own parameters; Noise checks them
    n: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None
    ledger_head: Text | None
    extents: tuple[Coverage, ...]
    unit: UnitAttributes | None
    releases: tuple[Text, ...] = ()
    condition: Text | None = None
    rows_at_most: Annotated[int, Meta(ge=1)] | None = None
    schema: dict[str, Any] | None = None
    stage: Stage | None = None
    weights: tuple[Annotated[int, Meta(ge=1, le=2**31)], ...] = ()
    window: Annotated[int, Meta(ge=1)] | None = None
    session: SessionFacts | None = None
    library: Text = ""  # that wrote it


def schema(version: str) -> dict[str, Any]:
    """Return the JSON schema of the attributes of a release."""
    return schema_of(Attributes, "Attributes of a dpdist release.zarr", version)


class Coverage(Struct, frozen=True, forbid_unknown_fields=True):
    """All rows of a table, or those of some consecutive periods."""

    # digest of the table's random identity, which all its releases share
    dataset: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    # index of the first period, from 0; None, like the fields below: the whole table
    start: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None  # index after the last period
    first: Text | None = None  # name of the first period
    last: Text | None = None

    @classmethod
    def of(cls, table: Table) -> Coverage:
        """Return the extent of a release of a table. Whether other tables have some of its rows is private."""
        identity = table.dataset_id if isinstance(table, Span) else table.published_as
        dataset = hashlib.sha256(f"dpdist dataset\n{identity}".encode()).hexdigest()[:32]
        if not isinstance(table, Span):
            return cls(dataset)
        first, last = (table.parts[i].period for i in (0, -1))
        return cls(dataset, table.start, table.start + len(table.parts), first, last)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the periods, or "a whole table"."""
        if self.first is None:
            return "a whole table"
        return f"period {self.first}" if self.first == self.last else f"periods {self.first} to {self.last}"


def merged(extents: Iterable[Coverage]) -> tuple[Coverage, ...]:
    """Return disjoint extents in order, with adjacent ones joined."""
    joined: list[Coverage] = []
    for extent in sorted(extents, key=lambda e: (e.dataset, e.start or 0, e.stop or 0)):
        last = joined[-1] if joined and joined[-1].dataset == extent.dataset else None
        if last is not None:
            if last.stop is None or extent.start is None or extent.stop is None or extent.start < last.stop:
                raise RefusedError(
                    f"Two of the releases contain the same rows ({last} and {extent} of one table), which would count "
                    "twice in the sum. Leave one of the two out."
                )
            if extent.start == last.stop:
                joined[-1] = replace(last, stop=extent.stop, last=extent.last)
                continue
        joined.append(extent)
    return tuple(joined)
