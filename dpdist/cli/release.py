"""The command release."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpdist.answers.bias import clipped_rows, described
from dpdist.answers.prospect import Prospect, prospect
from dpdist.cli.options import (
    STORE,
    Option,
    cluster_options,
    grouped,
    json_option,
    ledger_option,
    options,
    reading_options,
)
from dpdist.cli.output import BARS, answer, say
from dpdist.core.errors import BelowNoiseError, DataError, RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.options import EXPERT, BudgetOptions, RequestOptions
from dpdist.core.pipeline.release import release_table
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.artefact import Release
from dpdist.core.release.parse import request_from
from dpdist.core.release.plan import Plan
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage.store import AnyStore
from dpdist.core.text import wrapped

if TYPE_CHECKING:
    from dpdist.core.pipeline.said import Reading
    from dpdist.core.pipeline.table import FileRows


@grouped("release")
@click.argument("rows", type=STORE, metavar="TABLE")
@click.argument("release", type=STORE)
@options(RequestOptions, "request_options", without={"ledger"})
@options(BudgetOptions, "budget_options", names={"budget_epsilon", "budget_delta"})
@reading_options
@click.option(
    "--anyway",
    cls=Option,
    group=EXPERT,
    is_flag=True,
    help="Release even if no table of this many rows could show a component, a column or a count.",
)
@ledger_option
@partial(cluster_options, trusted=True)
@json_option
def release_command(
    rows: AnyStore, release: AnyStore, request_options: RequestOptions, budget_options: BudgetOptions, said: Reading,
    anyway: bool, ledger: LedgerAddress | None, cluster: Cluster, as_json: bool,
) -> None:  # fmt: skip
    """Publish RELEASE, a private second moment of TABLE. Repeating the command publishes the same bytes for free.

    TABLE is the rows.zarr of an ingest, or a file, such as table.csv or table.parquet. The rows of a file are
    stored next to it, with their ledger. Their budget is the loss of this release, unless --budget-epsilon is
    larger. A file with words or dates is refused, with a draft of its schema to complete; numbers that are missing
    count as the centre of their column. The components of the correlation matrix are printed.
    """
    request = request_from(request_options)

    def expected(plan: Plan) -> Prospect:
        found = prospect(plan)
        if found.impossible and not anyway:
            raise RefusedError(f"{found.impossible} To release it all the same, add --anyway.")
        return found

    of_file = None
    if isinstance(rows, Path) and rows.is_file():
        of_file = _rows_of(rows, request, budget_options, said, release, cluster, ledger, expected)
        rows, ledger = of_file.table.path, of_file.ledger
    elif isinstance(rows, Path) and not rows.exists() and rows.suffix not in {"", ".zarr"}:
        raise DataError(f"{rows} does not exist. Check the name of the file.")
    elif said.given or budget_options != BudgetOptions():
        raise UsageError(
            f"{rows} is not a file. --schema, --header, --columns, --ignore, --privacy-unit, --max-rows, "
            "--each-row-is-a-person and --budget-epsilon are for files; for rows they are options of dpdist ingest."
        )

    def review(plan: Plan) -> None:
        if line := expected(plan).describe():
            say(line)

    outcome = release_table(
        open_rows(rows), release, request, ledger=ledger, cluster=cluster, say=say, review=review
    )  # fmt: skip
    value, found = ({}, "") if of_file is None else _components(outcome.release, release)
    answer(as_json, outcome.to_json() | value, f"{described(outcome)}\n{found}".rstrip())


def _components(release: Release, path: AnyStore) -> tuple[dict[str, object], str]:
    """Return the components of the correlation matrix, as JSON values and as text, with what to ask next."""
    from dpdist.answers.correlation import correlation  # noqa: PLC0415 - releases of stored rows do without
    from dpdist.report import components_text  # noqa: PLC0415 - the same

    try:
        components = correlation(release, None)
    except (BelowNoiseError, UsageError) as error:
        return {}, wrapped(str(error))
    clipped = clipped_rows(release)
    place = shlex.quote(str(path))
    following = wrapped(
        f"These are {clipped.describe()}. Ask more for free: dpdist relate {place} (tables, means, tests), dpdist pca "
        f"{place} MODEL (all intervals), dpdist report {place} report.html (a page)."
    )
    value = components.to_json() | {"shortened": clipped.to_json()}
    return value, f"{components_text.brief(components, release)}\n{following}"


def _rows_of(
    file: Path, request: ReleaseRequest, budget_options: BudgetOptions, said: Reading, release: AnyStore,
    cluster: Cluster, ledger: LedgerAddress | None, review: Callable[[Plan], object],
) -> FileRows:  # fmt: skip
    """Store the rows of a file next to it, if they are not there."""
    from dpdist.core.pipeline.table import rows_of_file  # noqa: PLC0415 - its readers are slow to import

    if ledger is not None:
        raise UsageError("The ledger of a file is next to it. Omit --ledger, or ingest the file first.")
    require_mean(request, by_a_schema=said.schema is not None)
    budget = budget_options.budget
    if budget is not None and budget_options.budget_delta is None:
        budget = PrivacyLoss(budget.epsilon_micro, request.loss.delta_atto)
    return rows_of_file(
        file, request, budget=budget, target=release, said=said, progress=BARS, say=say, cluster=cluster, review=review,
    )  # fmt: skip


def require_mean(request: ReleaseRequest, *, by_a_schema: bool) -> None:
    """Refuse a release of a file whose correlations could not be printed, before it is paid for."""
    if not (request.centred or (by_a_schema and request.centring is None)):
        free = ", or --centre private, which costs nothing" if by_a_schema else ""
        raise UsageError(
            "A release of a file prints correlations, which need a mean. No budget was spent. Add --scale "
            f"private{free}; or ingest the file, and release its rows without a mean."
        )
