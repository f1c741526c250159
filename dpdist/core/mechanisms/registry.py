"""All mechanisms by name; CONTRIBUTING.md describes how to add one.

``calibrate`` takes each option as a keyword and returns a :class:`~dpdist.core.mechanisms.base.Calibrated`. The
contract test passes 1 for required integers and (1.0,) for numbers. ``tests/faults/weakened.py`` lists the fields that
scale the noise. Noise with a new kind of spectrum has ``EdgeKind.NONE`` unless :mod:`dpdist.core.mechanisms.noise_law`
and :mod:`dpdist.answers.noise_edge` define its edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.mechanisms.base import Calibrated, IndependentEntries, Mechanism
from dpdist.core.mechanisms.info import MechanismInfo, Options
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import Entropy
from dpdist.core.privacy.guarantee import Arithmetic, PrivacyLoss
from dpdist.core.triangle import Band, Triangle


@dataclass(frozen=True)
class CalibratedNone(IndependentEntries):
    """No noise."""

    size: int
    guarantee: None = None
    claim: None = None

    @property
    def noise(self) -> Noise:
        return Noise("none", variance_diagonal=0.0, variance_off_diagonal=0.0)

    def draw_band(self, band: Band, entropy: Entropy) -> Triangle:  # noqa: ARG002 - there is nothing to draw
        return np.zeros(band.entries, dtype=np.int64)


class NoPrivacy:
    """`none`: the exact second moment, a private baseline for reproduction, which charges no ledger."""

    info = MechanismInfo(
        name="none",
        law="the exact second moment",
        sensitivity="none is used",
        claimed="nothing: evaluation only",
        proved="nothing",
        arithmetic=Arithmetic.INTEGER_EXACT,
        cost="nothing",
        reference="the non-private baseline of every paper",
        replacement="two-sided-wishart",
        semidefinite=True,
    )

    def calibrate(self, query: LatticeQuery, _loss: PrivacyLoss) -> CalibratedNone:
        return CalibratedNone(query.size)


_NONE = NoPrivacy()
_FAMILIES = {
    "core.mechanisms.gaussian": ("gaussian",),
    "core.mechanisms.wishart": ("two-sided-wishart",),
    "literature.one_sided": ("wishart", "sn", "jiang-wishart", "sheffet-wishart"),
    "literature.power": ("power", "power-published"),
    "core.mechanisms.laplace": ("laplace", "laplace-published"),
    "literature.analyze_gauss": ("analyze-gauss", "sulq", "mod-sulq"),
    "core.mechanisms.registry": ("none",),
    "literature.exponential": ("ppca", "bingham"),
    "literature.eigenpairs": ("kapralov-talwar", "amin"),
    "literature.orbit": ("orbit", "orbit-lowrank"),
    "literature.mvg": ("mvg", "mvg-psd", "mvg-exact"),
    "literature.jl": ("jl",),
    "literature.knorm": ("nuclear", "frobenius"),
}
"""Modules of dpdist with their mechanisms. Others cannot add theirs: a mechanism states its own guarantee."""
_MODULES = {name: f"dpdist.{module}" for module, names in _FAMILIES.items() for name in names}


class _Registry(Mapping[str, Mechanism]):
    """All mechanisms by name; a module is imported when one of its mechanisms is used."""

    def __getitem__(self, name: str) -> Mechanism:
        family: tuple[Mechanism, ...] = (_NONE,) if name == "none" else import_module(_MODULES[name]).MECHANISMS
        return next(mechanism for mechanism in family if mechanism.info.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


MECHANISMS: Mapping[str, Mechanism] = _Registry()
RECOMMENDED = ("gaussian", "two-sided-wishart")  # with a delta, and without


def list_mechanisms() -> tuple[MechanismInfo, ...]:
    """Return the public descriptions of all mechanisms, with the published claim and the proved guarantee.

    Returns
    -------
    tuple of MechanismInfo
        One per mechanism, with ``name``, ``output``, ``law``, ``claimed``, ``proved``, ``delta`` (whether it takes a
        delta), ``options`` (its own parameters), ``replacement`` (the mechanism to use instead, empty if the claim is
        proved), ``reference`` and more.

    See Also
    --------
    ReleaseRequest : Selects a mechanism.
    audit_mechanism : Attacks a mechanism.

    Examples
    --------
    >>> import dpdist
    >>> mechanisms = {info.name: info for info in dpdist.list_mechanisms()}
    >>> mechanisms["gaussian"].proved
    '(epsilon, delta), exactly mu-GDP'
    >>> sn = mechanisms["sn"]
    >>> sn.claimed, sn.proved, sn.replacement  # doctest: +NORMALIZE_WHITESPACE
    ('epsilon (pure), replace-one', 'not pure: delta = 1 - exp(-epsilon), at any larger epsilon too',
    'two-sided-wishart')
    """
    return tuple(mechanism.info for mechanism in MECHANISMS.values())


def mechanism_named(name: str) -> Mechanism:
    """Return the mechanism with a name."""
    if isinstance(name, str) and name in _MODULES:
        return MECHANISMS[name]
    shown = repr(name) if isinstance(name, str) else f"of type {type(name).__name__}"
    raise UsageError(f"There is no mechanism {shown}. Choose one of {', '.join(MECHANISMS)}.")


def calibrated(name: str, query: LatticeQuery, loss: PrivacyLoss, options: Options | None = None) -> Calibrated:
    """Return a mechanism calibrated for a query, a loss and its options; omitted options have their defaults."""
    mechanism = mechanism_named(name)
    if (query.rows > 1 or query.together) and not mechanism.info.units:
        proved = [candidate for candidate, other in MECHANISMS.items() if other.info.units]
        rows = "any number of" if query.together else f"up to {query.rows}"
        raise RefusedError(
            f"A privacy unit of this table may own {rows} rows, and {name} has no guarantee for units of "
            f"several rows. Use {' or '.join(proved)}.",
            parameter="mechanism",
        )
    mechanism.info.require_delta_use(loss)
    return _calibrated_once(name, query, loss, tuple(sorted(mechanism.info.filled(options or {}).items())))


@lru_cache(maxsize=16)
def _calibrated_once(
    name: str, query: LatticeQuery, loss: PrivacyLoss, options: tuple[tuple[str, Any], ...]
) -> Calibrated:
    """Calibrate a mechanism, once for all steps of a release."""
    return MECHANISMS[name].calibrate(query, loss, **dict(options))


def recommended(delta_atto: int) -> str:
    """Return the recommended mechanism: `gaussian` with a delta, `two-sided-wishart` without."""
    with_delta, pure = RECOMMENDED
    return with_delta if delta_atto else pure
