"""The command relate: tables, means by group and associations of a release, free."""

from __future__ import annotations

from typing import Any

import click

from dpdist.answers.bias import clipped_rows
from dpdist.answers.block import NORMAL, source_units
from dpdist.answers.crosstab import Counts, Crosstab, counts, crosstab
from dpdist.answers.feasible import Feasible
from dpdist.answers.feasible import feasible as nearest_of
from dpdist.answers.group_means import GroupMeans, group_means
from dpdist.answers.ratios import Ratios
from dpdist.answers.regression import Regression, regressions
from dpdist.answers.relate import PERCENT, Relation, relation, relations
from dpdist.answers.variables import Variables, variables
from dpdist.cli.options import STORE, feasible_option, json_option
from dpdist.cli.output import BARS, answer
from dpdist.cli.tables import KINDS, kind_of, write_table
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.privacy.checks import cautions_message
from dpdist.core.release.opening import open_release
from dpdist.core.storage.store import AnyStore
from dpdist.core.text import counted, wrapped
from dpdist.report.pairs import (
    about_variables,
    counts_text,
    means_text,
    relation_text,
    relations_text,
    slope_text,
    table_text,
)


@click.command()
@click.argument("release", type=STORE)
@click.argument("first", metavar="[A]", required=False)
@click.argument("second", metavar="[B]", required=False)
@click.option("--percent", type=click.Choice(PERCENT), help="Percent of rows of a table, of its columns, or of all.")
@feasible_option
@click.option("--table", "out", type=STORE, help="Also write all numbers with intervals to this .csv or .parquet file.")
@json_option
def relate(
    release: AnyStore, first: str | None, second: str | None, percent: str | None, feasible: bool,
    out: AnyStore | None, as_json: bool,
) -> None:  # fmt: skip
    """Show how variables A and B of RELEASE relate. Free.

    Two categories: their table, with percent if asked for. A number and a category: the means by group. Two numbers:
    their correlation. With A alone: its counts, and its association with each other variable, the strongest first. With
    neither: the associations of all pairs. Tables and means need a release with a schema.
    """
    if out is not None:
        kind_of(out, KINDS)
    opened = open_release(release)
    held = variables(opened)
    for name in (first, second):
        if name is not None:
            held.named(name)  # refuses one that is left out, with the reason
    is_table = first in held.categorical and second in held.categorical
    if not is_table and percent is not None:
        raise UsageError("--percent is for the table of two variables with categories.")
    if not is_table and feasible:
        raise UsageError("--feasible is for the table of two variables with categories: tests keep what was released.")
    possible = nearest_of(held, BARS) if feasible else None
    lengths = clipped_rows(opened, _places(held, [name for name in (first, second) if name is not None]))
    result: dict[str, Any]
    if first is None:
        result, body = _of_pairs(relations(held), None)
    elif second is None:
        result, body = _of_pairs(relations(held, first), held.named(first))
        if first in held.categorical:
            own = counts(held, first)
            result, body = {**result, "counts": _counts_json(own)}, f"{counts_text(own)}\n\n{body}"
    else:
        result, body = _of_two(held, relation(held, first, second), percent, possible, clipped=bool(lengths.unknown))
    if out is not None:
        write_table(out, _columns_of(result), opened, "table")
    rows = counted(round(held.rows), "row")
    about = "The weights add up to " if opened.bound.unit_norm else "" if held.public else "About "
    remark = f"{about}{rows}: {lengths.describe().removeprefix('of ')}."
    unknown = lengths.caveat("means and strengths of numbers" if opened.unit is None else "counts, means and strengths")
    done = "" if possible is None else possible.describe()
    remarks = (done, remark, unknown, about_variables(held), cautions_message(opened.cautions).strip())
    value = {
        "release": str(release), "status": opened.status, "rows": held.rows, "cautions": list(opened.cautions),
        "unit": None if opened.unit is None else opened.unit.to_json(), "about": lengths.describe(),
        "shortened": lengths.to_json(), "left_out": held.left_out,
        **({"feasible": done} if done else {}), **result,
    }  # fmt: skip
    mark = "" if opened.status == "private" else f"{opened.status.upper()}: do not publish it.\n"
    answer(as_json, value, f"{mark}{body}\n{wrapped(' '.join(filter(None, remarks)))}")


def _places(held: Variables, names: list[str]) -> list[int] | None:
    """Return the columns of some variables, and of all if no second one is named."""
    if len(names) < 2:
        return None
    known = [held.named(name) for name in names]
    numbers = [held.numeric[name].place for name in known if name in held.numeric]
    return [*numbers, *(place for name in known if name in held.categorical for place in held.categorical[name].places)]


