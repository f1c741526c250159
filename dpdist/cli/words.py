"""How commands speak: words and progress on standard error, what was asked for on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import click

from dpdist._util.text import fitted, printable
from dpdist.cli.progress import BARS


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


def answer(as_json: bool, value: Mapping[str, object], words: str) -> None:
    """Print what was done: one JSON object on standard output, or words."""
    if as_json:
        click.echo(json.dumps(value))
    else:
        say(words)
