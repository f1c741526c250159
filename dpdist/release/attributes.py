"""What release.zarr says of itself, as types: a release may come from anybody, and nothing of it is guessed.

These are the attributes that :meth:`dpdist.release.artefact.Heading.attributes` writes, and those of older versions.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
from msgspec import Meta, Struct

from dpdist.privacy.guarantee import Neighbours
from dpdist.release.coverage import Extent
from dpdist.rows.attributes import UnitAttributes
from dpdist.storage.arrays import Text

_Ratio = tuple[str, str]


class _Guarantee(TypedDict):
    neighbours: str
    epsilon_micro: int
    delta_atto: int
    mu_squared: _Ratio | None
    arithmetic: str
    proof: Text
    bounded_ranges: NotRequired[tuple[_Ratio, ...]]


class _Bound(TypedDict):
    columns: int
    clip_norm: float
    grid_bits: int
    centre: tuple[float, ...] | None
    scale: tuple[float, ...] | None
    constant: int


class Attributes(Struct, frozen=True):
    """Attributes of one release.

    Attributes
    ----------
    n
        Number of rows, where it is public.
    releases, condition
        Stored where there are any.
    """

    release_id: Text
    mechanism: Text
    status: str
    columns: tuple[Text, ...]
    neighbours: Neighbours
    claim: dict[str, int] | None
    guarantee: _Guarantee | None
    bound: _Bound
    noise: dict[str, Any]  # laws have parameters of their own; Noise checks them
    n: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None
    ledger_head: Text | None
    extents: tuple[Extent, ...]
    unit: UnitAttributes | None
    releases: tuple[Text, ...] = ()
    condition: Text | None = None

    @classmethod
    def of(cls, info: dict[str, Any]) -> Attributes:
        """Read the JSON values.

        Raises
        ------
        msgspec.ValidationError
            If one is missing or of another type.
        """
        return msgspec.convert(info, cls)
