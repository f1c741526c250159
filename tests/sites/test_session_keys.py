"""Keys of a session: each is used once, whatever is restored, lost or planted."""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.ledgers import losses
from support.sites_scene import LOSS, ROWS, Hospitals, request, write_rows

import dpdist
from dpdist.core.errors import DataError, RefusedError
from dpdist.core.pipeline import shares
from dpdist.core.release import share as share_module
from dpdist.core.release.transaction import Draw


def test_the_secret_key_is_private_and_destroyed_before_the_share_is_there(
    ready: tuple[Hospitals, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hospitals, fingerprint = ready
    file = hospitals.key_file("boston")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = json.loads(file.read_text().splitlines()[0])["secret"]
    assert len(secret) == 64
    write_once, at_writing = share_module.write_once, []

    def noting(*arguments: Any) -> None:
        at_writing.append(json.loads(file.read_text().splitlines()[0])["secret"])
        write_once(*arguments)

    monkeypatch.setattr(share_module, "write_once", noting)
    hospitals.share("boston", fingerprint)
    assert at_writing == [None]
    for path in (*hospitals.session.iterdir(), *hospitals.state("boston").rglob("*")):
        assert not path.is_file() or secret.encode() not in path.read_bytes()


def test_the_same_command_writes_the_same_share(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    first = hospitals.share("boston", fingerprint)
    content = (hospitals.session / "boston.share").read_bytes()
    (hospitals.session / "boston.share").unlink()
    again = hospitals.share("boston", fingerprint)
    assert (first.fresh, again.fresh) == (True, False)
    assert (hospitals.session / "boston.share").read_bytes() == content


def test_a_second_share_of_other_rows_is_refused_and_the_session_lost(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    hospitals.share("boston", fingerprint)
    write_rows(hospitals.folder / "changed", hospitals.values["boston"] + 0.1)
    with hospitals.at_site("boston"), pytest.raises(RefusedError, match="was used for a share of other rows"):
        dpdist.release_share(hospitals.session, hospitals.folder / "changed" / "rows.zarr", "boston", fingerprint)
    assert losses(dpdist.Ledger(hospitals.folder / "changed" / "rows.ledger")) == []  # refunded
    assert not hospitals.share("boston", fingerprint).fresh  # the first one is still sent


def test_a_key_bound_to_rows_whose_share_was_not_drawn_makes_no_share_of_others(
    ready: tuple[Hospitals, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hospitals, fingerprint = ready
    with monkeypatch.context() as patch:
        patch.setattr(Draw, "commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            hospitals.share("boston", fingerprint)
    write_rows(hospitals.folder / "changed", hospitals.values["boston"])
    with hospitals.at_site("boston"), pytest.raises(RefusedError, match="key was destroyed"):
        dpdist.release_share(hospitals.session, hospitals.folder / "changed" / "rows.zarr", "boston", fingerprint)
    # the first rows have no key either, and what they paid is refunded
    assert losses(hospitals.ledger("boston")) == [LOSS]
    with pytest.raises(RefusedError, match="What was reserved is refunded"):
        hospitals.share("boston", fingerprint)
    assert losses(hospitals.ledger("boston")) == []
    with hospitals.at_site("boston"):
        dpdist.add_session_key(hospitals.session, hospitals.rows("boston"), "boston")  # no second key is drawn
    with pytest.raises(RefusedError, match="was destroyed"):
        hospitals.share("boston", fingerprint)


def restored(hospitals: Hospitals, copy: Path) -> None:
    shutil.rmtree(hospitals.folder / "boston")
    shutil.copytree(copy, hospitals.folder / "boston")


def test_a_home_restored_to_the_time_before_the_share_draws_no_second_one(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    copy = hospitals.folder / "backup"
    shutil.copytree(hospitals.folder / "boston", copy)
    hospitals.share("boston", fingerprint)
    first = (hospitals.session / "boston.share").read_bytes()
    restored(hospitals, copy)
    with pytest.raises(RefusedError, match="was made with the key of this machine"):
        hospitals.share("boston", fingerprint)
    assert losses(hospitals.ledger("boston")) == []
    (hospitals.session / "boston.share").rename(hospitals.folder / "away")
    with pytest.raises(RefusedError, match="was destroyed"):
        hospitals.share("boston", fingerprint)
    assert losses(hospitals.ledger("boston")) == []
    assert (hospitals.folder / "away").read_bytes() == first


def test_a_state_folder_restored_alone_makes_no_share_of_other_rows(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    copy = hospitals.folder / "backup"
    shutil.copytree(hospitals.state("boston"), copy)
    hospitals.share("boston", fingerprint)
    shutil.rmtree(hospitals.state("boston"))
    shutil.copytree(copy, hospitals.state("boston"))
    rows = write_rows(hospitals.folder / "changed", hospitals.values["boston"] + 0.1)
    with hospitals.at_site("boston"), pytest.raises(RefusedError, match="was made with the key of this machine"):
        dpdist.release_share(hospitals.session, rows, "boston", fingerprint)
    assert losses(dpdist.Ledger(hospitals.folder / "changed" / "rows.ledger")) == []


def restored_keys(hospitals: Hospitals, copy: Path) -> None:
    shutil.rmtree(hospitals.state("boston") / "sessions")
    shutil.copytree(copy, hospitals.state("boston") / "sessions")


def test_a_restored_key_makes_no_share_of_another_table_of_the_same_ledger(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    copy = hospitals.folder / "backup"
    shutil.copytree(hospitals.state("boston") / "sessions", copy)
    hospitals.share("boston", fingerprint)
    restored_keys(hospitals, copy)
    session = dpdist.open_session(hospitals.session)
    other = replace(dpdist.open_rows(hospitals.rows("boston")), variant="another reading of the same file")
    with hospitals.at_site("boston"), pytest.raises(RefusedError, match="was made with the key of this machine"):
        shares.release_share(other, session.store, session.terms, "boston", session.key_set(), cluster=dpdist.Cluster())
    assert losses(hospitals.ledger("boston")) == [LOSS]


def test_a_key_is_destroyed_once_the_witness_knows_of_its_share(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    copies = {name: hospitals.folder / f"backup-{name}" for name in ("sessions", "ledger")}
    shutil.copytree(hospitals.state("boston") / "sessions", copies["sessions"])
    ledger = hospitals.rows("boston").with_suffix(".ledger")
    shutil.copytree(ledger, copies["ledger"])
    hospitals.share("boston", fingerprint)
    (hospitals.session / "boston.share").unlink()
    restored_keys(hospitals, copies["sessions"])
    shutil.rmtree(ledger)
    shutil.copytree(copies["ledger"], ledger)
    with pytest.raises(RefusedError, match="witness"):
        hospitals.share("boston", fingerprint)
    rows = write_rows(hospitals.folder / "changed", hospitals.values["boston"] + 0.1)
    with hospitals.at_site("boston"), pytest.raises(RefusedError, match="was destroyed"):
        dpdist.release_share(hospitals.session, rows, "boston", fingerprint)
    assert not (hospitals.session / "boston.share").exists()


def planted(hospitals: Hospitals) -> bytes:
    """Return what whoever controls the folder can write: the head of a share needs no secret but its tag."""
    session = dpdist.open_session(hospitals.session)
    head = {
        "format": "dpdist-share/1", "session": session.terms.digest, "keys": session.key_set().digest.hex(),
        "site": "boston", "release_id": "x", "entries": 6, "extents": [], "condition": None, "tag": "ab" * 32,
    }  # fmt: skip
    return json.dumps(head).encode() + b"\n" + bytes(80)


@pytest.mark.parametrize("content", ["a head", "nothing", "a folder"])
def test_a_planted_file_costs_no_site_its_key_and_no_budget(ready: tuple[Hospitals, str], content: str) -> None:
    hospitals, fingerprint = ready
    path = hospitals.session / "boston.share"
    if content == "a folder":
        path.mkdir()
    else:
        path.write_bytes(planted(hospitals) if content == "a head" else b"")
    with pytest.raises(RefusedError, match="was not made with the key of this machine"):
        hospitals.share("boston", fingerprint)
    assert losses(hospitals.ledger("boston")) == []
    path.rename(hospitals.folder / "away")
    assert hospitals.share("boston", fingerprint).fresh


def test_a_planted_file_in_the_place_of_a_share_does_not_keep_it_from_being_sent_again(
    ready: tuple[Hospitals, str],
) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    (hospitals.session / "boston.share").write_bytes(planted(hospitals))
    with pytest.raises(DataError, match="Move it away"):
        hospitals.share("boston", fingerprint)
    (hospitals.session / "boston.share").write_bytes(b"cut off by a mail program")
    assert not hospitals.share("boston", fingerprint).fresh
    assert hospitals.combined().rows == sum(ROWS.values())


def test_a_long_statement_of_the_ledger_does_not_keep_a_share_back(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    with hospitals.at_site("boston"):
        small = request(dpdist.PrivacyLoss.parse("0.1", 1e-6))
        dpdist.release_rows(hospitals.rows("boston"), hospitals.folder / "first.zarr", small)
        for epsilon in range(3, 12):
            hospitals.ledger("boston").raise_budget(dpdist.PrivacyLoss.parse(epsilon, 1e-5))
    hospitals.all_shares(fingerprint)
    condition = str(hospitals.combined().condition)
    assert condition.count("the budget was raised") == 9
    assert len(condition) > 1000


def test_a_command_without_the_key_does_not_refund_what_another_process_draws(
    ready: tuple[Hospitals, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hospitals, fingerprint = ready
    commit = Draw.commit

    def meanwhile(self: Any, drawn: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setenv("DPDIST_STATE_HOME", str(hospitals.folder / "elsewhere"))
            with pytest.raises(RefusedError):
                dpdist.release_share(hospitals.session, hospitals.rows("boston"), "boston", fingerprint)
        commit(self, drawn)

    monkeypatch.setattr(Draw, "commit", meanwhile)
    assert hospitals.share("boston", fingerprint).fresh
    assert losses(hospitals.ledger("boston")) == [LOSS]


def test_a_share_is_not_sent_again_for_other_keys(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    hospitals.share("boston", fingerprint)
    with pytest.raises(RefusedError, match="made with other public keys"):
        hospitals.share("boston", hospitals.exchange_key("oslo"))


def test_a_weak_guarantee_is_warned_of_at_every_site(hospitals: Hospitals) -> None:
    for name, values in hospitals.values.items():
        shutil.rmtree(hospitals.folder / name)
        write_rows(hospitals.folder / name, values, allowed=dpdist.PrivacyLoss.parse(20, 1e-5))
    hospitals.create(asked=request(dpdist.PrivacyLoss.parse(12, 1e-6)))
    fingerprint = hospitals.exchange()
    with pytest.warns(dpdist.WeakGuaranteeWarning, match="Epsilon 12"):
        hospitals.share("boston", fingerprint)


def test_no_text_of_a_key_shows_its_secret(ready: tuple[Hospitals, str]) -> None:
    hospitals, _ = ready
    terms = dpdist.open_session(hospitals.session).terms
    with hospitals.at_site("boston"):
        key = share_module.stored_key(terms, "boston")
    assert key is not None
    assert str(key.secret) not in f"{key!r}{key}"


def test_a_second_session_over_the_same_rows_is_a_second_charge(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    hospitals.share("boston", fingerprint)
    shutil.rmtree(hospitals.session)
    hospitals.create(asked=request(dpdist.PrivacyLoss.parse("0.5", 1e-6)))
    hospitals.share("boston", hospitals.exchange())
    assert len(losses(hospitals.ledger("boston"))) == 2


def test_a_share_beyond_the_budget_is_refused_before_a_row_is_read(ready: tuple[Hospitals, str]) -> None:
    hospitals, _ = ready
    shutil.rmtree(hospitals.session)
    hospitals.create(asked=request(dpdist.PrivacyLoss.parse(3, 1e-6)))
    with pytest.raises(RefusedError, match="budget"):
        hospitals.share("boston", hospitals.exchange())
    assert not (hospitals.session / "boston.share").exists()


def test_the_key_of_another_machine_makes_no_share(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    with hospitals.at_site("lyon"), pytest.raises(RefusedError, match="not on this machine"):
        dpdist.release_share(hospitals.session, hospitals.rows("boston"), "boston", fingerprint)
    assert losses(hospitals.ledger("boston")) == []
