"""Numbers and names as they stand in a sentence."""

from __future__ import annotations

from collections.abc import Iterable

_SHOWN = 20


def counted(number: int, thing: str) -> str:
    """Return how many there are of something.

    Examples
    --------
    >>> counted(1, "chunk"), counted(0, "chunk"), counted(12, "chunk")
    ('1 chunk', '0 chunks', '12 chunks')
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def listed(names: Iterable[str]) -> str:
    """Return names for a message, the first twenty of many.

    Examples
    --------
    >>> listed(["age", "height"])
    'age, height'
    """
    names = list(names)
    return ", ".join(names[:_SHOWN]) + (f", ... ({len(names)} in all)" if len(names) > _SHOWN else "")
