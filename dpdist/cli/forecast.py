"""The command forecast. It uses public numbers only, and charges no ledger."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from dpdist.answers.forecast import forecast_release
from dpdist.answers.prospect import prospect
from dpdist.cli.options import LOCAL, STORE, grouped, json_option, options, reading_options
from dpdist.cli.output import answer
from dpdist.cli.release import require_mean
from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.address import absolute
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.moment.histograms import ColumnCounting
from dpdist.core.options import RequestOptions
from dpdist.core.pipeline.budget import has_private_count, ledger_place
from dpdist.core.privacy.checks import require_small_delta
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release.advice import choice_refused, require_centre_of_dropped
from dpdist.core.release.bounds import Dimensions, by_schema
from dpdist.core.release.parse import numbers_from, request_from
from dpdist.core.release.plan import Plan, has_centre, planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.release.stages import require_seen
from dpdist.core.rows.periods import is_periodic, open_periods
from dpdist.core.rows.schema import Schema
from dpdist.core.storage.store import AnyStore
from dpdist.core.text import wrapped
from dpdist.literature.orbit_forecast import ORBITS, forecast_orbit
from dpdist.report import text
from dpdist.report.figures import draw_forecast

if TYPE_CHECKING:
    from dpdist.core.pipeline.said import Reading


class _Rows(NamedTuple):
    """The rows to forecast for, as typed, else as declared by a table or found in a file."""

    columns: int
    rows: int
    max_rows: int | None
    max_periods: int | None
    schema: Schema | None


def _of_file(file: Path, request: ReleaseRequest, said: Reading) -> _Rows:
    """Return the rows of a file, as its release would have them."""
    from dpdist.core.pipeline.table import shape_of_file  # noqa: PLC0415 - its readers are slow to import

    require_mean(request, by_a_schema=said.schema is not None)
    found = shape_of_file(file, request, said)
    return _Rows(
        found.columns, found.rows, 1 if found.unit is None else found.unit.max_rows, None, found.schema,
    )  # fmt: skip


def _of_table(table: AnyStore, *, counted: bool) -> _Rows:
    """Return the rows of a rows.zarr or of a folder of periods; 0 of them if their number is private."""
    periods = open_periods(table) if is_periodic(table) else None
    closed = () if periods is None else tuple(Ledger(absolute(ledger_place(periods, None))).periods)
    if periods is not None and not closed:
        raise UsageError(f"No period of {table} is closed yet. Give --d and --n.")
    opened = open_rows(table if periods is None else periods.rows_of(closed[-1]))
    rows, unit = 0, opened.unit
    if counted and not has_private_count(periods or opened):
        rows = opened.rows if periods is None else periods.count(closed)
    max_rows, max_periods = (1, None) if unit is None else (unit.max_rows, unit.max_periods)
    return _Rows(opened.columns, rows, max_rows, max_periods, opened.schema)


def _found(table: AnyStore | None, request: ReleaseRequest, said: Reading) -> _Rows | None:
    """Return the rows of a table, without their number if that is private."""
    if isinstance(table, Path) and table.is_file():
        return _of_file(table, request, said)
    if said.given:
        raise UsageError(
            "--schema, --header, --columns, --ignore, --privacy-unit and --each-row-is-a-person are for files."
        )
    if table is None:
        return None
    return _of_table(table, counted=request.neighbours is Neighbours.REPLACE_ONE)


def _described(found: _Rows | None, typed: _Rows) -> _Rows:
    """Return the rows to forecast for: what was typed, else what was found."""
    columns, rows = typed.columns or (found.columns if found else 0), typed.rows or (found.rows if found else 0)
    if not (columns and rows):
        missing = " and ".join(name for name, value in (("--d", columns), ("--n", rows)) if not value)
        raise UsageError(
            f"A forecast needs {missing}, as a public guess, or a TABLE: it uses the number of columns, and the number "
            "of rows if that is public."
        )
    if found is None:
        return typed._replace(max_rows=typed.max_rows or 1)
    return _Rows(columns, rows, typed.max_rows or found.max_rows, typed.max_periods or found.max_periods, found.schema)


def _refused(request: ReleaseRequest, size: Dimensions, plan: Plan, max_rows: int, rows: int) -> str | None:
    """Return why the release would be refused, as for too few rows, or None."""
    try:
        require_centre_of_dropped(size.schema, centred=has_centre(plan))
        require_small_delta(request.loss, request.neighbours, rows, accepted=request.accept_large_delta)
        if "scale" in request.chooses:
            require_seen(request, ColumnCounting.of(size.columns, size.schema), rows, max_rows, together=size.together)
    except RefusedError as error:
        return str(error).replace(" Nothing was spent.", "")
    if not request.chooses:
        return None
    return choice_refused(request, size.columns, rows, max_rows, together=size.together)


def _request(request_options: RequestOptions, spectrum: str | None) -> ReleaseRequest:
    try:
        return request_from(request_options)
    except UsageError as error:
        if request_options.mechanism in ORBITS and not spectrum:  # report all missing options at once
            raise UsageError(
                f"{error} Its forecast also needs a public guess of the eigenvalues (--spectrum)."
            ) from None
        raise


@grouped("forecast")
@click.argument("table", type=STORE, required=False, metavar="[TABLE]")
@click.option("--d", type=click.IntRange(1), help="Number of columns.")
@click.option("--n", type=int, help="Number of rows, or a public guess.")
@options(RequestOptions, "request_options", without={"ledger", "for_reproduction", "id"})
@partial(reading_options, planned=True)
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
    table: AnyStore | None, d: int | None, n: int | None, request_options: RequestOptions, said: Reading,
    spectrum: str | None, norms: str | None, max_rows: int | None, max_periods: int | None, plot: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Forecast the release that the same options would make: its noise, and the components and counts above it. Free.

    TABLE is a file, or a rows.zarr. It provides the number of columns, the privacy unit, and the number of rows if that
    is public. Its values are not used. Without TABLE, give --d and --n.
    """
    if n is not None and n < 1:
        raise UsageError("A forecast needs at least one row.", parameter="n")
    typed = _Rows(d or 0, n or 0, max_rows, max_periods, None)
    request = _request(request_options, spectrum)
    columns, rows, max_rows, max_periods, schema = _described(_found(table, request, said), typed)
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
    refused = _refused(request, size, result.plan, result.person.counted_once, rows)
    # what the moment alone would need is not what the release does
    value, message = result.to_json(), text.forecast(result if refused is None else replace(result, nothing=""))
    if request.chooses:
        value |= {"parts": result.plan.parts_json()}
        message += f"\n\n{text.parts(result.plan)}"
    value["refused"] = refused
    if refused is not None:
        answer(as_json, value, f"{message}\n{wrapped(f'THE RELEASE WOULD BE REFUSED. {refused}')}")
        return
    expected = prospect(result.plan, rows)
    value["prospect"] = expected.to_json()
    if expected.impossible:
        refused = expected.impossible.replace(" Nothing was spent.", "")
        message += f"\n\n{wrapped(f'THE RELEASE WOULD BE REFUSED, UNLESS --anyway IS ADDED. {refused}')}"
    elif line := expected.describe():
        message += f"\n\n{wrapped(line)}"
    answer(as_json, value, message)
