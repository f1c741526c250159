"""From the rows of a site to its share of a session."""

from __future__ import annotations

from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.ledger.address import AnyLedgerAddress, absolute
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.moment.total import require_summable
from dpdist.core.naming import parameter
from dpdist.core.noise.masks import KeySet
from dpdist.core.pipeline.budget import ledger_place
from dpdist.core.pipeline.release import compute, layout_for
from dpdist.core.privacy import checks
from dpdist.core.release.session import Terms
from dpdist.core.release.share import ShareTransaction
from dpdist.core.rows.table import Table
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage.arrays import ROOT
from dpdist.core.storage.store import Store

_DRAWN = {State.COMMITTED, State.PUBLISHED, State.ADOPTED}


def require_possible(
    table: Table, folder: Store, terms: Terms, site: str, ledger: AnyLedgerAddress | None = None
) -> None:
    """Refuse, before anybody pays, a table whose share could not be charged or drawn; nothing is read or spent."""
    transaction = _transaction(table, folder, terms, site, KeySet(b"", ()), ledger)
    account = transaction.account()
    account.require_current()
    transaction.require_own_key()
    record = account.record(transaction.release_id)
    if record is None or record.state is State.ABORTED:
        account.require_room(terms.share.guarantee, transaction.parameters)


def _transaction(
    table: Table, folder: Store, terms: Terms, site: str, keys: KeySet, ledger: AnyLedgerAddress | None
) -> ShareTransaction:
    account = absolute(ledger_place(table, ledger))
    if table.ledger_id is not None:
        opened = Ledger.charged_for(table.store, table.ledger_id, account)
        if opened.first_neighbours not in {None, terms.neighbours}:  # first: later messages of replace-one say n
            raise RefusedError(
                f"The budget of {table} is for {opened.first_neighbours}, that of its first release, and the session "
                f"for {terms.neighbours}. Nothing was spent. The sites need a session with that relation, or other "
                "rows."
            )
    transaction = ShareTransaction(
        plan=terms.plan_for(site, table), table=table, ledger=account, target=folder.absolute(), terms=terms, site=site,
        keys=keys,
    )  # fmt: skip
    require_summable(table, transaction.bound)
    return transaction


def release_share(
    table: Table, folder: Store, terms: Terms, site: str, keys: KeySet, *,
    ledger: AnyLedgerAddress | None = None, cluster: Cluster,
) -> tuple[ShareTransaction, bool]:  # fmt: skip
    """Write the share of a table to the folder of a session; return it, and whether it was drawn now."""
    if cluster.trusted_worker:
        raise UsageError(
            f"The key of a site is in the state folder of this process. Leave {parameter('trusted', 'worker')} out."
        )
    transaction = _transaction(table, folder, terms, site, keys, ledger)
    checks.warn(terms.share.guarantee.loss, terms.neighbours, terms.rows)
    fresh = transaction.state() not in _DRAWN
    if fresh:
        with cluster.connected() as executor:
            executor.require_visible(table.probe, ROOT)
            layout = layout_for(executor, transaction, cluster)
            fresh = transaction.reserve() is State.RESERVED
            if fresh:
                compute(executor, transaction, cluster, layout)
    else:
        transaction.reserve()  # refuses an id of other parameters
    transaction.publish()
    return transaction, fresh
