"""From the names and stored types of a source to the draft of a schema, for a person to complete.

Who computes the steps of an ingest (:mod:`dpdist.ingest.write`): threads of this process, or workers.

From files to a table in place: its rows are read once and never copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from dpdist._util.paths import AnyPath
from dpdist._util.progress import Progress
from dpdist.errors import DataError
from dpdist.ingest.collection import collection_of
from dpdist.ingest.readers.base import UNNAMED, AskError, Choices
from dpdist.ingest.register import asked_of, register_chunks, registering, survey
from dpdist.ingest.registered import FORMAT, Asked, attributes_in
from dpdist.ingest.remote import Remote, location_of
from dpdist.ingest.sources import Opener, SourceLocation, columns_at, words_at
from dpdist.ingest.survey import Job, Run, require_publishable
from dpdist.ingest.write import writing
from dpdist.ledger import state_folder
from dpdist.ledger.address import LedgerAddressGiven, address_given
from dpdist.naming import step
from dpdist.pipeline.budget import default_ledger, taken_up
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows.dataset import RowsTable
from dpdist.rows.manifest import SOURCES
from dpdist.rows.schema import Schema
from dpdist.rows.schema_file import draft_of, read_schema
from dpdist.runtime.cluster import Cluster, chosen
from dpdist.runtime.local import Work
from dpdist.storage.arrays import attributes_of
from dpdist.storage.atomic import make_once
from dpdist.storage.store import AnyStore, Store, store_at


def draft_schema(source: SourceLocation | AnyPath | Any, *, header: str | None = None) -> str:
    r"""Draft a schema of a source from the names of its columns and the types that it stores.

    No value is looked at, because the draft is published: ranges and categories are blanks, to be filled in from public
    knowledge. Text stores no types, so each of its columns is drafted as a number; nor does it say whether its first
    line names the columns or is a row, whose cells would be published.

    Parameters
    ----------
    source : str, path-like or DataFrame
        A .csv, .csv.gz or .parquet file, a folder of these, or the address of one; or a DataFrame of pandas or Dask.
    header : {"yes", "no"}, default None
        Whether the first line of a .csv names the columns or is a row; a .csv needs it.

    Returns
    -------
    str
        TOML, to be written to a file and completed. :meth:`Schema.read` says which blanks are left.

    Raises
    ------
    UsageError
        If the source is of a kind that holds numbers only.
    DataError
        If it cannot be read.

    See Also
    --------
    Schema : What it becomes.
    ingest_rows : Takes it.

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
    kind = "number"
    range = []  # fill in
    <BLANKLINE>
    [[column]]
    name = "mass"
    kind = "number"
    range = []  # fill in
    <BLANKLINE>
    >>> here.cleanup()
    """
    from dpdist.rows.encoding import kind_of, types_of  # noqa: PLC0415 - Arrow

    table = collection_of(source)
    if table is None:
        told: Any = source if isinstance(source, Remote) else location_of(os.fspath(source))
        try:
            names, stored = columns_at(told, Path(gettempdir()), header)
        except AskError as error:
            steps = [f"{step('schema', told, **{name: value})} ({meaning})" for name, value, meaning in error.ways]
            said = f"{error} Choose: {', or '.join(steps)}. The ingest takes the same."
            raise DataError(said) from None
    elif table.framed:
        told, names, stored = table, table.names, list(types_of(table.data).values())
    else:
        raise DataError(f"{table} has no columns of different kinds, which a schema is for.")
    require_publishable(told, names)
    kinds = None
    if stored is not None:
        kinds = ["ignored" if name in UNNAMED else kind_of(each) for name, each in zip(names, stored, strict=True)]
    return draft_of(told, names, kinds)


def read_for(schema: AnyPath, source: object, header: str | None) -> Schema:
    """Read a schema for a source: of a draft it is told which columns of text are no numbers, and get no range."""
    if not isinstance(source, str | os.PathLike):
        return read_schema(schema)
    return read_schema(schema, partial(words_at, location_of(os.fspath(source)), Path(gettempdir()), header))


@dataclass(frozen=True)
class Workers:
    """Threads of this process, or workers of a cluster, which is connected to when it is needed."""

    cluster: Cluster | None
    progress: Progress | None

    @property
    def named(self) -> bool:
        """Whether somebody asked for them."""
        return self.cluster is not None and self.cluster.named

    @contextmanager
    def connected(self, place: Store, choices: Choices) -> Iterator[Run]:
        """Give what computes units on them; they see a place, and read files by choices."""
        where = chosen(self.cluster)
        with replace(where, progress=where.progress or self.progress).connected() as engine:

            def run(job: Job, units: Sequence[Any]) -> list[Any]:
                engine.require_visible(place)
                found = dict(engine.results(computed, units, (job, place, choices), job.label, f"ingest-{job.name}"))
                return [found[number] for number in range(len(units))]

            yield run


def computed(unit: Any, shared: tuple[Job, Store, Choices]) -> Any:
    """Compute a unit of a job, on a worker."""
    job, place, choices = shared
    with writing(), closing(Opener(place.scratch_folder, choices)) as opener:
        return job(opener, unit, bool)


_PER_WORKER = 32
"""Parts of the manifest that a worker writes, one task for each."""


def register_rows(
    source: SourceLocation | AnyPath,
    rows: AnyStore,
    *,
    budget: PrivacyLoss | None = None,
    ledger: LedgerAddressGiven | None = None,
    variable: str | None = None,
    cluster: Cluster | None = None,
) -> RowsTable:
    """Make a table of rows where they are, without a copy, and with a budget create its ledger.

    The workers read the rows once. What every part of the source holds is written down, and each later read is held
    against that: a source that changed is an error, and never another table. The table takes all columns, and the
    types that an ingest would, so the same draws make the same release of it.

    Rows that were registered before from the same source are left alone, and so is their ledger. The same files
    registered elsewhere by the same user are a copy: they keep their identity, and share the one ledger.

    Parameters
    ----------
    source : str or path-like
        A .npy or .parquet file, a Zarr array (format 2 or 3, also sharded, or one of a group), a folder of such files
        (also in folders KEY=VALUE), or the address of one. Every worker must see it under the same name. It is not to
        be changed or moved as long as the table is used.
    rows : str or path-like
        The folder to write, or its address: private, and small.
    budget : PrivacyLoss, default None
        As of :func:`dpdist.ingest_rows`.
    ledger : str or path-like, default None
        As of :func:`dpdist.ingest_rows`.
    variable : str, default None
        The array of rows, where a Zarr group holds several.
    cluster : Cluster, default None
        Where to read. None: in threads of this process.

    Returns
    -------
    RowsTable
        The table, as of :func:`dpdist.ingest_rows`.

    Raises
    ------
    UsageError, RefusedError, ResumableError
        As of :func:`dpdist.ingest_rows`. A table of dpdist as the source is refused, too.
    DataError
        If the source is unusable, is of a kind that cannot be read in place, or too much of it has to be read at once;
        or other rows or a ledger exist already.

    See Also
    --------
    ingest_rows : Copies the rows, of more kinds of files, and can keep some columns, or some rows of each privacy unit.
    create_ledger : Declare the budget later.
    inspect_path : Checks every chunk against what was registered.

    Examples
    --------
    Here it is not run.

    >>> import dpdist
    >>> dpdist.register_rows("table.parquet", "rows.zarr")  # doctest: +SKIP
    RowsTable('rows.zarr', 1797 x 64, float64, no budget)
    """
    target = store_at(rows)
    source = source if isinstance(source, Remote) else location_of(os.fspath(source))
    asked = asked_of(source, variable)
    ledger = None if ledger is None else address_given(ledger)
    if budget is not None and ledger is None:
        default_ledger(target)  # refuses a place beside which none can stand, before a row is read

    def there() -> bool:
        if not target.exists():
            return False
        otherwise = (
            f"{target} exists already, and was not registered from this source with these options. Choose another "
            "place for the rows."
        )
        if (attributes_of(target) or {}).get("format") != FORMAT or attributes_in(target, otherwise).asked != asked:
            raise DataError(otherwise)
        return True

    make_once(there, lambda: _register(source, target, asked, budget, chosen(cluster)))
    return taken_up(target, budget, ledger)


def _register(source: SourceLocation, target: Store, asked: Asked, budget: PrivacyLoss | None, where: Cluster) -> None:
    target.require_new("rows")
    found = survey(source, target, asked)
    identify = partial(state_folder.identity_of, place=str(target.absolute()))
    with where.connected() as engine:
        tasks = _PER_WORKER * engine.resources().slots
        with registering(found, target, asked, budget, identify, tasks) as work:
            engine.require_visible(work[0].aside, SOURCES)
            engine.map(Work("register", register_chunks, None, work), "Registering rows")
