"""The command demo: an invented table as people have it, with words, dates, gaps and an id, and its schema."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from uuid import uuid4

import click
import numpy as np

from dpdist.answers.correlation import correlation
from dpdist.answers.relate import relations
from dpdist.answers.variables import variables
from dpdist.cli.options import LOCAL
from dpdist.cli.output import BARS, say, show
from dpdist.core.errors import DataError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.options import Amount, RequestOptions
from dpdist.core.pipeline.release import release_table
from dpdist.core.release.parse import request_from
from dpdist.core.storage.atomic import make_public_folder, replace_file
from dpdist.report import components_text, html
from dpdist.report.pairs import strength_ends

ROWS = 20_000
_SEED = 7
_ASKED = 2
_SCHEMA = """\
# What dpdist release customers.csv drafts, completed by the owner of the table.
confirmed = true
each_row_is_a_person = true
missing = "centre"  # of numbers and dates; a missing category or boolean is a category of its own

[[column]]
name = "customer_id"
kind = "ignored"

[[column]]
name = "joined"
kind = "date"
range = [2015-01-01, 2026-12-31]

[[column]]
name = "region"
kind = "category"
categories = ["north", "south", "east", "west"]

[[column]]
name = "plan"
kind = "category"
categories = ["basic", "premium"]

[[column]]
name = "age"
kind = "number"

[[column]]
name = "income"
kind = "number"
transform = "log"

[[column]]
name = "spend"
kind = "number"
transform = "log"

[[column]]
name = "visits"
kind = "number"

[[column]]
name = "complaints"
kind = "number"

[[column]]
name = "churned"
kind = "boolean"
"""


def table(ids: str) -> str:
    """Return the invented table as CSV: the same for all, but for what the ids of its customers begin with."""
    random = np.random.default_rng(_SEED)
    plan = random.choice(2, ROWS, p=[0.7, 0.3])
    income = np.exp(random.normal(10.6 + 0.2 * plan, 0.5))
    spend = np.exp(random.normal(-4.7 + 0.9 * np.log(income), 0.5))
    visits = random.poisson(np.clip(3 + 2 * np.log(spend / 130), 0.5, 20))
    complaints = random.poisson(np.where(plan == 0, 1.4, 0.6))
    days = random.integers(0, 3000, ROWS)
    churned = random.random(ROWS) < 1 / (1 + np.exp(3 - 1.1 * complaints + 0.5 * plan))
    columns = {
        "customer_id": [f"{ids}-{number:05d}" for number in range(1, ROWS + 1)],
        "joined": [(date(2026, 1, 1) - timedelta(days=int(day))).isoformat() for day in days],
        "region": random.choice(["north", "south", "east", "west"], ROWS),
        "plan": np.array(["basic", "premium"])[plan],
        "age": random.integers(18, 90, ROWS), "income": income.round(), "spend": spend.round(2), "visits": visits,
        "complaints": complaints, "churned": np.where(churned, "yes", "no"),
    }  # fmt: skip
    gaps = {name: random.random(ROWS) < share for name, share in (("joined", 0.01), ("region", 0.02), ("income", 0.06))}
    cells: list[Sequence[object]] = [
        [("" if gap else cell) for cell, gap in zip(values, gaps.get(name, np.zeros(ROWS)), strict=True)]
        for name, values in columns.items()
    ]
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*cells, strict=True))
    return written.getvalue()


def _ids(file: Path) -> str:
    """Return what the ids of a table begin with, if it is one of the demo."""
    with file.open("rb") as lines:
        return lines.read(1000).partition(b"\n")[2].partition(b"-")[0].decode(errors="replace")


@click.command("demo")
@click.argument("directory", type=LOCAL, default=Path("dpdist-demo"))
def demo_command(directory: Path) -> None:
    """Release an invented table of 20,000 customers, and ask it which columns go with churn.

    DIRECTORY gets customers.csv with its schema, a release and a report. Running it again spends nothing more.
    """
    from dpdist.core.pipeline.said import Reading  # noqa: PLC0415 - its readers are slow to import
    from dpdist.core.pipeline.table import rows_of_file  # noqa: PLC0415 - the same

    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory} is no folder. Name another one: dpdist demo FOLDER")
    try:
        make_public_folder(directory)
    except OSError as error:
        raise DataError(
            f"The folder {directory} cannot be created: {error.strerror}. Name one elsewhere: dpdist demo FOLDER"
        ) from None
    file, schema, target = (directory / name for name in ("customers.csv", "customers.toml", "release.zarr"))
    # customers of its own in each folder: the same ones elsewhere would be charged to the first folder's ledger
    ids = _ids(file) if file.is_file() else uuid4().hex[:8]
    for path, content in ((file, table(ids).encode()), (schema, _SCHEMA.encode())):
        if not path.exists():
            replace_file(path, content, "table")
        elif not path.is_file() or path.read_bytes() != content:  # it is about people, perhaps
            raise DataError(f"{path} is not that of the demo. Name an empty folder: dpdist demo FOLDER")
    request = request_from(RequestOptions(epsilon=Amount("1"), delta=Amount("1e-6")))
    rows = rows_of_file(file, request, target=target, said=Reading(schema), progress=BARS, say=say)
    outcome = release_table(open_rows(rows.table.path), target, request, ledger=rows.ledger, say=say)
    release, again = outcome.release, "" if outcome.fresh else " (made before: nothing was spent)"
    page = directory / "customers.html"
    html.write(release, page, source=target)
    show(f"{file}: {ROWS} invented customers, with words, dates, gaps and an id.")
    show(f"{target}: their private moment, at epsilon 1 and delta 1e-6{again}.")
    show(components_text.brief(correlation(release, None), release))
    held = variables(release)
    show("What goes with churned, from 0 (not at all) to 1 (fully):")
    strengths = [(each.second, each.strength) for each in relations(held, "churned")]
    for name, strength in strengths[:_ASKED]:
        if strength is not None:
            show(f"   {name:<12}  {' to '.join(strength_ends(strength))}")
    show(f"{page}: all of it as a page.")
