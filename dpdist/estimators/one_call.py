"""From a table to its components in one call, which decides what software can decide and reports each decision."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpdist.core.errors import DataError, UsageError
from dpdist.core.frames import as_frame, is_a, is_labelled, names_beside, require_table
from dpdist.core.ingest.readers.base import counts_rows
from dpdist.core.naming import ESTIMATORS, naming, parameter
from dpdist.core.paths import text_of
from dpdist.core.pipeline.reading import drafted
from dpdist.core.pipeline.said import Reading
from dpdist.core.pipeline.table import rows_of_file
from dpdist.core.privacy.guarantee import Number, PrivacyLoss, neighbours_of
from dpdist.core.rows.automatic import (
    TextColumns,
    require_owner,
    schema_of_numbers,
    whose_rows,
)
from dpdist.core.rows.columns import Column
from dpdist.core.rows.draft import Looks, SchemaNeededError
from dpdist.core.rows.encoding import UnfitError, columns_of, is_text, types_of
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Owner, spelled
from dpdist.core.runtime.cluster import computed, computing_on
from dpdist.core.text import counted, listed
from dpdist.estimators.described import rows_by
from dpdist.estimators.fit import DESCRIBED, request_of, says_rows
from dpdist.estimators.groups import column_of, groups_of, in_one_order
from dpdist.estimators.inputs import rows_of
from dpdist.estimators.pca import PrivatePCA
from dpdist.formats.labelled import laid_out


def private_pca(
    table: Any,
    *,
    epsilon: Number,
    delta: Number | None = None,
    n_components: float | str = "auto",
    correlation: bool = True,
    privacy_unit: str | None = None,
    max_rows: int | None = None,
    each_row_is_a_person: bool = False,
    schema: Schema | str | os.PathLike[str] | None = None,
    header: str | None = None,
    say: Callable[[str], None] = print,
    **parameters: Any,
) -> PrivatePCA:
    """Return private principal components of a table: one release, charged once, of all its columns of numbers.

    Everything that was not given is decided without looking at more than the budget pays for: centre, scale and clip
    norm are chosen privately, cells without a number count as the centre of their column, and components are those of
    the correlation matrix above the noise.

    Parameters
    ----------
    table : path-like or table
        A file, such as .csv or .parquet; or a DataFrame or array in memory. The rows of a file are stored next to it,
        with a ledger: ``table.csv`` gets ``table.zarr`` and ``table.ledger``. Their budget is the loss of the first
        call, unless ``budget_epsilon`` and ``budget_delta`` are larger. Repeating a call is free; for a table in
        memory, within this process.
    epsilon : str, int, float or Decimal
        Privacy loss epsilon.
    delta : str, int, float or Decimal, default None
        Privacy loss delta. None: pure differential privacy.
    n_components : int, float or "auto", default "auto"
        See :class:`PrivatePCA`.
    correlation : bool, default True
        Whether to use the correlation matrix: see :class:`PrivatePCA`.
    privacy_unit : str, default None
        Column of a file that identifies the person of each row. None: each row is protected as a person; refused if a
        column, also one that the schema ignores, an index, a coordinate of the rows or a column of ``obs`` is named
        like an identifier, unless ``each_row_is_a_person``.
    max_rows : int, default None
        With `privacy_unit`: the largest number of rows of a person that are kept. None: all of them.
    each_row_is_a_person : bool, default False
        State that no person has two rows. Columns named like identifiers are left out.
    schema : Schema, str or path-like, default None
        Meaning of the columns, which the release publishes; that of a table in memory is released as its file would be.
        None: columns of text are refused.
    header : {"yes", "no"}, default None
        Whether the first line of a .csv is a header. None: an ambiguous file is refused.
    say : callable, default print
        Called with the decisions (str).
    parameters : keyword arguments
        Further parameters of :class:`PrivatePCA`.

    Returns
    -------
    PrivatePCA
        Fitted. ``release_`` is the release, and may be published like the estimator.

    Raises
    ------
    UsageError
        If persons have to be declared, or a parameter is invalid.
    RefusedError
        If the budget does not suffice.
    DataError
        If the table cannot be used, or has columns of text and no schema.

    See Also
    --------
    PrivatePCA : The estimator, with every parameter.
    ingest_rows, release_rows, fit_components : The same step by step.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import dpdist
    >>> random = np.random.default_rng(1)
    >>> size = random.normal(size=20_000)
    >>> frame = pd.DataFrame({"height": 170 + 9 * size, "weight": 70 + 9 * size + 6 * random.normal(size=20_000)})
    >>> pca = dpdist.private_pca(frame, epsilon=1, delta=1e-6, n_components=1)  # doctest: +ELLIPSIS
    The table: 20000 rows of 2 columns. No column is named like a person, so each row is assumed to be a different ...
    >>> abs(pca.components_).round(1)
    array([[0.7, 0.7]])
    """
    with naming(ESTIMATORS), computing_on(parameters.get("cluster")):
        if not callable(say):
            raise UsageError("say must be a function of a text, such as print.")
        owner = Owner(privacy_unit, max_rows, each_row_is_a_person)
        if isinstance(table, str | os.PathLike):
            budget = _budget(parameters, delta)
            estimator = PrivatePCA(n_components, correlation=correlation, epsilon=epsilon, delta=delta, **parameters)
            return _of_file(Path(text_of(table)), estimator, budget, Reading(schema, header, owner), say)
        described = None if schema is None else schema if isinstance(schema, Schema) else Schema.read(schema)
        if described is not None and described.each_row_is_a_person:
            owner = Owner(privacy_unit, max_rows, each_row=True)
        if _takes_missing(described, parameters):
            parameters = {"missing": "centre", **parameters}
        estimator = PrivatePCA(n_components, correlation=correlation, epsilon=epsilon, delta=delta, **parameters)
        data, groups, owner = _by_unit(table, owner, described)
        # other columns that name persons are left out
        data = _in_memory(data, _without_unit(described), owner if groups is None else Owner(each_row=True))
        found = rows_of(estimator, data, fitting=True)
        size = counted(found.columns, "column") + _without(table, found.column_names, described)
        if found.known_rows is not None and says_rows(neighbours_of(estimator.neighbours)):
            size = f"{counted(found.known_rows, 'row')} of {size}"  # else the number of rows is private
        weakened = estimator.missing == "centre" and (
            described is None or len(described.centring) > len(described.pairwise)
        )
        say(
            f"The table: {size}. {whose_rows(owner)}. {_CENTRED if weakened else ''}Rows in memory "
            "have no ledger on disk: in this process the same call returns the same result, and another release of "
            "these rows is refused unless a budget pays for it."
        )
        estimator.__dict__[DESCRIBED] = described
        estimator.fit(data, groups=groups)
        if not estimator.fresh_:
            say("Returned again, not charged.")
        return estimator


def _budget(parameters: dict[str, Any], delta: Number | None) -> PrivacyLoss | None:
    """Take the budget of a file out of the parameters."""
    if "ledger" in parameters or "budget" in parameters:
        raise UsageError(f"The ledger of a file is next to it. Leave {parameter('ledger')} and budget out.")
    if "budget_epsilon" not in parameters:
        if "budget_delta" in parameters:
            raise UsageError(f"{parameter('budget_delta')} needs {parameter('budget_epsilon')}.")
        return None
    budget_delta = parameters.pop("budget_delta", None) or delta or 0
    return PrivacyLoss.parse(str(parameters.pop("budget_epsilon")), str(budget_delta))


def _of_file(
    file: Path, estimator: PrivatePCA, budget: PrivacyLoss | None, said: Reading, say: Callable[[str], None]
) -> PrivatePCA:
    """Fit an estimator to a file, whose rows are stored next to it."""
    request = request_of(estimator)
    try:
        rows = rows_of_file(file, request, budget=budget, said=said, say=say, cluster=estimator.cluster)
    except SchemaNeededError as error:
        raise DataError(f"{error} Then pass {parameter('schema', error.path)}.") from None
    estimator.ledger = str(rows.ledger)
    return estimator.fit(rows.table.path)


def _takes_missing(described: Schema | None, parameters: Mapping[str, Any]) -> bool:
    """Whether missing cells count as the centre: by the schema, or where a private scale finds it."""
    if described is not None:
        return bool(described.centring + described.dropping)
    return parameters.get("clip") is None or parameters.get("scale") == "private"


_CENTRED = "Missing cells, if any, are replaced by the centre of their column, which weakens its correlations. "


def _without_unit(schema: Schema | None) -> Schema | None:
    """Return a schema for the rest of a table whose privacy unit is known."""
    if schema is None or schema.unit is None:
        return schema
    columns = [Column(c.name, "ignored") if c.kind == "privacy unit" else c for c in schema.columns]
    return Schema(columns, schema.scale, schema.others, missing_values=schema.missing_values)


def _by_unit(table: Any, owner: Owner, schema: Schema | None) -> tuple[Any, Any, Owner]:
    """Return a table in memory, its privacy unit, which is not in it without a schema, and whose the rows are."""
    unit = None if schema is None else schema.unit
    if schema is not None and len(schema.unit_columns) > 1:
        raise UsageError(
            "A table in memory has a privacy unit of one column. Join the columns to one, or save the table to a file, "
            "and pass its path."
        )
    if unit is not None and owner.each_row:
        raise UsageError(f"The schema declares a privacy unit. Leave {parameter('each_row_is_a_person')} out.")
    if unit is not None and owner.column not in {None, unit.column}:
        raise UsageError(f"The schema declares another privacy unit, {unit.column!r}.", parameter="privacy_unit")
    if unit is not None:
        owner = Owner(unit.column, owner.max_rows or unit.max_rows)
    if owner.column is None:
        return table, None, owner
    if owner.max_rows is not None:
        raise UsageError(
            f"All rows of a person in memory are kept: leave {parameter('max_rows')} out; or save the table to a "
            ".parquet file (AnnData: .h5ad), and pass its path."
        )
    require_table(table, "table")
    table = in_one_order(table, owner.column)
    data, groups = column_of(table, owner.column)
    groups = computed(groups)  # of persisted rows
    if schema is not None:
        _require_units(schema, owner.column, groups)
    return data if schema is None else as_frame(table), groups_of(owner.column, groups), owner


def _require_units(schema: Schema, name: str, groups: Any) -> None:
    """Refuse rows whose privacy unit is one of the missing values of the schema."""
    column = next(column for column in schema.columns if column.name == name)
    missing = {spelled(str(value)) for value in column.missing_values or ()}
    missing |= {spelled(f"{code:.17g}") for code in column.codes}
    lacking = [spelled(str(unit)) in missing for unit in np.asarray(groups).tolist()]
    if any(lacking):
        raise DataError(
            f"{name} of row {lacking.index(True)} (counting from 0) is missing, by the schema, so the privacy unit of "
            "this row is unknown. Give each row one."
        )


def _in_memory(table: Any, schema: Schema | None, owner: Owner) -> Any:
    """Return the rows of numbers of a table in memory."""
    require_table(table, "table")
    frame = as_frame(table, "table")
    require_owner("The table", names_beside(frame), owner)
    lazy = is_a(frame, "dask", "DataFrame")
    if not (lazy or is_a(frame, "pandas", "DataFrame")):
        if schema is not None:
            raise UsageError("Only a DataFrame takes a schema. Leave it out.", parameter="schema")
        columns = laid_out(frame).names if is_labelled(frame) else getattr(frame, "columns", None)
        require_owner("The table", [] if columns is None else list(map(str, columns)), owner)
        return frame
    if not frame.columns.is_unique:
        raise DataError(
            "The table has several columns of one name. Rename them: table.columns = [f'{name}.{place}' for place, "
            "name in enumerate(table.columns)]."
        )
    if schema is None:
        schema = _decided(frame, owner, lazy=lazy)
    elif schema.unit is None:
        require_owner("The table", [str(name) for name in frame.columns], owner, schema)
    return rows_by(schema, frame)


def _without(table: Any, kept: Sequence[str], described: Schema | None) -> str:
    """Return which columns of a DataFrame are left out, as the end of a phrase."""
    columns = table.columns if is_a(table, "pandas", "DataFrame") else ()
    sources = {*kept} if described is None else {column.name for column in described.columns if column.stored}
    left_out = [name for name in map(str, columns) if name not in sources]
    return f", without {listed(left_out)}" if left_out else ""


def _decided(frame: Any, owner: Owner, *, lazy: bool) -> Schema:
    """Return the schema of a DataFrame of numbers; no cell of a lazy one is read before the rows are summed."""
    kinds, found, mixed = types_of(frame), TextColumns(), dict[str, Looks]()
    for name in (name for name, kind in kinds.items() if is_text(kind)):
        try:
            if lazy:
                mixed[name] = Looks.WORDS
            else:
                found.add(name, columns_of(frame, [name])[name])
        except UnfitError:
            mixed[name] = Looks.WORDS
    try:
        return schema_of_numbers(
            "The table",
            list(kinds),
            list(kinds.values()),
            found.unclear | mixed,
            set(filter(counts_rows, kinds)),
            owner,
        )
    except SchemaNeededError as error:
        needed = drafted(Path("table"), error)
        raise DataError(f"{needed} Then pass {parameter('schema', needed.path)}.") from None
