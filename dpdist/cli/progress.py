"""Bars on standard error, one for each piece of work that tells how far it has come."""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from typing import Any

import click

_NARROWEST, _WIDEST = 4, 36
_BESIDE = 22
"""Columns of what stands beside a bar: the share, and the time that is left."""


class Bars:
    """Draws what the library tells; see :mod:`dpdist._util.progress`. One bar at a time."""

    def __init__(self) -> None:
        self._stack, self._label = ExitStack(), ""
        self._bar: Any = None  # click names no type for it

    def __call__(self, label: str, done: int, total: int) -> None:
        """Move the bar of this label; a new label, or the same one from its beginning, begins a new line."""
        if self._bar is None or label != self._label or done < self._bar.pos:
            self.end()
            self._label = label
            width = max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns - len(label) - _BESIDE))
            bar = click.progressbar(length=total, label=label, file=sys.stderr, width=width)
            self._bar = self._stack.enter_context(bar)
        self._bar.length = total
        self._bar.update(done - self._bar.pos)
        if done >= total:
            self.end()

    def end(self) -> None:
        """Leave the line of the bar that is drawn, if there is one: what follows begins on its own."""
        self._stack.close()
        self._bar = None


BARS = Bars()
"""Those of this process."""
