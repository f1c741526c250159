"""Every mechanism by name."""

from __future__ import annotations

from dpdist.errors import UsageError
from dpdist.mechanisms.base import Mechanism
from dpdist.mechanisms.gaussian import Gaussian
from dpdist.mechanisms.wishart import TwoSidedWishart

MECHANISMS: dict[str, Mechanism] = {
    mechanism.statement.name: mechanism for mechanism in (Gaussian(), TwoSidedWishart())
}


def mechanism_named(name: str) -> Mechanism:
    """Look a mechanism up.

    Raises
    ------
    UsageError
        If there is none of that name; the message lists them.
    """
    try:
        return MECHANISMS[name]
    except KeyError:
        raise UsageError(f"There is no mechanism {name!r}; choose one of {', '.join(MECHANISMS)}.") from None


def recommended(delta_atto: int) -> str:
    """Name the recommended mechanism: `gaussian` where a delta is allowed, `two-sided-wishart` where none is."""
    return "gaussian" if delta_atto else "two-sided-wishart"
