"""What a folder is: rows, a folder of periods, a release, a model or scores, told from what is declared about it.

No value of a row and no statistic of the rows is computed, let alone told. Verifying reads every chunk of private rows
and says only which ones are damaged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import zarr
from msgspec import Struct

from dpdist._util.parallel import available_cores, threaded
from dpdist._util.progress import Count, Progress
from dpdist.errors import DataError, RefusedError, UsageError, quiet
from dpdist.ingest import registered
from dpdist.ingest.registered import attributes_in, open_rows
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
)
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release import artefact
from dpdist.release.artefact import open_release
from dpdist.rows import dataset
from dpdist.rows.chunks import ChunkReader
from dpdist.rows.dataset import RowsTable, incomplete
from dpdist.rows.periods import is_periodic, open_periods
from dpdist.rows.table import Table
from dpdist.rows.writing import chunk_key
from dpdist.storage.arrays import Text, attributes_of
from dpdist.storage.store import AnyStore, Store, store_at

_PIECE_BYTES = 512 << 10
"""Rows that are read and checked at once: half of a core's second-level cache."""
_BUFFERS = 512 << 20
"""Bytes of the buffers of all threads, at most, unless one thread needs more."""


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
    store, place = store_at(path), None if ledger is None else address_given(ledger)
    rows = partial(_rows, store, place, verify=verify, progress=progress)
    kinds: dict[str, Callable[[], AnyFacts]] = {
        dataset.FORMAT: rows,
        registered.FORMAT: rows,
        artefact.FORMAT: partial(_release, store),
        model.FORMAT: partial(_model, store),
        projection.FORMAT: partial(_scores, store, verify=verify, progress=progress),
    }
    if is_periodic(store):
        return _periods(store, place, verify=verify, progress=progress)
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


def _rows(store: Store, ledger: LedgerAddress | None, *, verify: bool, progress: Progress | None) -> RowsFacts:
    table, source = open_rows(store), None
    missing: dict[int, str] = {}
    if table.reference is not None:
        source = attributes_in(table.store, f"{store} is damaged.").asked.source
        size, codec = table.stored_bytes, "that of the source"
    else:
        _require_plausible(table.store, table.chunks)
        missing = dict(incomplete(table))
        size = sum(table.store.size(chunk_key(i)) or 0 for i in range(table.chunks) if i not in missing)
        codec = "Blosc LZ4" if table.compressed else "none"
    damaged = tuple(missing.values()) or None
    if verify:
        damaged = _damaged(table, progress, missing)
    return RowsFacts(
        path=str(store), damaged=damaged, n=table.rows, d=table.columns, dtype=table.dtype, chunks=table.chunks,
        chunk_rows=table.chunk_rows, codec=codec, checksum="CRC32C", bytes=size, dataset_id=table.dataset_id,
        columns=table.names, period=table.period, unit=table.unit, reproduced=table.reproduced,
        ledger=_ledger(_place(table, ledger), table.ledger_id, table.budget)[0], source=source, schema=table.schema,
    )  # fmt: skip


def _require_plausible(store: Store, announced: int) -> None:
    """Refuse to list what is missing where a damaged head announces chunks without end."""
    stored = sum(1 for _ in store.list("c"))
    if announced > 1000 * (stored + 1):
        raise DataError(f"{store} announces {announced} chunks and holds {stored}. Restore its zarr.json.")


def _periods(store: Store, ledger: LedgerAddress | None, *, verify: bool, progress: Progress | None) -> PeriodsFacts:
    table = open_periods(store)
    place = ledger or default_ledger(table.store)
    facts, opened = _ledger(place, table.ledger_id, table.budget)
    periods = {} if opened is None else opened.periods
    if verify and opened is None:
        raise RefusedError(
            f"The seals of the periods of {table.store} stand in their ledger, which is not at {place}. Name "
            "its place.",
            parameter="ledger",
        )
    damaged = None
    if verify:
        damaged = _damaged(table.span(periods, 0), progress, {}) if periods else ()
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
    where = None if place is None else str(place)
    if ledger_id is None:
        return LedgerFacts(where, LedgerState.NOT_CREATED, declared), None
    if place is None:
        return LedgerFacts(where, LedgerState.NOT_NAMED, declared), None
    if not Ledger.stands_at(place):
        return LedgerFacts(where, LedgerState.NOT_THERE, declared), None
    opened = Ledger(place)
    if opened.ledger_id != ledger_id:
        return LedgerFacts(where, LedgerState.OF_OTHER_ROWS, declared), None
    refused = None
    try:
        opened.require_current()
    except RefusedError as error:
        refused = str(error)
    return LedgerFacts(where, LedgerState.IN_USE, declared, opened.balance(), refused), opened


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
    return replace(facts, damaged=_wrong(check, range(facts.chunks), taken, progress))


def _damaged(table: Table, progress: Progress | None, known: dict[int, str]) -> tuple[str, ...]:
    """Read all chunks of a table and return what is wrong, in their order; of some that is known."""
    piece = max(1, _PIECE_BYTES // (8 * table.columns))
    own = threading.local()  # a reader has buffers

    def check(index: int) -> str | None:
        if index in known:
            return known[index]
        if not hasattr(own, "reader"):
            own.reader = ChunkReader(table, piece)
        try:
            for _ in own.reader.read(index):
                pass
        except DataError as error:
            return str(error)
        return None

    return _wrong(check, range(table.chunks), table.buffer_bytes(piece), progress)


def _wrong(
    check: Callable[[int], str | None], chunks: Sequence[int], buffer_bytes: int, progress: Progress | None
) -> tuple[str, ...]:
    """Check chunks, a thread for each core as far as memory goes, and return what is said of them, in their order."""
    count = Count(progress, "Checking chunks", len(chunks))
    wrong = []
    with threaded(max(1, min(available_cores(), _BUFFERS // max(1, buffer_bytes)))) as each:
        for sentence in each(check, chunks):
            if sentence is not None:
                wrong.append(sentence)
            count.one()
    return tuple(wrong)
