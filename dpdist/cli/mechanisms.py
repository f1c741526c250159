"""The commands mechanisms and audit. They read no data and charge no ledger."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from dpdist.cli.options import LOCAL, cluster_options, grouped, json_option, options
from dpdist.cli.output import answer
from dpdist.core.mechanisms.registry import MECHANISMS, RECOMMENDED, list_mechanisms
from dpdist.core.options import RequestOptions
from dpdist.core.release.parse import request_from
from dpdist.core.runtime.cluster import Cluster
from dpdist.report import text


@click.command()
@click.argument("name", required=False, type=click.Choice(list(MECHANISMS)), metavar="[NAME]")
@click.option("--all", "every", is_flag=True, help="List every mechanism, not only the recommended ones.")
@json_option
def mechanisms(name: str | None, every: bool, as_json: bool) -> None:
    """List the recommended mechanisms with their claimed and proved guarantees. With NAME, describe one.

    --all lists all published mechanisms, the recommended ones first. --json prints all of them.
    """
    statements = [info for info in list_mechanisms() if name in {None, info.name}]
    if as_json:
        click.echo(json.dumps({"mechanisms": [asdict(s) for s in statements]}))
    elif name is None:
        first = [MECHANISMS[recommended].info for recommended in RECOMMENDED]
        others = [info for info in statements if info not in first]
        click.echo(text.comparison(first + others if every else first, 0 if every else len(others)))
    else:
        click.echo(text.details(statements[0]))


@grouped("audit")
@click.argument("mechanism", type=click.Choice(list(MECHANISMS)), metavar="MECHANISM")
@options(
    RequestOptions, "request_options", names={"epsilon", "delta", "neighbours", "options"}, clip="1",
    changed={"epsilon": {"help": "Claimed epsilon."}, "delta": {"help": "Claimed delta."}},
)  # fmt: skip
@click.option("--d", "columns", type=click.IntRange(1), default=3, show_default=True, help="Number of columns.")
@click.option("--draws", type=int, default=20_000, show_default=True, help="Draws from each of the two tables.")
@click.option("--confidence", type=float, default=0.999, show_default=True, help="Confidence level of each bound.")
@cluster_options
@click.option("--plot", type=LOCAL, help="Draw the claimed, proved and measured privacy profiles to this image file.")
@json_option
def audit_command(
    mechanism: str, request_options: RequestOptions, columns: int, draws: int, confidence: float, cluster: Cluster,
    plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Attack MECHANISM on synthetic tables and bound its epsilon and delta from below. Charges no ledger."""
    # scipy's distributions are slow to import, and only needed here
    from dpdist.literature import audit  # noqa: PLC0415
    from dpdist.report.figures import draw_profile  # noqa: PLC0415

    request = request_from(msgspec.structs.replace(request_options, mechanism=mechanism))
    result = audit.audit_mechanism(
        mechanism, request.loss, columns=columns, draws=draws, confidence=confidence, neighbours=request.neighbours,
        options=request.options, cluster=cluster,
    )  # fmt: skip
    if plot is not None:
        draw_profile(result, plot)
    answer(as_json, {**result.to_json(), "plot": plot and str(plot)}, result.describe())
