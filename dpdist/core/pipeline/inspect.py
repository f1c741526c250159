"""Identify and describe a folder: rows, a folder of periods, a release, a model or scores.

No value of a row and no statistic of the rows is computed. Verifying reads every chunk of private rows, and reports
only damaged ones.
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

from dpdist.core.errors import DataError, RefusedError, UsageError, quiet
from dpdist.core.ingest import registered
from dpdist.core.ingest.registered import attributes_in, open_rows
from dpdist.core.ledger.address import AnyLedgerAddress, LedgerAddress, parse_address
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.naming import step
from dpdist.core.parallel import available_cores, threaded
from dpdist.core.pipeline import projection, stored
from dpdist.core.pipeline.budget import default_ledger, ledger_place
from dpdist.core.pipeline.facts import (
    Facts,
    LedgerFacts,
    LedgerState,
    PeriodsFacts,
    ReleaseFacts,
    RowsFacts,
    ScoresFacts,
)
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.progress import Count, Progress
from dpdist.core.release import artefact
from dpdist.core.release.artefact import open_release
from dpdist.core.rows import dataset
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.dataset import RowsTable, incomplete
from dpdist.core.rows.periods import is_periodic, open_periods
from dpdist.core.rows.table import Table
from dpdist.core.rows.writing import chunk_key
from dpdist.core.storage.arrays import Text, attributes_of
from dpdist.core.storage.store import AnyStore, Store, store_at

_BATCH_BYTES = 512 << 10
"""Rows that are verified at once: half of a core's second-level cache."""
_BUFFERS = 512 << 20
"""Limit for the buffers of all threads, unless one thread needs more."""


@quiet()
def inspect_path(
    path: AnyStore, *, ledger: AnyLedgerAddress | None = None, verify: bool = False, progress: Progress | None = None
) -> Facts:
    """Describe a folder: rows, a folder of periods, a release, a released matrix, a model or scores.

    No value of a row and no statistic of the rows is computed.

    Parameters
    ----------
    path : str or path-like
        The folder, or its address.
    ledger : str or path-like, default None
        The ledger of rows. None: next to them, with ``.ledger`` instead of ``.zarr``; for rows at an address, the one
        recorded on this machine.
    verify : bool, default False
        Whether to read and verify every chunk of rows or scores. A release and a model are always verified.
    progress : callable, default None
        Called with the current step (str), the number of verified chunks (int) and their total (int). None: progress is
        not reported.

    Returns
    -------
    RowsFacts, PeriodsFacts, ReleaseFacts, MatrixFacts, ModelFacts or ScoresFacts
        ``kind`` (str), ``private`` (bool) and ``path`` (str); other attributes depend on the kind. After verifying,
        ``damaged`` (tuple of str) describes the damage; it is empty if there is none. ``to_json()`` returns JSON
        values.

    Raises
    ------
    UsageError
        If it is an address of an unsupported store, or one with a password.
    RefusedError
        If periods are to be verified, and their ledger, which contains the seals, does not exist.
    DataError
        If it was not written by dpdist, or it or the ledger is too damaged.

    See Also
    --------
    open_rows, open_release, open_model : Open a folder.
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
    store, address = store_at(path), None if ledger is None else parse_address(ledger)
    rows = partial(_rows, store, address, verify=verify, progress=progress)
    kinds: dict[str, Callable[[], Facts]] = {
        dataset.FORMAT: rows,
        registered.FORMAT: rows,
        artefact.FORMAT: partial(_release, store),
        **{kind: partial(_elsewhere, kind, store) for kind in stored.KINDS},
        projection.FORMAT: partial(_scores, store, verify=verify, progress=progress),
    }
    if is_periodic(store):
        return _periods(store, address, verify=verify, progress=progress)
    described = attributes_of(store)
    if described is not None and described.get("format") in kinds:
        return kinds[described["format"]]()
    if described is not None:
        raise DataError(
            f"{store} has format {described.get('format')!r}, which this version of dpdist does not know. Use the "
            "version that wrote it."
        )
    if isinstance(where := store.address(), Path) and Ledger.stands_at(where):
        raise DataError(f"{store} is a ledger. Inspect it with: {step('ledger show', store)}")
    if not store.exists():
        raise DataError(f"{store} does not exist.")
    raise DataError(
        f"{store} was not written by dpdist: it is not rows, a folder of periods, a release, a model or scores. Create "
        f"rows with: {step('ingest', store, 'ROWS')}"
    )


def _elsewhere(kind: str, store: Store) -> Facts:
    facts: Facts = stored.module_of(kind).facts(store)
    return facts


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
        ledger=_ledger(_ledger_address(table, ledger), table.ledger_id, table.budget)[0], source=source,
        schema=table.schema,
    )  # fmt: skip


def _require_plausible(store: Store, announced: int) -> None:
    """Refuse damaged metadata that announces far more chunks than exist."""
    stored = sum(1 for _ in store.list("c"))
    if announced > 1000 * (stored + 1):
        raise DataError(f"{store} announces {announced} chunks and contains {stored}. Restore its zarr.json.")


def _periods(store: Store, ledger: LedgerAddress | None, *, verify: bool, progress: Progress | None) -> PeriodsFacts:
    table = open_periods(store)
    address = ledger or default_ledger(table.store)
    facts, opened = _ledger(address, table.ledger_id, table.budget)
    periods = {} if opened is None else opened.periods
    if verify and opened is None:
        raise RefusedError(
            f"The seals of the periods of {table.store} are in their ledger, which is not at {address}. Pass its path.",
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


def _ledger_address(table: RowsTable, ledger: LedgerAddress | None) -> LedgerAddress | None:
    """Return the address of the ledger of rows, or None if unknown."""
    try:
        return ledger or ledger_place(table)
    except UsageError:
        return None


def _ledger(
    address: LedgerAddress | None, ledger_id: str | None, declared: PrivacyLoss | None
) -> tuple[LedgerFacts, Ledger | None]:
    """Return the state of a table's ledger, and the ledger if it is in use."""
    location = None if address is None else str(address)
    if ledger_id is None:
        return LedgerFacts(location, LedgerState.NOT_CREATED, declared), None
    if address is None:
        return LedgerFacts(location, LedgerState.NOT_NAMED, declared), None
    if not Ledger.stands_at(address):
        return LedgerFacts(location, LedgerState.NOT_THERE, declared), None
    opened = Ledger(address)
    if opened.ledger_id != ledger_id:
        return LedgerFacts(location, LedgerState.OF_OTHER_ROWS, declared), None
    refused = None
    try:
        opened.require_current()
    except RefusedError as error:
        refused = str(error)
    return LedgerFacts(location, LedgerState.IN_USE, declared, opened.balance(), refused), opened


