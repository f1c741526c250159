"""How commands speak: words and progress on standard error, what was asked for on standard output."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import click

from dpdist._util.text import fitted, printable

_NARROWEST, _WIDEST = 4, 36
_MARGIN = 22
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
            width = max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns - len(label) - _MARGIN))
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


def on_terminal() -> bool:
    """Say whether somebody watches standard error."""
    return sys.stderr.isatty()


def say(text: str) -> None:
    """Print words for people, on standard error; as wide as it and with cautions in amber, on a terminal.

    Elsewhere, in logs and mails, a paragraph is one line.
    """
    BARS.end()
    text = printable(text)
    if on_terminal():
        text = fitted(text)
    click.echo(text.replace("CAUTION:", click.style("CAUTION:", fg="yellow", bold=True)), err=True)


def show(text: str) -> None:
    """Print words that were asked for, on standard output."""
    click.echo(printable(text))


def answer(as_json: bool, value: Mapping[str, object], message: str) -> None:
    """Print what was done: one JSON object on standard output, or words."""
    if as_json:
        click.echo(json.dumps(value))
    else:
        say(message)
