"""The commands that look at what there is: inspect says what a path holds, report makes a page of a release."""

from __future__ import annotations

import json

import click

from dpdist.cli.options import LEDGER, PLACE, count_of, json_option, ledger_option
from dpdist.cli.output import BARS, answer, show
from dpdist.errors import DataError, UsageError
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.ledger import Ledger
from dpdist.pipeline import inspect as inspecting
from dpdist.release.artefact import Release, open_release
from dpdist.release.parse import columns_from
from dpdist.report.inspection import words
from dpdist.storage.store import AnyStore, store_at


@click.command()
@click.argument("path", type=PLACE, metavar="ROWS")
@ledger_option
@click.option("--verify", is_flag=True, help="Read every chunk and check it against its checksum, and its seal.")
@click.option("--clean", is_flag=True, help="Remove what commands that were killed left here a day ago or longer.")
@json_option
def inspect(path: AnyStore, ledger: LedgerAddress | None, verify: bool, clean: bool, as_json: bool) -> None:
    """Describe ROWS and their budget, or a release, a model or scores.

    No value and no statistic of a row is printed. Exit code 4 if something is damaged. With --clean, list what was
    removed of attempts at this place that no process holds and nothing names; what stands there is not touched.
    """
    if clean:
        if verify:
            raise UsageError("--clean removes leftovers, and --verify reads what is there: give one of them.")
        removed = store_at(path).clean()
        show(
            json.dumps({"removed": removed}) if as_json else "\n".join(removed or ["Nothing was left here to remove."])
        )
        return
    facts = inspecting.inspect_path(path, ledger=ledger, verify=verify, progress=BARS)
    show(json.dumps(facts.to_json()) if as_json else words(facts))
    if facts.damaged:
        click.get_current_context().exit(DataError.exit_code)


@click.command("report")
@click.argument("release", type=PLACE)
@click.argument("out", type=PLACE)
@click.option("--components", default="auto", metavar="K|auto", help="How many to show [default: auto].")
@click.option("--image", metavar="HxW", help="Draw components as images of this shape, such as 28x28.")
@click.option("--ledger", type=LEDGER, help="The ledger that was charged, to show what is left of the budget.")
@click.option("--target", help="Columns to explain by others, comma-separated; as of regress.")
@click.option("--on", help="Comma-separated columns to explain them by [default: all others].")
@json_option
def report_command(
    release: AnyStore, out: AnyStore, components: str, image: str | None, ledger: LedgerAddress | None,
    target: str | None, on: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write OUT, one HTML page about RELEASE for people: guarantee, components, noise and budget. Free.

    It loads nothing from anywhere and runs nothing. It is readable on a phone, in the dark and on paper. If OUT ends in
    .json, it is the privacy card instead: what is promised and on which grounds, for programs.
    """
    from dpdist.report import card, html  # noqa: PLC0415 - scipy.special and templates, only needed here

    opened, charged = open_release(release), Ledger(ledger) if ledger else None
    if str(store_at(out)).endswith(".json"):
        if image is not None or target is not None or on is not None or components != "auto":
            raise UsageError("A card (.json) takes --ledger alone: the other options say what a page shows.")
        html.require_charged(opened, charged)
        card.write(opened, out, charged)
        words = f"{out}: the privacy card, as JSON.{_mark(opened)}"
        answer(as_json, {"card": str(out), "status": opened.status}, words)
        return
    html.write(
        opened,
        out,
        count=count_of(components),
        image=html.Shape.parse(image) if image else None,
        ledger=charged,
        targets=() if target is None else columns_from(target),
        on=None if on is None else columns_from(on),
    )
    words = f"{out}: open it in a browser. It loads nothing from anywhere.{_mark(opened)}"
    answer(as_json, {"report": str(out), "status": opened.status}, words)


def _mark(release: Release) -> str:
    return "" if release.private_as_claimed else f" {release.status.upper()}: do not publish it."
