"""Sessions of several sites: one release without a trusted sum, each key used once, and hostile files."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ledgers import losses
from support.sites_scene import BUDGET, CLIP, COLUMNS, LOSS, ROWS, Hospitals, request, unmasked, write_rows

import dpdist
from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger.state import State
from dpdist.core.noise.masks import new_key, public_key
from dpdist.core.pipeline import shares
from dpdist.core.pipeline.charged import statement_of
from dpdist.core.release import share as share_module
from dpdist.core.release.transaction import Draw
from dpdist.core.triangle import packed


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hospitals:
    return Hospitals.at(tmp_path, monkeypatch)


@pytest.fixture
def ready(hospitals: Hospitals) -> tuple[Hospitals, str]:
    hospitals.create()
    return hospitals, hospitals.exchange()


# --- the whole way ---


def test_the_sum_of_the_shares_is_that_of_the_noisy_moments_and_near_the_exact_one(
    ready: tuple[Hospitals, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hospitals, fingerprint = ready
    with unmasked(monkeypatch) as noisy:
        hospitals.all_shares(fingerprint)
    release = hospitals.combined()
    np.testing.assert_array_equal(packed(release.lattice), np.sum(noisy, axis=0))
    rows = np.concatenate(list(hospitals.values.values()))
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows * np.minimum(1, 0.999 * CLIP / norms)
    deviation = np.sqrt(release.noise.variance_diagonal or 0) * release.bound.unit**2
    assert np.abs(release.second_moment - rows.T @ rows).max() < 6 * deviation
    assert (release.rows, release.releases) == (sum(ROWS.values()), tuple(sorted(release.releases)))


def test_the_release_says_who_is_trusted_and_every_site_is_charged_once(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    hospitals.all_shares(fingerprint)  # again: nothing is charged
    release = hospitals.combined()
    assert release.status == "private"
    assert release.guarantee is not None
    assert (release.guarantee.loss, release.guarantee.proof) == (LOSS, "dpdist.core.mechanisms.noise_share")
    trust = "at most 1 of the 3 sites (boston, lyon, oslo) reveals its noise or its key, and no row is at two of them"
    assert release.condition == trust
    assert release.guarantee_words() == f"epsilon 1, delta 1e-06 under replace-one, if {trust}"
    assert release.session is not None
    assert (release.session.sites, release.session.colluding) == (tuple(ROWS), 1)
    for name in ROWS:
        ledger = hospitals.ledger(name)
        assert losses(ledger) == [LOSS]
        assert [record.state for record in ledger.records] == [State.PUBLISHED]
        assert ledger.records[0].release_id in release.releases
        ledger.verify()
    assert len(release.extents) == len(ROWS)


def test_what_reads_releases_reads_that_of_a_session(ready: tuple[Hospitals, str], tmp_path: Path) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    release = hospitals.combined()
    path = tmp_path / "release.zarr"
    assert dpdist.PrivateCovariance.from_release(path).covariance_.shape == (3, 3)
    assert dpdist.PrivatePCA.from_release(path, 2).components_.shape == (2, 3)
    facts = dpdist.inspect_path(path)
    assert "nobody with a sum without noise" in " ".join(facts.describe().split())
    assert facts.to_json()["session"] == {"id": release.session.id, "sites": list(ROWS), "colluding": 1}  # type: ignore[union-attr]
    assert dpdist.open_release(path).session == release.session


def test_a_site_sees_its_own_charge_in_a_report_and_not_those_of_others(
    ready: tuple[Hospitals, str], tmp_path: Path
) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    release = hospitals.combined()
    with hospitals.at_site("lyon"):
        assert len(statement_of(hospitals.ledger("lyon"), release).charged) == 1
    write_rows(tmp_path / "else", np.zeros((5, 3)))
    with pytest.raises(UsageError, match="name the ledger that was charged"):
        statement_of(dpdist.Ledger(tmp_path / "else" / "rows.ledger"), release)


def test_the_order_of_files_does_not_matter_and_the_sum_is_the_same(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    for name in reversed(ROWS):
        hospitals.share(name, fingerprint)
    first = hospitals.combined()
    copy = hospitals.copy_of_session()
    again = dpdist.combine_shares(copy, hospitals.folder / "again.zarr")
    assert again.fresh
    np.testing.assert_array_equal(first.lattice, again.release.lattice)
    assert first.release_id == again.release.release_id
    assert not dpdist.combine_shares(copy, hospitals.folder / "again.zarr").fresh


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_a_mean_and_a_private_number_of_rows(hospitals: Hospitals, relation: str) -> None:
    hospitals.create(asked=request(BUDGET, neighbours=relation, centring="private", rows_at_most=10_000))
    hospitals.all_shares(hospitals.exchange())
    release = hospitals.combined()
    total = sum(ROWS.values())
    assert release.rows == (total if relation == "replace-one" else None)
    assert release.row_count == pytest.approx(total, abs=0 if relation == "replace-one" else 60)  # 4.9 deviations: 1e-6
    assert release.row_sum is not None
    assert release.rows_at_most == (None if relation == "replace-one" else 10_000)


def test_two_sites_must_state_that_neither_is_protected_from_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Hospitals.at(tmp_path, monkeypatch, {"a": 60, "b": 70})
    with pytest.raises(UsageError, match="each can subtract its own noise") as refused:
        two.create()
    assert "colluding=0" in str(refused.value)
    two.create(colluding=0)
    two.all_shares(two.exchange())
    alone = "none of the 2 sites (a, b) reveals its noise or its key, or uses them against another"
    assert two.combined().condition == f"{alone}, and no row is at two of them"


def test_a_schema_and_a_privacy_unit_are_those_of_all_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))
    schema = dpdist.Schema(
        [
            dpdist.Column("patient", "privacy unit"),
            dpdist.Column("ward", "category", categories=["a", "b"], other="column"),
            dpdist.Column("age", "number", range=(0, 100)),
        ],
        scale="range",
        max_rows=2,
    )
    for site in ("x", "y", "z"):
        lines = "".join(f"{site}{i // 2},{'ab'[i % 2]},{20 + i % 60}\n" for i in range(40))
        (tmp_path / f"{site}.csv").write_text("patient,ward,age\n" + lines)
        dpdist.ingest_rows(
            tmp_path / f"{site}.csv", tmp_path / f"{site}.zarr", header="yes", schema=schema, budget=BUDGET
        )
    loss = dpdist.PrivacyLoss.parse(1, 1e-6)
    asked = dpdist.ReleaseRequest("gaussian", loss, "schema")
    session = dpdist.create_session(tmp_path / "study", dict.fromkeys("xyz", 40), asked, schema=schema)
    assert session.terms.columns == ("ward=a", "ward=b", "ward=other", "age")
    for site in "xyz":
        session = dpdist.add_session_key(tmp_path / "study", tmp_path / f"{site}.zarr", site)
    assert session.fingerprint is not None
    for site in "xyz":
        dpdist.release_share(tmp_path / "study", tmp_path / f"{site}.zarr", site, session.fingerprint)
    release = dpdist.combine_shares(tmp_path / "study", tmp_path / "release.zarr").release
    assert release.unit is not None
    assert (release.unit.column, release.unit.max_rows, release.rows) == ("patient", 2, 120)
    assert release.schema is not None


def wards(tmp_path: Path, site: str, schema: dpdist.Schema) -> Path:
    lines = "".join(f"{site}{i // 3},{'ab'[i % 2]},{20 + i % 60}\n" for i in range(3000))
    (tmp_path / f"{site}.csv").write_text("patient,ward,age\n" + lines)
    return dpdist.ingest_rows(
        tmp_path / f"{site}.csv", tmp_path / f"{site}.zarr", header="yes", schema=schema, budget=BUDGET
    ).path


def test_all_rows_of_a_patient_are_protected_with_a_clip_norm_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))
    schema = dpdist.Schema(
        [
            dpdist.Column("patient", "privacy unit"),
            dpdist.Column("ward", "category", categories=["a", "b"]),
            dpdist.Column("age", "number", range=(0, 100)),
        ],
        scale="range",
    )
    rows = {site: wards(tmp_path, site, schema) for site in "xyz"}
    sites = dict.fromkeys("xyz", 3000)
    # a scale makes the clip norm of units a private choice, which a session cannot make
    chosen = dpdist.ReleaseRequest("gaussian", LOSS, "auto", centre=(0.0,) * 3, scale=(1.0,) * 3)
    with pytest.raises(UsageError, match="would be chosen privately"):
        dpdist.create_session(tmp_path / "study", sites, chosen, schema=schema)
    for_one_row = dpdist.ReleaseRequest("gaussian", LOSS, "schema")
    with pytest.raises(UsageError, match=r"bounded together, and 1\.\d+ is the norm of one row"):
        dpdist.create_session(tmp_path / "study", sites, for_one_row, schema=schema)
    with pytest.raises(UsageError, match="write max_rows = M at the top of the schema"):
        dpdist.create_session(tmp_path / "study", sites, for_one_row, schema=schema, max_rows=2)
    session = dpdist.create_session(
        tmp_path / "study", sites, dpdist.ReleaseRequest("gaussian", LOSS, 2.0), schema=schema
    )
    assert dpdist.Schema.read(tmp_path / "study") == schema  # which sites may ingest with
    other = dpdist.Schema([*schema.columns[:2], dpdist.Column("age", "number", range=(0, 120))], scale="range")
    with pytest.raises(UsageError, match=r"range of age is \[0\.0, 120\.0\], and \[0\.0, 100\.0\] in the session"):
        dpdist.add_session_key(session.store, wards(tmp_path, "other", other), "x")
    for site in "xyz":
        session = dpdist.add_session_key(session.store, rows[site], site)
    for site in "xyz":
        dpdist.release_share(session.store, rows[site], site, str(session.fingerprint))
    release = dpdist.combine_shares(session.store, tmp_path / "release.zarr").release
    assert release.bound.unit_norm == "frobenius"
    assert str(release.condition).endswith("and no patient has rows at two of them")
    assert 0 < float(release.row_count or 0) <= 9000


# --- keys and once only ---


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


def another_key(hospitals: Hospitals, name: str) -> str:
    """Exchange the key of a site, as whoever controls the folder can; return the fingerprint."""
    file = hospitals.session / f"{name}.key.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"x25519": public_key(new_key()).hex()}))
    return str(dpdist.open_session(hospitals.session).fingerprint)


def test_a_share_is_not_sent_again_for_other_keys(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    hospitals.share("boston", fingerprint)
    with pytest.raises(RefusedError, match="made with other public keys"):
        hospitals.share("boston", another_key(hospitals, "oslo"))


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


# --- whoever carries the files ---


def test_an_exchanged_key_changes_the_fingerprint_and_is_refused(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    file = hospitals.session / "lyon.key.json"
    key = json.loads(file.read_text())
    with hospitals.at_site("carrier"):
        other = Hospitals.at(hospitals.folder / "carrier", hospitals.patch, ROWS)
        shutil.copytree(hospitals.session, other.session)
        (other.session / "lyon.key.json").unlink()
        forged = json.loads(
            dpdist.add_session_key(other.session, other.rows("lyon"), "lyon").store.get("lyon.key.json")
        )
    assert forged["x25519"] != key["x25519"]
    file.write_text(json.dumps(key | {"x25519": forged["x25519"]}))
    with pytest.raises(RefusedError, match="The fingerprint is not that of"):
        hospitals.share("boston", fingerprint)
    # and to lyon itself, even if nobody compares
    seen = dpdist.open_session(hospitals.session).fingerprint
    assert seen is not None
    with pytest.raises(RefusedError, match="is not that of the key on this machine"):
        hospitals.share("lyon", seen)
    assert losses(hospitals.ledger("lyon")) == []


@pytest.mark.parametrize("typed", ["lower", "spaces"])
def test_a_fingerprint_may_be_typed_as_it_is_heard(ready: tuple[Hospitals, str], typed: str) -> None:
    hospitals, fingerprint = ready
    text = fingerprint.lower() if typed == "lower" else fingerprint.replace("-", " ")
    assert hospitals.share("boston", text).fresh


def test_one_missing_share_is_named_and_others_reveal_nothing(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    for name in ("boston", "oslo"):
        hospitals.share(name, fingerprint)
    with pytest.raises(DataError, match=r"Shares are missing in .*: of lyon.* counts among those that may collude"):
        hospitals.combined()


def altered(path: Path, where: str) -> None:
    content = bytearray(path.read_bytes())
    position = {"head": 5, "entry": -40, "checksum": -1}.get(where)
    if position is None:
        path.write_bytes(content[:-8] if where == "short" else b"")
    else:
        content[position] ^= 1
        path.write_bytes(content)


@pytest.mark.parametrize("where", ["head", "entry", "checksum", "short", "empty"])
def test_a_damaged_share_is_named(ready: tuple[Hospitals, str], where: str) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    altered(hospitals.session / "lyon.share", where)
    with pytest.raises(DataError, match=r"lyon\.share is not a share of lyon, or it is damaged"):
        hospitals.combined()
    assert not (hospitals.folder / "release.zarr").exists()


def test_a_share_twice_or_of_another_session_is_refused(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    lyon = hospitals.session / "lyon.share"
    first = lyon.read_bytes()
    shutil.copy(hospitals.session / "boston.share", lyon)
    with pytest.raises(DataError, match=r"lyon\.share is the share of boston"):
        hospitals.combined()
    shutil.rmtree(hospitals.session)
    hospitals.create(asked=request(dpdist.PrivacyLoss.parse("0.5", 1e-6)))
    hospitals.all_shares(hospitals.exchange())
    lyon.write_bytes(first)
    with pytest.raises(DataError, match=r"lyon\.share is a share of another session"):
        hospitals.combined()


def test_a_share_that_a_site_made_up_cannot_be_told_from_noise_and_spoils_the_sum(
    ready: tuple[Hospitals, str],
) -> None:
    """The checksum is no secret: what a malicious site can do is to change the sum."""
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    path = hospitals.session / "lyon.share"
    session = dpdist.open_session(hospitals.session)
    line, _, rest = path.read_bytes().partition(b"\n")
    entries = np.frombuffer(rest[:-32], "<i8") ^ (1 << 62)
    checksum = share_module.checksum_of(session.terms)
    checksum.update(line + b"\n" + entries.tobytes())
    path.write_bytes(line + b"\n" + entries.tobytes() + checksum.digest())
    with pytest.raises(DataError, match="do not add up to a second moment"):
        hospitals.combined()


def test_no_site_pays_for_a_share_that_would_not_cancel(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    hospitals.share("boston", fingerprint)
    second = another_key(hospitals, "oslo")
    session = dpdist.open_session(hospitals.session)
    assert second not in {"None", fingerprint}
    assert (session.shares, list(session.unusable)) == ((), ["boston"])
    with pytest.raises(RefusedError, match=r"boston\.share was made with other public keys"):
        hospitals.share("lyon", second)
    assert losses(hospitals.ledger("lyon")) == []
    with pytest.raises(DataError, match="was made with other public keys"):
        hospitals.combined()


def test_a_site_that_lost_its_key_draws_another_only_before_the_first_share(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    shutil.rmtree(hospitals.state("oslo") / "sessions")
    (hospitals.session / "oslo.key.json").unlink()
    with hospitals.at_site("oslo"):
        second = dpdist.add_session_key(hospitals.session, hospitals.rows("oslo"), "oslo").fingerprint
    assert second not in {None, fingerprint}
    hospitals.share("boston", str(second))
    shutil.rmtree(hospitals.state("oslo") / "sessions")
    (hospitals.session / "oslo.key.json").unlink()
    with hospitals.at_site("oslo"), pytest.raises(RefusedError, match="boston made a share with a former key of oslo"):
        dpdist.add_session_key(hospitals.session, hospitals.rows("oslo"), "oslo")


def test_a_key_that_is_bound_to_rows_is_not_checked_with_others(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    hospitals.share("boston", fingerprint)
    rows = write_rows(hospitals.folder / "changed", hospitals.values["boston"] + 0.1)
    with hospitals.at_site("boston"), pytest.raises(RefusedError, match="was used for other rows"):
        dpdist.add_session_key(hospitals.session, rows, "boston")


def test_a_site_that_lost_its_key_after_its_share_draws_no_second_one(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    hospitals.share("boston", fingerprint)
    shutil.rmtree(hospitals.state("boston") / "sessions")
    with hospitals.at_site("boston"), pytest.raises(RefusedError, match="A second key would not fit"):
        dpdist.add_session_key(hospitals.session, hospitals.rows("boston"), "boston")


@pytest.mark.parametrize("why", ["budget", "relation", "columns", "rows", "no budget"])
def test_what_would_be_refused_at_a_share_is_refused_at_the_key_before_anybody_pays(
    hospitals: Hospitals, why: str
) -> None:
    loss = dpdist.PrivacyLoss.parse(3, 1e-6) if why == "budget" else LOSS
    hospitals.create(asked=request(loss))
    rows, values = hospitals.rows("boston"), hospitals.values["boston"]
    if why == "relation":
        with hospitals.at_site("boston"):
            dpdist.release_rows(rows, hospitals.folder / "before.zarr", request(neighbours="add-remove"))
    elif why != "budget":
        names = ("age", "weight", "size") if why == "columns" else COLUMNS
        count = 299 if why == "rows" else 300
        rows = write_rows(hospitals.folder / "other", values[:count], names, None if why == "no budget" else BUDGET)
    before = losses(dpdist.Ledger(rows.with_suffix(".ledger"))) if why != "no budget" else []
    with hospitals.at_site("boston"), pytest.raises((RefusedError, UsageError)) as refused:
        dpdist.add_session_key(hospitals.session, rows, "boston")
    said = {
        "budget": "budget", "relation": "need a session with that relation", "columns": "column 3 is size, and height",
        "rows": "has 299 rows, and the session states 300", "no budget": "No budget is declared",
    }  # fmt: skip
    assert said[why] in str(refused.value)
    assert not (hospitals.session / "boston.key.json").exists()
    if why != "no budget":
        assert losses(dpdist.Ledger(rows.with_suffix(".ledger"))) == before


def terms_changed(hospitals: Hospitals, **changes: Any) -> None:
    file = hospitals.session / "session.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"noise": {"sigma_diagonal": 1, "sigma_off_diagonal": 1}},
        {"epsilon_micro": 3_000_000},
        {"colluding": 0},
        {"bound": None},
        {"bounding": {"clip_norm": 1e9}},
        {"sites": [{"name": "boston", "rows": 300}]},
        {"sites": [{"name": "boston", "rows": 1}, {"name": "BOSTON", "rows": 1}, {"name": "oslo", "rows": 1}]},
        {"sites": [{"name": "../boston", "rows": 1}, {"name": "lyon", "rows": 1}, {"name": "oslo", "rows": 1}]},
        {"columns": ["age", "weight"]},
        {"unknown": 1},
        {"format": "dpdist-session/2"},
        {"schema": {"columns": []}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_altered_terms_are_refused_or_are_another_session(
    ready: tuple[Hospitals, str], changes: dict[str, Any]
) -> None:
    hospitals, fingerprint = ready
    terms_changed(hospitals, **changes)
    with pytest.raises((DataError, UsageError, RefusedError)):
        hospitals.share("boston", fingerprint)
    assert losses(hospitals.ledger("boston")) == []
    with pytest.raises((DataError, UsageError, RefusedError)):
        hospitals.combined()


HOSTILE: dict[str, dict[str, Any]] = {
    "less noise": {"noise": {"sigma_diagonal": 1, "sigma_off_diagonal": 1}},
    "a larger loss": {"epsilon_micro": 1_500_000},
    "fewer colluding": {"colluding": 0},
    "a bound of a smaller norm": {},
    "a relation": {"neighbours": "add-remove"},
    "a unit": {"unit": {"column": "age", "max_rows": 3}},
    "numbers beyond all integers": {"sites": [{"name": name, "rows": 2**62} for name in ROWS]},
    "no numbers": {"sites": [{"name": name, "rows": None} for name in ROWS]},
    "names that write on a terminal": {"columns": ["a\x1b[2J", "weight", "height"]},
    "a large delta": {"delta_atto": 10**17},
    "a unit that writes on a terminal": {"unit": {"column": "a\nfingerprint AAAA", "max_rows": 2}},
}


@pytest.mark.parametrize("change", HOSTILE)
def test_terms_that_contradict_themselves_are_refused_even_if_all_sites_see_the_same(
    hospitals: Hospitals, change: str
) -> None:
    """Whoever creates a session is trusted for nothing: a site plans its own noise."""
    hospitals.create()
    terms = json.loads((hospitals.session / "session.json").read_text())
    changes = HOSTILE[change] or {"bound": terms["bound"] | {"constant": 5}}
    terms_changed(hospitals, **changes)
    with pytest.raises((DataError, UsageError, RefusedError)):
        hospitals.share("boston", hospitals.exchange())
    assert losses(hospitals.ledger("boston")) == []


@pytest.mark.parametrize("bits", [2**31, 2**62, 1e30, 0, -1])
def test_absurd_grid_bits_are_refused_at_once(ready: tuple[Hospitals, str], bits: float) -> None:
    hospitals, _ = ready
    terms = json.loads((hospitals.session / "session.json").read_text())
    terms_changed(hospitals, bounding=terms["bounding"] | {"grid_bits": bits})
    with pytest.raises(DataError, match="is not a session, or it is damaged"):
        dpdist.open_session(hospitals.session)


def test_two_sites_with_one_key_are_refused(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    stolen = json.loads((hospitals.session / "boston.key.json").read_text()) | {"site": "oslo"}
    (hospitals.session / "oslo.key.json").write_text(json.dumps(stolen))
    with pytest.raises(RefusedError, match="Two sites have the same public key"):
        hospitals.share("boston", fingerprint)
    (hospitals.session / "oslo.key.json").write_text(json.dumps(stolen | {"x25519": "00" * 32}))
    with pytest.raises(RefusedError, match=r"The public key of oslo .* is none"):
        hospitals.share("boston", fingerprint)
    assert losses(hospitals.ledger("boston")) == []


def test_a_key_of_another_session_is_refused(ready: tuple[Hospitals, str], tmp_path: Path) -> None:
    hospitals, fingerprint = ready
    other = Hospitals(tmp_path / "second", hospitals.patch, hospitals.values)
    other.folder.mkdir()
    other.create()
    with hospitals.at_site("oslo"):
        dpdist.add_session_key(other.session, hospitals.rows("oslo"), "oslo")
    shutil.copy(other.session / "oslo.key.json", hospitals.session)
    with pytest.raises(DataError, match=r"oslo\.key\.json is for another session"):
        hospitals.share("boston", fingerprint)


def rewritten(path: Path, terms: Any, **changes: Any) -> None:
    """Change the head of a share, with a checksum that is right: it needs no secret."""
    line, _, rest = path.read_bytes().partition(b"\n")
    content = json.dumps(json.loads(line) | changes).encode() + b"\n" + rest[:-32]
    checksum = share_module.checksum_of(terms)
    checksum.update(content)
    path.write_bytes(content + checksum.digest())


def test_what_a_site_states_of_its_ledger_is_repeated_and_cannot_write_on_a_terminal(
    ready: tuple[Hospitals, str],
) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    terms = dpdist.open_session(hospitals.session).terms
    rewritten(hospitals.session / "lyon.share", terms, condition="\x1b[2J nothing")
    with pytest.raises(DataError, match="is not a share of lyon, or it is damaged"):
        hospitals.combined()
    rewritten(hospitals.session / "lyon.share", terms, condition=None)
    before = hospitals.combined().release_id
    shutil.rmtree(hospitals.folder / "release.zarr")
    rewritten(hospitals.session / "lyon.share", terms, condition="the releases before cost epsilon 1")
    assert hospitals.combined().release_id != before
    stated = "; lyon states: 'the releases before cost epsilon 1'"
    assert str(hospitals.combined().condition).endswith(stated)


def test_two_shares_of_the_same_rows_are_refused(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    terms = dpdist.open_session(hospitals.session).terms
    head = json.loads((hospitals.session / "boston.share").read_bytes().partition(b"\n")[0])
    rewritten(hospitals.session / "lyon.share", terms, extents=head["extents"])
    with pytest.raises(RefusedError, match="contain the same rows"):
        hospitals.combined()


# --- what cannot work is refused before it is paid for ---


@pytest.mark.parametrize(
    ("sites", "more", "words"),
    [
        ({"a": 10}, {}, "from 2 to 256 sites, not 1"),
        ({"a": 10, "b": 10, "c": 10}, {"colluding": 2}, "from 0 to 1 may be assumed to collude, not 2"),
        ({"a": 10, "A": 10, "c": 10}, {}, "same name, apart from capitals"),
        ({"a b": 10, "b": 10, "c": 10}, {}, "cannot be the name of a site"),
        (["a", "b", "c"], {}, "number of rows of each site is public"),
        ({"a": 10, "b": 10, "c": 10}, {"columns": None}, "Give either"),
        ({"a": 10, "b": 10, "c": 10}, {"columns": ["age", "age"]}, "must be different"),
        (
            {"a": 10**15, "b": 10, "c": 10}, {"asked": request(dpdist.PrivacyLoss.parse(1, 1e-18), grid_bits=22)},
            "exceeds 64-bit integers",
        ),
        ({"a": 10, "b": 10, "c": 10}, {"asked": request(clip_norm="private")}, "cannot choose a clip norm privately"),
        (
            {"a": 10, "b": 10, "c": 10}, {"asked": request(scale="private", clip_norm="auto")},
            "cannot choose a scale privately",
        ),
        ({"a": 10, "b": 10, "c": 10}, {"asked": request(name="mine")}, "neither a chosen id"),
        (
            {"a": 10, "b": 10, "c": 10}, {"asked": request(dpdist.PrivacyLoss.parse(9, 1e-6), grid_bits=4)},
            "below 1024 grid steps",
        ),
        ({"a": 10**6, "b": 10, "c": 10}, {}, "allows a random row to be"),
    ],
)  # fmt: skip
def test_a_session_that_cannot_work_is_not_created(
    tmp_path: Path, sites: Any, more: dict[str, Any], words: str
) -> None:
    asked = more.pop("asked", None) or request()
    with pytest.raises((UsageError, RefusedError), match=words):
        dpdist.create_session(tmp_path / "study", sites, asked, **{"columns": COLUMNS, **more})
    assert not (tmp_path / "study").exists()


def test_add_remove_states_no_numbers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="under add-remove it is private"):
        dpdist.create_session(
            tmp_path / "study", {"a": 5, "b": 5, "c": 5}, request(neighbours="add-remove"), columns=COLUMNS
        )


@pytest.mark.parametrize(
    ("names", "count", "words"),
    [
        (("weight", "age", "height"), 300, "has another schema than the session, or other columns: column"),
        (("age", "weight"), 300, "has another schema than the session, or other columns: column"),
        (COLUMNS, 299, "has 299 rows, and the session states 300 of boston"),
    ],
)
def test_a_table_that_the_session_is_not_about_is_refused(
    ready: tuple[Hospitals, str], names: tuple[str, ...], count: int, words: str
) -> None:
    hospitals, fingerprint = ready
    rows = write_rows(hospitals.folder / "other", np.ones((count, len(names))), names)
    with hospitals.at_site("boston"), pytest.raises(UsageError, match=words):
        dpdist.release_share(hospitals.session, rows, "boston", fingerprint)
    assert losses(dpdist.Ledger(hospitals.folder / "other" / "rows.ledger")) == []


@pytest.mark.parametrize(
    "change",
    [
        {"sites": [{"name": name, "rows": 299} for name in ROWS]},
        {"sites": [{"name": name, "rows": 300} for name in ROWS]},
        {"bounding": {"grid_bits": 22}},
        {"rows_at_most": 299},
        {"rows_at_most": 300},
    ],
)
def test_no_terms_tell_by_a_refusal_how_many_private_rows_there_are(
    hospitals: Hospitals, change: dict[str, Any]
) -> None:
    """Whoever writes the terms may choose numbers around a guess: a site must not treat them in two ways."""
    hospitals.create(asked=request(neighbours="add-remove"))
    outcomes = set()
    for count in (298, 302):  # of boston, around the guesses
        study = hospitals.session
        terms = json.loads((study / "session.json").read_text())
        changed = terms | {
            key: terms[key] | value if isinstance(value, dict) else value for key, value in change.items()
        }
        other = hospitals.folder / "shared" / f"study{count}"
        shutil.copytree(study, other)
        (other / "session.json").write_text(json.dumps(changed))
        rows = write_rows(hospitals.folder / f"other{count}", np.ones((count, 3)))
        hospitals.patch.setenv("DPDIST_STATE_HOME", str(hospitals.folder / f"state{count}"))
        try:
            for name in ROWS:
                session = dpdist.add_session_key(other, rows if name == "boston" else hospitals.rows(name), name)
            dpdist.release_share(other, rows, "boston", str(session.fingerprint))
            outcomes.add("a share")
        except (DataError, UsageError) as error:
            outcomes.add(str(error).replace(str(count), ""))
    assert len(outcomes) == 1


def test_rows_in_periods_are_refused(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    rows = write_rows(hospitals.folder / "night", hospitals.values["boston"], allowed=None, period="2026-01-05")
    with hospitals.at_site("boston"), pytest.raises(RefusedError, match="rows in periods"):
        dpdist.release_share(hospitals.session, rows, "boston", fingerprint)


def test_a_missing_key_is_named(hospitals: Hospitals) -> None:
    hospitals.create()
    with hospitals.at_site("boston"):
        assert dpdist.add_session_key(hospitals.session, hospitals.rows("boston"), "boston").missing_keys == [
            "lyon",
            "oslo",
        ]
        with pytest.raises(DataError, match=r"Public keys are missing in .*: of lyon, oslo"):
            dpdist.release_share(hospitals.session, hospitals.rows("boston"), "boston", "X")
        with pytest.raises(UsageError, match="no site 'paris'"):
            dpdist.add_session_key(hospitals.session, hospitals.rows("paris"), "paris")


def test_rows_without_a_budget_make_no_share(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    rows = write_rows(hospitals.folder / "other", hospitals.values["boston"], allowed=None)
    with hospitals.at_site("boston"), pytest.raises(RefusedError, match="No budget is declared"):
        dpdist.release_share(hospitals.session, rows, "boston", fingerprint)


def test_a_session_is_created_once(hospitals: Hospitals) -> None:
    hospitals.create()
    with pytest.raises(DataError, match="exists already"):
        hospitals.create()


def test_files_of_the_session_may_be_read_by_everybody(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    mask = os.umask(0)
    os.umask(mask)
    for file in hospitals.session.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o644 & ~mask, file.name
