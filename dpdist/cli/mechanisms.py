"""The commands mechanisms, forecast and audit. They read no data and charge no ledger."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import click
import msgspec

from dpdist.answers.forecast import forecast_release
from dpdist.cli.options import LOCAL, STORE, cluster_options, grouped, json_option, options
from dpdist.cli.output import answer
from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.address import absolute
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.mechanisms.registry import MECHANISMS, RECOMMENDED, list_mechanisms
from dpdist.core.moment.histograms import ColumnCounting
from dpdist.core.options import RequestOptions
from dpdist.core.pipeline.budget import ledger_place
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release.advice import choice_refused
from dpdist.core.release.bounds import Dimensions, by_schema
from dpdist.core.release.parse import numbers_from, request_from
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.release.stages import require_seen
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.periods import PeriodicTable, is_periodic, open_periods
from dpdist.core.rows.schema import Schema
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage.store import AnyStore
from dpdist.core.text import wrapped
from dpdist.literature.orbit_forecast import ORBITS, forecast_orbit
from dpdist.report import text
from dpdist.report.figures import draw_forecast


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


def _private_count(table: RowsTable | PeriodicTable) -> bool:
    """Return whether the number of rows is private: a release was charged under add-remove."""
    address = absolute(ledger_place(table, None))
    records = Ledger(address).records if table.ledger_id is not None and Ledger.stands_at(address) else []
    return any(record.guarantee.neighbours is Neighbours.ADD_REMOVE for record in records)


def _described(
    table: AnyStore | None, columns: int | None, rows: int | None, max_rows: int | None, max_periods: int | None,
    neighbours: str,
) -> tuple[int, int, int | None, int | None, Schema | None]:  # fmt: skip
    """Return d, n, max_rows and max_periods, as typed, else as declared by the table; and the schema of the table."""
    schema, together = None, False
    if table is not None:
        periods = open_periods(table) if is_periodic(table) else None
        closed = () if periods is None else tuple(Ledger(absolute(ledger_place(periods, None))).periods)
        if periods is not None and not closed:
            raise UsageError(f"No period of {table} is closed yet. Give --d and --n.")
        opened = open_rows(table if periods is None else periods.rows_of(closed[-1]))
        columns, schema = opened.columns if columns is None else columns, opened.schema
        if rows is None and neighbours == Neighbours.REPLACE_ONE and not _private_count(periods or opened):
            rows = opened.rows if periods is None else periods.count(closed)
        if opened.unit is not None:
            max_rows = opened.unit.max_rows if max_rows is None else max_rows
            max_periods = opened.unit.max_periods if max_periods is None else max_periods
            together = max_rows is None
    if columns is None or rows is None:
        missing = " and ".join(name for name, value in (("--d", columns), ("--n", rows)) if value is None)
        raise UsageError(
            f"A forecast needs {missing}, as a public guess, or ROWS: it uses the number of columns, and the number "
            "of rows if that is public."
        )
    return columns, rows, 1 if max_rows is None and not together else max_rows, max_periods, schema


def _refused(request: ReleaseRequest, size: Dimensions, rows: int, max_rows: int) -> str | None:
    """Return why too few rows would make the release be refused, or None."""
    if "scale" in request.chooses:
        try:
            require_seen(request, ColumnCounting.of_numbers(size.numbers), rows, max_rows)
        except RefusedError as error:
            return str(error).replace(" Nothing was spent.", "")
    return choice_refused(request, size.columns, rows, max_rows)


_REQUEST_NAMES = {"neighbours", "mechanism", "centre", "scale", "scale_share", "grid_bits", "rows_at_most", "options"}


@grouped("forecast")
@click.argument("table", type=STORE, required=False, metavar="[ROWS]")
@click.option("--d", "columns", type=click.IntRange(1), help="Number of columns.")
@click.option("--n", "rows", type=int, help="Number of rows, or a public guess.")
@options(
    RequestOptions, "request_options", names={"epsilon", "delta", "clip", *_REQUEST_NAMES},
    changed={
        "clip": {"default": "1.0", "show_default": True},
        "centre": {
            "type": click.Choice(["none", "private"]), "metavar": None, "help": "private: release the mean as well.",
        },
    },
)  # fmt: skip
@click.option("--spectrum", help="Public guess of the components' variances, such as 4,2,0.5. Never from the data.")
@click.option(
    "--norms",
    help="Public guess of the row norms, equally frequent, such as 5,10,40. Show the cost of each as a clip norm.",
)
@click.option(
    "--max-rows",
    type=int,
    help="Largest number of rows of a privacy unit, per period if any. [default: 1]",
)
@click.option("--max-periods", type=int, help="Largest number of periods with rows of a privacy unit; for gaussian.")
@click.option("--plot", type=LOCAL, help="Draw component quality against the number of rows to this image file.")
@json_option
def forecast_command(
    table: AnyStore | None, columns: int | None, rows: int | None, request_options: RequestOptions,
    spectrum: str | None, norms: str | None, max_rows: int | None, max_periods: int | None, plot: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Forecast the noise of a release and the components above it. Free.

    ROWS provides the number of columns, the privacy unit, and the number of rows if that is public. Its data are not
    read. Without ROWS, give --d and --n.
    """
    columns, rows, max_rows, max_periods, schema = _described(
        table, columns, rows, max_rows, max_periods, request_options.neighbours
    )
    try:
        request = request_from(request_options)
    except UsageError as error:
        if request_options.mechanism in ORBITS and not spectrum:  # report all missing options at once
            raise UsageError(
                f"{error} Its forecast also needs a public guess of the eigenvalues (--spectrum)."
            ) from None
        raise
    public = rows if request.neighbours is Neighbours.REPLACE_ONE else None
    size = Dimensions(columns, public, max_rows or 1, schema=schema, together=max_rows is None)
    request = by_schema(request, size)
    if request.mechanism in ORBITS:
        if plot is not None or norms or max_rows != 1 or max_periods is not None:
            raise UsageError(
                f"The forecast of {request.mechanism} does not support --plot, --norms, --max-rows and "
                "--max-periods. Omit them."
            )
        request = replace(request, clip_norm=planned(request, size).bound.row_norm)
        orbit = forecast_orbit(request, columns, rows, numbers_from(spectrum, "--spectrum") if spectrum else ())
        answer(as_json, orbit.to_json(), text.orbit_forecast(orbit))
        return
    result = forecast_release(
        request, columns, rows, numbers_from(spectrum, "--spectrum") if spectrum else (),
        numbers_from(norms, "--norms") if norms else (), max_rows=max_rows, max_periods=max_periods,
        schema=schema,
    )  # fmt: skip
    if plot is not None:
        draw_forecast(result, plot)
    value, message = result.to_json(), text.forecast(result)
    once = result.person.counted_once
    if request.chooses:
        value["parts"] = result.plan.parts_json()
        message += f"\n\n{text.parts(result.plan)}"
        value["refused"] = refused = _refused(request, size, rows, once)
        message += "" if refused is None else "\n" + wrapped(f"THE RELEASE WOULD BE REFUSED. {refused}")
    answer(as_json, value, message)


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
