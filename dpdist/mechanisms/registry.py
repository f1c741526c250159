"""Every mechanism by name.

To add one:

1. A module of its own here, or that of its family. Its docstring has the law, the theorem and the proof. A class has an
   ``info`` and a ``calibrate`` that takes each option as a keyword and returns a
   :class:`~dpdist.mechanisms.base.Calibrated`. :mod:`dpdist.mechanisms.gaussian` is the example to read. The module
   never moves: ledgers and releases name it.
2. This file: its ``MECHANISMS``, in the list below.
3. ``tests/mechanisms/test_mechanism_contract.py``: where its proof stands. It is done when the contract passes. It
   must take 1 for a whole number that has to be given, and (1.0,) for numbers.
4. ``tests/mechanisms/test_<family>.py``: that its draws have its law, and its constants are those of its theorem.
5. ``python -m dpdist.jobs.sections``: writes the schema of job files anew, which lists the mechanisms.

The audit attacks it as it is, and a copy with less noise: ``tests/faults/weakened.py`` lists the fields by which. Noise
whose spectrum is of a new kind has its edge in :mod:`dpdist.mechanisms.noise_law` and :mod:`dpdist.pca.noise_edge`;
until then it says ``EdgeKind.NONE``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dpdist.errors import RefusedError, UsageError
from dpdist.mechanisms import (
    analyze_gauss,
    eigenpairs,
    exponential,
    gaussian,
    jl,
    knorm,
    laplace,
    mvg,
    one_sided,
    orbit,
    power,
    wishart,
)
from dpdist.mechanisms.base import Calibrated, IndependentEntries, Matrix, Mechanism
from dpdist.mechanisms.info import MechanismInfo, Options
from dpdist.mechanisms.noise_law import Noise
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import Entropy
from dpdist.privacy.guarantee import Arithmetic, PrivacyLoss
from dpdist.triangle import Band, Triangle


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

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> None:
        """Return None: what is released is the moment itself."""


class NoPrivacy:
    """`none`: the exact second moment, to measure the others against.

    Nothing is claimed or proved: the release is private data, given out only for reproduction, and charges no ledger.
    """

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
        """Return the exact answer, whatever the loss."""
        return CalibratedNone(query.size)


_FAMILIES: tuple[tuple[Mechanism, ...], ...] = (
    gaussian.MECHANISMS,
    wishart.MECHANISMS,
    one_sided.MECHANISMS,
    power.MECHANISMS,
    laplace.MECHANISMS,
    analyze_gauss.MECHANISMS,
    (NoPrivacy(),),
    exponential.MECHANISMS,
    eigenpairs.MECHANISMS,
    orbit.MECHANISMS,
    mvg.MECHANISMS,
    jl.MECHANISMS,
    knorm.MECHANISMS,
)
MECHANISMS: dict[str, Mechanism] = {mechanism.info.name: mechanism for family in _FAMILIES for mechanism in family}


RECOMMENDED = ("gaussian", "two-sided-wishart")  # what to take where a delta is allowed, and where none is


def list_mechanisms() -> tuple[MechanismInfo, ...]:
    """Return what is said in public of every mechanism: what it claims, and what is really proved.

    Returns
    -------
    tuple of MechanismInfo
        One for each mechanism: ``name``, ``output``, ``law``, ``claimed``, ``proved``, ``delta`` (whether it takes
        one), ``options`` (its own parameters), ``replacement`` (what to take where the claim is not proved; empty where
        it is), ``reference`` and more.

    See Also
    --------
    ReleaseRequest : Names one.
    audit_mechanism : Attacks one.

    References
    ----------
    Each statement has its own, in ``reference``; the proofs stand in the modules of :mod:`dpdist.mechanisms`.

    Examples
    --------
    >>> import dpdist
    >>> found = {info.name: info for info in dpdist.list_mechanisms()}
    >>> found["gaussian"].proved
    '(epsilon, delta), exactly mu-GDP'
    >>> found["sn"].claimed, found["sn"].proved, found["sn"].replacement  # doctest: +NORMALIZE_WHITESPACE
    ('epsilon (pure), replace-one', 'not pure: delta = 1 - exp(-epsilon), at any larger epsilon too',
    'two-sided-wishart')
    """
    return tuple(mechanism.info for mechanism in MECHANISMS.values())


def mechanism_named(name: str) -> Mechanism:
    """Look a mechanism up."""
    try:
        return MECHANISMS[name]
    except KeyError:
        raise UsageError(f"There is no mechanism {name!r}; choose one of {', '.join(MECHANISMS)}.") from None


def calibrated(name: str, query: LatticeQuery, loss: PrivacyLoss, options: Options | None = None) -> Calibrated:
    """Return a mechanism fixed for a query, a loss and its options; those left out take their defaults."""
    mechanism = mechanism_named(name)
    if query.rows > 1 and not mechanism.info.units:
        proved = [candidate for candidate, other in MECHANISMS.items() if other.info.units]
        raise RefusedError(
            f"Somebody may own up to {query.rows} rows of this table, and of {name} nothing is proved for several rows "
            f"that change at once. Take {' or '.join(proved)}.",
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
    """Name the recommended mechanism: `gaussian` where a delta is allowed, `two-sided-wishart` where none is."""
    with_delta, pure = RECOMMENDED
    return with_delta if delta_atto else pure
