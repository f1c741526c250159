"""From a symmetric matrix with a declared sensitivity to its private release, published once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger import state_folder
from dpdist.core.ledger.address import AnyLedgerAddress, LedgerAddress, absolute, parse_address
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.naming import parameter
from dpdist.core.paths import AnyPath, text_of
from dpdist.core.pipeline.budget import only_ledger
from dpdist.core.privacy import checks
from dpdist.core.privacy.accounting import Filter, caps_for
from dpdist.core.privacy.guarantee import Guarantee, Neighbours, Number, PrivacyLoss, neighbours_of
from dpdist.core.progress import LOGGER
from dpdist.core.release import archive
from dpdist.core.release.request import id_of
from dpdist.core.release.transaction import charge_once, commit_once
from dpdist.core.runtime.checks import forbid_core_dumps
from dpdist.core.storage.arrays import attributes_of
from dpdist.core.storage.store import AnyStore, Store, store_at
from dpdist.literature.matrix import (
    FORMAT,
    MatrixRelease,
    MatrixRequest,
    checked,
    lattice_of,
    open_matrix,
    require_recorded,
)


def release_matrix(
    matrix: AnyPath | npt.ArrayLike,
    release: AnyStore,
    *,
    epsilon: Number,
    delta: Number = 0,
    frobenius: Number | None = None,
    nuclear: Number | None = None,
    l1: Number | None = None,
    neighbours: Neighbours | str = Neighbours.REPLACE_ONE,
    ledger: AnyLedgerAddress | None = None,
    budget: PrivacyLoss | None = None,
    say: Callable[[str], None] | None = None,
) -> MatrixRelease:
    """Publish a symmetric matrix with noise, for a sensitivity that you declare. Repeating the call is free.

    The matrix may be a kernel, a Laplacian, a Hessian or any other function of private data. The declared sensitivity
    bounds how far the matrices of two neighbouring data sets can be apart. **It is not verified**: derive it on paper.
    The mechanism follows from public numbers: ``gaussian`` with a delta; without one, ``two-sided-wishart`` if
    ``l1 / nuclear`` is at least ``0.589 sqrt(d)``, else ``laplace``.

    Parameters
    ----------
    matrix : array_like or path-like
        (d, d), symmetric and finite, integers or floats of at most 64 bits; or a .npy file of it. Private.
    release : str or path-like
        The folder to publish, or its address. An existing folder is never replaced.
    epsilon : str, int, float or Decimal
        Epsilon of this release, a multiple of one millionth.
    delta : str, int, float or Decimal, default 0
        Delta of this release. 0: pure differential privacy. The number of people is unknown here, so delta is not
        compared with it: choose it far below 1/n.
    frobenius : str, int, float or Decimal, default None
        Declared sensitivity in Frobenius norm, from 1e-9 to below 1e10, in units of the matrix. At least one of the
        three is needed; each bounds the others.
    nuclear : str, int, float or Decimal, default None
        The same in nuclear norm.
    l1 : str, int, float or Decimal, default None
        The same in the l1 norm of the upper triangle with the diagonal.
    neighbours : Neighbours or str, default Neighbours.REPLACE_ONE
        The neighbouring relation that the sensitivity is for.
    ledger : str or path-like, default None
        The ledger to charge. Name one ledger for everything about the same people, such as that of their rows. It is
        created if it does not exist. None: for a file, the one next to it; an array needs a ledger.
    budget : PrivacyLoss, default None
        The budget of a new ledger. None: the loss of this release.
    say : callable, default None
        Called with a message (str): which ledger was charged, and what is left. None: the logger ``dpdist`` gets it.

    Returns
    -------
    MatrixRelease
        ``matrix`` ((d, d) float64, in the units of the input), ``deviation`` (of an entry off the diagonal),
        ``guarantee``, ``mechanism`` and more.

    Raises
    ------
    UsageError
        If no sensitivity is declared or it is out of range, or the parameters contradict each other.
    RefusedError
        If the budget does not suffice, or another ledger was charged for this matrix.
    DataError
        If the matrix is not symmetric, not finite or too large for the lattice, or the target exists.

    See Also
    --------
    release_rows : Second moments of rows, with a sensitivity that is enforced.
    open_matrix : Read a release.

    References
    ----------
    Jiang, Xie & Zhang 2016, theorem 5; proofs in :mod:`dpdist.core.mechanisms.sensitivity` and the module of the
    mechanism.

    Examples
    --------
    A Laplacian of a graph with weights in [0, 1]. Another edge changes it by at most ``(e_i - e_j)(e_i - e_j)^T``:

    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> laplacian = np.array([[1.0, -1, 0], [-1, 2, -1], [0, -1, 1]])
    >>> dpdist.release_matrix(
    ...     laplacian, f"{here.name}/out.zarr", epsilon=1, frobenius=2, nuclear=2, l1=3, neighbours="add-remove",
    ...     ledger=f"{here.name}/graph.ledger",
    ... )
    MatrixRelease(two-sided-wishart, d=3, epsilon 1, delta 0, declared sensitivity)
    >>> here.cleanup()
    """
    forbid_core_dumps()
    loss, target = PrivacyLoss.parse(epsilon, delta), store_at(release)
    values, file = _read(matrix)
    declared = {"frobenius": frobenius, "nuclear": nuclear, "l1": l1}
    request = MatrixRequest.of(loss, declared, len(values), neighbours_of(neighbours))
    lattice = lattice_of(values, request.exponent)
    guarantee = request.calibrated.guarantee
    if guarantee is None:
        raise AssertionError("the three mechanisms have a proved guarantee")
    identity = state_folder.identity_of(hashlib.sha256(values.tobytes()).hexdigest(), str(file and file.absolute()))
    address, standing = _address(identity, file, ledger), attributes_of(target) or {}
    if standing.get("format") != FORMAT:
        target.require_new("release")
    checks.warn(loss, request.neighbours, None)
    if standing and not Ledger.stands_at(address) and state_folder.seen(identity).place is None:
        raise _another(target, standing)
    account = _account(address, identity, file, guarantee, budget)
    parameters = request.parameters(identity, _unit_of(account))
    release_id = id_of("x", parameters)
    if standing and standing.get("release_id") != release_id:
        raise _another(target, standing)
    if standing:
        require_recorded(account, target)
    bind = partial(state_folder.charge, identity, account.ledger_id, str(absolute(address)))
    if charge_once(account, release_id, parameters, guarantee, bind) is State.ADOPTED and standing:
        return open_matrix(target)  # published by the copy of the ledger that committed it
    condition = account.condition
    commit_once(account, release_id, lambda head: request.drawn(release_id, lattice, head, condition))
    with account.opened(release_id) as committed:
        archive.publish(committed, target)
    account.published(release_id, str(target.absolute()))
    (say or LOGGER.info)(f"{release_id} is charged to the ledger {address}: {account.balance()}.")
    return open_matrix(target)


def _account(
    address: LedgerAddress, identity: str, file: Path | None, guarantee: Guarantee, budget: PrivacyLoss | None
) -> Ledger:
    """Open the ledger to charge, or create it with a budget for this release."""
    if not Ledger.stands_at(address):
        if (place := state_folder.seen(identity).place) is not None:
            raise RefusedError(
                f"The matrix, or a copy of it, was charged to the ledger {place}; a second one would spend the budget "
                f"twice. Pass {parameter('ledger', place)}, or its new path if it was moved."
            )
        first = budget or guarantee.loss
        if not Filter(first, caps_for(first, guarantee)).holds(guarantee):
            raise UsageError(
                f"A release of {guarantee.loss} exceeds the budget {first}. Nothing was declared or spent."
            )
        only_ledger(address, file or "The matrix", identity, first)
    account = Ledger(address)
    if account.periods:
        raise RefusedError(
            f"The rows of {address} come in periods, and a matrix has none. Nothing was spent. Declare a budget of its "
            f"own with another {parameter('ledger')}, and add both budgets for every person."
        )
    if budget is not None and budget != account.budget:
        raise UsageError(
            f"The budget of {address} is {account.budget}. Leave {parameter('budget_epsilon')} out, or raise it."
        )
    return account


def _another(target: Store, standing: dict[str, Any]) -> DataError:
    return DataError(
        f"{target} contains another release, {standing.get('release_id')}, of another matrix or other parameters. "
        "Choose another path. If it is this matrix, the ledger or the state folder is an older copy: restore it."
    )


def _read(matrix: AnyPath | npt.ArrayLike) -> tuple[npt.NDArray[np.float64], Path | None]:
    """Return the checked matrix, and its file."""
    if not isinstance(matrix, str | os.PathLike):
        return checked(matrix), None
    file = Path(text_of(matrix))
    otherwise = DataError(f"{file} cannot be read as a matrix. Save one with numpy.save('M.npy', M).")
    if not file.exists():
        raise DataError(f"{file} does not exist. Check the name of the file.")
    if not file.is_file():
        raise otherwise
    try:
        with file.open("rb") as content:
            values = np.lib.format.read_array(content, allow_pickle=False)
    except Exception:  # noqa: BLE001 - NumPy fails in many ways on a damaged file
        raise otherwise from None
    return checked(values), file


def _address(identity: str, file: Path | None, ledger: AnyLedgerAddress | None) -> LedgerAddress:
    """Return the ledger to charge: the given one, the one that was charged before, or the one next to the file."""
    place = state_folder.seen(identity).place
    if ledger is not None:
        return parse_address(ledger)
    if file is None:
        raise UsageError(f"An array needs a ledger: pass {parameter('ledger', 'PEOPLE.ledger')}.")
    beside = file.with_suffix(".ledger")
    if place is None or Ledger.stands_at(beside):
        return beside
    if Ledger.stands_at(recorded := parse_address(place)):
        return recorded
    raise DataError(
        f"The ledger {place} of {file} is missing. Restore it from a copy, or move it to {beside}; nothing was spent."
    )


def _unit_of(account: Ledger) -> object:
    """Return the privacy unit of a ledger, which the declared sensitivity is for: that of its first release."""
    alive = (record for record in account.records if record.state is not State.ABORTED)
    first = next(alive, None)
    return None if first is None else first.parameters.get("unit")
