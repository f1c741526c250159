"""What a folder is: rows, a folder of periods, a release, a model or scores, told from what is declared about it.

No value of a row and no statistic of the rows is computed, let alone told. Verifying reads every chunk of private rows
and says only which ones are damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import zarr
from msgspec import Struct

from dpdist._util.progress import Progress
from dpdist.errors import DataError, RefusedError, UsageError, quiet
from dpdist.ingest import registered
from dpdist.ingest.registered import open_rows
from dpdist.ledger.address import LedgerAddress, LedgerAddressGiven, address_given
from dpdist.ledger.ledger import Ledger
from dpdist.naming import step
from dpdist.pca import model, projection
from dpdist.pipeline.budget import default_ledger, ledger_place
from dpdist.pipeline.facts import (
    AnyFacts,
    LedgerFacts,
    LedgerState,
    ModelFacts,
    PeriodsFacts,
    ReleaseFacts,
    RowsFacts,
    ScoresFacts,
    damaged_chunks,
    found_wrong,
)
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release import artefact
from dpdist.release.artefact import open_release
from dpdist.rows import dataset
from dpdist.rows.dataset import RowsTable, incomplete
from dpdist.rows.periods import PeriodicTable, is_periodic, open_periods
from dpdist.rows.writing import chunk_key
from dpdist.storage.arrays import Text, attributes_of
from dpdist.storage.store import AnyStore, Store, store_at


@quiet()
def inspect_path(
    path: AnyStore, *, ledger: LedgerAddressGiven | None = None, verify: bool = False, progress: Progress | None = None
) -> AnyFacts:
    """Return what is declared about a folder: rows, a folder of periods, a release, a model or scores.

    No value of a row and no statistic of the rows is computed, let alone told.

    Parameters
    ----------
    path : str or path-like
        The folder, or its address.
    ledger : str or path-like, default None
        Where the budget of rows is kept. None: beside them, ``.ledger`` in place of ``.zarr``; of rows at
        an address, the one that this machine remembers.
    verify : bool, default False
        Whether to read every chunk of rows or scores and check it. A release and a model are always read and checked.
    progress : callable, default None
        Called with what is under way (str), how many chunks are checked (int) and how many there are (int). None:
        nobody is told.

    Returns
    -------
    RowsFacts, PeriodsFacts, ReleaseFacts, ModelFacts or ScoresFacts
        ``kind`` (str), ``private`` (bool) and ``path`` (str); the rest depends on the kind. After verifying ``damaged``
        (tuple of str) says what is wrong, and is empty if nothing is. ``to_json()`` returns all of it as JSON values.

    Raises
    ------
    UsageError
        If it is an address of no store that is known here, or one with a password.
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
    >>> facts.kind, facts.private, facts.damaged
    ('rows', True, ())
    >>> facts.to_json()["n"], facts.to_json()["d"]
    (4, 3)
    >>> here.cleanup()
    """
    store, ledger = store_at(path), None if ledger is None else address_given(ledger)
    kinds: dict[str, Callable[[], AnyFacts]] = {
        dataset.FORMAT: lambda: _rows(store, open_rows(store), ledger, verify=verify, progress=progress),
        registered.FORMAT: lambda: _registered(store, open_rows(store), ledger, verify=verify, progress=progress),
        artefact.FORMAT: lambda: _release(store),
        model.FORMAT: lambda: _model(store),
        projection.FORMAT: lambda: _scores(store, verify=verify, progress=progress),
    }
    if is_periodic(store):
        return _periods(store, open_periods(store), ledger, verify=verify, progress=progress)
    described = attributes_of(store)
    if described is not None and described.get("format") in kinds:
        return kinds[described["format"]]()
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


def _rows(
    store: Store, table: RowsTable, ledger: LedgerAddress | None, *, verify: bool, progress: Progress | None
) -> RowsFacts:
    _require_plausible(table.store, table.chunks)
    missing = dict(incomplete(table))
    damaged = tuple(missing.values())
    if verify:
        damaged = damaged_chunks(table, range(table.chunks), progress, missing)
    return _declared(
        store,
        table,
        _place(table, ledger),
        damaged if verify or damaged else None,
        size=sum(table.store.size(chunk_key(i)) or 0 for i in range(table.chunks) if i not in missing),
        codec="Blosc LZ4" if table.compressed else "none",
        source=None,
    )


def _registered(
    store: Store, table: RowsTable, ledger: LedgerAddress | None, *, verify: bool, progress: Progress | None
) -> RowsFacts:
    return _declared(
        store,
        table,
        _place(table, ledger),
        damaged_chunks(table, range(table.chunks), progress, {}) if verify else None,
        size=table.stored_bytes,
        codec="that of the source",
        source=registered.attributes_in(table.store, f"{store} is damaged.").asked.source,
    )


def _declared(
    store: Store,
    table: RowsTable,
    ledger: LedgerAddress | None,
    damaged: tuple[str, ...] | None,
    *,
    size: int,
    codec: str,
    source: str | None,
) -> RowsFacts:
    """Return what is declared about rows."""
    return RowsFacts(
        path=str(store),
        damaged=damaged,
        n=table.rows,
        d=table.columns,
        dtype=table.dtype,
        chunks=table.chunks,
        chunk_rows=table.chunk_rows,
        codec=codec,
        checksum="CRC32C",
        bytes=size,
        dataset_id=table.dataset_id,
        columns=table.names,
        period=table.period,
        unit=table.unit,
        reproduced=table.reproduced,
        ledger=_ledger(ledger, table.ledger_id, table.budget)[0],
        source=source,
        schema=table.schema,
    )


def _require_plausible(store: Store, announced: int) -> None:
    """Refuse to list what is missing where a damaged head announces chunks without end."""
    stored = sum(1 for _ in store.list("c"))
    if announced > 1000 * (stored + 1):
        raise DataError(f"{store} announces {announced} chunks and holds {stored}. Restore its zarr.json.")


def _periods(
    store: Store, table: PeriodicTable, ledger: LedgerAddress | None, *, verify: bool, progress: Progress | None
) -> PeriodsFacts:
    place = ledger or default_ledger(table.store)
    facts, opened = _ledger(place, table.ledger_id, table.budget)
    periods = {} if opened is None else opened.periods
    damaged = None
    if verify:
        if opened is None:
            raise RefusedError(
                f"The seals of the periods of {table.store} stand in their ledger, which is not at {place}. Name its "
                "place.",
                parameter="ledger",
            )
        span = table.span(periods, 0) if periods else None
        damaged = () if span is None else damaged_chunks(span, range(span.chunks), progress, {})
    return PeriodsFacts(
        path=str(store),
        damaged=damaged,
        dataset_id=table.dataset_id,
        periods_closed=len(periods),
        first_period=next(iter(periods), None),
        last_period=next(reversed(periods), None),
        unit=table.unit,
        ledger=facts,
    )


def _place(table: RowsTable, ledger: LedgerAddress | None) -> LedgerAddress | None:
    """Return where the ledger of rows is; None where nobody here knows."""
    try:
        return ledger or ledger_place(table)
    except UsageError:
        return None


def _ledger(
    place: LedgerAddress | None, ledger_id: str | None, declared: PrivacyLoss | None
) -> tuple[LedgerFacts, Ledger | None]:
    """Return where the budget of a table is kept and how it stands, and its ledger if that is in use."""
    if ledger_id is None:
        return LedgerFacts(None if place is None else str(place), LedgerState.NOT_CREATED, declared), None
    if place is None:
        return LedgerFacts(None, LedgerState.NOT_NAMED, declared), None
    if not Ledger.stands_at(place):
        return LedgerFacts(str(place), LedgerState.NOT_THERE, declared), None
    opened = Ledger(place)
    if opened.ledger_id != ledger_id:
        return LedgerFacts(str(place), LedgerState.OF_OTHER_ROWS, declared), None
    balance, refused = opened.balance(), None
    try:
        opened.require_current()
    except RefusedError as error:
        refused = str(error)
    return LedgerFacts(str(place), LedgerState.IN_USE, declared, balance, refused), opened


def _release(store: Store) -> ReleaseFacts:
    release = open_release(store)
    return ReleaseFacts(path=str(store), private=not release.private_as_claimed, damaged=(), release=release)


class _ModelHead(Struct):
    mechanism: Text
    status: Text


def _model(store: Store) -> ModelFacts:
    opened = model.open_model(store)
    try:
        said = msgspec.convert(attributes_of(store), _ModelHead)
    except ValueError:
        raise DataError(f"{store} is a model.zarr that was damaged. Write it again with {step('pca')}.") from None
    return ModelFacts(
        path=str(store),
        private=said.status != "private",
        damaged=(),
        release_id=opened.release_id,
        mechanism=said.mechanism,
        status=said.status,
        k=len(opened.components.components),
        columns=opened.names,
        eigenvalues=opened.components.eigenvalues is not None,
        schema=opened.schema,
        correlation=opened.correlation,
    )


class _ScoresHead(Struct):
    dataset_id: Text
    release_id: Text


def _scores(store: Store, *, verify: bool, progress: Progress | None) -> ScoresFacts:
    try:
        said = msgspec.convert(attributes_of(store), _ScoresHead)
        array = zarr.open_array(store.for_zarr(), mode="r", zarr_format=3)
        (rows, k), chunk = array.shape, array.chunks[0]
        facts: ScoresFacts | None = ScoresFacts(
            path=str(store),
            n=rows,
            k=k,
            dtype=str(array.dtype),
            chunks=array.nchunks,
            dataset_id=said.dataset_id,
            release_id=said.release_id,
        )
    except Exception:  # noqa: BLE001 - damaged metadata fails in as many ways as there are libraries
        facts = None
    if facts is None:
        raise DataError(f"{store} is a scores.zarr that was damaged. Write it again with {step('project')}.")
    _require_plausible(store, facts.chunks)
    if not verify:
        return facts

    def check(index: int) -> str | None:
        try:
            sound = store.size(chunk_key(index)) is not None  # zarr reads a missing chunk as zeros
            np.asarray(array[index * chunk : (index + 1) * chunk])
        except Exception:  # noqa: BLE001 - whatever zarr and its codecs raise
            sound = False
        return None if sound else f"Chunk {index} of {store} is missing or was altered. Project the rows again."

    taken = 2 * chunk * facts.k * array.dtype.itemsize
    return replace(facts, damaged=found_wrong(check, range(facts.chunks), taken, progress))
