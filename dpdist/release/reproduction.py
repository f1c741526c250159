"""Rows for reproduction, or rows with a budget: a table is one of the two for ever, and its metadata remember which.

A release for reproduction may be the exact second moment, and no ledger charges it. Whoever then sees a charged release
of the same rows subtracts the two, and has its noise: nothing that the ledger promises is left. So the first of the
two excludes the other, whichever it was, and wherever the ledger is kept by now, also where copies of the rows were
made before (:mod:`dpdist.ledger.state_folder`). Both look and write while they hold the folder of the rows and what was
seen of their data set, so that of two at once one is refused.
"""

from __future__ import annotations

from dpdist.errors import DataError, RefusedError
from dpdist.ingest.opening import open_rows
from dpdist.ledger import state_folder
from dpdist.naming import step
from dpdist.rows.dataset import RowsTable, mark_reproduced
from dpdist.rows.table import Table
from dpdist.storage.store import Store


def require_undeclared(table: Table) -> None:
    """Refuse rows for which a budget was ever declared.

    The rows' own metadata tell: a ledger that was moved away, that lies in a database, or that was not created yet
    counts too. Of rows that were copied before they had one, what was seen of their data set tells. Rows that come in
    periods always have a budget.
    """
    copied = state_folder.seen(table.dataset_id).ledger_id is not None
    if not copied and table.budget is None and table.ledger_id is None and not table.periodic:
        return
    raise RefusedError(
        f"A budget is declared for {table}{', or for a copy of it' if copied else ''}, and a release for "
        "reproduction is charged to no ledger: it would undo what the budget promises. No row was read, and nothing "
        f"was written. To reproduce, ingest the source again without a budget: {step('ingest', 'SOURCE', 'ROWS')}."
    )


def admit(table: Table) -> None:
    """Let rows be released for reproduction: refuse those that have a budget, and mark the others; idempotent."""
    require_undeclared(table)
    with table.store.locked(), state_folder.held(table.dataset_id) as data:
        found = open_rows(table.store)
        require_undeclared(found)
        if found.dataset_id != table.dataset_id:
            raise DataError(f"{table} was replaced by other rows meanwhile. Run the same command again.")
        if not state_folder.seen(table.dataset_id).reproduced:
            data.write(state_folder.Seen(reproduced=True))
        if not found.reproduced:
            mark_reproduced(found)


def require_unreproduced(table: RowsTable) -> None:
    """Refuse a budget for rows that were released for reproduction; hold ``table.store.locked()`` meanwhile."""
    if table.reproduced:
        raise reproduced(table.store)


def reproduced(rows: Store) -> RefusedError:
    """Return what is said where rows, or a copy of them, were released for reproduction and shall have a budget."""
    return RefusedError(
        f"A release for reproduction was made of {rows}, or of a copy of it, perhaps without any noise. Whoever has "
        "that release can remove the noise from any other release of these rows, so no budget can promise anything. "
        "Nothing was written. If nobody has it, delete it and these rows, and ingest the source again with a budget: "
        f"{step('ingest', 'SOURCE', 'ROWS', budget_epsilon='E')}."
    )
