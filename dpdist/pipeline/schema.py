"""From the names and stored types of a source to the draft of a schema, for a person to complete."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, TypeVar

from dpdist._util.paths import AnyPath
from dpdist.errors import DataError
from dpdist.ingest.collection import collection_of
from dpdist.ingest.readers.base import UNNAMED, AskError
from dpdist.ingest.remote import Remote, location_of
from dpdist.ingest.survey import require_publishable
from dpdist.naming import step
from dpdist.rows.schema import Schema
from dpdist.rows.schema_file import draft_of, read_schema

if TYPE_CHECKING:
    from dpdist.ingest.sources import SourceLocation

T = TypeVar("T")


def draft_schema(source: SourceLocation | AnyPath | Any, *, header: str | None = None) -> str:
    r"""Draft a schema of a source from the names of its columns and the types that it stores.

    No value is looked at, for what is written would depend on private rows and be published: ranges and categories are
    blanks, to be filled in from public knowledge. Text stores no types: each of its columns is drafted as a number. Nor
    does it say whether its first line names the columns or is a row, whose cells would be published: `header` does.

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
    table = collection_of(source)
    if table is None:
        from dpdist.ingest.sources import columns_at  # noqa: PLC0415 - the readers of all kinds of files

        place = source if isinstance(source, Remote) else location_of(os.fspath(source))
        names, stored = _asked(place, partial(columns_at, place, Path(gettempdir()), header))
        told: object = place
    elif table.framed:
        from dpdist.rows.encoding import types_of  # noqa: PLC0415 - Arrow

        names, told = table.names, table
        stored = list(types_of(table.data).values())
    else:
        raise DataError(f"{table} has no columns of different kinds, which a schema is for.")
    from dpdist.rows.encoding import kind_of  # noqa: PLC0415 - Arrow

    require_publishable(told, names)
    kinds = None
    if stored is not None:
        kinds = ["ignored" if name in UNNAMED else kind_of(each) for name, each in zip(names, stored, strict=True)]
    return draft_of(told, names, kinds)


def read_for(schema: AnyPath, source: object, header: str | None) -> Schema:
    """Read a schema for a source: of a draft it is told which columns of text are no numbers, and get no range."""
    if not isinstance(source, str | os.PathLike):
        return read_schema(schema)
    from dpdist.ingest.sources import words_at  # noqa: PLC0415 - the readers of all kinds of files

    return read_schema(schema, partial(words_at, location_of(os.fspath(source)), Path(gettempdir()), header))


def _asked(place: SourceLocation, question: Callable[[], T]) -> T:
    """Ask a source, and put what it leaves open in terms of a draft."""
    try:
        return question()
    except AskError as error:
        steps = [f"{step('schema', place, **{name: value})} ({meaning})" for name, value, meaning in error.ways]
        said = f"{error} Choose: {', or '.join(steps)}. The ingest takes the same."
    raise DataError(said)
