"""The noise of a release as a type: the public description of its distribution, and sums of independent draws.

A mechanism describes its noise here. Readers use the variances of its entries, its mean, and the edge of its spectrum
(:mod:`dpdist.answers.noise_edge`). ``law`` is a name for humans.

The spectrum of a sum of independent noise follows from its *parts*: normal entries add up to normal entries, and
Wishart matrices of equal scale to a Wishart matrix with the sum of their degrees of freedom. Other kinds remain
separate parts, whose spectra add up in the limit (free convolution).

A release stores the noise as one flat JSON object: ``law``, the parameters of the distribution, ``edge``, and the
moments. A sum has ``law: "sum"``, the names of its terms in ``of``, their number in ``terms``, and its ``parts``. A
:class:`Noise` is a mapping with the same keys.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_MOMENTS = ("variance_diagonal", "variance_off_diagonal", "mean_diagonal")
SUM = "sum"
"""The law of a sum of independent noise."""
_MIN_SIZE, _MAX_SIZE, _MAX_COUNT = 2.0**-64, 2.0**128, 2**53
"""Limits on stored values, which are untrusted: a 64-bit lattice holds no noise beyond them."""


class EdgeKind(enum.StrEnum):
    """The kind of the edge of a noise spectrum, as stored in releases."""

    NONE = "none"  # unknown, or the answer is not the moment plus noise
    NORMAL = "normal-entries"  # independent
    LAPLACE = "laplace-entries"  # independent, of one scale
    FROBENIUS = "frobenius-norm"  # density decreasing exponentially in the Frobenius norm
    NUCLEAR = "nuclear-norm"  # density decreasing exponentially in the nuclear norm
    WISHART = "wishart"  # a Wishart matrix minus its mean
    TWO_SIDED_WISHART = "two-sided-wishart"  # the difference of two independent, equally distributed Wishart matrices
    SUM = "sum"  # of several kinds

    @property
    def semicircle(self) -> bool:
        """Whether the spectrum tends to a semicircle as the number of columns grows."""
        return self in {EdgeKind.NORMAL, EdgeKind.LAPLACE, EdgeKind.FROBENIUS}

    @property
    def wishart(self) -> bool:
        """Whether the noise consists of Wishart matrices."""
        return self in {EdgeKind.WISHART, EdgeKind.TWO_SIDED_WISHART}


@dataclass(frozen=True)
class Part:
    """Noise of one kind, alone or as part of a sum."""

    kind: EdgeKind  # never NONE or SUM
    variance: float  # of an entry off the diagonal, squared lattice units: of the sum if `adds_up`, else of one term
    terms: int = 1  # number of independent draws
    degrees: int = 0  # total degrees of freedom of Wishart matrices; 0: unknown, only the variance counts
    scale: float = 0.0  # of a Wishart matrix, lattice units

    @property
    def adds_up(self) -> bool:
        """Whether a sum of two parts is one part of this kind; otherwise equal terms are counted."""
        return self.kind.semicircle or self.degrees > 0

    def to_json(self) -> dict[str, object]:
        wishart = {"degrees": self.degrees, "scale": self.scale} if self.degrees else {}
        return {"edge": self.kind.value, "terms": self.terms, "variance_off_diagonal": self.variance, **wishart}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Part:
        """Return the part stored by :meth:`to_json`."""
        kind = EdgeKind(value["edge"])
        wishart = (_count(value["degrees"]), _size(value["scale"])) if "degrees" in value else ()
        if kind in {EdgeKind.NONE, EdgeKind.SUM} or (wishart and not kind.wishart):
            raise ValueError(kind)
        return cls(kind, _size(value["variance_off_diagonal"]), _count(value["terms"]), *wishart)


@dataclass(frozen=True, eq=False)
class Noise(Mapping[str, Any]):
    """The public description of the noise of a release, in lattice units."""

    law: str  # the name of the distribution, for humans
    edge: EdgeKind = EdgeKind.NONE
    variance_diagonal: float | None = None  # of an entry; None if the mechanism adds no noise to entries
    variance_off_diagonal: float | None = None
    mean_diagonal: float = 0.0  # the mean of the noise is this multiple of the identity
    # parameters of the distribution, JSON values: WISHART has degrees and scale, TWO_SIDED_WISHART columns and scale
    details: Mapping[str, object] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()  # of a sum, else empty; see summands

    def to_json(self) -> dict[str, object]:
        moments = {name: getattr(self, name) for name in _MOMENTS[: 3 if self.mean_diagonal else 2]}
        return {
            "law": self.law,
            **self.details,
            **({} if self.edge is EdgeKind.NONE else {"edge": self.edge.value}),
            **({"parts": [part.to_json() for part in self.parts]} if self.parts else {}),
            **{name: value for name, value in moments.items() if value is not None},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Noise:
        """Return the noise stored by :meth:`to_json`."""
        reserved = {"law", "edge", "parts", *_MOMENTS}
        noise = cls(
            law=str(value["law"]),
            edge=EdgeKind(value.get("edge", EdgeKind.NONE)),
            **{name: _size(value[name]) for name in _MOMENTS[:2] if name in value},
            mean_diagonal=_finite(value.get("mean_diagonal", 0.0)),
            details={key: value[key] for key in value if key not in reserved},
            parts=tuple(Part.from_json(part) for part in value.get("parts", ())),
        )
        if noise.edge is not _kind_of(noise.summands):
            raise ValueError(noise.edge)
        return noise

    @property
    def summands(self) -> tuple[Part, ...]:
        """The independent parts of the noise: one unless it is a sum; empty if unknown."""
        if self.parts or self.edge in {EdgeKind.NONE, EdgeKind.SUM} or not self.variance_off_diagonal:
            return self.parts
        part = Part(self.edge, self.variance_off_diagonal)
        if not self.edge.wishart:
            return (part,)
        degrees = self.details["degrees" if self.edge is EdgeKind.WISHART else "columns"]
        return (replace(part, degrees=_count(degrees), scale=_size(self.details["scale"])),)

    def __add__(self, other: Noise) -> Noise:
        """Return the noise of the sum of two independent draws."""
        parts = _joined([*self.summands, *other.summands]) if self.summands and other.summands else ()
        laws = {law for noise in (self, other) for law in str(noise.details.get("of", noise.law)).split("; ")}
        return Noise(
            law=SUM,
            edge=_kind_of(parts),
            variance_diagonal=_total(self.variance_diagonal, other.variance_diagonal),
            variance_off_diagonal=_total(self.variance_off_diagonal, other.variance_off_diagonal),
            mean_diagonal=self.mean_diagonal + other.mean_diagonal,
            details={"of": "; ".join(sorted(laws)), "terms": self._terms + other._terms},
            parts=parts,
        )

    def weighted(self, weight: float) -> Noise:
        """Return the noise of a draw multiplied by a positive weight."""
        square = weight**2
        return Noise(
            law=SUM,
            edge=self.edge,
            variance_diagonal=None if self.variance_diagonal is None else square * self.variance_diagonal,
            variance_off_diagonal=None if self.variance_off_diagonal is None else square * self.variance_off_diagonal,
            mean_diagonal=weight * self.mean_diagonal,
            details={"of": self.details.get("of", self.law), "terms": self._terms},
            parts=tuple(replace(p, variance=square * p.variance, scale=weight * p.scale) for p in self.summands),
        )

    @property
    def _terms(self) -> int:
        return _count(self.details["terms"]) if self.law == SUM else 1

    def __getitem__(self, key: str) -> Any:
        return self.to_json()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_json())

    def __len__(self) -> int:
        return len(self.to_json())


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    """Merge the parts of one kind, in an order that does not depend on theirs."""
    joined: dict[tuple[EdgeKind, bool, float], Part] = {}
    for part in parts:
        key = (part.kind, part.adds_up, part.scale if part.adds_up else part.variance)
        previous = joined.get(key)
        if previous is not None:
            part = replace(  # noqa: PLW2901 - the merged part
                previous,
                variance=previous.variance + (part.variance if part.adds_up else 0.0),
                terms=previous.terms + part.terms,
                degrees=previous.degrees + part.degrees,
            )
        joined[key] = part
    return tuple(sorted(joined.values(), key=lambda part: (part.kind.value, part.scale, part.variance)))


def _kind_of(parts: tuple[Part, ...]) -> EdgeKind:
    if not parts:
        return EdgeKind.NONE
    return parts[0].kind if len(parts) == 1 else EdgeKind.SUM


def _total(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _finite(value: Any) -> float:
    if isinstance(value, bool | str) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)


def _size(value: Any) -> float:
    number = _finite(value)
    if number and not _MIN_SIZE <= number <= _MAX_SIZE:
        raise ValueError(value)
    return number


def _count(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= _MAX_COUNT:
        raise ValueError(value)
    return value
