"""Tables and their budgets: ingest with a declared budget, create the one ledger of a table, verify it.

The budget and the ledger of a table are permanent. If a process dies, the same call completes the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger import state_folder
from dpdist.core.ledger.address import AnyLedgerAddress, LedgerAddress, absolute, parse_address
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.naming import parameter, step
from dpdist.core.pipeline.charged import require_as_charged
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.trusted import reproduced
from dpdist.core.rows.dataset import RowsTable, bind_ledger
from dpdist.core.rows.periods import PeriodicTable, bind_periods, create_periods, is_periodic, open_periods
from dpdist.core.rows.table import Table
from dpdist.core.rows.units import Unit
from dpdist.core.storage.atomic import make_once, require_new
from dpdist.core.storage.store import AnyStore, Store, store_at


def default_ledger(rows: AnyStore) -> Path:
    """Return the default ledger of a rows.zarr: the same path, with ``.ledger`` instead of ``.zarr``."""
    path = store_at(rows).address()
    if not isinstance(path, Path):
        raise UsageError(f"A ledger cannot be created next to {path}. Pass its path or address.", parameter="ledger")
    return path.with_name(path.name.removesuffix(".zarr") + ".ledger")


def ledger_place(table: Table | PeriodicTable, ledger: AnyLedgerAddress | None = None) -> LedgerAddress:
    """Return the address of a table's ledger: the given one, or the default next to the table.

    For rows in an object store, and for a copy whose ledger is elsewhere, it is the one recorded on this machine
    (:mod:`dpdist.core.ledger.state_folder`).
    """
    if ledger is not None:
        return parse_address(ledger)
    rows = table.store.parent if isinstance(table, RowsTable) and table.period is not None else table.store
    local_rows = isinstance(rows.address(), Path)
    if local_rows and Ledger.stands_at(beside := default_ledger(rows)):
        return beside
    record = state_folder.seen(table.dataset_id)
    recorded = None if record.place is None else parse_address(record.place)
    if recorded is None or (local_rows and not (record.ledger_id == table.ledger_id and Ledger.stands_at(recorded))):
        return default_ledger(rows)
    return recorded


def has_private_count(table: Table | PeriodicTable) -> bool:
    """Return whether the number of rows is private: a release under add-remove was charged, or may have been."""
    place, record = absolute(ledger_place(table)), state_folder.seen(table.dataset_id)
    known = table.ledger_id or record.ledger_id
    if not Ledger.stands_at(place) or Ledger(place).ledger_id != known:
        return known is not None
    return charges_add_remove(place)


def charges_add_remove(ledger: LedgerAddress) -> bool:
    """Return whether a release under add-remove was charged to a ledger."""
    return any(each.guarantee.neighbours is Neighbours.ADD_REMOVE for each in Ledger(ledger).records)


def taken_up(rows: Store, budget: PrivacyLoss | None, ledger: LedgerAddress | None) -> RowsTable:
    """Open existing rows, and create the ledger of their budget if there is none."""
    table = open_rows(rows)
    if budget not in {None, table.budget}:
        cure = (
            f"Leave {parameter('budget_epsilon')} out" if table.budget else f"Declare it with {step('ledger create')}"
        )
        raise UsageError(
            f"{rows} exists already, with {f'a budget of {table.budget}' if table.budget else 'no budget'}, not "
            f"{budget}; a budget is declared once. {cure}, or choose another path for the rows."
        )
    if ledger is not None and table.ledger_id is not None and _id_at(ledger) != table.ledger_id:
        location = state_folder.seen(table.dataset_id).place
        description = f"the ledger {location}" if location is not None else f"a ledger with the id {table.ledger_id}"
        raise UsageError(
            f"{table.store} exists already, with {description}; {ledger} is another one. The ledger of rows is "
            f"permanent: leave {parameter('ledger')} out or, if it was moved, pass its new path."
        )
    return complete_ingest(rows, ledger)


def _id_at(ledger: LedgerAddress) -> str | None:
    """Return the identifier of the ledger at an address, or None without a ledger."""
    return Ledger(ledger).ledger_id if Ledger.stands_at(ledger) else None


def require_no_ledger(ledger: LedgerAddress) -> None:
    """Refuse a place with a ledger, or with anything else."""
    if ledger.exists() if isinstance(ledger, Path) else Ledger.stands_at(ledger):
        raise DataError(
            f"A ledger exists at {ledger}. It may be the only record of the budget of other rows: keep it, and choose "
            "another name for these rows."
        )
    if isinstance(ledger, Path):
        require_new(ledger, "ledger")


def _require_declared(owner: object, declared: PrivacyLoss | None, budget: PrivacyLoss | None) -> None:
    """Refuse a budget that differs from the declared one."""
    if budget not in {None, declared}:
        raise UsageError(f"The budget of {owner} is {declared}, and a budget is declared once.")


def create_ledger(
    ledger: AnyLedgerAddress, rows: AnyStore, budget: PrivacyLoss | None = None, spent: PrivacyLoss | None = None
) -> Ledger:
    """Create the ledger of rows; if the process dies, the same call completes it.

    The budget and the ledger of a table are permanent: with a second ledger, the same release could be drawn twice. So
    an existing ledger of the rows is opened, and a copy of the rows gets the same one.

    Parameters
    ----------
    ledger : str or path-like
        The folder to create, or ``postgresql+psycopg://USER@HOST/DATABASE?ledger=NAME``.
    rows : str or path-like
        The rows.zarr of the budget.
    budget : PrivacyLoss, default None
        Largest total privacy loss of all releases of these rows. None: the budget declared at the ingest.
    spent : PrivacyLoss, default None
        What releases about the same people cost before this ledger, such as those in a ledger of a version before
        0.1.0. It is taken off the budget, and the guarantee repeats the statement. None: nothing.

    Returns
    -------
    Ledger
        The opened ledger.

    Raises
    ------
    UsageError
        If neither the call nor the rows declare a budget, the rows declare another one, or nothing of it is left.
    RefusedError
        If the rows, or a copy of them, have another ledger already, or were released for reproduction.
    DataError
        If another ledger exists there, or the ledger or the rows cannot be written.

    See Also
    --------
    ingest_rows : Declare the budget with the ingest.
    Ledger : Open an existing ledger.

    References
    ----------
    Rogers, Roth, Ullman & Vadhan 2016, Privacy odometers and filters: pay-as-you-go composition. The theorem behind the
    ledger is in :mod:`dpdist.core.privacy.profile`.

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
        return _create_ledger(ledger, rows, budget, spent)


