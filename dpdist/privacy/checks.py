"""Guarantees that are proved and promise little: said in words, and refused where one is certainly a mistake.

A mechanism that publishes one row, taken at random, satisfies (0, 1/n), and one that publishes every row with
probability delta satisfies (0, delta) and publishes ``n delta`` rows on average. So delta must be far below 1/n (Dwork
& Roth 2014, section 2.3), and from 1/n on a release is refused unless it is wanted. Where n is private the refusal
would tell n; then there is a caution from 1e-4 on, whatever n is.

n is the number of *rows*. Where a privacy unit owns several, there are at most n units, so a delta below 1/n is below
one over their number too, which is not public. Where rows come in periods, n is that of all periods so far: each row is
in one release only, but together they are of all rows, and ``n delta`` of these could be published.

Only public numbers are looked at.
"""

from __future__ import annotations

import math
import warnings

from dpdist.errors import RefusedError, WeakGuaranteeWarning
from dpdist.naming import parameter
from dpdist.privacy.guarantee import ATTO, MICRO, Neighbours, PrivacyLoss

LARGEST_EPSILON = 10  # above this a guarantee is given with a caution
_LARGE_DELTA_ATTO = ATTO // 10**4
_EXPONENT = 700.0  # largest x whose ``exp(x)`` is a float


def cautions(loss: PrivacyLoss, neighbours: Neighbours, rows: int | None) -> tuple[str, ...]:
    """Return what should be known of a guarantee that promises little, a sentence or two each; none of most."""
    messages = []
    if loss.epsilon_micro > LARGEST_EPSILON * MICRO:
        odds = f"{math.exp(loss.epsilon):.3g}" if loss.epsilon < _EXPONENT else f"e^{loss.epsilon:g}"
        messages.append(
            f"Epsilon {loss.epsilon:g} is above {LARGEST_EPSILON} and hardly protects a row: whoever knows all others "
            f"may find one value of it {odds} times as likely as another."
        )
    if neighbours is Neighbours.ADD_REMOVE and loss.delta_atto >= _LARGE_DELTA_ATTO:
        messages.append(
            f"Delta {loss.delta:g} is large: it should be far below one over the number of rows, and of "
            f"{math.ceil(ATTO / loss.delta_atto)} rows or more it lets one be published as it is."
        )
    if rows is not None and reaches_one(loss, neighbours, rows):
        messages.append(
            f"Delta {loss.delta:g} is not below one over the number of rows, {rows}: it lets one of them, taken at "
            "random, be published as it is."
        )
    return tuple(messages)


def warn(loss: PrivacyLoss, neighbours: Neighbours, rows: int | None) -> None:
    """Say the same to a caller in Python, as a :class:`dpdist.errors.WeakGuaranteeWarning` each."""
    for message in cautions(loss, neighbours, rows):
        warnings.warn(message, WeakGuaranteeWarning, stacklevel=3)


def in_words(messages: tuple[str, ...]) -> str:
    """Return cautions as they follow a sentence: empty where there are none."""
    return f" CAUTION: {' '.join(messages)}" if messages else ""


def require_small_delta(loss: PrivacyLoss, neighbours: Neighbours, rows: int, *, accepted: bool) -> None:
    """Refuse a delta that is not below 1/n, where n is public, unless it was accepted."""
    if accepted or not reaches_one(loss, neighbours, rows):
        return
    raise RefusedError(
        f"Delta {loss.delta:g} is not below one over the number of rows, {rows}: it lets one of them, taken at random, "
        f"be published as it is. Nothing was spent. Take a delta far below {1 / rows:.1g}, or pass "
        f"{parameter('accept_large_delta')}."
    )


def reaches_one(loss: PrivacyLoss, neighbours: Neighbours, rows: int) -> bool:
    """Say whether delta is 1/n or more and n is public; where it is private nobody may be told."""
    return neighbours is Neighbours.REPLACE_ONE and loss.delta_atto * rows >= ATTO
