"""Output of commands: results on standard output, messages and progress on standard error.

Messages also go to the logger ``dpdist``. ``-q`` prints results and errors only, ``-v`` adds the time to each message
and details to results.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import click

from dpdist.core.text import fitted, printable

_NARROWEST, _WIDEST = 4, 36
_MARGIN = 22
"""Columns for the percentage and the remaining time after a bar."""


TYPED = "dpdist.typed"
"""Where the root context keeps the arguments of the command."""


class Verbosity:
    """What the options -q and -v of a command ask for."""

    quiet = verbose = False


VERBOSITY = Verbosity()
_LOGGER = logging.getLogger("dpdist")


class Bars:
    """Draws the progress of the library (:mod:`dpdist.core.progress`), one bar at a time."""

    def __init__(self) -> None:
        self._stack, self._label = ExitStack(), ""
        self._bar: Any = None  # click names no type for it

    def __call__(self, label: str, done: int, total: int) -> None:
        """Move the bar of this label; a new label, or a smaller ``done``, begins a new line."""
        if VERBOSITY.quiet:
            return
        with _unfailing():
            self._move(label, done, total)

    def _move(self, label: str, done: int, total: int) -> None:
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


def on_terminal(*, err: bool) -> bool:
    """Return whether standard error, or standard output, is a terminal."""
    return (sys.stderr if err else sys.stdout).isatty()


def say(text: str) -> None:
    """Print a message on standard error, unless -q was given."""
    _LOGGER.info(text)
    if not VERBOSITY.quiet:
        complain(f"{datetime.now().astimezone():%F %T} {text}" if VERBOSITY.verbose else text)


def complain(text: str) -> None:
    """Print an error, or a message, on standard error."""
    with _unfailing():
        BARS.end()
        _print(text, err=True)


@contextmanager
def _unfailing() -> Iterator[None]:
    """Go on without standard error if it cannot be written, as on a full disk: no work depends on messages."""
    try:
        yield
    except OSError:
        _discard(sys.stderr)


def unwritten(error: OSError) -> bool:
    """Return whether an error came from writing standard output, and discard what is left of it."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    if found := any(frame.f_code is click.echo.__code__ for frame in frames):
        _discard(sys.stdout)
    return found


def _discard(stream: TextIO) -> None:
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _print(text: str, *, err: bool) -> None:
    """Print text: wrapped and with amber cautions on a terminal, else a line per paragraph."""
    text = printable(text)
    if on_terminal(err=err):
        text = fitted(text)
    click.echo(text.replace("CAUTION:", click.style("CAUTION:", fg="yellow", bold=True)), err=err)


def show(text: str) -> None:
    """Print requested text on standard output."""
    click.echo(printable(text))


def answer(as_json: bool, value: Mapping[str, object], message: str) -> None:
    """Print the result on standard output: one JSON object, or a message."""
    if as_json:
        click.echo(json.dumps(value))
    else:
        BARS.end()
        _print(message, err=False)