def _create_ledger(
    ledger: AnyLedgerAddress, rows: Store, budget: PrivacyLoss | None = None, spent: PrivacyLoss | None = None
) -> Ledger:
    """Create the ledger of locked rows."""
    ledger = parse_address(ledger)
    table = open_rows(rows)
    declared = budget or table.budget
    if table.budget is not None:
        _require_declared(rows, table.budget, budget)
    if table.ledger_id is not None:
        if _id_at(ledger) == table.ledger_id:
            return _require_spent(Ledger(ledger), spent)
        raise RefusedError(
            f"{rows} has a ledger already; a second one would spend the budget twice. If it was moved, pass its new "
            f"path as {parameter('ledger')}; if it is lost, restore it from a copy."
        )
    if table.reproduced:
        raise reproduced(rows)
    opened = only_ledger(ledger, rows, table.dataset_id, declared, spent=spent)
    bind_ledger(table, opened.declared, opened.ledger_id)
    return opened


def _require_spent(opened: Ledger, spent: PrivacyLoss | None) -> Ledger:
    """Refuse a ledger that was created with another statement of what was spent."""
    if spent is not None and opened.spent != spent:
        raise UsageError(
            f"{opened} exists already, and was created with {opened.spent or 'nothing'} spent before.",
            parameter="spent",
        )
    return opened


def periodic_table(
    rows: AnyStore,
    budget: PrivacyLoss | None = None,
    ledger: LedgerAddress | None = None,
    unit: Unit | None = None,
) -> tuple[PeriodicTable, Ledger]:
    """Open a folder of periods and its ledger; create or complete them if necessary."""
    rows = store_at(rows)
    if not isinstance(rows.address(), Path):
        raise UsageError(
            f"Rows that come in periods need a folder, and {rows} is an address: simultaneous runs lock the folder, "
            "which an object store does not support."
        )
    address = ledger or default_ledger(rows)

    def make() -> None:
        if budget is None:
            raise UsageError(f"{rows} does not exist yet. Declare a budget for it ({parameter('budget_epsilon')}).")
        if Ledger.stands_at(address):
            require_no_ledger(address)
        create_periods(rows, budget, unit)

    make_once(rows.exists, make)
    with rows.locked():
        table = open_periods(rows)
        _require_declared(rows, table.budget, budget)
        if table.ledger_id is None:
            opened = only_ledger(address, rows, table.dataset_id, table.budget, periodic=True)
            return bind_periods(table, opened.ledger_id), opened
    return table, Ledger.charged_for(rows, table.ledger_id, address)


