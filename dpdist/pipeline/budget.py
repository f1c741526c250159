"""Tables and their budgets: ingest with a declared budget, create the one ledger of a table, verify it.

A table has one budget and one ledger for ever. Whatever dies half-way is completed by the same call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist._util.frames import is_a
from dpdist._util.paths import AnyPath
from dpdist._util.progress import Progress, steps
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.ingest.collection import collection_of
from dpdist.ingest.readers.base import Choices
from dpdist.ingest.readers.genotypes import Genotypes
from dpdist.ingest.registered import open_rows
from dpdist.ingest.remote import Remote, location_of
from dpdist.ledger import state_folder
from dpdist.ledger.address import LedgerAddress, LedgerAddressGiven, absolute, address_given
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.naming import parameter, step
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release import archive, trusted
from dpdist.release.artefact import open_release
from dpdist.release.trusted import reproduced
from dpdist.rows.dataset import RowsTable, bind_ledger
from dpdist.rows.periods import PeriodicTable, bind_periods, create_periods, is_periodic, open_periods
from dpdist.rows.schema import Schema
from dpdist.rows.table import Table
from dpdist.rows.units import Keep, Unit, unit_from
from dpdist.storage.arrays import attributes_of
from dpdist.storage.atomic import make_once, require_new
from dpdist.storage.store import AnyStore, Store, store_at

if TYPE_CHECKING:
    from dpdist.ingest.sources import SourceLocation
    from dpdist.runtime.cluster import Cluster


def default_ledger(rows: AnyStore) -> Path:
    """Return where the ledger of a rows.zarr stands unless told otherwise: ``.ledger`` in place of ``.zarr``."""
    scratch_dir = store_at(rows).address()
    if not isinstance(scratch_dir, Path):
        raise UsageError(f"A ledger cannot stand beside {scratch_dir}. Name its place.", parameter="ledger")
    return scratch_dir.with_name(scratch_dir.name.removesuffix(".zarr") + ".ledger")


def ledger_place(table: Table | PeriodicTable, ledger: LedgerAddressGiven | None = None) -> LedgerAddress:
    """Return where the ledger of a table is: as it is named, else beside its folder.

    That of rows in an object store is where this user has seen it first (:mod:`dpdist.ledger.state_folder`).
    """
    if ledger is not None:
        return address_given(ledger)
    rows = table.store.parent if isinstance(table, RowsTable) and table.period is not None else table.store
    if isinstance(rows.address(), Path):
        return default_ledger(rows)
    seen = state_folder.seen(table.dataset_id).place
    return address_given(seen) if seen is not None else default_ledger(rows)


def ingest_rows(
    source: SourceLocation | AnyPath | Any,
    rows: AnyStore,
    *,
    budget: PrivacyLoss | None = None,
    ledger: LedgerAddressGiven | None = None,
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
    cluster: Cluster | None = None,
) -> RowsTable:
    """Write a rows.zarr from files, or from a table of Dask, and, with a budget, create its ledger.

    Rows that were ingested before from the same source with the same options are left alone, and so is their ledger.
    If the ledger was not created yet, it is. If the process died, the same call goes on where it was, but not with a
    table of Dask. Files are the same as long as they are not touched, and tables of Dask if their graphs are.

    Each task writes whole chunks of the table, about 128 MiB, from the parts of the source that hold their rows: row
    groups of .parquet, chunks of .zarr, rows of .npy, lines of plain text, and whole files of other kinds. A part on a
    border is read twice. The rows and their bits do not depend on who reads them. Of a table of Dask, each row chunk or
    partition is written by the worker that computes it. One of unknown length, and each partition of a DataFrame, is
    computed twice, and refused if it is not the same both times.

    Parameters
    ----------
    source : str, path-like or table
        A file, a folder of files, or the address of one (``s3://``, ``gs://``, ``https://``). Read are .npy, .npz,
        .csv, .csv.gz, .parquet, .arrow, .feather, .h5ad, .nc, .zarr, .bed, .pgen, .vcf and .vcf.gz. Or a table: a Dask
        array or DataFrame, an xarray DataArray or Dataset (rows along the first dimension, the others laid out as
        columns), a DataFrame of pandas or polars, a table of Arrow, a sparse matrix of SciPy or a NumPy array. An index
        is no column.
    rows : str or path-like
        The folder to write, or its address (``s3://``, ``gs://``, ``az://``): n x d private rows, of the dtype of the
        source.
    budget : PrivacyLoss, default None
        What all releases of these rows together may cost. None: no budget is declared, so that nothing can be released
        before :func:`dpdist.create_ledger` declares one.
    ledger : str or path-like, default None
        Where the budget is kept: a folder, or ``postgresql+psycopg://USER@HOST/DATABASE?ledger=NAME``. None: beside the
        rows, ``.ledger`` in place of ``.zarr``. To be named where the rows are at an address and have a budget.
    columns : sequence of str, default None
        The columns to keep, in this order. None: all of them.
    privacy_unit : str, default None
        What says whose row it is, and is not stored: a column of whole numbers, ``obs/NAME`` of AnnData, or ``FID`` or
        ``FID,IID`` of a .fam file. None: every row counts alone.
    max_rows : int, default None
        How many rows of each privacy unit are kept at most. Given with `privacy_unit`, and only then.
    keep : {"first", "random"}, default None
        Which of them: the first ones, or a random sample. None: the first ones.
    variable : str, default None
        The array of rows, where a .nc, .zarr or .h5ad file holds several.
    missing : {0, 1, 2}, default None
        The number of alleles to put where a genotype is missing. None: such a file is refused.
    genotypes : mapping of str, default None
        Rules for other genotypes: ``multiallelic``, ``haploid``, ``field``, ``frequencies`` and ``standardise``
        (:mod:`dpdist.ingest.readers.genotypes`).
    header : {"yes", "no"}, default None
        Whether the first line of a .csv names the columns or is a row. None: refused where that is in doubt.
    rows_dimension : str, default None
        The dimension along which the rows are, of .nc, .zarr and xarray. None: the first.
    schema : Schema, str or path-like, default None
        What the columns mean, of text, .parquet, .arrow, .feather and DataFrames: its TOML file, or rows, a release or
        a model that were made with it. It is published with every release. None: all columns are numbers.
    compress : bool, default False
        Whether to compress the chunks, for slow disks. Reading costs more processor time.
    progress : callable, default None
        Called with what is under way (str), how many parts of it are done (int) and how many there are (int).
    say : callable, default None
        Called with sentences (str) about how a file was understood.
    cluster : Cluster, default None
        Where to read files. None, or one that names neither a scheduler nor a number of workers: in this process, in
        threads where the source has 256 MiB or more. Every worker must see source and rows under the same name. A table
        of Dask is computed on a cluster that is named, else where its owner does.

    Returns
    -------
    RowsTable
        The table: ``path``, ``rows`` (n), ``columns`` (d), ``dtype``, ``names``, ``budget``, ``dataset_id``.

    Raises
    ------
    UsageError
        If an option makes no sense, or the rows are there and declare another budget, or none, or have another ledger
        than is named.
    RefusedError
        If the rows, or a copy of them, have another ledger already, or were released for reproduction.
    DataError
        If the source is unusable, or other rows or a ledger exist already.
    ResumableError
        If the cluster was lost half-way.

    See Also
    --------
    register_rows : Leaves the rows where they are.
    create_ledger : Declare the budget later.
    open_rows : Open rows that were ingested before.
    choose_clip_norm, release_rows : What comes next.

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
    rows = store_at(rows)
    if not isinstance(budget, PrivacyLoss | None):
        raise UsageError("The budget is a dpdist.PrivacyLoss, such as PrivacyLoss.parse(2, 1e-6).", parameter="budget")
    from dpdist.ingest.sources import origin_of  # noqa: PLC0415 - the readers of all kinds of files
    from dpdist.ingest.write import ingest, require_same_origin  # noqa: PLC0415 - which only an ingest needs
    from dpdist.pipeline.sources import Workers, read_for  # noqa: PLC0415 - as above

    meaning = schema if schema is None or isinstance(schema, Schema) else read_for(schema, source, header)
    unit = unit_from(privacy_unit, max_rows, keep)
    choices = Choices(variable, missing, header, meaning, Genotypes.of(genotypes or {}), rows_dimension)
    ledger = None if ledger is None else address_given(ledger)
    table = collection_of(source, rows_dimension)
    origin: Callable[..., dict[str, object]]
    write: Callable[..., object]
    if table is None:
        if is_a(source, "anndata", "AnnData"):
            raise UsageError("An AnnData is ingested from its file, with its donors: source.write_h5ad(FILE).")
        if not isinstance(source, str | os.PathLike | Remote):
            raise UsageError(
                "The source is a path, an address, or a table of Dask, xarray, pandas, polars, Arrow, SciPy or NumPy, "
                f"not a value of type {type(source).__name__}."
            )
        place = source if isinstance(source, Remote) else location_of(os.fspath(source))
        origin = partial(origin_of, place, unit=unit, choices=choices)
        write = partial(
            ingest, place, progress=steps(progress, "Ingesting in this process"), unit=unit, choices=choices, say=say,
            elsewhere=Workers(cluster, progress),
        )  # fmt: skip
    else:
        from dpdist.ingest.blocks import ingest_collection  # noqa: PLC0415 - files are ingested without Dask

        _require_of_files(
            privacy_unit=privacy_unit, variable=variable, missing=missing, header=header, genotypes=genotypes or None
        )
        origin = partial(table.origin, schema=meaning)
        write = partial(ingest_collection, table, cluster=cluster, progress=progress, schema=meaning)

    def there() -> bool:
        if not rows.exists():
            return False
        if table is None and isinstance(place, Path) and not place.exists() and attributes_of(rows) is None:
            raise UsageError(
                f"{place} does not exist, and {rows} does: they seem to be swapped. The source comes first: "
                f"{step('ingest', rows, place)}."
            )
        require_same_origin(rows, origin(columns=columns, compress=compress))
        return True

    def make() -> None:
        if budget is not None:
            _require_no_ledger(ledger or default_ledger(rows))
        write(rows, budget=budget, columns=columns, compress=compress)

    make_once(there, make)
    return taken_up(rows, budget, ledger)


def taken_up(rows: Store, budget: PrivacyLoss | None, ledger: LedgerAddress | None) -> RowsTable:
    """Open rows that are there already, and create the ledger of their budget if there is none yet."""
    table = open_rows(rows)
    if budget not in {None, table.budget}:
        cure = (
            f"Leave {parameter('budget_epsilon')} out" if table.budget else f"Declare it with {step('ledger create')}"
        )
        raise UsageError(
            f"{rows} exists already and declares {f'a budget of {table.budget}' if table.budget else 'no budget'}, "
            f"not {budget}; it is declared once. {cure}, or choose another place for the rows."
        )
    if ledger is not None and table.ledger_id is not None and _id_at(ledger) != table.ledger_id:
        known = state_folder.seen(table.dataset_id).place
        which = f"the ledger {known}" if known is not None else f"a ledger with the id {table.ledger_id}"
        raise UsageError(
            f"{table.store} exists already and has {which}; {ledger} is not that ledger. Rows have one for ever: leave "
            f"{parameter('ledger')} out or, if it was moved, name its new place."
        )
    return complete_ingest(rows, ledger)


def _id_at(ledger: LedgerAddress) -> str | None:
    """Return the identity of the ledger at a place; None where there is none."""
    return Ledger(ledger).ledger_id if Ledger.stands_at(ledger) else None


def _require_of_files(**choices: object) -> None:
    """Refuse for a table what is for files: UsageError."""
    for name, value in choices.items():
        if value is not None:
            raise UsageError(
                f"{parameter(name)} is for files: leave it out, or write the table to .parquet or .npy and ingest that."
            )


def _require_no_ledger(ledger: LedgerAddress) -> None:
    if ledger.exists() if isinstance(ledger, Path) else Ledger.stands_at(ledger):
        raise DataError(
            f"A ledger stands at {ledger} already. It may be the only record of what was spent on other rows: keep it, "
            "and choose another name for these."
        )
    if isinstance(ledger, Path):
        require_new(ledger, "ledger")


def _require_declared(what: object, declared: PrivacyLoss | None, budget: PrivacyLoss | None) -> None:
    """Refuse another budget than the one that was declared."""
    if budget not in {None, declared}:
        raise UsageError(f"{what} declares a budget of {declared}, and it is declared once.")


def create_ledger(ledger: LedgerAddressGiven, rows: AnyStore, budget: PrivacyLoss | None = None) -> Ledger:
    """Create the ledger of rows, once; what died half-way is completed by the same call.

    A table has one budget and one ledger for ever: with a second one, the same release could be drawn twice. So the
    ledger that the rows name is opened, and a copy of rows that was made before they had one is given the same one.

    Parameters
    ----------
    ledger : str or path-like
        Where to create it: a folder, or ``postgresql+psycopg://USER@HOST/DATABASE?ledger=NAME``.
    rows : str or path-like
        The rows.zarr whose budget it is.
    budget : PrivacyLoss, default None
        What all releases of these rows together may cost. None: what was declared when they were ingested.

    Returns
    -------
    Ledger
        The opened ledger.

    Raises
    ------
    UsageError
        If neither the call nor the rows declare a budget, or the rows declare another one.
    RefusedError
        If the rows, or a copy of them, have another ledger already, or were released for reproduction.
    DataError
        If another ledger stands there, or it or the rows cannot be written.

    See Also
    --------
    ingest_rows : Declare the budget where the rows are made.
    Ledger : Open a ledger that is there already.

    References
    ----------
    Rogers, Roth, Ullman & Vadhan 2016, Privacy odometers and filters: pay-as-you-go composition. The theorem that the
    ledger relies on is in :mod:`dpdist.privacy.profile`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> np.save(f"{here.name}/table.npy", np.arange(12.0).reshape(4, 3))
    >>> table = dpdist.ingest_rows(f"{here.name}/table.npy", f"{here.name}/rows.zarr")
    >>> budget = dpdist.PrivacyLoss.parse(2, 1e-6)
    >>> ledger = dpdist.create_ledger(f"{here.name}/rows.ledger", table.path, budget)
    >>> str(ledger.budget), ledger.balance().charged
    ('epsilon 2, delta 1e-06', 0)
    >>> here.cleanup()
    """
    rows = store_at(rows)
    with rows.locked():
        return _create_ledger(ledger, rows, budget)


def _create_ledger(ledger: LedgerAddressGiven, rows: Store, budget: PrivacyLoss | None = None) -> Ledger:
    """Create the ledger of rows that are locked."""
    ledger = address_given(ledger)
    table = open_rows(rows)
    declared = budget or table.budget
    if table.budget is not None:
        _require_declared(rows, table.budget, budget)
    if table.ledger_id is not None:
        if _id_at(ledger) == table.ledger_id:
            return Ledger(ledger)
        raise RefusedError(
            f"{rows} has a ledger already; a second one would spend its budget again. If it was moved, pass "
            f"{parameter('ledger')} where it is needed; if it is lost, restore it from a copy."
        )
    if table.reproduced:
        raise reproduced(rows)
    opened = _only_ledger(ledger, rows, table.dataset_id, declared)
    bind_ledger(table, opened.budget, opened.ledger_id)
    return opened


def periodic_table(
    rows: AnyStore,
    budget: PrivacyLoss | None = None,
    ledger: LedgerAddress | None = None,
    unit: Unit | None = None,
) -> tuple[PeriodicTable, Ledger]:
    """Open a folder of periods and its ledger, and create them if there is none; what died half-way is completed."""
    rows = store_at(rows)
    if not isinstance(rows.address(), Path):
        raise UsageError(
            f"Rows that come in periods stand in a folder, and {rows} is an address: several runs at once hold them "
            "against each other, which an object store does not offer."
        )
    place = ledger or default_ledger(rows)

    def make() -> None:
        if budget is None:
            raise UsageError(f"{rows} does not exist yet. Declare a budget for it ({parameter('budget_epsilon')}).")
        if Ledger.stands_at(place):
            _require_no_ledger(place)
        create_periods(rows, budget, unit)

    make_once(rows.exists, make)
    with rows.locked():
        table = open_periods(rows)
        _require_declared(rows, table.budget, budget)
        if table.ledger_id is None:
            opened = _only_ledger(place, rows, table.dataset_id, table.budget, periodic=True)
            return bind_periods(table, opened.ledger_id), opened
    return table, Ledger.charged_for(rows, table.ledger_id, place)


def _only_ledger(
    place: LedgerAddress, rows: Store, dataset_id: str, budget: PrivacyLoss | None, *, periodic: bool = False
) -> Ledger:
    """Return the one ledger of rows that name none yet; create it if there is none.

    Copies of these rows may ask for one as well, at the same time: the first of them creates it.
    """
    with state_folder.held(dataset_id) as data:
        opened = _ledger_to_name(place, rows, dataset_id, budget)
        if opened is None:
            opened = Ledger.create(place, dataset_id=dataset_id, budget=_declared(rows, budget), periodic=periodic)
        if state_folder.seen(dataset_id).ledger_id is None:
            data.write(state_folder.Seen(opened.ledger_id, str(absolute(place))))
        return opened


def _ledger_to_name(place: LedgerAddress, rows: Store, dataset_id: str, budget: PrivacyLoss | None) -> Ledger | None:
    """Return the ledger that rows which name none may name; None if it may be created at this place.

    One may stand there for this very data set: of a call that died before the rows named it, or of a copy of the rows
    on another machine.
    """
    seen = state_folder.seen(dataset_id)
    if seen.reproduced:
        raise reproduced(rows)
    opened = Ledger(place) if Ledger.stands_at(place) else None
    if seen.ledger_id is None:
        declared = _declared(rows, budget)
        if opened is not None and opened.dataset_id == dataset_id and opened.budget == declared:
            return opened
        _require_no_ledger(place)
        return None
    if opened is None or opened.ledger_id != seen.ledger_id:
        raise RefusedError(
            f"{rows} is a copy of rows that have a ledger, {seen.place}; a second one would spend their budget again. "
            f"Name that one: {step('ledger create', seen.place, rows=rows)}, or {parameter('ledger', seen.place)}. "
            "If it was moved, name its new place. If it is lost, restore it from a copy, and charge what the copy "
            f"lacks with: {step('ledger adopt', 'LEDGER')}."
        )
    _require_declared(f"The ledger {place} of these rows", opened.budget, budget)
    return opened


def _declared(rows: Store, budget: PrivacyLoss | None) -> PrivacyLoss:
    if budget is None:
        raise UsageError(
            f"{rows} declares no budget: pass {parameter('budget_epsilon')}, and {parameter('budget_delta')} where one "
            "is allowed."
        )
    return budget


def ledger_of(rows: AnyStore, ledger: LedgerAddress | None = None, budget: PrivacyLoss | None = None) -> Ledger | None:
    """Return the ledger that a release of rows, or of a folder of periods, would charge; nothing is created."""
    rows = store_at(rows)
    if not rows.exists():
        if budget is not None:
            _require_no_ledger(ledger or default_ledger(rows))
        return None
    table = open_periods(rows) if is_periodic(rows) else open_rows(rows)
    if table.ledger_id is not None:
        return Ledger.charged_for(rows, table.ledger_id, ledger or ledger_place(table))
    if table.budget is None:
        return None
    return _ledger_to_name(ledger or default_ledger(rows), rows, table.dataset_id, table.budget)


def complete_ingest(rows: AnyStore, ledger: LedgerAddressGiven | None = None) -> RowsTable:
    """Open rows, and create the ledger of a declared budget if ingest died before it did."""
    rows = store_at(rows)
    table = open_rows(rows)
    if table.budget is None or table.ledger_id is not None:
        return table
    with rows.locked():
        if open_rows(rows).ledger_id is None:  # another run may have been faster
            _create_ledger(ledger or default_ledger(rows), rows)
    return open_rows(rows)


def verify_ledger(ledger: LedgerAddressGiven, releases: Sequence[AnyStore] = ()) -> Ledger:
    """Check a ledger from its first entry, and that it knows of these releases; return it.

    One that was adopted is known by its id alone: its bytes were committed to another copy, and are compared there.
    """
    opened = Ledger(ledger)
    opened.verify()
    for path in map(store_at, releases):
        trusted.require_remembered(opened, path)
        release_id = open_release(path).release_id
        record = opened.record(release_id)
        if record is not None and record.state is State.ADOPTED:
            continue
        with opened.opened(release_id) as committed:
            same = archive.holds(path, committed)
        if not same:
            raise DataError(f"{path} is not what was committed to {ledger}: it was altered. Publish it again.")
    return opened
