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

    >>> date_of(Column("joined", "date"), 16613.4)
    '2015-06-27'
    """
    form = form or ("%Y-%m-%d" if seconds_per_unit(column) >= _DAY else "%Y-%m-%d %H:%M")
    time = instant(column.origin or "1970-01-01") + timedelta(seconds=value * seconds_per_unit(column))
    return time.strftime(form)
