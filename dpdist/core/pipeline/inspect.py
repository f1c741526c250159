"""Identify and describe a folder: rows, a folder of periods, a release, a model or scores.

No value of a row and no statistic of the rows is computed. Verifying reads every chunk of private rows, and reports
only damaged ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import zarr
from msgspec import Struct

from dpdist.core._version import __version__
from dpdist.core.errors import DataError, RefusedError, UsageError, quiet
from dpdist.core.ingest import registered
from dpdist.core.ingest.registered import attributes_in, open_rows
from dpdist.core.ledger.address import AnyLedgerAddress, LedgerAddress, parse_address
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.naming import step
from dpdist.core.parallel import available_cores, threaded
from dpdist.core.pipeline import projection, stored
from dpdist.core.pipeline.budget import default_ledger, ledger_place
from dpdist.core.pipeline.facts import Facts, columns_line, schema_line
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.progress import Count, Progress
from dpdist.core.release import artefact
from dpdist.core.release.advice import stage_words
from dpdist.core.release.artefact import Release
from dpdist.core.release.opening import open_release
from dpdist.core.rows import dataset
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.dataset import RowsTable, incomplete
from dpdist.core.rows.periods import is_periodic, open_periods
from dpdist.core.rows.table import Table
from dpdist.core.rows.unit_rows import starts_in
from dpdist.core.rows.units import Unit
from dpdist.core.rows.writing import chunk_key
from dpdist.core.storage.arrays import SESSION_FILE, SHARE_ENDING, Text, attributes_of
from dpdist.core.storage.store import AnyStore, Store, store_at
from dpdist.core.text import as_json, counted, exactly, rounded_norm

_BATCH_BYTES = 512 << 10
"""Rows that are verified at once: half of a core's second-level cache."""
_BUFFERS = 512 << 20
"""Limit for the buffers of all threads, unless one thread needs more."""


