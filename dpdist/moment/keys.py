"""By which key the rows of one attempt at a release are dithered, and who knows it.

The key is secret, and new for each attempt; :mod:`dpdist.rows.dither` has the argument. It is drawn at the trusted node
when summing begins. All units, bands and rounds of the attempt have the same one, and no other attempt has it: a sum
under one key is added to no sum under another (:mod:`dpdist.moment.total`), and none is kept when the attempt ends. It
is sent to whoever adds rows, like a sum, and is part of no task, result, file, message or log
(:mod:`dpdist.runtime.entrusting`). What is kept of it is a fingerprint, in un-noised sums only.
"""

from __future__ import annotations

from collections.abc import Callable

from dpdist.noise.entropy import SYSTEM
from dpdist.rows.bounding import DITHERED, RowBound
from dpdist.rows.dither import DitherKey

Secret = Callable[[], bytes]
"""Returns what the trusted node sends to whoever adds rows."""


def drawn() -> bytes:
    """Draw a secret key, 32 bytes."""
    return SYSTEM.words(4).tobytes()


def secret_of_attempt(bound: RowBound, *, trusted_worker: bool) -> Secret | None:
    """Return the key of a new attempt; None where rows are not dithered.

    Parameters
    ----------
    bound
        How rows are bounded.
    trusted_worker
        Whether the trusted node is a worker: then it draws the key, and this process never has it. Otherwise the key is
        drawn now, and the same each time.
    """
    if bound.rule != DITHERED:
        return None
    if trusted_worker:
        return drawn
    key = DitherKey(drawn())  # not its bytes: what holds a secret key cannot be pickled
    return lambda: key.key


def key_here(bound: RowBound) -> DitherKey | None:
    """Return a new key for rows that are summed in this process, and only here; None where rows are not dithered."""
    return DitherKey(drawn()) if bound.rule == DITHERED else None
