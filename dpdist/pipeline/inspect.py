"""What a folder is: rows, a folder of periods, a release, a model or scores, told from what is declared about it.

No value of a row and no statistic of the rows is computed, let alone told. Verifying reads every chunk of private rows
and says only which ones are damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dpdist._util.progress import Count, Progress
from dpdist.errors import DataError, RefusedError, quiet
from dpdist.ledger.address import Place, PlaceGiven, place_given
from dpdist.ledger.ledger import Ledger
from dpdist.naming import step
from dpdist.pca import model, projection
from dpdist.pipeline.budget import default_ledger
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release import artefact
from dpdist.release.artefact import open_release
from dpdist.rows import dataset
from dpdist.rows.chunks import ChunkReader
from dpdist.rows.dataset import RowsTable, chunk_key, incomplete, open_rows
from dpdist.rows.periods import PeriodicTable, is_periodic, open_periods
from dpdist.rows.table import Table
from dpdist.storage.arrays import attributes_of
from dpdist.storage.store import AnyStore, Store, store_at

Facts = dict[str, Any]
_CHECKING = "Checking chunks"


@quiet()
def inspect_path(
    path: AnyStore, *, ledger: PlaceGiven | None = None, verify: bool = False, progress: Progress | None = None
) -> Facts:
    """Return what is declared about a folder: rows, a folder of periods, a release, a model or scores.

    No value of a row and no statistic of the rows is computed, let alone told.

    Parameters
    ----------
    path : str or path-like
        The folder.
    ledger : str or path-like, default None
        Where the budget of rows is kept. None: beside them, ``.ledger`` in place of ``.zarr``.
    verify : bool, default False
        Whether to read every chunk of rows or scores and check it. A release and a model are always read and checked.
    progress : callable, default None
        Called with what is under way (str), how many chunks are checked (int) and how many there are (int). None:
        nobody is told.

    Returns
    -------
    dict
        JSON values by name: ``kind`` (str), ``private`` (bool) and ``path`` (str); the rest depends on the kind. After
        verifying ``damaged`` (list of str) says what is wrong, and is empty if nothing is.

    Raises
    ------
    UsageError
        If the path is an address.
    RefusedError
        If the seals of periods are to be verified, and their ledger is not at its place.
    DataError
        If it is nothing of dpdist's, or too damaged to say what it is, or the ledger is.

    See Also
    --------
    open_rows, open_release, open_model : What is there, as objects.
    Ledger : The budget.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> np.save(f"{here.name}/table.npy", np.arange(12.0).reshape(4, 3))
    >>> table = dpdist.ingest_rows(f"{here.name}/table.npy", f"{here.name}/rows.zarr")
    >>> facts = dpdist.inspect_path(table.path, verify=True)
    >>> facts["kind"], facts["private"], facts["n"], facts["d"], facts["damaged"]
    ('rows', True, 4, 3, [])
    >>> here.cleanup()
    """
    store, ledger = store_at(path), None if ledger is None else place_given(ledger)
    kinds: dict[str, Callable[[], Facts]] = {
        dataset.FORMAT: lambda: _rows(open_rows(store, whole=False), ledger, verify=verify, progress=progress),
        artefact.FORMAT: lambda: _release(store),
        model.FORMAT: lambda: _model(store),
        projection.FORMAT: lambda: _scores(store, verify=verify, progress=progress),
    }
    if is_periodic(store):
        return {"path": str(store)} | _periods(open_periods(store), ledger, verify=verify, progress=progress)
    described = attributes_of(store)
    if described is not None and described.get("format") in kinds:
        return {"path": str(store)} | kinds[described["format"]]()
    if described is not None:
        raise DataError(
            f"{store} has format {described.get('format')!r}, which this version of dpdist does not know. Use the "
            "version that made it."
        )
    if isinstance(where := store.address(), Path) and Ledger.stands_at(where):
        raise DataError(f"{store} is a ledger. Look at it with: {step('ledger show', store)}")
    if not store.exists():
        raise DataError(f"There is nothing at {store}.")
    raise DataError(
        f"{store} is none of dpdist's rows, folders of periods, releases, models or scores. Rows are made with: "
        f"{step('ingest', store, 'ROWS')}"
    )


def _checked(table: Table, chunks: list[int], progress: Progress | None, wrong: dict[int, str]) -> Iterator[str]:
    """Read chunks and yield what is wrong, in their order; ``wrong`` tells what was found without reading."""
    reader, count = ChunkReader(table, table.chunk_rows), Count(progress, _CHECKING, len(chunks))
    for index in chunks:
        try:
            if index in wrong:
                yield wrong[index]
            else:
                for _ in reader.read(index):
                    pass
        except DataError as error:
            yield str(error)
        count.one()


def _rows(table: RowsTable, ledger: Place | None, *, verify: bool, progress: Progress | None) -> Facts:
    _require_plausible(table.store, table.chunks)
    missing = dict(incomplete(table))
    damaged = list(missing.values())
    if verify:
        damaged = list(_checked(table, list(range(table.chunks)), progress, missing))
    beside = table.store if table.period is None else table.store.parent
    return {
        "kind": "rows",
        "private": True,
        "n": table.rows,
        "d": table.columns,
        "dtype": table.dtype,
        "chunks": table.chunks,
        "chunk_rows": table.chunk_rows,
        "codec": "Blosc LZ4" if table.compressed else "none",
        "checksum": "CRC32C",
        "bytes": sum(table.store.size(chunk_key(i)) or 0 for i in range(table.chunks) if i not in missing),
        "dataset_id": table.dataset_id,
        "columns": list(table.names),
        "period": table.period,
        "unit": None if table.unit is None else table.unit.to_json(),
        "reproduced": table.reproduced,
        "ledger": _ledger(ledger or default_ledger(beside), table.ledger_id, table.budget),
        "damaged": damaged if verify or damaged else None,
    }


def _require_plausible(store: Store, announced: int) -> None:
    """Refuse to list what is missing where a damaged head announces chunks without end."""
    stored = sum(1 for _ in store.list("c"))
    if announced > 1000 * (stored + 1):
        raise DataError(f"{store} announces {announced} chunks and holds {stored}. Restore its zarr.json.")


def _periods(table: PeriodicTable, ledger: Place | None, *, verify: bool, progress: Progress | None) -> Facts:
    place = ledger or default_ledger(table.store)
    found = _ledger(place, table.ledger_id, table.budget)
    known = Ledger(place) if found["state"] == "in use" else None
    closed = list(known.periods) if known else []
    facts: Facts = {
        "kind": "periods",
        "private": True,
        "dataset_id": table.dataset_id,
        "periods_closed": len(closed),
        "first_period": closed[0] if closed else None,
        "last_period": closed[-1] if closed else None,
        "ledger": found,
        "damaged": None,
    }
    if verify:
        if known is None:
            raise RefusedError(
                f"The seals of the periods of {table.store} stand in their ledger, which is not at {place}. Name its "
                "place.",
                parameter="ledger",
            )
        span = table.span(known.periods, 0) if closed else None
        facts["damaged"] = [] if span is None else list(_checked(span, list(range(span.chunks)), progress, {}))
    return facts


def _ledger(place: Place, ledger_id: str | None, declared: PrivacyLoss | None) -> Facts:
    """Return where the budget of a table is kept and how it stands."""
    facts: Facts = {
        "place": str(place),
        "state": "not created",
        "budget": None if declared is None else declared.to_json(),
        "balance": None,
        "refused": None,
    }
    if ledger_id is None:
        return facts
    if not Ledger.stands_at(place):
        return facts | {"state": "not there"}
    opened = Ledger(place)
    if opened.ledger_id != ledger_id:
        return facts | {"state": "of other rows"}
    facts |= {"state": "in use", "balance": opened.balance().to_json()}
    try:
        opened.require_current()
    except RefusedError as error:
        facts["refused"] = str(error)
    return facts


def _release(store: Store) -> Facts:
    release = open_release(store)
    return {
        "kind": "release", "private": release.status != "private", **release.attributes(),
        "cautions": list(release.cautions), "damaged": [],
    }  # fmt: skip


def _model(store: Store) -> Facts:
    found, described = model.open_model(store), attributes_of(store) or {}
    return {
        "kind": "model",
        "private": described["status"] != "private",
        "release_id": found.release_id,
        "mechanism": described["mechanism"],
        "status": described["status"],
        "k": len(found.components.components),
        "columns": list(found.names),
        "eigenvalues": found.components.eigenvalues is not None,
        "damaged": [],
    }


def _scores(store: Store, *, verify: bool, progress: Progress | None) -> Facts:
    described = attributes_of(store) or {}
    try:
        array = zarr.open_array(store.for_zarr(), mode="r", zarr_format=3)
        (rows, k), chunk = array.shape, array.chunks[0]
        facts: Facts = {
            "kind": "scores",
            "private": True,
            "n": rows,
            "k": k,
            "dtype": str(array.dtype),
            "chunks": array.nchunks,
            "dataset_id": described["dataset_id"],
            "release_id": described["release_id"],
            "damaged": None,
        }
    except Exception:  # noqa: BLE001 - damaged metadata fails in as many ways as there are libraries
        facts = {}
    if not facts:
        raise DataError(f"{store} is a scores.zarr that was damaged. Write it again with {step('project')}.")
    _require_plausible(store, facts["chunks"])
    if verify:
        facts["damaged"], count = [], Count(progress, _CHECKING, facts["chunks"])
        for index in range(facts["chunks"]):
            try:
                sound = store.size(chunk_key(index)) is not None  # zarr reads a missing chunk as zeros
                np.asarray(array[index * chunk : (index + 1) * chunk])
            except Exception:  # noqa: BLE001 - whatever zarr and its codecs raise
                sound = False
            if not sound:
                facts["damaged"].append(f"Chunk {index} of {store} is missing or was altered. Project the rows again.")
            count.one()
    return facts


def _moved(bound: Facts) -> bool:
    return bound["centre"] is not None or bound["scale"] is not None