@quiet()
def inspect_path(
    path: AnyStore, *, ledger: AnyLedgerAddress | None = None, verify: bool = False, progress: Progress | None = None
) -> Facts:
    """Describe a folder: rows, a folder of periods, a release, a released matrix, a session, a model or scores.

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
    Facts
        ``kind`` (str), ``private`` (bool) and ``path`` (str); ``values`` (dict) depend on the kind. After verifying,
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
    if store.exists(SESSION_FILE):
        return _elsewhere(stored.SESSION, store)
    if str(store).endswith(SHARE_ENDING):
        raise DataError(
            f"{store} is the share of one site in a session, as good as random bits alone. Inspect its folder: "
            f"{step('inspect', str(store).rpartition('/')[0] or '.')}"
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


def _rows(store: Store, ledger: LedgerAddress | None, *, verify: bool, progress: Progress | None) -> Facts:
    table, source, missing = open_rows(store), None, dict[int, str]()
    if table.reference is not None:
        source = attributes_in(table.store, f"{store} is damaged.").asked.source
        size, codec = table.stored_bytes, "that of the source"
    else:
        _require_plausible(table.store, table.chunks)
        missing = dict(incomplete(table))
        size = sum(table.store.size(chunk_key(i)) or 0 for i in range(table.chunks) if i not in missing)
        codec = "Blosc LZ4" if table.compressed else "none"
    state, text, _ = _ledger(_ledger_address(table, ledger), table.ledger_id, table.budget)
    values = {
        "n": table.rows, "d": table.columns, "dtype": table.dtype, "chunks": table.chunks,
        "chunk_rows": table.chunk_rows, "codec": codec, "checksum": "CRC32C", "bytes": size,
        "dataset_id": table.dataset_id, "columns": table.names, "period": table.period, "unit": table.unit,
        "reproduced": table.reproduced, "ledger": state, "source": source,
        **({} if table.schema is None else {"schema": table.schema}),
    }  # fmt: skip
    chunks = f"{counted(table.chunks, 'chunk')} of {counted(table.chunk_rows, 'row')}"
    lines = [
        ("rows", _count(table.rows)),
        ("columns", columns_line(table.names)),
        ("stored", f"{table.dtype}, {chunks}, {size} bytes"),
        ("codec", f"compression {codec}, checksum CRC32C on every chunk"),
        ("in place", f"{source}: read in place, and must not be changed" if source else ""),
        ("data set", table.dataset_id),
        ("period", table.period or ""),
        ("schema", schema_line(table.schema)),
        ("unit", _unit(table.unit)),
        ("reproduced", "released for reproduction: they can have no budget" * table.reproduced),
        ("ledger", text),
    ]
    damaged = _damaged(table, progress, missing) if verify else tuple(missing.values()) or None
    return Facts("rows", "rows", str(store), values, lines, damaged=damaged)


def _require_plausible(store: Store, announced: int) -> None:
    """Refuse damaged metadata that announces far more chunks than exist."""
    stored = sum(1 for _ in store.list("c"))
    if announced > 1000 * (stored + 1):
        raise DataError(f"{store} announces {announced} chunks and contains {stored}. Restore its zarr.json.")


def _periods(store: Store, ledger: LedgerAddress | None, *, verify: bool, progress: Progress | None) -> Facts:
    table = open_periods(store)
    address = ledger or default_ledger(table.store)
    state, text, opened = _ledger(address, table.ledger_id, table.budget)
    periods = {} if opened is None else opened.periods
    if verify and opened is None:
        raise RefusedError(
            f"The seals of the periods of {table.store} are in their ledger, which is not at {address}. Pass its path.",
            parameter="ledger",
        )
    first, last = next(iter(periods), None), next(reversed(periods), None)
    values = {
        "dataset_id": table.dataset_id, "periods_closed": len(periods), "first_period": first, "last_period": last,
        "unit": table.unit, "ledger": state,
    }  # fmt: skip
    lines = [
        ("periods", f"{len(periods)} closed" + (f", {first} to {last}" if periods else "")),
        ("unit", _unit(table.unit)),
        ("data set", table.dataset_id),
        ("ledger", text),
    ]
    damaged = (_damaged(table.span(periods, 0), progress, {}) if periods else ()) if verify else None
    return Facts("periods", "rows that come in periods", str(store), values, lines, damaged=damaged)


def _ledger_address(table: RowsTable, ledger: LedgerAddress | None) -> LedgerAddress | None:
    """Return the address of the ledger of rows, or None if unknown."""
    try:
        return ledger or ledger_place(table)
    except UsageError:
        return None


def _ledger(
    address: LedgerAddress | None, ledger_id: str | None, declared: PrivacyLoss | None
) -> tuple[dict[str, object], str, Ledger | None]:
    """Return the state of a table's ledger, as values and as text, and the ledger if it is in use."""
    opened, refused, balance, state = None, None, None, "in use"
    if ledger_id is None:
        state = "not created"
    elif address is None:
        state = "not named"
    elif not Ledger.stands_at(address):
        state = "not there"
    elif (opened := Ledger(address)).ledger_id != ledger_id:
        opened, state = None, "of other rows"
    budget = "no budget declared" if declared is None else f"budget {declared}"
    text = f"{address or 'its path'} is {state}; {budget}"
    if opened is not None:
        balance = opened.balance()
        try:
            opened.require_current()
        except RefusedError as error:
            refused = str(error)
        text = f"{address}: {budget}; {balance}"
        text += "" if refused is None else f". NOTHING NEW CAN BE RELEASED: {refused}"
    place = None if address is None else str(address)
    values = {"place": place, "state": state, "budget": declared, "balance": balance, "refused": refused}
    return {name: as_json(value) for name, value in values.items()}, text, opened


