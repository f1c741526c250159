"""The commands that look at one table: bound chooses its clip norm privately, inspect says what it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from dpdist._util.text import NEXT
from dpdist.cli.options import (
    READ,
    answer,
    cluster_options,
    json_option,
    large_delta_option,
    ledger_option,
    neighbours_option,
    say,
    show,
    trusted_option,
)
from dpdist.errors import DataError
from dpdist.jobs import job_file
from dpdist.ledger.address import Place
from dpdist.pipeline import clip_norm
from dpdist.pipeline import inspect as inspecting
from dpdist.pipeline.release import Cluster
from dpdist.runtime.engine import progress_bar

_GRID = "0.0009765625:1048576:2"


@click.command()
@click.argument("rows", type=READ)
@click.option(
    "--epsilon", required=True, help="Privacy loss epsilon to spend on the choice: a small part, such as 0.1."
)
@click.option(
    "--delta",
    help="Its delta: with one the noise is Gaussian and costs little beside other Gaussian releases; with 0 it is "
    "Laplace noise, purely private. [default: that of the budget]",
)
@click.option(
    "--quantile",
    default="0.95",
    show_default=True,
    help="Share of the rows that shall not be longer than the clip norm.",
)
@click.option(
    "--grid",
    default=_GRID,
    metavar="LOW:HIGH:PER_OCTAVE",
    help="Public norms to choose from, PER_OCTAVE of them from one to its double; never taken from the data. A shorter "
    "grid costs less noise. [default: 1/1024 to 2^20, 2 per octave]",
)
@neighbours_option
@click.option(
    "--centre",
    default="none",
    show_default=True,
    help="none, or the file with a public centre and scale that the release will take.",
)
@large_delta_option
@ledger_option
@cluster_options
@trusted_option
@json_option
def bound(
    rows: Path, epsilon: str, delta: str | None, quantile: str, grid: str, neighbours: str, centre: str,
    accept_large_delta: bool,
    ledger: Place | None, cluster: Cluster, trusted: str, as_json: bool,
) -> None:  # fmt: skip
    """Choose the clip norm of ROWS privately: a quantile of the norms of its rows, for a small epsilon.

    The noisy histogram of the norms is charged to the ledger, once: the same command again, or with another
    --quantile, costs nothing. Exit code 4 if the quantile may lie beyond the grid.
    """
    share = job_file.quantile_from(quantile)
    request = job_file.norms_request_from(
        epsilon=epsilon, delta=delta, grid=grid, neighbours=neighbours, centre=centre,
        accept_large_delta=accept_large_delta,
    )  # fmt: skip
    where = replace(cluster, trusted_worker=trusted == "worker")
    choice = clip_norm.choose_clip(
        rows, request, share, ledger=ledger, cluster=where, budget_delta=delta is None, say=say
    )
    following = clip_norm.next_command(rows, choice, centre)
    words = choice.words()
    answer(
        as_json, {**choice.to_json(), "next": following}, words if following is None else f"{words}\n{NEXT}{following}"
    )
    if following is None:
        click.get_current_context().exit(DataError.exit_code)


@click.command()
@click.argument("path", type=READ, metavar="ROWS")
@ledger_option
@click.option("--verify", is_flag=True, help="Read every chunk and check it against its checksum, and its seal.")
@json_option
def inspect(path: Path, ledger: Place | None, verify: bool, as_json: bool) -> None:
    """Say what ROWS are and how their budget stands, or what a release, a model or scores are.

    No value and no statistic of a row is told. Exit code 4 if something is damaged.
    """
    with progress_bar("Checking chunks") as progress:
        facts = inspecting.inspected(path, ledger=ledger, verify=verify, progress=progress)
    show(json.dumps(facts) if as_json else inspecting.words(facts))
    if facts["damaged"]:
        click.get_current_context().exit(DataError.exit_code)
