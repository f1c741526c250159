"""Checks of guarantees that are proved but weak: warnings, and a refusal if one is certainly a mistake.

A mechanism that publishes one random row satisfies (0, 1/n), and one that publishes every row with probability delta
satisfies (0, delta) and publishes ``n delta`` rows on average. So delta must be far below 1/n (Dwork & Roth 2014,
section 2.3), and from 1/n on a release is refused unless it is intended. If n is private, the refusal would reveal it;
then, and if n is unknown, there is a warning from 1e-4 on, whatever n is.

n is the number of *rows*. If a privacy unit owns several, there are at most n units, so a delta below 1/n is also below
one over their number, which is not public. If rows come in periods, n counts all periods so far: each row is in one
release only, but together the releases contain all rows, and could publish ``n delta`` of them.

The checks use public numbers only.
"""

from __future__ import annotations

import math

from dpdist.core.errors import RefusedError, WeakGuaranteeWarning, warn_caller
from dpdist.core.naming import parameter
from dpdist.core.privacy.guarantee import ATTO, MICRO, Neighbours, PrivacyLoss

LARGEST_EPSILON = 10  # a guarantee above this has a warning
_LARGE_DELTA_ATTO = ATTO // 10**4
_EXPONENT = 700.0  # largest x whose ``exp(x)`` is a float


def cautions(loss: PrivacyLoss, neighbours: Neighbours, rows: int | None) -> tuple[str, ...]:
    """Return warnings about a weak guarantee, in a sentence or two each; usually none."""
    messages = []
    if loss.epsilon_micro > LARGEST_EPSILON * MICRO:
        odds = f"{math.exp(loss.epsilon):.3g}" if loss.epsilon < _EXPONENT else f"e^{loss.epsilon:g}"
        messages.append(
            f"Epsilon {loss.epsilon:g} is above {LARGEST_EPSILON} and hardly protects a row: to someone who knows all "
            f"other rows, one value of it may be {odds} times as likely as another."
        )
    if (rows is None or neighbours is Neighbours.ADD_REMOVE) and loss.delta_atto >= _LARGE_DELTA_ATTO:
        messages.append(
            f"Delta {loss.delta:g} is large: it should be far below one over the number of rows. With "
            f"{math.ceil(ATTO / loss.delta_atto)} rows or more, it allows one to be published unchanged."
        )
    if rows is not None and reaches_one(loss, neighbours, rows):
        messages.append(
            f"Delta {loss.delta:g} is not below one over the number of rows, {rows}: it allows a random row to be "
            "published unchanged."
        )
    return tuple(messages)


def warn(loss: PrivacyLoss, neighbours: Neighbours, rows: int | None) -> None:
    """Issue each of the cautions as a :class:`dpdist.core.errors.WeakGuaranteeWarning`."""
    for message in cautions(loss, neighbours, rows):
        warn_caller(message, WeakGuaranteeWarning)


def cautions_message(messages: tuple[str, ...]) -> str:
    """Return cautions as they follow a sentence; empty without any."""
    return f" CAUTION: {' '.join(messages)}" if messages else ""


def require_small_delta(loss: PrivacyLoss, neighbours: Neighbours, rows: int, *, accepted: bool) -> None:
    """Refuse a delta of 1/n or more, if n is public, unless it was accepted."""
    if accepted or not reaches_one(loss, neighbours, rows):
        return
    raise RefusedError(
        f"Delta {loss.delta:g} is not below one over the number of rows, {rows}: it allows a random row to be "
        f"published unchanged. Nothing was spent. Use a delta far below {1 / rows:.1g}, or pass "
        f"{parameter('accept_large_delta')}."
    )


def reaches_one(loss: PrivacyLoss, neighbours: Neighbours, rows: int) -> bool:
    """Whether delta is 1/n or more and n is public; a private n must not be revealed."""
    return neighbours is Neighbours.REPLACE_ONE and loss.delta_atto * rows >= ATTO
