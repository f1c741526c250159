"""The command release."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpdist.answers.bias import clipped_rows, described
from dpdist.answers.correlation import correlation
from dpdist.answers.prospect import Prospect, prospect
from dpdist.cli.options import (
    STORE,
    Option,
    cluster_options,
    each_row_option,
    grouped,
    json_option,
    ledger_option,
    options,
)
from dpdist.cli.output import BARS, answer, say
from dpdist.core.errors import BelowNoiseError, DataError, RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.options import EXPERT, IngestOptions, RequestOptions
from dpdist.core.pipeline.release import release_table
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.artefact import Release
from dpdist.core.release.parse import request_from
from dpdist.core.release.plan import Plan
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.units import Owner
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage.store import AnyStore
from dpdist.core.text import wrapped
from dpdist.report import text

if TYPE_CHECKING:
    from dpdist.core.pipeline.table import FileRows

_OF_FILE = ("schema", "header", "privacy_unit", "max_rows", "budget_epsilon", "budget_delta")


@grouped("release")
@click.argument("rows", type=STORE, metavar="TABLE")
@click.argument("release", type=STORE)
@options(RequestOptions, "request_options", without={"ledger"})
@options(IngestOptions, "table_options", names=_OF_FILE)
@each_row_option
@click.option(
    "--anyway",
    cls=Option,
    group=EXPERT,
    is_flag=True,
    help="Release even where no table of so many rows could show a component, a column or a count.",
)
@ledger_option
@partial(cluster_options, trusted=True)
@json_option
def release_command(
    rows: AnyStore, release: AnyStore, request_options: RequestOptions, table_options: IngestOptions,
    each_row_is_a_person: bool, anyway: bool, ledger: LedgerAddress | None, cluster: Cluster, as_json: bool,
) -> None:  # fmt: skip
    """Publish RELEASE, a private second moment of TABLE. Repeating the command publishes the same bytes for free.

    TABLE is the rows.zarr of an ingest, or a file, such as table.csv or table.parquet. The rows of a file are
    stored next to it, with their ledger. Their budget is the loss of this release, unless --budget-epsilon is
    larger. Columns of text need --schema; without one, missing values count as the centre of their column. The
    components of the correlation matrix are printed.
    """
    request = request_from(request_options)

    def expected(plan: Plan) -> Prospect:
        found = prospect(plan)
        if found.impossible and not anyway:
            raise RefusedError(f"{found.impossible} To release it all the same, add --anyway.")
        return found

    of_file = None
    if isinstance(rows, Path) and rows.is_file():
        owner = Owner(table_options.privacy_unit, table_options.max_rows, each_row_is_a_person)
        of_file = _rows_of(rows, request, table_options, owner, release, cluster, ledger, expected)
        rows, ledger = of_file.table.path, of_file.ledger
    elif isinstance(rows, Path) and not rows.exists() and rows.suffix not in {"", ".zarr"}:
        raise DataError(f"{rows} does not exist. Check the name of the file.")
    elif each_row_is_a_person or any(getattr(table_options, name) is not None for name in _OF_FILE):
        raise UsageError(
            f"{rows} is not a file. --schema, --header, --privacy-unit, --max-rows, --each-row-is-a-person and "
            "--budget-epsilon are for files; for rows they are options of dpdist ingest."
        )

    def review(plan: Plan) -> None:
        if line := expected(plan).describe():
            say(line)

    outcome = release_table(
        open_rows(rows), release, request, ledger=ledger, cluster=cluster, say=say, review=review
    )  # fmt: skip
    value, found = ({}, "") if of_file is None else _components(outcome.release)
    answer(as_json, outcome.to_json() | value, f"{described(outcome)}\n{found}".rstrip())


def _components(release: Release) -> tuple[dict[str, object], str]:
    """Return the components of the correlation matrix, as JSON values and as text."""
    try:
        components = correlation(release, None)
    except (BelowNoiseError, UsageError) as error:
        return {}, wrapped(str(error))
    value = components.to_json() | {"shortened": clipped_rows(release).to_json()}
    return value, text.standardised(components, release)


def _rows_of(
    file: Path, request: ReleaseRequest, options_: IngestOptions, owner: Owner, release: AnyStore, cluster: Cluster,
    ledger: LedgerAddress | None, review: Callable[[Plan], object],
) -> FileRows:  # fmt: skip
    """Store the rows of a file next to it, if they are not there."""
    from dpdist.core.pipeline.table import rows_of_file  # noqa: PLC0415 - its readers are slow to import

    if ledger is not None:
        raise UsageError("The ledger of a file is next to it. Omit --ledger, or ingest the file first.")
    require_mean(request, by_a_schema=options_.schema is not None)
    budget = options_.budget
    if budget is not None and options_.budget_delta is None:
        budget = PrivacyLoss(budget.epsilon_micro, request.loss.delta_atto)
    return rows_of_file(
        file, request, budget=budget, target=release, schema=options_.schema, header=options_.header, owner=owner,
        progress=BARS, say=say, cluster=cluster, review=review,
    )  # fmt: skip


def require_mean(request: ReleaseRequest, *, by_a_schema: bool) -> None:
    """Refuse a release of a file whose correlations could not be printed, before it is paid for."""
    if not (request.centred or (by_a_schema and request.centring is None)):
        free = ", or --centre private, which costs nothing" if by_a_schema else ""
        raise UsageError(
            "A release of a file prints correlations, which need a mean. Nothing was read or spent. Add --scale "
            f"private{free}; or ingest the file, and release its rows without a mean."
        )
