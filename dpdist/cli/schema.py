"""The command that drafts what the columns of a source mean."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from dpdist._util.text import NEXT, counted
from dpdist.cli.options import LOCAL, SOURCE, json_option
from dpdist.cli.words import answer, show
from dpdist.errors import DataError
from dpdist.ingest.sources import SourceLocation
from dpdist.pipeline.schema import draft_schema


@click.command("schema")
@click.argument("source", type=SOURCE)
@click.argument("draft", type=LOCAL, required=False)
@click.option(
    "--header",
    type=click.Choice(["yes", "no"]),
    help="Whether the first line of a .csv names the columns, or is a row; a .csv needs it.",
)
@json_option
def schema_command(source: SourceLocation, draft: Path | None, header: str | None, as_json: bool) -> None:
    """Write DRAFT, a TOML file that says what the columns of SOURCE mean, for you to complete; without it, print it.

    SOURCE is .csv, .csv.gz, .parquet, .arrow or .feather, or a folder of these. The draft is made of names and stored
    types; no value is looked at, so of a .csv say whether its first line names the columns: --header. Ranges and
    categories are blanks: fill them in from public knowledge, never from the data. A file that exists is not replaced.
    """
    text = draft_schema(source, header=header)
    if draft is None:
        show(json.dumps({"draft": text}) if as_json else text.rstrip())
        return
    _write(draft, text)
    columns, blanks = text.count("\n[[column]]"), text.count(" = []  # fill in")
    following = (
        f"dpdist ingest {shlex.quote(str(source))} ROWS --schema {shlex.quote(str(draft))} "
        f"{'' if header is None else f'--header {header} '}--budget-epsilon E --budget-delta D"
    )
    answer(
        as_json,
        {"schema": str(draft), "columns": columns, "blanks": blanks, "next": following},
        f"{draft}: a draft of {counted(columns, 'column')}, with {counted(blanks, 'blank')} to fill in from public "
        'knowledge, never from the data. Its head says how; leave columns out with kind = "ignored".'
        f"\n{NEXT}{following}",
    )


def _write(draft: Path, text: str) -> None:
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        fault = error.strerror
    else:
        return
    raise DataError(f"{draft} cannot be written: {fault}. Choose another name for the draft.")
