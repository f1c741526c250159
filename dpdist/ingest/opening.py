"""Opening rows, wherever their chunks are: where an ingest wrote them, or where they were registered."""

from __future__ import annotations

from dpdist.errors import quiet
from dpdist.ingest import registered
from dpdist.rows.dataset import RowsTable, open_ingested
from dpdist.storage.arrays import attributes_of
from dpdist.storage.store import AnyStore, store_at


@quiet()
def open_rows(path: AnyStore) -> RowsTable:
    """Open rows that were ingested or registered.

    What is said of the table is read and validated. The chunks are checked when they are read, each time: one that is
    missing or altered is found before any noise is added to a sum of them.

    Parameters
    ----------
    path : str or path-like
        Its folder, or its address (``s3://``, ``gs://``, ``az://``).

    Returns
    -------
    RowsTable
        ``path``, ``rows`` (n), ``columns`` (d), ``dtype``, ``names``, ``budget``, ``dataset_id`` and more. No row is
        read.

    Raises
    ------
    UsageError
        If it is no path; if it is an address of no store that is known here, or one with a password.
    DataError
        If there is none, or it was made neither by an ingest nor by registering a source.

    See Also
    --------
    ingest_rows, register_rows : Make them.
    inspect_path : Says in plain values what stands at a path, and checks the chunks.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> np.save(f"{here.name}/table.npy", np.arange(12.0).reshape(4, 3))
    >>> made = dpdist.ingest_rows(f"{here.name}/table.npy", f"{here.name}/rows.zarr")
    >>> dpdist.open_rows(f"{here.name}/rows.zarr").names
    ('c0', 'c1', 'c2')
    >>> here.cleanup()
    """
    store = store_at(path)
    if (attributes_of(store) or {}).get("format") == registered.FORMAT:
        return registered.open_registered(store)
    return open_ingested(store)
