"""Rows in memory take the road of all rows: the same fit returns the same release, and nothing is drawn twice."""

from __future__ import annotations

import os
import pickle
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import KFold
from support.ledgers import DiedError, dies

import dpdist
from dpdist import Budget, PrivateCovariance, PrivatePCA
from dpdist.core.errors import DataError, RefusedError
from dpdist.core.ledger import fingerprints
from dpdist.core.ledger import register as releases_of_process
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.memory import MemoryStorage
from dpdist.core.ledger.register import REGISTER, Register
from dpdist.core.mechanisms.gaussian import CalibratedGaussian
from dpdist.core.pipeline import arrays
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release import trusted
from dpdist.core.release.plan import proved

pytestmark = pytest.mark.filterwarnings(
    "ignore:The same number of rows was released", "ignore::dpdist.core.errors.BelowNoiseWarning"
)
ASKED: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": 4}
N, D = 400, 5


@pytest.fixture(autouse=True)
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Let the process know no rows."""
    fresh = Register()
    monkeypatch.setattr("dpdist.estimators.fit.REGISTER", fresh)
    return fresh


def table(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(N, D))


def asked(**changed: Any) -> PrivateCovariance:
    return PrivateCovariance(**{**ASKED, **changed})


SAME: dict[str, Callable[[Any], Any]] = {
    "a copy": lambda rows: rows.copy(),
    "another order": lambda rows: rows[::-1],
    "a Dask array": lambda rows: da.from_array(rows, chunks=(150, 2)),
    "blocks of unknown lengths": lambda rows: (x := da.from_array(rows, chunks=(150, D)))[x[:, 0] > -np.inf],
}
OTHER: dict[str, Callable[[Any], Any]] = {
    "another type": lambda rows: rows.astype(np.float32),
    "names": lambda rows: pd.DataFrame(rows, columns=list("abcde")),
    "one row changed": lambda rows: np.concatenate([rows[:-1], rows[-1:] + 1e-9]),
    "one row more": lambda rows: np.concatenate([rows, rows[:1]]),
    "one row twice for another": lambda rows: np.concatenate([rows[:-1], rows[:1]]),
}
MORE: dict[str, Any] = {"budget_epsilon": 1000, "budget_delta": "1e-4"}
PARAMETERS: list[dict[str, Any]] = [
    {"clip": 5}, {"epsilon": 2}, {"mechanism": "laplace", "delta": None}, {"centre": "none"}, {"grid_bits": 13},
    {"name": "another"}, {"scale": np.full(D, 2.0)},
]  # fmt: skip


@pytest.mark.parametrize("kept", [2**16, 32])
def test_the_same_call_on_the_same_rows_is_returned_again_and_another_is_not(
    register: Register, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """All rows decide whether they are the same, however few keys recognise some of them."""
    monkeypatch.setattr(fingerprints, "KEPT", kept)
    first = asked().fit(table())
    assert first.fresh_
    for name, form in SAME.items():
        for estimator in (asked(), clone(first), PrivatePCA(2, **ASKED, centre="private")):
            again = estimator.fit(form(table()))
            assert (again.fresh_, again.release_.release_id) == (False, first.release_.release_id), name
            assert np.array_equal(again.release_.lattice, first.release_.lattice)
    assert len(register._fits) == 1
    for name, form in OTHER.items():
        made = asked(**MORE).fit(form(table()))
        assert made.fresh_, name
        assert made.release_.release_id != first.release_.release_id
    for changed in PARAMETERS:
        made = asked(**changed, **MORE).fit(table())
        assert made.fresh_, changed
        assert made.release_.release_id != first.release_.release_id
    with pytest.raises(RefusedError, match="already used with other parameters"):
        asked(name="another", clip=7, **MORE).fit(table())


def test_folds_of_a_cross_validation_are_other_rows_and_a_second_validation_is_free() -> None:
    budget, rows = Budget(20, "1e-5"), table()
    folds = [train for train, _ in KFold(4).split(rows)]
    for fresh in (True, False):
        assert [asked(budget=budget).fit(rows[train]).fresh_ for train in folds] == [fresh] * 4
    assert "4 fits charged" in repr(budget)


def test_lazy_rows_that_change_between_two_passes_are_refused_and_their_draw_stays_charged(register: Register) -> None:
    random = da.random.default_rng()
    drawn = random.normal(size=(N, D), chunks=(100, D)).map_blocks(lambda block: block + np.random.normal())
    with pytest.raises(DataError, match="different rows on the second read"):
        asked().fit(drawn)
    assert len(register._fits) == 1


def test_a_fit_that_dies_between_charge_and_commit_goes_on_for_the_same_charge(
    register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, name in ((trusted, "conclude"), (CalibratedGaussian, "draw_band")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, dies)
            with pytest.raises(DiedError):
                asked().fit(table())
    assert asked().fit(table()).fresh_
    assert not asked().fit(table()).fresh_
    assert len(register._fits) == 1


def test_a_release_that_is_not_kept_is_not_drawn_again(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases_of_process, "MOST_BYTES", 0)
    first = asked().fit(table())
    draws = []
    monkeypatch.setattr(trusted, "conclude", lambda *_: draws.append(1))
    with pytest.raises(RefusedError, match=r"this process no longer has it. Nothing was drawn or charged.*name="):
        asked().fit(table())
    assert (draws, len(register._fits)) == ([], 1)
    assert first.release_.lattice.shape == (D + 1, D + 1)


def test_of_many_fits_at_once_one_has_a_release_that_is_not_kept(
    register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(_: int) -> bytes | str:
        try:
            return bytes(asked().fit(table()).release_.lattice)
        except RefusedError as error:
            return str(error)

    monkeypatch.setattr(releases_of_process, "MOST_BYTES", 0)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(fit, range(16)))
    assert len(register._fits) == 1
    assert len([release for release in found if isinstance(release, bytes)]) == 1
    assert all("this process no longer has it" in text for text in found if isinstance(text, str))


def in_fork(*steps: Callable[[], object]) -> bytes:
    """Return what the last of some steps, taken first, says in a fork."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            for step in reversed(steps):
                step()
            os.write(writer, b"drawn")
        except BaseException as error:  # noqa: BLE001 - the child says all
            os.write(writer, str(error).encode() or b"?")
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    return os.read(reader, 10_000)


