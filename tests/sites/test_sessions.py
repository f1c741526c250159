"""Sessions of several sites: their sum is one release, and everything that reads releases reads it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.ledgers import losses
from support.sites_scene import BUDGET, CLIP, LOSS, ROWS, Hospitals, request, unmasked, write_rows

import dpdist
from dpdist.core.errors import DataError, UsageError
from dpdist.core.ledger.state import State
from dpdist.core.pipeline.charged import statement_of
from dpdist.core.release.attributes import SessionFacts
from dpdist.core.triangle import packed


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


@pytest.mark.parametrize("lost", ["condition", "colluding", "session", "sites"])
def test_a_release_of_a_session_that_lost_its_condition_does_not_open(
    ready: tuple[Hospitals, str], tmp_path: Path, lost: str
) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    hospitals.combined()
    file = tmp_path / "release.zarr" / "zarr.json"
    metadata = json.loads(file.read_text())
    about = metadata["attributes"]["dpdist"]
    if lost == "colluding":  # with the condition of that, and more noise than its guarantee needs
        about["session"]["colluding"] = 0
        about["condition"] = SessionFacts("0" * 64, tuple(ROWS), 0).condition(None)
    elif lost == "sites":
        about["noise"]["sites"] = 2
    else:
        del about[lost]
    file.write_text(json.dumps(metadata))
    with pytest.raises(DataError, match="damaged"):
        dpdist.open_release(tmp_path / "release.zarr")


def test_a_site_sees_its_own_charge_in_a_report_and_not_those_of_others(
    ready: tuple[Hospitals, str], tmp_path: Path
) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    release = hospitals.combined()
    with hospitals.at_site("lyon"):
        assert len(statement_of(hospitals.ledger("lyon"), release, tmp_path / "release.zarr").charged) == 1
        file = tmp_path / "release.zarr" / "zarr.json"
        sound = file.read_text()
        metadata = json.loads(sound)
        metadata["attributes"]["dpdist"]["columns"].reverse()
        file.write_text(json.dumps(metadata))
        with pytest.raises(DataError, match=r"other columns.*it was altered"):
            statement_of(hospitals.ledger("lyon"), dpdist.open_release(file.parent), file.parent)
        file.write_text(sound)
    write_rows(tmp_path / "else", np.zeros((5, 3)))
    with pytest.raises(UsageError, match="name the ledger that was charged"):
        statement_of(dpdist.Ledger(tmp_path / "else" / "rows.ledger"), release, tmp_path / "release.zarr")


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
