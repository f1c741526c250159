"""The commands inspect and report."""

from __future__ import annotations

import json
from pathlib import PurePath

import click

from dpdist.cli.options import LEDGER, STORE, count_of, json_option, ledger_option
from dpdist.cli.output import BARS, answer, show
from dpdist.core.errors import DataError, UsageError
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.pipeline.charged import statement_of
from dpdist.core.pipeline.inspect import inspect_path
from dpdist.core.release.opening import open_release
from dpdist.core.release.parse import columns_from
from dpdist.core.storage.store import AnyStore, store_at


@click.command()
@click.argument("path", type=STORE, metavar="ROWS")
@ledger_option
@click.option("--verify", is_flag=True, help="Read every chunk and check it against its checksum and seal.")
@click.option("--clean", is_flag=True, help="Remove files that killed commands left here more than a day ago.")
@json_option
def inspect(path: AnyStore, ledger: LedgerAddress | None, verify: bool, clean: bool, as_json: bool) -> None:
    """Describe ROWS and their budget, or a release, a model or scores.

    Prints no values or statistics of rows. Exit code 4 if something is damaged. With --json, the key card of a release
    is its privacy card: the guarantee and its grounds, and with --ledger the charge. With --clean, remove and list the
    remains of unfinished attempts that no process uses; nothing else is touched.
    """
    if clean:
        if verify:
            raise UsageError("--clean and --verify cannot be combined. Run one after the other.")
        removed = store_at(path).clean()
        show(json.dumps({"removed": removed}) if as_json else "\n".join(removed or ["There is nothing to remove."]))
        return
    facts = inspect_path(path, ledger=ledger, verify=verify, progress=BARS)
    if not as_json:
        show(facts.describe())
    elif facts.release is not None:
        from dpdist.report.promise import card_of  # noqa: PLC0415 - scipy.special, only needed here

        stated = statement_of(Ledger(ledger), facts.release, path) if ledger else None
        show(json.dumps({**facts.to_json(), "card": card_of(facts.release, stated)}))
    else:
        show(json.dumps(facts.to_json()))
    if facts.damaged:
        click.get_current_context().exit(DataError.exit_code)


@click.command("report")
@click.argument("release", type=STORE)
@click.argument("out", type=STORE)
@click.option("--components", default="auto", metavar="K|auto", help="Number of components to show [default: auto].")
@click.option("--image", metavar="HxW", help="Draw components as images of this shape, such as 28x28.")
@click.option("--ledger", type=LEDGER, help="The ledger that was charged, to show the remaining budget.")
@click.option("--target", help="Comma-separated columns to explain by others, as for regress.")
@click.option("--on", help="Comma-separated columns to explain them by [default: all others].")
@click.option("--title", default="", help="Title of the page.")
@click.option("--author", default="", help="Author named on the page.")
@click.option("--verdict", is_flag=True, help="Write the page for the privacy officer instead: five questions.")
@json_option
def report_command(
    release: AnyStore, out: AnyStore, components: str, image: str | None, ledger: LedgerAddress | None,
    target: str | None, on: str | None, title: str, author: str, verdict: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write OUT, an HTML report on RELEASE: components, their noise, guarantee and budget. Free.

    The page contains no scripts and loads nothing. It is readable on a phone, in dark mode and on paper. For programs,
    inspect --json prints the guarantee and its grounds.
    """
    from dpdist.report import html, officer  # noqa: PLC0415 - scipy.special and templates, only needed here

    if PurePath(str(store_at(out))).suffix.lower() not in {"", ".html", ".htm"}:
        raise UsageError(
            "A report is an HTML page: name it OUT.html. The privacy card as JSON is in the output of dpdist inspect "
            f"{release} --json."
        )
    opened = open_release(release)
    charged = statement_of(Ledger(ledger), opened, release) if ledger else None
    if verdict:
        officer.write(opened, out, ledger=charged, title=title, author=author)
    else:
        html.write(
            opened, out, count=count_of(components), image=html.shape_of(image) if image else None, ledger=charged,
            targets=() if target is None else columns_from(target), on=None if on is None else columns_from(on),
            title=title, author=author, source=release,
        )  # fmt: skip
    mark = "" if opened.private_as_claimed else f" {opened.status.upper()}: do not publish it."
    message = f"{out}: open it in a browser. It loads nothing from the network.{mark}"
    answer(as_json, {"report": str(out), "status": opened.status}, message)
