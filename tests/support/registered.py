"""The mechanisms of the registry as tests take them: with the least options, and a loss that they take."""

from __future__ import annotations

from typing import Any

from dpdist.core.mechanisms import registry
from dpdist.core.mechanisms.info import DeltaUse, Kind, OptionValue
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss

NAMES = sorted(registry.MECHANISMS)
LEAST: dict[Kind, OptionValue] = {Kind.INTEGER: 1, Kind.NUMBERS: (1.0,)}
"""One component, round, row, combination or eigenvalue: every table has it, so every mechanism takes it."""
BOUND = 4**16
"""The norm bound of a row, in units of the lattice."""


def least_options(name: str) -> dict[str, OptionValue]:
    return {o.name: LEAST[o.kind] for o in registry.MECHANISMS[name].info.options if o.default is None}


def loss_for(name: str, epsilon: str = "1", delta: str = "1e-6") -> PrivacyLoss:
    required = registry.MECHANISMS[name].info.delta is DeltaUse.REQUIRED
    return PrivacyLoss.parse(epsilon, delta if required else "0")


def calibrated(
    name: str,
    size: int,
    bound: int = BOUND,
    neighbours: Neighbours = Neighbours.REPLACE_ONE,
    loss: PrivacyLoss | str = "1",
    **options: Any,
) -> Any:
    """Return a calibrated mechanism, whose class only the test knows; the loss may be an epsilon."""
    loss = loss if isinstance(loss, PrivacyLoss) else loss_for(name, loss)
    query = LatticeQuery(size, bound, neighbours)
    return registry.calibrated(name, query, loss, {**least_options(name), **options})