@pytest.mark.parametrize("dies_at", ["conclude", "the charge", "nowhere"])
def test_a_fork_draws_and_returns_nothing_that_was_charged_before_it(
    monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    """Two processes that finish one charged draw would draw twice for one charge."""
    budget = Budget(1, "1e-6")
    with monkeypatch.context() as patch, suppress(DiedError):
        if dies_at != "nowhere":
            patch.setattr(*((trusted, "conclude") if dies_at == "conclude" else (arrays, "_drawn_once")), dies)
        asked(budget=budget).fit(table())
    assert b"Nothing was drawn" in in_fork(lambda: asked(budget=budget).fit(table()))
    assert b"forked" in in_fork(lambda: asked().fit(table()))
    assert asked(budget=budget).fit(table()).fresh_ is (dies_at != "nowhere")
    declared = in_fork(lambda: asked(budget=Budget(1, "1e-6"), name="again").fit(table()))  # not continued there
    assert b"without charging this budget" in declared


def test_a_private_number_of_rows_is_in_no_refusal_under_the_other_relation() -> None:
    asked(neighbours="add-remove").fit(table())
    for more in ({"delta": "0.01"}, {"clip": "private", "epsilon": "0.01"}, {"clip": "auto", "scale": "private"}):
        with pytest.raises(RefusedError, match="under add-remove") as refused:
            asked(**more).fit(table())
        assert str(len(table())) not in str(refused.value)


def test_a_fork_in_which_the_process_has_its_old_number_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new namespace of processes, where both may have the number 1."""
    with monkeypatch.context() as patch, suppress(DiedError):
        patch.setattr(arrays, "_drawn_once", dies)
        asked().fit(table())
    number = os.getpid()
    assert b"forked" in in_fork(lambda: asked().fit(table()), lambda: monkeypatch.setattr(os, "getpid", lambda: number))


def test_a_fork_waits_for_no_thread_of_the_process_that_it_left() -> None:
    held = threading.Event()

    def hold() -> None:
        with REGISTER._lock:
            held.set()
            time.sleep(20)

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    guarantee = proved(asked().fit(table()).release_.guarantee)
    assert in_fork(lambda: REGISTER.note(1, guarantee, "d", None)) == b"drawn"


@pytest.mark.parametrize("kind", ["a file", "a folder", "a link to nothing", "a release", "no working directory"])
def test_the_working_directory_has_no_say_in_a_fit_of_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    if kind == "a file":
        Path("X").touch()
    elif kind == "a folder":
        Path("X").mkdir()
    elif kind == "a link to nothing":
        Path("X").symlink_to("none")
    elif kind == "a release":
        asked(release="X", name="one").fit(table(1))
    else:
        (tmp_path / "here").rmdir()
    assert asked(name="one").fit(table()).fresh_
    assert not asked(name="one").fit(table()).fresh_


def test_a_name_pays_for_the_parameters_it_was_charged_with_only(
    register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A charge under replace-one must not pay for a release under add-remove, which costs more."""
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "_drawn_once", dies)
        with pytest.raises(DiedError):
            asked(name="one", budget_epsilon=9).fit(table())
    with pytest.raises(RefusedError, match="already used with other parameters"):
        asked(name="one", budget_epsilon=9, neighbours="add-remove").fit(table())
    assert asked(name="one", budget_epsilon=9).fit(table()).fresh_
    assert len(register._fits) == 1