def _release(store: Store) -> ReleaseFacts:
    release = open_release(store)
    return ReleaseFacts(path=str(store), private=not release.private_as_claimed, damaged=(), release=release)


class _ScoresHead(Struct):
    dataset_id: Text
    release_id: Text


def _scores(store: Store, *, verify: bool, progress: Progress | None) -> ScoresFacts:
    try:
        head = msgspec.convert(attributes_of(store), _ScoresHead)
        array = zarr.open_array(store.for_zarr(), mode="r", zarr_format=3)
        (rows, k), chunk = array.shape, array.chunks[0]
        facts = ScoresFacts(
            path=str(store),
            n=rows,
            k=k,
            dtype=str(array.dtype),
            chunks=array.nchunks,
            dataset_id=head.dataset_id,
            release_id=head.release_id,
        )
    except Exception:  # noqa: BLE001 - damaged metadata raises various errors
        raise DataError(f"{store} is a damaged scores.zarr. Write it again with {step('project')}.") from None
    _require_plausible(store, facts.chunks)
    if not verify:
        return facts

    def check(index: int) -> str | None:
        try:
            sound = store.size(chunk_key(index)) is not None  # zarr reads a missing chunk as zeros
            np.asarray(array[index * chunk : (index + 1) * chunk])
        except Exception:  # noqa: BLE001 - of zarr and its codecs
            sound = False
        return None if sound else f"Chunk {index} of {store} is missing or was altered. Project the rows again."

    buffer_bytes = 2 * chunk * facts.k * array.dtype.itemsize
    return replace(facts, damaged=_problems(check, range(facts.chunks), buffer_bytes, progress))


def _damaged(table: Table, progress: Progress | None, missing: dict[int, str]) -> tuple[str, ...]:
    """Verify all chunks of a table, and return the problems in order, with those of missing chunks."""
    batch = max(1, _BATCH_BYTES // (8 * table.columns))
    local = threading.local()  # each thread has a reader with buffers

    def check(index: int) -> str | None:
        if index in missing:
            return missing[index]
        if not hasattr(local, "reader"):
            local.reader = ChunkReader(table, batch)
        try:
            for _ in local.reader.read(index):
                pass
        except DataError as error:
            return str(error)
        return None

    return _problems(check, range(table.chunks), table.buffer_bytes(batch), progress)


def _problems(
    check: Callable[[int], str | None], chunks: Sequence[int], buffer_bytes: int, progress: Progress | None
) -> tuple[str, ...]:
    """Check chunks in threads, as many as cores and memory allow, and return the problems in order."""
    count = Count(progress, "Checking chunks", len(chunks))
    problems = []
    with threaded(max(1, min(available_cores(), _BUFFERS // max(1, buffer_bytes)))) as thread_map:
        for problem in thread_map(check, chunks):
            if problem is not None:
                problems.append(problem)
            count.one()
    return tuple(problems)
