"""The section of a report about pairs of variables: associations, tables and means by group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from dpdist.answers.bias import clipped_rows
from dpdist.answers.crosstab import crosstab
from dpdist.answers.feasible import Feasible, feasible
from dpdist.answers.group_means import group_means
from dpdist.answers.relate import Relation, relations, untested
from dpdist.answers.variables import Variables, variables
from dpdist.core.errors import BelowNoiseError, DataError, UsageError
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted, listed
from dpdist.report.pairs import (
    about_variables,
    done_to,
    means_between,
    p_text,
    relation_text,
    strength_ends,
)
from dpdist.report.shares import count_text, few_text, known_shares, percent_text
from dpdist.report.tables import Cells, Table, brief_name, minus

_ASSOCIATIONS, _TABLES = 15, 60
"""Associations that are listed, and pairs whose tables or means can be opened."""
_NAMED = 8
"""Most pairs below the noise that are named."""
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

    held: Variables
    relations: Sequence[Relation]  # of all pairs, the strongest first
    strongest: Table | None  # None if all are below the noise
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
    seen = [relation for relation in found if relation.strength is not None]
    shown = seen[:_ASSOCIATIONS]
    tested = any(relation.adjusted is not None for relation in shown)
    head: Cells = ("variables", "strength", "between", "measure", "p, adjusted")
    rows = [_row(relation) if tested else _row(relation)[:-1] for relation in shown]
    possible = _possible(held)
    pairs = [pair for relation in found if (pair := _pair(held, relation, possible)) is not None][:_TABLES]
    strongest = Table(head if tested else head[:-1], rows) if rows else None
    return Related(held, found, strongest, " ".join(_notes(held, found, shown)), pairs)


def _notes(held: Variables, found: Sequence[Relation], shown: Sequence[Relation]) -> Iterator[str]:
    """Yield sentences about the table of associations."""
    seen = sum(relation.strength is not None for relation in found)
    if seen > len(shown):
        yield f"The {len(shown)} strongest of {counted(seen, 'pair')}."
    if len(found) > seen:
        drowned = [f"{relation.first} and {relation.second}" for relation in found if relation.strength is None]
        few = f": {listed(drowned)}" if len(drowned) <= _NAMED else ""
        yield f"No result for {counted(len(drowned), 'pair')}, below the noise or too large to be tested{few}."
    if shown:
        yield (
            "A strength is Cramér's V or eta, from 0 to 1, or a correlation r, from -1 to 1, without the noise; small "
            "categories are merged."
        )
    if tests := sum(relation.test is not None for relation in found):
        yield f"p-values are adjusted for {counted(tests, 'test')} (Holm), and assume a random sample."
    for reason in untested(found):
        yield f"No p-value (-): {reason}." if tests else f"No tests: {reason}."
    if about := about_variables(held):
        yield about


def _row(found: Relation) -> Cells:
    names = brief_name(found.first) + " and " + brief_name(found.second)
    if found.strength is None:
        raise AssertionError("pairs below the noise are not listed")
    p = "-" if found.adjusted is None else p_text(found.adjusted)
    ends = minus(" … ".join(strength_ends(found.strength)))
    return names, minus(f"{found.strength.value:.2f}"), ends, found.strength.measure, p


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
    ends = "" if found.strength is None else f": {found.strength.measure} {' … '.join(strength_ends(found.strength))}"
    title = brief_name(found.first) + " and " + brief_name(found.second) + escape(minus(ends))
    if len(sizes) == 1:
        return _means(held, found, title)
    result = crosstab(held, found.first, found.second)
    reach, released = result.reach, "Each count"
    if possible is not None:
        result = result.with_counts(possible.table(found.first, found.second))
        released = "Counts are those of the nearest tables that rows can have; each released count"
    shares, few = known_shares(result, "rows")
    heads: Cells = (escape(found.first), *map(brief_name, result.columns.categories))
    rows: list[Cells] = [
        (
            brief_name(name),
            *(f"{count_text(count)} ({_percent(share)})" for count, share in zip(own, percents, strict=True)),
        )
        for name, own, percents in zip(result.rows.categories, result.estimates, shares.estimates, strict=True)
    ]
    note = f"Rows, and percent of each line. {released} is within {reach} of the exact one in 95 of 100 cases. "
    note += " ".join(filter(None, (few_text(few), relation_text(found))))
    return Pair(title, Table(heads, rows), note)


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{percent_text(share)} %"


def _means(held: Variables, found: Relation, title: Markup) -> Pair:
    number, by = held.number_and_category(found.first, found.second)
    result = group_means(held, number, by)
    rows: list[Cells] = []
    few = []
    for place, category in enumerate(result.variable.categories):
        ends_known = bool(np.isfinite(result.means.intervals[place]).all())
        mean, *ends = means_between(result.number, result.means.estimates[place], *result.means.intervals[place])
        if not ends_known:
            few.append(category)
        count = count_text(result.counts[place])
        rows.append((brief_name(category), count, mean if ends_known else "-", " … ".join(ends) if ends else "-"))
    unknown = f" Too few rows for this noise: {listed(few)}." if few else ""
    done = done_to(result.number, clipped=bool(clipped_rows(held.release, [result.number.place]).unknown))
    mean_of = Markup("mean of {}").format(f"{number} ({done})" if done else number)
    head: Cells = (escape(by), "rows", mean_of, "between")
    return Pair(title, Table(head, rows), f"{relation_text(found)}{unknown}")