def test_of_two_fits_of_one_name_at_once_the_one_that_was_charged_is_drawn(
    register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, real = threading.Barrier(2), Register.known

    def known(self: Register, *said: Any, **more: Any) -> Any:
        found = real(self, *said, **more)
        together.wait()
        return found

    def fit(neighbours: str) -> str:
        try:
            return str(asked(name="one", neighbours=neighbours).fit(table()).release_.neighbours)
        except RefusedError as error:
            return str(error)

    monkeypatch.setattr(Register, "known", known)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(fit, ("replace-one", "add-remove")))
    assert len(register._fits) == 1
    assert str(register._fits[0].guarantee.neighbours) in found
    refused = [re.search(r"already used with other parameters|cannot be added", text) for text in found]
    assert refused.count(None) == 1


def test_whatever_interrupts_a_charge_no_release_escapes_the_register(
    register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_Fit", "MemoryStorage"):
        with monkeypatch.context() as patch:
            patch.setattr(releases_of_process, name, dies)
            with pytest.raises(DiedError):
                asked().fit(table())
    assert asked().fit(table()).fresh_
    assert len(register._fits) == 1
    with pytest.raises(RefusedError, match="would need a budget"):
        asked(epsilon=0.9).fit(table())


def test_a_release_that_a_budget_did_not_pay_for_is_not_returned_from_it() -> None:
    paid, other = Budget(20, "1e-5"), Budget(1, "1e-6")
    asked(epsilon=10).fit(table())
    with pytest.raises(RefusedError, match="without charging this budget"):
        asked(epsilon=10, budget=other).fit(table())
    with pytest.raises(RefusedError, match="without charging this budget"):
        asked(epsilon=10, budget=other, budget_epsilon=10).fit(table())  # both must cover it
    with pytest.raises(RefusedError, match=r"costs epsilon 10.*budget is epsilon 0\.1"):
        asked(epsilon=10, budget_epsilon="0.1").fit(table())
    asked(epsilon=9, budget_epsilon=30, budget_delta="1e-4").fit(table())
    assert not asked(epsilon=10).fit(table()).fresh_
    with pytest.raises(RefusedError, match="would need a budget"):
        asked(epsilon=10, budget_epsilon=11).fit(table())
    assert asked(budget=paid).fit(table(1)).fresh_
    assert not asked(budget=paid).fit(table(1)).fresh_
    assert not asked().fit(table(1)).fresh_
    assert ("1 fit charged" in repr(paid), "0 fits charged" in repr(other)) == (True, True)


def test_a_cell_that_declares_its_budget_again_continues_it() -> None:
    def cell(**changed: Any) -> tuple[bool, str]:
        budget = Budget(2, "1e-5")
        fitted = asked(budget=budget, **changed).fit(table())
        return fitted.fresh_, repr(budget)

    first, again, another = cell(), cell(), cell(epsilon="0.5")
    assert (first[0], again[0], another[0]) == (True, False, True)
    assert first[1] == again[1]
    assert "2 fits charged" in another[1]
    with pytest.raises(RefusedError, match="the budget is epsilon 2"):
        cell(epsilon="1.9")
    for unlike in (Budget(3, "1e-5"), Budget(2, "1e-6")):
        with pytest.raises(RefusedError, match="without charging this budget"):
            asked(budget=unlike).fit(table())
    used = Budget(2, "1e-5")
    asked(budget=used).fit(table(1))
    with pytest.raises(RefusedError, match="without charging this budget"):
        asked(budget=used).fit(table())


def test_a_target_that_holds_the_name_of_other_rows_is_refused_before_a_charge(tmp_path: Path) -> None:
    budget, target = Budget(5, "1e-5"), str(tmp_path / "r.zarr")
    asked(name="one", release=target).fit(table())
    assert not asked(name="one", release=target).fit(table()).fresh_
    with pytest.raises(DataError, match="contains the release one of other rows"):
        asked(name="one", release=target, budget=budget).fit(table(1))
    assert "0 fits charged" in repr(budget)


def test_a_fitted_estimator_that_is_given_away_does_not_tell_whether_its_rows_were_known() -> None:
    given = [pickle.dumps(asked().fit(table())) for _ in range(2)]
    assert given[0] == given[1]
    assert not hasattr(pickle.loads(given[0]), "fresh_")  # noqa: S301 - our own


def test_stages_are_drawn_once_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).normal(size=(6000, 3))
    first = PrivatePCA(1, epsilon=4, delta=1e-7).fit(rows)
    monkeypatch.setattr(arrays, "draw_stages", dies)
    again = PrivatePCA(1, epsilon=4, delta=1e-7).fit(da.from_array(rows, chunks=(2500, 2)))
    assert first.release_.stage is not None
    assert (again.fresh_, again.release_.stage) == (False, first.release_.stage)