def _release(store: Store) -> Facts:
    release = open_release(store)
    bound, weights, chosen = release.bound, release.weights, {} if release.stage is None else release.stage.chosen
    whole = "norm of a row" if bound.whole else "clip norm"
    clipped = "numbers" if bound.whole and bound.numbers else "rows"
    norm = rounded_norm(bound.numbers_norm)
    clipped = f"{clipped} were clipped to norm {norm}, and" if bound.numbers else "rows were"
    grid = f"the {whole} is 2^{bound.grid_bits} steps; {clipped} rounded without bias"
    own = release.schema is not None and release.schema.centres(bound)
    times = f"each added {min(weights)} to {max(weights)} times" if weights else ""
    lines = [
        ("release", release.release_id),
        ("mechanism", f"{release.mechanism}, {release.status}"),
        ("proved", release.guarantee_words()),
        *(("caution", caution) for caution in release.cautions),
        (
            "clip norm",
            exactly(bound.clip_norm)
            + (f", of all rows of one {release.unit.column}" if bound.unit_norm and release.unit else "")
            + (", mean released as well" if bound.constant else ""),
        ),
        ("grid", grid),
        ("stage", stage_words(release).strip()),
        ("centre", "categories and booleans are about their middles, which follow from the schema" if own else ""),
        ("shifted by", "a public centre" * (any(bound.centre or ()) and not own and "centre" not in chosen)),
        ("scaled by", "a public scale" * (bound.scale is not None and not own and "scale" not in chosen)),
        (
            "rows",
            ("not published" if release.rows is None else str(release.rows))
            + (", and answers are of weighted ones" if bound.unit_norm else ""),
        ),
        ("columns", columns_line(release.names)),
        ("schema", schema_line(release.schema)),
        ("noise", release.noise.law),
        ("sum of", counted(len(release.releases), "release") if release.releases else ""),
        ("sites", "" if release.session is None else release.session.describe()),
        ("worst case", _worst_case(release)),
        ("window", f"the last {counted(release.window, 'period')}" if release.window else ""),
        ("weights", f"{counted(len(weights), 'period')}, {times}: no second moment" if weights else ""),
        ("made by", f"dpdist {__version__}"),
    ]  # fmt: skip
    values = {**release.attributes(), "cautions": list(release.cautions)}
    private = not release.private_as_claimed
    return Facts("release", "a release", str(store), values, lines, private, release.status, (), release)


def _worst_case(release: Release) -> str:
    """Return what the rows of a site lose if all others work against it, for a release of several."""
    if release.session is None or release.guarantee is None:
        return ""
    return release.session.worst_case(release.guarantee)


class _ScoresHead(Struct):
    dataset_id: Text
    release_id: Text


def _scores(store: Store, *, verify: bool, progress: Progress | None) -> Facts:
    try:
        head = msgspec.convert(attributes_of(store), _ScoresHead)
        array = zarr.open_array(store.for_zarr(), mode="r", zarr_format=3)
        (rows, k), chunk, dtype = array.shape, array.chunks[0], array.dtype
    except Exception:  # noqa: BLE001 - damaged metadata raises various errors
        raise DataError(f"{store} is a damaged scores.zarr. Write it again with {step('project')}.") from None
    _require_plausible(store, array.nchunks)

    def check(index: int) -> str | None:
        try:
            sound = store.size(chunk_key(index)) is not None  # zarr reads a missing chunk as zeros
            np.asarray(array[index * chunk : (index + 1) * chunk])
        except Exception:  # noqa: BLE001 - of zarr and its codecs
            sound = False
        return None if sound else f"Chunk {index} of {store} is missing or was altered. Project the rows again."

    values = {
        "n": rows, "k": k, "dtype": str(dtype), "chunks": array.nchunks, "dataset_id": head.dataset_id,
        "release_id": head.release_id,
    }  # fmt: skip
    lines = [
        ("rows", _count(rows)),
        ("components", f"{k}, of release {head.release_id}"),
        ("stored", f"{dtype}, {counted(array.nchunks, 'chunk')}"),
        ("data set", head.dataset_id),
    ]
    buffer_bytes = 2 * chunk * k * dtype.itemsize
    damaged = _problems(check, range(array.nchunks), buffer_bytes, progress) if verify else None
    return Facts("scores", "scores, private rows in fewer dimensions", str(store), values, lines, damaged=damaged)


def _count(rows: int) -> str:
    return f"{rows} (private under add-remove, public under replace-one)"


def _unit(unit: Unit | None) -> str:
    return "one row" if unit is None else f"all rows of one {unit.column}, {unit.most}"


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
            if isinstance(table, RowsTable) and table.together:
                starts_in(table, index)
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
