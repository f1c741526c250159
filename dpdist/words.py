"""Numbers and names as they stand in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SHOWN = 20
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # what terminals obey
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of text, so that it reads as another
    "\u2028\u2029\ud800-\udfff]"  # ends of lines, and halves of letters that no file can hold
)


def has_control(text: str) -> bool:
    r"""Say whether a name holds what is no letter but an order to whoever shows it.

    Examples
    --------
    >>> has_control("größe, cm"), has_control("a\x1b[2J")
    (False, True)
    """
    return _CONTROL.search(text) is not None


def printable(text: str) -> str:
    r"""Return text for a terminal: lines stay lines, other control characters are spelled out.

    Examples
    --------
    >>> print(printable("two\nlines, \x1b[2J"))
    two
    lines, \x1b[2J
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in "\n\t" else repr(found[0])[1:-1], text)


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