@pytest.mark.parametrize("form", [sparse.coo_matrix, sparse.coo_array])
def test_entries_of_one_sparse_cell_are_added_up_or_refused(form: Any) -> None:
    where = (np.array([0, 0, *range(1, N)]), np.zeros(N + 1, np.int64))
    for pair, sound in (((60, 60), True), ((100, 100), False)):
        rows = form((np.array([*pair, *[7] * (N - 1)], np.int8), where), shape=(N, D))
        fit = PrivateCovariance(epsilon=1e5, delta="1e-6", clip=130, budget_epsilon=1e6)
        if sound:
            found = fit.fit(rows).release_.second_moment[0, 0]
            assert found == pytest.approx(120**2 + 49 * (N - 1), rel=0.05)
        else:
            with pytest.raises(DataError, match="sum overflows int8"):
                fit.fit(rows)


def test_of_fits_at_once_only_the_one_that_drew_says_so() -> None:
    budget = Budget(5, "1e-5")
    with ThreadPoolExecutor(8) as pool:
        fitted = list(pool.map(lambda _: asked(budget=budget).fit(table()), range(16)))
    assert sum(each.fresh_ for each in fitted) == 1


def test_releases_do_not_tell_whether_their_tables_are_equal() -> None:
    first, again = asked().fit(table()), asked(epsilon="0.5", **MORE).fit(table()[::-1])
    other = asked(epsilon="0.5", **MORE).fit(np.concatenate([table()[:-1], table(1)[:1]]))
    assert len({*first.release_.extents, *again.release_.extents, *other.release_.extents}) == 3


def test_the_call_says_whether_it_was_charged() -> None:
    said: list[str] = []
    frame = pd.DataFrame(np.random.default_rng(2).normal(size=(5000, 3)), columns=list("abc"))
    for _ in range(2):
        dpdist.private_pca(frame, epsilon=4, delta=1e-7, n_components=1, say=said.append)
    assert [text for text in said if "charged" in text] == ["Returned again, not charged."]
    assert "the same call returns the same result" in said[0]


def test_a_ledger_in_memory_keeps_its_promise() -> None:
    storage = MemoryStorage()
    assert not Ledger.stands_at(storage)
    ledger = Ledger.create(storage, dataset_id="d", budget=PrivacyLoss.parse(1))
    with pytest.raises(DataError, match="already"):
        Ledger.create(storage, dataset_id="d", budget=PrivacyLoss.parse(1))
    assert ledger.records == []
    head = ledger.head
    with suppress(ZeroDivisionError), storage.transaction() as transaction:
        transaction.append({"event": "aborted", "id": "x"}, 1, head)
        raise ZeroDivisionError
    ledger.verify()
    assert len(storage._journal) == 1
