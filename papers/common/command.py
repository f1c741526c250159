"""The options that every workflow of a paper has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from dpdist.cli.options import cluster_options
from papers.common.answers import NOTICE

RESULTS = Path(__file__).resolve().parent.parent / "results"


def experiment(command: Callable[..., None]) -> Callable[..., None]:
    """Make a function a command; it gets ``data``, ``output``, ``quick`` and a ``cluster``."""
    folder = click.Path(file_okay=False, path_type=Path)
    for option in (
        click.option("--quick", is_flag=True, help="A small version that takes seconds; its numbers mean little."),
        click.option("--output", type=folder, help="Folder of the results [default: results/ beside the workflow]."),
        click.option("--data", type=folder, help="Folder of data sets as .npz; otherwise scikit-learn fetches them."),
        cluster_options,
    ):
        command = option(command)
    return command


def begin(output: Path | None) -> Path:
    """Say that nothing here is private, and return the folder of the results, which exists."""
    click.echo(NOTICE, err=True)
    found = output or RESULTS
    found.mkdir(parents=True, exist_ok=True)
    return found
