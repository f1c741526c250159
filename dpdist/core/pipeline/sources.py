"""From sources to tables of rows: ingest, registration in place, and drafts of schemas.

A draft lists the names of a source, for a person to complete. The tasks of an ingest
(:mod:`dpdist.core.ingest.write`) run in threads of this process or on workers. Registration reads rows once and copies
none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from dpdist.core.errors import DataError, UsageError
from dpdist.core.frames import is_a
from dpdist.core.ingest.collection import collection_of
from dpdist.core.ingest.readers.base import ChoiceRequiredError, Choices, GenotypeRules, counts_rows
from dpdist.core.ingest.register import asked_of, register_chunks, register_tasks, survey
from dpdist.core.ingest.registered import FORMAT, RegisterRequest, attributes_in
from dpdist.core.ingest.remote import Remote, location_of
from dpdist.core.ingest.sources import SourceLocation, columns_at, origin_of
from dpdist.core.ingest.survey import require_publishable
from dpdist.core.ingest.workers import Workers
from dpdist.core.ingest.write import ingest, require_same_origin
from dpdist.core.ledger import state_folder
from dpdist.core.ledger.address import AnyLedgerAddress, parse_address
from dpdist.core.naming import parameter, step
from dpdist.core.paths import AnyPath
from dpdist.core.pipeline.budget import default_ledger, require_no_ledger, taken_up
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.progress import LOGGER, Progress, steps
from dpdist.core.rows.automatic import row_is_unit
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.draft import draft_of
from dpdist.core.rows.manifest import SOURCES
from dpdist.core.rows.person_names import person_columns
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Keep, unit_from
from dpdist.core.runtime.cluster import AnyCluster, Cluster, chosen
from dpdist.core.storage.arrays import attributes_of
from dpdist.core.storage.atomic import make_once
from dpdist.core.storage.store import AnyStore, Store, store_at


def draft_schema(source: SourceLocation | AnyPath | Any, *, header: str | None = None) -> str:
    r"""Draft a schema of a source from the names of its columns.

    No value and no stored type is used: every column is drafted as a number. Complete it from what the columns mean; it
    is refused until ``confirmed = true``. :func:`private_pca` of a file with words drafts one by what its cells look
    like. A .csv does not show whether its first line is a header or a row, whose cells would be published. An index of
    pandas is left out.

    Parameters
    ----------
    source : str, path-like or DataFrame
        A .csv, .csv.gz or .parquet file, a folder of these, or the address of one; or a DataFrame of pandas or Dask.
    header : {"yes", "no"}, default None
        Whether the first line of a .csv is a header; required for a .csv.

    Returns
    -------
    str
        TOML, to be saved and completed. :meth:`Schema.read` reports the remaining blanks.

    Raises
    ------
    UsageError
        If the source is of a kind that contains only numbers.
    DataError
        If it cannot be read.

    See Also
    --------
    Schema : Read the completed file.
    ingest_rows : Ingest rows with a schema.

    Examples
    --------
    >>> import tempfile
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> with open(f"{here.name}/table.csv", "w") as file:
    ...     _ = file.write("age,mass\n41,70.5\n")
    >>> draft = dpdist.draft_schema(f"{here.name}/table.csv", header="yes")
    >>> print(draft[draft.index("[[column]]") :])
    [[column]]
    name = "age"
    kind = "number"  # not read: correct it
    <BLANKLINE>
    [[column]]
    name = "mass"
    kind = "number"  # not read: correct it
    <BLANKLINE>
    >>> here.cleanup()
    """
    table = collection_of(source)
    if table is None:
        origin: Any = location_of(source)
        try:
            names = columns_at(origin, Path(gettempdir()), header)
        except ChoiceRequiredError as error:
            ways = [f"{parameter(name, value)} ({meaning})" for name, value, meaning in error.ways]
            message = f"{error} Add {', or '.join(ways)}. The ingest takes the same."
            raise DataError(message) from None
    elif table.framed:
        origin, names = table, table.names
    else:
        raise DataError(f"{table} has no columns of different kinds, so it needs no schema.")
    require_publishable(origin, names)
    return draft_of(origin, dict.fromkeys(names), person_columns(names), list(filter(counts_rows, names)))


_TASKS_PER_WORKER = 32  # each writes a part of the manifest


def ingest_rows(
    source: SourceLocation | AnyPath | Any,
    rows: AnyStore,
    *,
    budget: PrivacyLoss | None = None,
    ledger: AnyLedgerAddress | None = None,
    columns: Sequence[str] | None = None,
    privacy_unit: str | None = None,
    max_rows: int | None = None,
    keep: Keep | None = None,
    variable: str | None = None,
    missing: int | None = None,
    genotypes: Mapping[str, str] | None = None,
    header: str | None = None,
    rows_dimension: str | None = None,
    schema: Schema | AnyPath | None = None,
    compress: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    cluster: AnyCluster | None = None,
) -> RowsTable:
    """Write a rows.zarr from files or an in-memory table, and create its ledger if there is a budget.

    Existing rows from the same source with the same options are kept, and so is their ledger; a missing ledger is
    created. If the process died, the same call resumes, except for a Dask collection. A file is the same if it was not
    modified, and a Dask collection if its graph is the same.

    Each task writes whole chunks of the table, about 128 MiB, from the parts of the source with their rows: row groups
    of .parquet, chunks of .zarr, rows of .npy, lines of plain text, and whole files of other kinds. A part that spans
    two tasks is read twice. The rows and their bits do not depend on the number of tasks. Each row chunk or partition
    of a Dask collection is computed once, by a worker that writes it to a private file next to the rows; these files
    are then read like any others. So rows of a collection are written twice, and take twice the space meanwhile.

    Parameters
    ----------
    source : str, path-like or table
        A file, a folder of files, or an address (``s3://``, ``gs://``, ``https://``), of the kinds .npy, .npz, .csv,
        .csv.gz, .parquet, .arrow, .feather, .h5ad, .nc and .zarr. Or a table: a Dask array or DataFrame, an xarray
        DataArray or Dataset (rows along the first dimension, the others flattened to columns), a DataFrame from pandas
        or polars, a table of Arrow, a sparse matrix of SciPy or a NumPy array. An index is not a column.
    rows : str or path-like
        The folder to write, or its address (``s3://``, ``gs://``, ``az://``): n x d private rows, of the dtype of the
        source.
    budget : PrivacyLoss, default None
        Largest total privacy loss of all releases of these rows. None: no budget is declared, and nothing can be
        released before :func:`dpdist.create_ledger` declares one.
    ledger : str or path-like, default None
        The ledger of the budget: a folder, or ``postgresql+psycopg://USER@HOST/DATABASE?ledger=NAME``. None: next to
        the rows, with ``.ledger`` instead of ``.zarr``. Required if the rows are at an address and have a budget.
    columns : sequence of str, default None
        The columns to keep, in this order. None: all of them.
    privacy_unit : str, default None
        Identifier of the privacy unit of a row, which is not stored: a column of whole numbers, ``obs/NAME`` of
        AnnData, or an array along the rows of .nc or .zarr. None: every row is a privacy unit.
    max_rows : int, default None
        With `privacy_unit`: the largest number of rows of a unit; further rows are dropped. None: all are kept, stored
        together, and bounded together in a release.
    keep : {"first", "random"}, default None
        Which rows of a privacy unit are kept: the first ones, or a random sample. None: the first ones.
    variable : str, default None
        The array of rows, if a .nc, .zarr or .h5ad file contains several.
    missing : {0, 1, 2}, default None
        Number of alleles that replaces a missing genotype. None: a file with missing genotypes is refused.
    genotypes : mapping of str, default None
        Rules for other genotypes: ``multiallelic``, ``haploid``, ``field``, ``frequencies`` and ``standardise``
        (:mod:`dpdist.formats.genotypes`).
    header : {"yes", "no"}, default None
        Whether the first line of a .csv is a header. None: an ambiguous file is refused.
    rows_dimension : str, default None
        The dimension of the rows, for .nc, .zarr and xarray. None: the first.
    schema : Schema, str or path-like, default None
        Meaning of the columns of text, .parquet, .arrow, .feather and DataFrames: a TOML file, or rows, a release or a
        model with the schema. It is published with every release. None: all columns are numbers.
    compress : bool, default False
        Whether to compress the chunks, for slow disks. Reading then takes more processor time.
    progress : callable, default None
        Called with the current step (str), the number of completed parts (int) and their total (int).
    say : callable, default None
        Called with messages (str) about the interpretation of a file. None: the logger ``dpdist`` gets them (INFO).
    cluster : Cluster, dask.distributed.Client or cluster object, default None
        Where to read files. None, or one with neither a scheduler nor a number of workers: this process, in threads if
        the source has 256 MiB or more. Every worker must see source and rows at the same path. A Dask collection is
        computed on the given cluster, or on the scheduler of its owner.

    Returns
    -------
    RowsTable
        The table: ``path``, ``rows`` (n), ``columns`` (d), ``dtype``, ``names``, ``budget``, ``dataset_id``.

    Raises
    ------
    UsageError
        If an option is invalid, or existing rows declare another budget, or none, or have another ledger.
    RefusedError
        If the rows, or a copy of them, have another ledger already, or were released for reproduction.
    DataError
        If the source is unusable, or other rows or a ledger exist.
    ResumableError
        If the connection to the cluster was lost.

    See Also
    --------
    register_rows : Use the rows in place.
    create_ledger : Declare a budget later.
    open_rows : Open existing rows.
    choose_clip_norm, release_rows : The next steps.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> np.save(f"{here.name}/table.npy", np.arange(12.0).reshape(4, 3))
    >>> dpdist.ingest_rows(f"{here.name}/table.npy", f"{here.name}/rows.zarr")
    RowsTable('rows.zarr', 4 x 3, float64, no budget)
    >>> here.cleanup()
    """
    rows, say = store_at(rows), say or LOGGER.info
    if not isinstance(budget, PrivacyLoss | None):
        raise UsageError("The budget is a dpdist.PrivacyLoss, such as PrivacyLoss.parse(2, 1e-6).", parameter="budget")
    meaning = schema if schema is None or isinstance(schema, Schema) else Schema.read(schema)
    unit = unit_from(privacy_unit, max_rows, keep)
    choices = Choices(variable, missing, header, meaning, _genotypes(genotypes), rows_dimension)
    ledger = None if ledger is None else parse_address(ledger)
    table = collection_of(source, rows_dimension)
    origin: Callable[..., dict[str, object]]
    write: Callable[..., object]
    if table is None:
        if is_a(source, "anndata", "AnnData"):
            raise UsageError(
                "An AnnData object is ingested from a file, with its donors: save it with source.write_h5ad(FILE)."
            )
        if not isinstance(source, str | os.PathLike | Remote):
            raise UsageError(
                "The source is a path, an address, or a table from Dask, xarray, pandas, polars, Arrow, SciPy or "
                f"NumPy, not a value of type {type(source).__name__}."
            )
        path = location_of(source)
        origin = partial(origin_of, path, unit=unit, choices=choices)
        write = partial(
            ingest, path, progress=steps(progress, "Ingesting in this process"), unit=unit, choices=choices, say=say,
            elsewhere=Workers(cluster, progress),
        )  # fmt: skip
    else:
        from dpdist.core.ingest.blocks import ingest_collection  # noqa: PLC0415 - files need no Dask

        _require_of_files(
            privacy_unit=privacy_unit, variable=variable, missing=missing, header=header, genotypes=genotypes or None
        )
        origin = partial(table.origin, schema=meaning)
        write = partial(ingest_collection, table, cluster=cluster, progress=progress, schema=meaning, say=say)

    def exists() -> bool:
        if not rows.exists():
            return False
        if table is None and isinstance(path, Path) and not path.exists() and attributes_of(rows) is None:
            raise UsageError(
                f"{path} does not exist, and {rows} does. They seem to be swapped; the source comes first: "
                f"{step('ingest', rows, path)}."
            )
        require_same_origin(rows, origin(columns=columns, compress=compress))
        return True

    def make() -> None:
        if budget is not None:
            require_no_ledger(ledger or default_ledger(rows))
        write(rows, budget=budget, columns=columns, compress=compress)

    make_once(exists, make)
    return taken_up(rows, budget, ledger)


def _genotypes(rules: Mapping[str, str] | None) -> GenotypeRules | None:
    if not rules:
        return None
    parsed: GenotypeRules | None = import_module("dpdist.formats.genotypes").Genotypes.of(rules)
    return parsed


def _require_of_files(**choices: object) -> None:
    """Refuse options that require a file: UsageError."""
    for name, value in choices.items():
        if value is not None:
            raise UsageError(
                f"{parameter(name)} is for files. Leave it out, or write the table to .parquet or .npy and ingest that."
            )


def register_rows(
    source: SourceLocation | AnyPath,
    rows: AnyStore,
    *,
    budget: PrivacyLoss | None = None,
    ledger: AnyLedgerAddress | None = None,
    variable: str | None = None,
    cluster: AnyCluster | None = None,
    say: Callable[[str], None] | None = None,
) -> RowsTable:
    """Create a table of rows in place, without a copy, and a ledger if there is a budget.

    The workers read the rows once and record a checksum for every part of the source. Every later read is compared with
    it, so a changed source is an error. The table has all columns, with the same types as after an ingest, so the same
    draws give the same release.

    An existing table of the same source is kept, and so is its ledger. Files that the same user registers again
    elsewhere are a copy: the tables have the same identity and share one ledger.

    Parameters
    ----------
    source : str or path-like
        A .npy or .parquet file, a Zarr array (format 2 or 3, also sharded, or one of a group), a folder of such files
        (also in folders KEY=VALUE), or the address of one. Every worker must see it at the same path. It must not be
        changed or moved while the table is used.
    rows : str or path-like
        The folder to write, or its address: private, and small.
    budget : PrivacyLoss, default None
        See :func:`dpdist.ingest_rows`.
    ledger : str or path-like, default None
        See :func:`dpdist.ingest_rows`.
    variable : str, default None
        The array of rows, if a Zarr group contains several.
    cluster : Cluster, dask.distributed.Client or cluster object, default None
        Where to read the rows. None: threads of this process.
    say : callable, default None
        Called with messages (str) about the interpretation of the source. None: the logger ``dpdist`` gets them.

    Returns
    -------
    RowsTable
        The table: see :func:`dpdist.ingest_rows`.

    Raises
    ------
    UsageError, RefusedError, ResumableError
        See :func:`dpdist.ingest_rows`. A table of dpdist as the source is also refused.
    DataError
        If the source is unusable, of a kind that cannot be read in place, or has parts that are too large; or if other
        rows or a ledger exist.

    See Also
    --------
    ingest_rows : Copy rows; supports more kinds of files, a selection of columns, and privacy units.
    create_ledger : Declare a budget later.
    inspect_path : Verify every chunk.

    Examples
    --------
    Not run here:

    >>> import dpdist
    >>> dpdist.register_rows("table.parquet", "rows.zarr")  # doctest: +SKIP
    RowsTable('rows.zarr', 1797 x 64, float64, no budget)
    """
    target, say = store_at(rows), say or LOGGER.info
    source = location_of(source)
    request = asked_of(source, variable)
    ledger = None if ledger is None else parse_address(ledger)
    if budget is not None and ledger is None:
        default_ledger(target)  # before reading rows, refuses an address that cannot have a ledger next to it

    def exists() -> bool:
        if not target.exists():
            return False
        message = (
            f"{target} exists already, and was not registered from this source with these options. Choose another "
            "path for the rows."
        )
        if (attributes_of(target) or {}).get("format") != FORMAT or attributes_in(target, message).asked != request:
            raise DataError(message)
        return True

    make_once(exists, lambda: _register(source, target, request, budget, chosen(cluster), say))
    return taken_up(target, budget, ledger)


def _copied(name: str) -> str:
    """Return how to declare the privacy unit of a source that is registered."""
    return f"copy the rows: {step('ingest', 'SOURCE', 'ROWS', privacy_unit=name)}"


def _register(
    source: SourceLocation, target: Store, request: RegisterRequest, budget: PrivacyLoss | None, cluster: Cluster,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    target.require_new("rows")
    surveyed = survey(source, target, request)
    if message := row_is_unit(source, surveyed.asked, _copied):
        say(message)
    identify = partial(state_folder.identity_of, place=str(target.absolute()))
    with cluster.connected() as executor:
        task_limit = _TASKS_PER_WORKER * executor.resources().slots
        with register_tasks(surveyed, target, request, budget, identify, task_limit) as (tasks, marks):
            executor.require_visible(tasks[0].aside, SOURCES)
            results = executor.results(register_chunks, tasks, None, "Registering rows", "register")
            marks += [marks_of_task for _, marks_of_task in results]
