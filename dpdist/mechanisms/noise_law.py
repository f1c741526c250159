"""The noise of a release as a type: what is publicly known of its law, and what a sum of independent draws is.

A mechanism states the noise that it adds once, here, and what reads it asks the type: the edge of its spectrum
(:mod:`dpdist.pca.noise_edge`), the variances of its entries, its mean. ``law`` is a name for people; nothing is
decided by it but how a release is read that was stored before ``edge`` was written (versions up to 0.1.0).

A sum of independent noise is noise again. Its *parts* are what the spectrum of the sum follows from: normal entries
add up to normal entries, Wishart matrices of one scale to a Wishart matrix of all their degrees of freedom, and
whatever has no such law stays beside the others, of which the spectra add up in the limit (free convolution).

In JSON, as a release stores it, the noise is one flat object: ``law``, the parameters of the law, ``edge``, and the
moments. A sum has ``law: "sum"``, the laws that were added up in ``of``, how many ``terms``, and its ``parts``. A
:class:`Noise` is a mapping of just these keys, too.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

_MOMENTS = ("variance_diagonal", "variance_off_diagonal", "mean_diagonal")
_SUM = "sum"
_MIN_SIZE, _MAX_SIZE, _MAX_COUNT = 2.0**-64, 2.0**128, 2**53
"""No lattice of 64 bits holds noise of a larger variance, and smaller noise is none; a release may say anything."""


class EdgeKind(enum.StrEnum):
    """What the largest eigenvalue of noise is like; written into releases, so a format."""

    NONE = "none"  # nothing is known of it, or the answer is not the moment plus noise
    NORMAL = "normal-entries"  # independent
    LAPLACE = "laplace-entries"  # independent, of one scale
    FROBENIUS = "frobenius-norm"  # density falling exponentially in this norm
    NUCLEAR = "nuclear-norm"  # likewise
    WISHART = "wishart"  # a Wishart matrix less its mean
    TWO_SIDED_WISHART = "two-sided-wishart"  # the difference of two independent Wishart matrices of one law
    SUM = "sum"  # of kinds that have no law together

    @property
    def semicircle(self) -> bool:
        """Whether the spectrum is a semicircle in the limit of many columns."""
        return self in {EdgeKind.NORMAL, EdgeKind.LAPLACE, EdgeKind.FROBENIUS}

    @property
    def wishart(self) -> bool:
        """Whether it is made of Wishart matrices."""
        return self in {EdgeKind.WISHART, EdgeKind.TWO_SIDED_WISHART}


_STORED_LAWS = {
    "rounded-gaussian-orthogonal": EdgeKind.NORMAL,
    "rounded-gaussian": EdgeKind.NORMAL,
    "discrete-laplace": EdgeKind.LAPLACE,
    "frobenius-norm": EdgeKind.FROBENIUS,
    "nuclear-norm": EdgeKind.NUCLEAR,
    "wishart": EdgeKind.WISHART,
    "two-sided-wishart": EdgeKind.TWO_SIDED_WISHART,
}
"""The kinds of the laws that versions up to 0.1.0 stored without one."""


@dataclass(frozen=True)
class Part:
    """Noise of one kind, alone or as part of a sum."""

    kind: EdgeKind  # never NONE or SUM
    variance: float  # of an entry off the diagonal, squared lattice units: of all terms together if they add up
    terms: int = 1  # independent draws that were added up
    degrees: int = 0  # of freedom of a Wishart matrix, of all terms together; 0: not known, the variance alone counts
    scale: float = 0.0  # of a Wishart matrix, lattice units

    @property
    def adds_up(self) -> bool:
        """Whether the sum of two such has a law of the same kind; else terms are merely alike, and counted."""
        return self.kind.semicircle or self.degrees > 0

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        wishart = {"degrees": self.degrees, "scale": self.scale} if self.degrees else {}
        return {"edge": self.kind.value, "terms": self.terms, "variance_off_diagonal": self.variance, **wishart}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Part:
        """Read what :meth:`to_json` wrote."""
        kind = EdgeKind(value["edge"])
        wishart = (_count(value["degrees"]), _size(value["scale"])) if "degrees" in value else ()
        if kind in {EdgeKind.NONE, EdgeKind.SUM} or (wishart and not kind.wishart):
            raise ValueError(kind)
        return cls(kind, _size(value["variance_off_diagonal"]), _count(value["terms"]), *wishart)


@dataclass(frozen=True, eq=False)
class Noise(Mapping[str, Any]):
    """What is publicly known of the noise of a release, in lattice units."""

    law: str  # its name, for people
    edge: EdgeKind = EdgeKind.NONE
    variance_diagonal: float | None = None  # of an entry; None where the mechanism adds no noise to entries
    variance_off_diagonal: float | None = None
    mean_diagonal: float = 0.0  # the mean of the noise is this multiple of the identity
    # parameters of the law, JSON values: WISHART has degrees and scale, TWO_SIDED_WISHART columns and scale
    details: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    parts: tuple[Part, ...] = ()  # of a sum, else empty; see summands

    def to_json(self) -> dict[str, object]:
        """Return JSON values, as a release stores them."""
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
        """Read what a release stores, of this version or an older one."""
        reserved = {"law", "edge", "parts", *_MOMENTS}
        noise = cls(
            law=str(value["law"]),
            edge=EdgeKind(value.get("edge", EdgeKind.NONE)),
            **{name: _size(value[name]) for name in _MOMENTS[:2] if name in value},
            mean_diagonal=_finite(value.get("mean_diagonal", 0.0)),
            details=MappingProxyType({key: value[key] for key in value if key not in reserved}),
            parts=tuple(Part.from_json(part) for part in value.get("parts", ())),
        )
        if "edge" not in value:
            noise = noise._as_stored_by_old_versions()
        if noise.edge is not _kind_of(noise.summands):
            raise ValueError(noise.edge)
        return noise

    def _as_stored_by_old_versions(self) -> Noise:
        """Return the noise with what its law's name tells, or for a sum the names of what was added up."""
        kind = _STORED_LAWS.get(str(self.details.get("of", self.law)), EdgeKind.NONE)
        if kind is EdgeKind.NONE or not self.variance_off_diagonal:
            return self
        if self.law != _SUM:
            return replace(self, edge=kind)
        # how the variance was divided among the terms was not told: one draw of all of it has the larger edge
        terms = _count(self.details["terms"]) if kind.semicircle else 1
        return replace(self, edge=kind, parts=(Part(kind, self.variance_off_diagonal, terms),))

    @property
    def summands(self) -> tuple[Part, ...]:
        """The independent parts that the noise is the sum of: itself, if it is none; empty if nothing is known."""
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
            law=_SUM,
            edge=_kind_of(parts),
            variance_diagonal=_total(self.variance_diagonal, other.variance_diagonal),
            variance_off_diagonal=_total(self.variance_off_diagonal, other.variance_off_diagonal),
            mean_diagonal=self.mean_diagonal + other.mean_diagonal,
            details=MappingProxyType({"of": "; ".join(sorted(laws)), "terms": self._terms + other._terms}),
            parts=parts,
        )

    def weighted(self, weight: float) -> Noise:
        """Return the noise of a draw times a weight above 0."""
        square = weight**2
        return Noise(
            law=_SUM,
            edge=self.edge,
            variance_diagonal=None if self.variance_diagonal is None else square * self.variance_diagonal,
            variance_off_diagonal=None if self.variance_off_diagonal is None else square * self.variance_off_diagonal,
            mean_diagonal=weight * self.mean_diagonal,
            details=MappingProxyType({"of": self.details.get("of", self.law), "terms": self._terms}),
            parts=tuple(replace(p, variance=square * p.variance, scale=weight * p.scale) for p in self.summands),
        )

    @property
    def _terms(self) -> int:
        return _count(self.details["terms"]) if self.law == _SUM else 1

    def __getitem__(self, key: str) -> Any:
        """Return a value of the JSON object."""
        return self.to_json()[key]

    def __iter__(self) -> Iterator[str]:
        """Return the keys of the JSON object."""
        return iter(self.to_json())

    def __len__(self) -> int:
        """Return how many keys the JSON object has."""
        return len(self.to_json())


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    """Add up the parts that have a law together, in an order that does not depend on theirs."""
    joined: dict[tuple[EdgeKind, bool, float], Part] = {}
    for part in parts:
        key = (part.kind, part.adds_up, part.scale if part.adds_up else part.variance)
        previous = joined.get(key)
        if previous is not None:
            part = replace(  # noqa: PLW2901 - the two as one
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
