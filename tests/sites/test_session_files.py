"""Files of a session: what others put into its folder is refused by name, or spoils the sum and reveals nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ledgers import losses
from support.sites_scene import BUDGET, COLUMNS, LOSS, ROWS, Hospitals, request, write_rows

import dpdist
from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.release import share as share_module


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
    second = hospitals.exchange_key("oslo")
    session = dpdist.open_session(hospitals.session)
    assert second not in {"None", fingerprint}
    assert (session.shares, list(session.unusable)) == ({}, ["boston"])
    with pytest.raises(DataError, match=r"boston\.share was made with other public keys"):
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
    file.write_text(json.dumps(json.loads(file.read_text()) | changes, indent=2) + "\n")


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
    "names that look alike": {"columns": ["Zo\u00eb", "Zoe\u0308", "height"]},
    "another rounding": {"bound": {"rounding": "nearest"}},
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
    changes = HOSTILE[change] or {"bound": {"constant": 5}}
    changes = {key: terms[key] | value if key == "bound" else value for key, value in changes.items()}
    terms_changed(hospitals, **changes)
    with pytest.raises((DataError, UsageError, RefusedError)) as refused:
        hospitals.share("boston", hospitals.exchange())
    assert "or it is damaged" not in str(refused.value)  # it is a session, of other terms
    assert losses(hospitals.ledger("boston")) == []


def test_other_bytes_of_the_same_terms_are_no_session(ready: tuple[Hospitals, str]) -> None:
    """Two sites that read one meaning from different files would not know whose file a third program reads."""
    hospitals, _ = ready
    file = hospitals.session / "session.json"
    content = file.read_text()
    terms = json.loads(content)
    others = [
        json.dumps(terms),
        content + "\n",
        content.replace('"colluding": 1,', '"colluding": 1,\n  "colluding": 1,'),
    ]
    others += [json.dumps(terms | {"bound": terms["bound"] | {"later": 1}}, indent=2) + "\n"]
    for other in others:
        assert other != content
        file.write_text(other)
        with pytest.raises(DataError, match="or it is damaged"):
            dpdist.open_session(hospitals.session)
    file.write_text(content)
    assert dpdist.open_session(hospitals.session).missing_keys == []


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


@pytest.mark.parametrize(
    "extents",
    [
        [], [{"dataset": "0" * 32}] * 2, [{"dataset": "\x1b[2J"}], [{"dataset": "0" * 32, "start": 5, "stop": 1}],
        [{"dataset": "0" * 32, "start": 0, "stop": 1, "first": "a", "last": "a"}],
    ],
)  # fmt: skip
def test_a_share_is_of_all_rows_of_one_table(ready: tuple[Hospitals, str], extents: list[dict[str, Any]]) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    rewritten(hospitals.session / "lyon.share", dpdist.open_session(hospitals.session).terms, extents=extents)
    with pytest.raises(DataError, match="is not a share of lyon, or it is damaged"):
        hospitals.combined()


def test_two_shares_of_one_id_are_refused(ready: tuple[Hospitals, str]) -> None:
    hospitals, fingerprint = ready
    hospitals.all_shares(fingerprint)
    head = json.loads((hospitals.session / "boston.share").read_bytes().partition(b"\n")[0])
    terms = dpdist.open_session(hospitals.session).terms
    rewritten(hospitals.session / "lyon.share", terms, release_id=head["release_id"])
    with pytest.raises(DataError, match="Two shares have the same id"):
        hospitals.combined()
