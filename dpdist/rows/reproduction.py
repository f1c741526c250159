"""Rows for reproduction, or rows with a budget: a table is one of the two for ever, and its metadata remember which.

A release for reproduction may be the exact second moment, and no ledger charges it. Whoever then sees a charged release
of the same rows subtracts the two, and has its noise: nothing that the ledger promises is left. So the first of the
two excludes the other, whichever it was, and wherever the ledger is kept by now. Both look and write while they hold
the folder of the rows, so that of two at once one is refused.
"""

from __future__ import annotations

from dpdist.errors import DataError, RefusedError
from dpdist.rows.dataset import RowsTable, mark_reproduced, open_rows
from dpdist.staging import locked


def require_undeclared(table: RowsTable) -> None:
    """Refuse rows for which a budget was ever declared.

    The rows' own metadata tell: a ledger that was moved away, that lies in a database, or that was not created yet
    counts too. Rows that come in periods always have a budget.

    Raises
    ------
    RefusedError
        If one was.
    """
    if table.budget is None and table.ledger_id is None and table.period is None and not table.seals:
        return
    raise RefusedError(
        f"A budget is declared for {table.path}, and a release for reproduction is charged to no ledger: it would undo "
        "what the budget promises. No row was read, and nothing was written. To reproduce, ingest the source again "
        "without a budget: dpdist ingest SOURCE ROWS."
    )


def admit(table: RowsTable) -> None:
    """Let rows be released for reproduction: refuse those that have a budget, and mark the others; idempotent.

    Raises
    ------
    RefusedError
        If a budget was ever declared for them.
    DataError
        If other rows stand there by now, or the mark cannot be written.
    """
    require_undeclared(table)
    with locked(table.path):
        found = open_rows(table.path, whole=False)
        require_undeclared(found)
        if found.dataset_id != table.dataset_id:
            raise DataError(f"{table.path} was replaced by other rows meanwhile. Run the same command again.")
        if not found.reproduced:
            mark_reproduced(found)


def require_unreproduced(table: RowsTable) -> None:
    """Refuse a budget for rows that were released for reproduction; hold ``locked(table.path)`` meanwhile.

    Raises
    ------
    RefusedError
        If they were.
    """
    if table.reproduced:
        raise RefusedError(
            f"A release for reproduction was made of {table.path}, perhaps without any noise: whoever has it takes the "
            "noise off any release of these rows, and no budget can promise anything. Nothing was written. If nobody "
            "has it, delete it and these rows, and ingest the source again with a budget: dpdist ingest SOURCE ROWS "
            "--budget-epsilon E."
        )