def only_ledger(
    address: LedgerAddress,
    rows: object,
    dataset_id: str,
    budget: PrivacyLoss | None,
    *,
    periodic: bool = False,
    spent: PrivacyLoss | None = None,
) -> Ledger:
    """Return the ledger of rows without a recorded one; the first of simultaneous calls creates it, for copies too."""
    with state_folder.held(dataset_id) as data:
        opened = _ledger_to_name(address, rows, dataset_id, budget, spent)
        if opened is None:
            opened = Ledger.create(
                address, dataset_id=dataset_id, budget=_declared(rows, budget), periodic=periodic, spent=spent
            )
        if state_folder.seen(dataset_id).ledger_id is None:
            data.write(state_folder.DatasetRecord(opened.ledger_id, str(absolute(address))))
        return opened


def _ledger_to_name(
    address: LedgerAddress, rows: object, dataset_id: str, budget: PrivacyLoss | None, spent: PrivacyLoss | None = None
) -> Ledger | None:
    """Return the ledger for rows without a recorded one; None if it may be created at this address.

    A ledger of this data set may exist there: from a call that died before the rows recorded it, or from a copy of the
    rows on another machine.
    """
    record = state_folder.seen(dataset_id)
    if record.reproduced:
        raise reproduced(rows)
    opened = Ledger(address) if Ledger.stands_at(address) else None
    if record.ledger_id is None:
        declared = _declared(rows, budget)
        if opened is not None and opened.dataset_id == dataset_id and opened.declared == declared:
            return _require_spent(opened, spent)  # before anything is bound to it
        require_no_ledger(address)
        return None
    if opened is None or opened.ledger_id != record.ledger_id:
        raise RefusedError(
            f"{rows} is a copy of rows with the ledger {record.place}; a second one would spend the budget twice. Pass "
            f"that one: {step('ledger create', record.place, rows=rows)}, or {parameter('ledger', record.place)}. "
            "If it was moved, pass its new path. If it is lost, restore it from a copy, and charge the missing "
            f"releases with: {step('ledger adopt', 'LEDGER')}."
        )
    _require_declared(f"the ledger {address} of these rows", opened.declared, budget)
    return _require_spent(opened, spent)


def _declared(rows: object, budget: PrivacyLoss | None) -> PrivacyLoss:
    if budget is None:
        raise UsageError(
            f"{rows} declares no budget. Pass {parameter('budget_epsilon')} and, if a delta is allowed, "
            f"{parameter('budget_delta')}."
        )
    return budget


def ledger_of(rows: AnyStore, ledger: LedgerAddress | None = None, budget: PrivacyLoss | None = None) -> Ledger | None:
    """Return the ledger that a release of rows or of a folder of periods would charge, without creating it."""
    rows = store_at(rows)
    if not rows.exists():
        if budget is not None:
            require_no_ledger(ledger or default_ledger(rows))
        return None
    table = open_periods(rows) if is_periodic(rows) else open_rows(rows)
    if table.ledger_id is not None:
        return Ledger.charged_for(rows, table.ledger_id, ledger or ledger_place(table))
    if table.budget is None:
        return None
    return _ledger_to_name(ledger or default_ledger(rows), rows, table.dataset_id, table.budget)


def complete_ingest(rows: AnyStore, ledger: AnyLedgerAddress | None = None) -> RowsTable:
    """Open rows, and create the ledger of a declared budget if the ingest died before that."""
    rows = store_at(rows)
    table = open_rows(rows)
    if table.budget is None or table.ledger_id is not None:
        return table
    with rows.locked():
        if open_rows(rows).ledger_id is None:  # another run may have been faster
            _create_ledger(ledger or default_ledger(rows), rows)
    return open_rows(rows)


def verify_ledger(ledger: AnyLedgerAddress, releases: Sequence[AnyStore] = ()) -> Ledger:
    """Verify a ledger from its first entry, and that it contains these releases; return it.

    Of an adopted release it contains only the id: the bytes were committed to another copy. Of a release of several
    sites it contains the share of one, so its numbers are not compared.
    """
    opened = Ledger(ledger)
    opened.verify()
    for path in map(store_at, releases):
        require_as_charged(opened, path)
    return opened
