"""Output of commands: messages and progress on standard error, requested output on standard output."""

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
"""Columns for the percentage and the remaining time after a bar."""


class Bars:
    """Draws the progress of the library (:mod:`dpdist._util.progress`), one bar at a time."""

    def __init__(self) -> None:
        self._stack, self._label = ExitStack(), ""
        self._bar: Any = None  # click names no type for it

    def __call__(self, label: str, done: int, total: int) -> None:
        """Move the bar of this label; a new label, or a smaller ``done``, begins a new line."""
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
        """End the line of the current bar, if any."""
        self._stack.close()
        self._bar = None


BARS = Bars()


def on_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr.isatty()


def say(text: str) -> None:
    """Print a message on standard error: wrapped and with amber cautions on a terminal, else a line per paragraph."""
    BARS.end()
    text = printable(text)
    if on_terminal():
        text = fitted(text)
    click.echo(text.replace("CAUTION:", click.style("CAUTION:", fg="yellow", bold=True)), err=True)


def show(text: str) -> None:
    """Print requested text on standard output."""
    click.echo(printable(text))


def answer(as_json: bool, value: Mapping[str, object], message: str) -> None:
    """Print the result: one JSON object on standard output, or a message."""
    if as_json:
        click.echo(json.dumps(value))
    else:
        say(message)
