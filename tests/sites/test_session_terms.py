"""Terms of a session: what cannot work is refused before it is paid for."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ledgers import losses
from support.sites_scene import COLUMNS, ROWS, Hospitals, request, write_rows

import dpdist
from dpdist.core.errors import DataError, RefusedError, UsageError


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
