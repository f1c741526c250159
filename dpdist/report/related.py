"""The section of a report about pairs of variables: associations, tables and means by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from dpdist.answers.bias import clipped_rows
from dpdist.answers.crosstab import crosstab
from dpdist.answers.feasible import Feasible, feasible
from dpdist.answers.group_means import group_means
from dpdist.answers.relate import Relation, relations
from dpdist.answers.variables import Variables, variables
from dpdist.core.errors import BelowNoiseError, DataError, UsageError
from dpdist.core.release.artefact import Release
from dpdist.report.findings import Cells, Table, brief_name
from dpdist.report.pairs import (
    about_variables,
    done_to,
    means_between,
    p_text,
    percent_text,
    relation_text,
    strength_text,
)

_ASSOCIATIONS, _TABLES = 15, 60
"""Associations that are listed, and pairs whose tables or means can be opened."""
_CATEGORIES = 45
"""Most categories of a variable whose tables are shown."""
_WIDE = 500
"""Most columns for which the nearest moment is looked for: half a minute at most."""


@dataclass(frozen=True)
class Pair:
    """The table or the means of two variables."""

    title: Markup
    table: Table
    note: str


@dataclass(frozen=True)
class Related:
    """How the variables of a release relate."""

    strongest: Table
    note: str
    pairs: Sequence[Pair]


def related_of(release: Release) -> Related | None:
    """Return the associations of variables, and tables and means to open; None without a category."""
    try:
        held = variables(release)
        found = relations(held)
    except (UsageError, DataError, BelowNoiseError):
        return None
    if not held.categorical or not found:
        return None
    rows: list[Cells] = [_row(each) for each in found[:_ASSOCIATIONS]]
    tests = sum(each.test is not None for each in found)
    notes = [f"The {len(rows)} strongest of {len(found)} pairs. " if len(found) > len(rows) else ""]
    notes.append(
        "A strength is Cramér's V or eta, from 0 to 1, or a correlation r, from -1 to 1, without the noise; small "
        "categories are merged. "
    )
    if tests:
        notes.append(f"p-values are adjusted for {tests} tests (Holm), for rows that are a sample. ")
    notes += [f"No test: {reason}. " for reason in sorted({e.no_test for e in found if e.no_test and e.strength})]
    possible = _possible(held)
    pairs = [pair for each in found if (pair := _pair(held, each, possible)) is not None][:_TABLES]
    head = ("variables", "strength", "between", "measure", "p, adjusted")
    return Related(Table(head, rows), f"{''.join(notes)}{about_variables(held)}", pairs)


def _row(found: Relation) -> Cells:
    names = brief_name(found.first) + " and " + brief_name(found.second)
    if found.strength is None:
        return names, "below the noise", "", "", ""
    low, high = found.strength.interval
    p = "-" if found.adjusted is None else p_text(found.adjusted)
    return names, f"{found.strength.value:.2f}", f"{low:.2f} … {high:.2f}", found.strength.measure, p


def _possible(held: Variables) -> Feasible | None:
    """Return the nearest moment that rows can have; None where it takes long, or the release has none."""
    try:
        return feasible(held) if held.release.bound.columns <= _WIDE else None
    except UsageError:
        return None


def _pair(held: Variables, found: Relation, possible: Feasible | None) -> Pair | None:
    """Return the table or the means of a pair; None for two numbers, or too many categories."""
    sizes = [held.categorical[name].size for name in (found.first, found.second) if name in held.categorical]
    if not sizes or max(sizes) > _CATEGORIES:
        return None
    strength = "" if found.strength is None else f": {found.strength.measure} {strength_text(found.strength)}"
    title = brief_name(found.first) + " and " + brief_name(found.second) + escape(strength)
    if len(sizes) == 1:
        return _means(held, found, title)
    result = crosstab(held, found.first, found.second)
    reach, released = result.reach, "Each count"
    if possible is not None:
        result = result.with_counts(possible.table(found.first, found.second))
        released = "Counts are those of the nearest tables that rows can have; each that was released"
    values = result.of_rows.estimates
    heads: Cells = (escape(found.first), *map(brief_name, result.columns.categories))
    rows: list[Cells] = [
        (
            brief_name(name),
            *(f"{count:.0f} ({percent_text(share)} %)" for count, share in zip(own, shares, strict=True)),
        )
        for name, own, shares in zip(result.rows.categories, np.round(result.estimates) + 0.0, values, strict=True)
    ]
    note = f"Rows, and percent of each line. {released} is within {reach} of the exact one in 95 of 100 cases. "
    note += relation_text(found)
    return Pair(title, Table(heads, rows), note)


def _means(held: Variables, found: Relation, title: Markup) -> Pair:
    number, by = held.number_and_category(found.first, found.second)
    result = group_means(held, number, by)
    rows: list[Cells] = []
    for place, category in enumerate(result.variable.categories):
        mean, *ends = means_between(result.number, result.means.estimates[place], *result.means.intervals[place])
        rows.append((brief_name(category), f"{result.counts[place]:.0f}", mean, " … ".join(ends)))
    done = done_to(result.number, clipped=bool(clipped_rows(held.release, [result.number.place]).unknown))
    mean_of = Markup("mean of {}").format(f"{number} ({done})" if done else number)
    head: Cells = (escape(by), "rows", mean_of, "between")
    return Pair(title, Table(head, rows), relation_text(found))
