"""What release.zarr says of itself, as types: a release may come from anybody, and nothing of it is guessed.

These are the attributes that :meth:`dpdist.release.artefact.Heading.attributes` writes, and those of older versions.
They say of which rows a release is: a table, or consecutive periods of one. Public, and enough to tell rows apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Any, NotRequired  # noqa: F401

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from dpdist._util.text import schema_of
from dpdist.errors import RefusedError
from dpdist.privacy.guarantee import GuaranteeJson, Neighbours, Ratio  # noqa: F401
from dpdist.rows.bounding import BoundJson
from dpdist.rows.periods import Span
from dpdist.rows.table import Table, UnitAttributes
from dpdist.storage.arrays import Text


class _Guarantee(GuaranteeJson):
    proof: Text  # and no half of a character


class Stage(Struct, frozen=True):
    """The stages of a release: what was drawn first, and what the release took from it. Public."""

    mechanism: Text
    guarantee: GuaranteeJson  # of the stages alone; that of the release is of all together
    chosen: dict[Text, float | tuple[float, ...]]  # by name, such as clip_norm: a number, or one for each column
    answer: dict[str, Any]


class Attributes(Struct, frozen=True):
    """Attributes of one release; those that have a default are stored where there are any."""

    release_id: Text
    mechanism: Text
    status: str
    columns: tuple[Text, ...]
    neighbours: Neighbours
    claim: dict[str, int] | None
    guarantee: _Guarantee | None
    bound: BoundJson
    noise: dict[str, Any]  # laws have parameters of their own; Noise checks them
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


def schema(version: str) -> dict[str, Any]:
    """Return the JSON schema of the attributes of a release of a version."""
    return schema_of(Attributes, "Attributes of a dpdist release.zarr", version)


class Coverage(Struct, frozen=True, forbid_unknown_fields=True):
    """All rows of a table, or those of some consecutive periods."""

    dataset: str  # digest of the table's random identity: the same in all its releases, and nothing else is learnt
    start: int | None = None  # position of the first period, from 0; None, as all that follows: the whole table
    stop: int | None = None  # of the one behind the last
    first: str | None = None  # name of the first period
    last: str | None = None

    @classmethod
    def of(cls, table: Table) -> Coverage:
        """Return what a release that reads a table is of."""
        dataset = hashlib.sha256(f"dpdist dataset\n{table.dataset_id}".encode()).hexdigest()[:32]
        if not isinstance(table, Span):
            return cls(dataset)
        first, last = (table.parts[i].period for i in (0, -1))
        return cls(dataset, table.start, table.start + len(table.parts), first, last)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the periods, or a word for all of them."""
        if self.first is None:
            return "a whole table"
        return f"period {self.first}" if self.first == self.last else f"periods {self.first} to {self.last}"


def merged(extents: Iterable[Coverage]) -> tuple[Coverage, ...]:
    """Return disjoint extents with neighbours joined, in order."""
    joined: list[Coverage] = []
    for extent in sorted(extents, key=lambda e: (e.dataset, e.start or 0, e.stop or 0)):
        last = joined[-1] if joined and joined[-1].dataset == extent.dataset else None
        if last is not None:
            if last.stop is None or extent.start is None or extent.stop is None or extent.start < last.stop:
                raise RefusedError(
                    f"Two of the releases are of the same rows ({last} and {extent} of one table): added up, these "
                    "would count twice. Leave one of the two out."
                )
            if extent.start == last.stop:
                joined[-1] = replace(last, stop=extent.stop, last=extent.last)
                continue
        joined.append(extent)
    return tuple(joined)
