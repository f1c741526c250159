"""What is said of the mechanisms, as text for a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

from dpdist.mechanisms.base import Statement

_HEADS = ("mechanism", "output", "claimed", "proved", "arithmetic")
_FIELDS = ("output", "law", "sensitivity", "claimed", "proved", "arithmetic", "cost", "reference")
_GAP = "  "
_UNLIMITED = 10**6


def comparison(statements: Sequence[Statement]) -> str:
    """Return a table of what each mechanism claims and what is proved, as wide as the terminal."""
    rows = [_HEADS, *((s.name, str(s.output), s.claimed, s.proved, str(s.arithmetic)) for s in statements)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADS))]
    # the two columns of prose share what the others leave; piped text is not wrapped, so that it can be searched
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNLIMITED
    room -= widths[0] + widths[1] + widths[4] + 4 * len(_GAP)
    claimed = min(widths[2], max(12, room * 2 // 5))
    widths[2:4] = [claimed, min(widths[3], max(16, room - claimed))]
    lines = [_row(row, widths) for row in rows]
    lines.insert(1, _GAP.join("-" * width for width in widths))
    return "\n".join(lines)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    wrapped = [textwrap.wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped))
    padded = [lines + [""] * (height - len(lines)) for lines in wrapped]
    return "\n".join(
        _GAP.join(f"{line:<{width}}" for line, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*padded, strict=True)
    )


def details(statement: Statement) -> str:
    """Return all that is said of one mechanism, its options included."""
    lines = [statement.name, *(f"  {field:<12} {getattr(statement, field)}" for field in _FIELDS)]
    lines.append(f"  {'delta':<12} {statement.delta}")
    if statement.replacement:
        lines.append(f"  {'instead':<12} {statement.replacement}, where the claim is not proved")
    for option in statement.options:
        default = "required" if option.default is None else f"default {option.default or 'none'}"
        choices = f" ({', '.join(option.choices)})" if option.choices else ""
        lines.append(f"  --option {option.name}=...  {option.kind}{choices}, {default}: {option.meaning}")
    return "\n".join(lines)
