"""Columns of a release as people know them: by the names of the rows or of the schema, in the units of the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpdist._util.text import listed, repeated
from dpdist.errors import UsageError
from dpdist.naming import parameter
from dpdist.release.artefact import Release

if TYPE_CHECKING:
    from dpdist.rows.dataset import RowsTable

Matrix = npt.NDArray[np.float64]


def places_of(table: Release | RowsTable, names: Sequence[str], what: str) -> tuple[int, ...]:
    """Return the places of columns; a column of the schema stands for all that were made of it."""
    place = {name: i for i, name in enumerate(table.names)}
    made = _made(table) | {name: (name,) for name in table.names}
    unknown = [name for name in names if name not in made]
    found = [column for name in names for column in made.get(name, ())]
    if unknown or not found:
        said = f"There is no column {listed(map(repr, unknown))}" if unknown else "No column is named"
        raise UsageError(f"{said} ({parameter(what)}). There are: {listed(table.names)}.")
    if twice := repeated(found):
        raise UsageError(f"{listed(map(repr, twice))}: named twice ({parameter(what)}).")
    return tuple(place[name] for name in found)


def beside(release: Release, targets: Sequence[int]) -> tuple[int, ...]:
    """Return the columns that may explain the targets where nobody names any.

    These are all but what was made of the same column, and what weighs nothing in the release
    (:func:`dpdist.release.worth.weightless`).
    """
    names = {release.names[i] for i in targets}
    kin = {name for made in _made(release).values() if names & set(made) for name in made}
    known = kin | names | set(release.blindly_scaled[1])
    return tuple(i for i, name in enumerate(release.names) if name not in known)


def references(release: Release, on: Sequence[int]) -> tuple[int, ...]:
    """Return the first column of each categorical variable of which all columns are among some.

    They add up to 1, so that with all of them a regression with a constant has no one solution.
    """
    place = {name: i for i, name in enumerate(release.names)}
    columns = () if release.schema is None else release.schema.columns
    made = [[place.get(name) for name in column.features] for column in columns if column.stored and column.one_hot]
    return tuple(each[0] for each in made if len(each) > 1 and each[0] is not None and set(each) <= set(on))


def source_units(release: Release) -> tuple[Matrix, Matrix]:
    """Return centre and scale, (d,) each, by which ``centre + scale * row`` is in the units of the source of the rows.

    Without a schema these are those of the rows as they were given, ``release.bound.input_units``. A category, and
    what tells that a value is missing, is 0 or 1; a date counts its unit since its origin.
    """
    centre, scale = release.bound.input_units
    if release.schema is None:
        return centre, scale
    place = {name: i for i, name in enumerate(release.names)}
    for column in release.schema.columns:
        affine = release.schema.affine(column) if column.stored else None
        for name in column.features:
            i = place.get(name)
            if i is None or affine is None:
                continue
            own = name == column.name or column.one_hot
            factor = affine.factor if own else float(column.weight or 1)
            centre[i] = (affine.shift if own else 0.0) + centre[i] / factor
            scale[i] /= factor
    return centre, scale


def _made(table: Release | RowsTable) -> dict[str, tuple[str, ...]]:
    """Return the columns of the rows that were made of each column of the schema."""
    have = set(table.names)
    columns = () if table.schema is None else table.schema.columns
    kept = {column.name: tuple(name for name in column.features if name in have) for column in columns}
    return {name: made for name, made in kept.items() if made}
