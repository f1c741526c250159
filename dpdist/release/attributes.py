"""What release.zarr says of itself, as types: a release may come from anybody, and nothing of it is guessed.

These are the attributes that :meth:`dpdist.release.artefact.Heading.attributes` writes, and those of older versions.
"""

from __future__ import annotations

# From Python 3.14 on, names in the inherited annotations of a TypedDict are looked up here: NotRequired and Ratio
from typing import Annotated, Any, NotRequired  # noqa: F401

import msgspec
from msgspec import Meta, Struct

from dpdist._util.schemas import schema_of
from dpdist.privacy.guarantee import GuaranteeJson, Neighbours, Ratio  # noqa: F401
from dpdist.release.coverage import Coverage
from dpdist.rows.attributes import UnitAttributes
from dpdist.rows.bounding import BoundJson
from dpdist.storage.arrays import Text


class _Guarantee(GuaranteeJson):
    proof: Text  # and no half of a character


class Stage(Struct, frozen=True):
    """The stage of a release: what was drawn first, and what the release took from it. Public.

    Attributes
    ----------
    mechanism
        Its name.
    guarantee
        What is proved of it alone; that of the release is of both together.
    chosen
        What the release took from it, by name, such as ``clip_norm``: a number, or one for each column.
    answer
        What was drawn.
    """

    mechanism: Text
    guarantee: GuaranteeJson
    chosen: dict[Text, float | tuple[float, ...]]
    answer: dict[str, Any]


class Attributes(Struct, frozen=True):
    """Attributes of one release.

    Attributes
    ----------
    n
        Number of rows, where it is public.
    releases, condition, rows_at_most, schema, stage, weights, window
        Stored where there are any.
    """

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

    @classmethod
    def of(cls, info: dict[str, Any]) -> Attributes:
        """Read the JSON values."""
        return msgspec.convert(info, cls)


def schema(version: str) -> dict[str, Any]:
    """Return the JSON schema of the attributes of a release of a version."""
    return schema_of(Attributes, "Attributes of a dpdist release.zarr", version)
