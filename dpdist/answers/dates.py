"""Numbers of a release as the dates that they mean."""

from __future__ import annotations

from datetime import timedelta

from dpdist.core.rows.columns import SECONDS, Column, instant

_DAY = 86400


def seconds_per_unit(column: Column) -> int:
    """Return the seconds of one unit of a column of dates."""
    return SECONDS[column.unit or "days"]


def date_of(column: Column, value: float, form: str | None = None) -> str:
    """Return a number of a column of dates as text; the day, and the minute where the unit is shorter.

    Dates beyond the calendar are at its end.

    >>> date_of(Column("joined", "date"), 16613.4)
    '2015-06-27'
    >>> date_of(Column("joined", "date"), -700000.0), date_of(Column("joined", "date"), 1e9)
    ('0053-06-19', '9999-12-31')
    """
    form = form or ("%Y-%m-%d" if seconds_per_unit(column) >= _DAY else "%Y-%m-%d %H:%M")
    try:
        time = instant(column.origin or "1970-01-01") + timedelta(seconds=value * seconds_per_unit(column))
    except OverflowError:
        time = instant("9999-12-31 23:59:59" if value > 0 else "0001-01-01")
    return time.strftime(form.replace("%F", "%Y-%m-%d").replace("%Y", f"{time.year:04d}"))