def _of_pairs(result: list[Relation], name: str | None) -> tuple[dict[str, Any], str]:
    if not result:
        raise UsageError("A release of one variable has no pairs.")
    return {"associations": [each.to_json() for each in result]}, relations_text(result, name)


def _of_two(
    held: Variables, result: Relation, percent: str | None, possible: Feasible | None, *, clipped: bool
) -> tuple[dict[str, Any], str]:
    """Return the answer about two variables, as JSON values and as text."""
    value: dict[str, Any] = {"association": result.to_json()}
    sentence = wrapped(relation_text(result))
    if result.first in held.categorical and result.second in held.categorical:
        table = crosstab(held, result.first, result.second)
        if possible is not None:
            table = table.with_counts(possible.table(result.first, result.second))
        return {**value, "table": _table_json(table)}, f"{table_text(table, percent)}\n{sentence}"
    if result.first in held.numeric and result.second in held.numeric:
        slope = _slope(held, result)
        if slope is None:
            return value, sentence
        return {**value, "slope": slope.coefficients[0].to_json()}, "\n".join(
            [sentence, wrapped(slope_text(held.numeric[result.first], held.numeric[result.second], slope))]
        )
    number, by = held.number_and_category(result.first, result.second)
    means = group_means(held, number, by)
    value |= {"means": _means_json(means), "differences": _differences_json(means)}
    return value, f"{means_text(means, clipped=clipped)}\n{sentence}"


def _slope(held: Variables, result: Relation) -> Regression | None:
    """Return the regression of one number on the other; None where it drowns."""
    try:
        places = [held.numeric[name].place for name in (result.first, result.second)]
        (fit,) = regressions(held.release, places[:1], places[1:], None, source_units(held.release))
    except (UsageError, BelowNoiseError):
        return None
    return None if fit.ridge else fit  # a ridge would make it smaller


def _counts_json(result: Counts) -> list[dict[str, Any]]:
    return [
        {
            result.variable.name: name, "rows": float(result.estimates[i]), "low": float(result.intervals[i, 0]),
            "high": float(result.intervals[i, 1]), **_share("share", result.shares, i),
        }
        for i, name in enumerate(result.variable.categories)
    ]  # fmt: skip


def _table_json(result: Crosstab) -> list[dict[str, Any]]:
    return [
        {
            result.rows.name: row, result.columns.name: column, "rows": float(result.estimates[i, j]),
            "low": float(result.intervals[i, j, 0]), "high": float(result.intervals[i, j, 1]),
            "shrunk": float(result.shrunk[i, j]), **_share("of_row", result.of_rows, i, j),
            **_share("of_column", result.of_columns, i, j), **_share("of_all", result.of_all, i, j),
        }
        for i, row in enumerate(result.rows.categories)
        for j, column in enumerate(result.columns.categories)
    ]  # fmt: skip


def _means_json(result: GroupMeans) -> list[dict[str, Any]]:
    return [
        {
            result.variable.name: name, "rows": float(result.counts[i]),
            "rows_low": float(result.counts[i] - NORMAL * result.count_deviation),
            "rows_high": float(result.counts[i] + NORMAL * result.count_deviation),
            "mean": _finite(result.means.estimates[i]),
            "low": _finite(result.means.intervals[i, 0]), "high": _finite(result.means.intervals[i, 1]),
        }
        for i, name in enumerate(result.variable.categories)
    ]  # fmt: skip


def _differences_json(result: GroupMeans) -> list[dict[str, Any]]:
    """Return the difference of the means of each two groups, with its 95 % interval."""
    names = result.variable.categories
    ends = ("difference", "low", "high")
    return [
        {"of": names[i], "less": names[j]} | dict(zip(ends, map(_finite, result.difference(i, j)), strict=True))
        for i in range(len(names))
        for j in range(i)
    ]


def _share(name: str, result: Ratios, *place: int) -> dict[str, float | None]:
    """Return a share with the ends of its interval."""
    low, high = result.intervals[place]
    return {name: _finite(result.estimates[place]), f"{name}_low": _finite(low), f"{name}_high": _finite(high)}


def _finite(value: Any) -> float | None:
    number = float(value)
    return number if abs(number) < float("inf") else None


def _columns_of(result: dict[str, Any]) -> dict[str, list[object]]:
    """Return the rows of an answer as columns."""
    rows = next((result[key] for key in ("table", "means", "associations") if key in result), None)
    rows = [result["association"]] if rows is None else rows
    flat = [{**row, **{k: ", ".join(v) for k, v in row.items() if isinstance(v, list)}} for row in rows]
    return {name: [row[name] for row in flat] for name in flat[0]}
