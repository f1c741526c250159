"""Drafts of schemas, the executor of an ingest, and registration of tables in place.

A draft lists the names of a source, for a person to complete. The tasks of an ingest
(:mod:`dpdist.core.ingest.write`) run in threads of this process or on workers. Registration reads rows once and copies
none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from dpdist.core.errors import DataError
from dpdist.core.ingest.collection import collection_of
from dpdist.core.ingest.readers.base import ChoiceRequiredError, Choices, counts_rows
from dpdist.core.ingest.register import asked_of, register_chunks, register_tasks, survey
from dpdist.core.ingest.registered import FORMAT, RegisterRequest, attributes_in
from dpdist.core.ingest.remote import location_of
from dpdist.core.ingest.sources import Opener, SourceLocation, columns_at, text_columns_at
from dpdist.core.ingest.survey import Job, Run, require_publishable
from dpdist.core.ingest.write import writing
from dpdist.core.ledger import state_folder
from dpdist.core.ledger.address import AnyLedgerAddress, parse_address
from dpdist.core.naming import step
from dpdist.core.paths import AnyPath
from dpdist.core.pipeline.budget import default_ledger, taken_up
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.progress import Progress
from dpdist.core.rows.automatic import row_is_unit
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.manifest import SOURCES
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.schema_file import draft_of, read_schema
from dpdist.core.runtime.cluster import Cluster, chosen
from dpdist.core.storage.arrays import attributes_of
from dpdist.core.storage.atomic import make_once
from dpdist.core.storage.store import AnyStore, Store, store_at


def draft_schema(source: SourceLocation | AnyPath | Any, *, header: str | None = None) -> str:
    r"""Draft a schema of a source from the names of its columns.

    No value and no stored type is used, because the draft is public, and libraries choose types from values: every
    column is drafted as a number, with a blank range. Complete it from what the columns mean. A .csv does not show
    whether its first line is a header or a row, whose cells would be published. An index of pandas is left out.

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
    table = collection_of(source)
    if table is None:
        origin: Any = location_of(source)
        try:
            names = columns_at(origin, Path(gettempdir()), header)
        except ChoiceRequiredError as error:
            steps = [f"{step('schema', origin, **{name: value})} ({meaning})" for name, value, meaning in error.ways]
            message = f"{error} Choose: {', or '.join(steps)}. The ingest takes the same."
            raise DataError(message) from None
    elif table.framed:
        origin, names = table, table.names
    else:
        raise DataError(f"{table} has no columns of different kinds, so it needs no schema.")
    require_publishable(origin, names)
    return draft_of(origin, {name: "ignored" if counts_rows(name) else "number" for name in names})


def read_for(schema: AnyPath, source: object, header: str | None) -> Schema:
    """Read a schema for a source; messages about a draft list the text columns, which need no range."""
    if not isinstance(source, str | os.PathLike):
        return read_schema(schema)
    return read_schema(schema, partial(text_columns_at, location_of(source), Path(gettempdir()), header))


@dataclass(frozen=True)
class Workers:
    """Threads of this process, or workers of a cluster that is connected to when needed."""

    cluster: Cluster | None
    progress: Progress | None

    @property
    def named(self) -> bool:
        """Whether a cluster was given."""
        return self.cluster is not None and self.cluster.named

    @contextmanager
    def connected(self, location: Store, choices: Choices) -> Iterator[Run]:
        """Yield a function that runs tasks of a job; all processes see a location, and read files with some choices."""
        cluster = chosen(self.cluster)
        with replace(cluster, progress=cluster.progress or self.progress).connected() as executor:

            def run(job: Job, tasks: Sequence[Any]) -> list[Any]:
                executor.require_visible(location)
                shared = job, location, choices
                results = dict(executor.results(run_job_task, tasks, shared, job.label, f"ingest-{job.name}"))
                return [results[number] for number in range(len(tasks))]

            yield run


def run_job_task(task: Any, shared: tuple[Job, Store, Choices]) -> Any:
    """Run a task of a job."""
    job, location, choices = shared
    with writing(), closing(Opener(location.scratch_folder, choices)) as opener:
        return job(opener, task, bool)


_TASKS_PER_WORKER = 32  # each writes a part of the manifest


def register_rows(
    source: SourceLocation | AnyPath,
    rows: AnyStore,
    *,
    budget: PrivacyLoss | None = None,
    ledger: AnyLedgerAddress | None = None,
    variable: str | None = None,
    cluster: Cluster | None = None,
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
    cluster : Cluster, default None
        Where to read the rows. None: threads of this process.
    say : callable, default None
        Called with messages (str) about the interpretation of the source.

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
    target = store_at(rows)
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
    return f"copy the rows: {step('ingest', 'SOURCE', 'ROWS', privacy_unit=name, max_rows='M')}"


def _register(
    source: SourceLocation, target: Store, request: RegisterRequest, budget: PrivacyLoss | None, cluster: Cluster,
    say: Callable[[str], None] | None,
) -> None:  # fmt: skip
    target.require_new("rows")
    surveyed = survey(source, target, request)
    if say is not None and (message := row_is_unit(source, surveyed.asked, _copied)):
        say(message)
    identify = partial(state_folder.identity_of, place=str(target.absolute()))
    with cluster.connected() as executor:
        task_limit = _TASKS_PER_WORKER * executor.resources().slots
        with register_tasks(surveyed, target, request, budget, identify, task_limit) as (tasks, marks):
            executor.require_visible(tasks[0].aside, SOURCES)
            results = executor.results(register_chunks, tasks, None, "Registering rows", "register")
            marks += [marks_of_task for _, marks_of_task in results]
