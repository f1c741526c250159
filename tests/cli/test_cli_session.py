"""The commands of a session: what they print, what they refuse, and the cures they name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.cli_scene import Call

SITES = {"boston": 60, "lyon": 40, "oslo": 50}
CREATE = ("--sites", "boston=60,lyon=40,oslo=50", "--columns", "age,weight", "--epsilon", "1", "--delta", "1e-6",
          "--clip", "4", "--anyway")  # fmt: skip


@pytest.fixture
def study(apart: Path, call: Call) -> Path:
    for name, rows in SITES.items():
        table = np.random.default_rng(rows).normal(size=(rows, 2))
        np.savetxt(apart / f"{name}.csv", table, delimiter=",", header="age,weight", comments="")
        budget = ("--budget-epsilon", "1", "--budget-delta", "1e-6")
        assert call("ingest", f"{name}.csv", f"{name}.zarr", "--header", "yes", *budget).code == 0
    assert call("session", "create", "study", *CREATE).code == 0
    return apart


def keys(call: Call) -> str:
    for name in SITES:
        last = call("session", "key", "study", f"{name}.zarr", "--site", name, "--json")
    return str(last.json["fingerprint"])


def test_four_commands_make_a_release_of_three_sites(study: Path, call: Call) -> None:
    created = call("session", "create", "other", *CREATE)
    assert "protects its rows if at most 1 of the 3 sites (boston, lyon, oslo) reveals its noise" in created.out
    assert "If a site drops out, the others need a new session" in created.out
    first = call("session", "key", "study", "boston.zarr", "--site", "boston")
    assert "Keys are missing: of lyon, oslo." in first.out
    fingerprint = keys(call)
    last = call("session", "key", "study", "oslo.zarr", "--site", "oslo")
    assert f"The fingerprint is {fingerprint}. Compare it with every other site by telephone" in last.out
    for name in SITES:
        share = call("session", "share", "study", f"{name}.zarr", "--site", name, "--fingerprint", fingerprint)
        assert (share.code, "alone it is as good as random bits" in share.out) == (0, True)
    assert "epsilon 1, delta 1e-06, if at most 1 of the 3 sites" in " ".join(share.out.split())
    books = " ".join(call("ledger", "show", "lyon.ledger").out.split())
    assert "no more sites collude than the session of" in books
    again = call("session", "share", "study", "lyon.zarr", "--site", "lyon", "--fingerprint", fingerprint)
    assert "released before: the same bytes, nothing spent" in again.out
    assert call("session", "combine", "study", "release.zarr").code == 0
    shown = call("inspect", "release.zarr")
    assert "sites       boston, lyon, oslo: each was trusted with its own rows" in shown.out
    assert call("pca", "release.zarr", "model.zarr", "--components", "2").code == 0
    assert call("report", "release.zarr", "report.html", "--ledger", "lyon.ledger").code == 0
    page = (study / "report.html").read_text()
    assert "at most 1 of the 3 sites (boston, lyon, oslo) reveals its noise or its key" in page
    assert call("report", "release.zarr", "officer.html", "--verdict", "--ledger", "lyon.ledger").code == 0
    officer = " ".join((study / "officer.html").read_text().split())
    for words in (
        "at most 1 of the 3 sites", "compared the fingerprint of the session with every other one by telephone",
        "contains the share of one site in this release",
    ):  # fmt: skip
        assert words in officer
    assert "machine that drew the noise" not in officer
    assert call("ledger", "verify", "lyon.ledger", "--release", "release.zarr").code == 0
    table = np.random.default_rng(1).normal(size=(60, 2))
    np.savetxt(study / "other.csv", table, delimiter=",", header="age,weight", comments="")
    assert call("ingest", "other.csv", "other.zarr", "--header", "yes", "--budget-epsilon", "1").code == 0
    foreign = call("ledger", "verify", "other.ledger", "--release", "release.zarr")
    assert (foreign.code, "contains none of them" in foreign.message) == (3, True)
    combined = call("combine", "sum.zarr", "release.zarr", "study/boston.share")
    for refused in (combined, call("inspect", "study/boston.share")):
        assert (refused.code, "is the share of one site in a session" in refused.message) == (4, True)
    for refused in (call("relate", "study"), call("pca", "study", "none.zarr")):
        assert "dpdist session combine study RELEASE" in refused.message


def test_inspect_shows_who_is_trusted_and_what_is_missing(study: Path, call: Call) -> None:
    shown = call("inspect", "study")
    assert shown.out.startswith("study: a session of several sites. Public.")
    for line in (
        "sites        boston (60 rows), lyon (40 rows), oslo (50 rows)",
        "trust        each site is trusted with its own rows, nobody with a sum without",
        "keys         missing: boston, lyon, oslo",
        "fingerprint  none until all keys are there",
        "shares       missing: boston, lyon, oslo",
    ):
        assert line in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    fingerprint = keys(call)
    value = call("inspect", "study", "--json").json
    assert (value["kind"], value["private"], value["fingerprint"]) == ("session", False, fingerprint)
    assert value["missing_shares"] == list(SITES)
    assert study.joinpath("study", "session.json").exists()


@pytest.mark.usefixtures("study")
def test_a_share_needs_the_fingerprint(call: Call) -> None:
    fingerprint = keys(call)
    refused = call("session", "share", "study", "boston.zarr", "--site", "boston")
    assert (refused.code, "--fingerprint" in refused.err) == (2, True)
    wrong = call(
        "session", "share", "study", "boston.zarr", "--site", "boston", "--fingerprint", fingerprint[::-1]
    )  # fmt: skip
    assert wrong.code == 3
    assert "Nothing was spent. dpdist inspect study shows it here; every site must see the same." in wrong.message
    assert json.loads(call("ledger", "export", "boston.ledger").out)["releases"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("create", "two", "--sites", "a=5,b=5"), 2, r"state it with --colluding 0; or find a third site"),
        (("create", "two", "--sites", "a=5,b,c=5"), 2, r"--sites takes NAME=ROWS for each site"),
        (("create", "two", "--sites", "a=5,a=5,c=5"), 2, r"--sites names a site twice"),
        (("create", "two", "--sites", "a=5,b=5,c=5", "--colluding", "2"), 2, r"Of 3 sites from 0 to 1"),
        (("key", "study", "boston.zarr", "--site", "paris"), 2, r"no site 'paris'; its sites are boston, lyon, oslo"),
        (
            ("key", "nowhere", "boston.zarr", "--site", "boston"),
            4,
            r"no session at nowhere: .* copy its folder here; dpdist session create",
        ),
        (("combine", "study", "release.zarr"), 4, r"Shares are missing in study: of boston, lyon, oslo"),
    ],
)
def test_what_is_wrong_is_said_with_its_cure(
    study: Path, call: Call, arguments: tuple[str, ...], code: int, words: str
) -> None:
    more = CREATE[2:] if arguments[0] == "create" else ()
    refused = call("session", *arguments, *more)
    assert refused.code == code
    assert re.search(words, refused.message)
    assert not (study / "two").exists()


def test_a_session_without_a_clip_norm_names_where_one_comes_from(study: Path, call: Call) -> None:
    without = [word for word in CREATE if word not in {"--clip", "4"}]
    refused = call("session", "create", "other", *without)
    assert refused.code == 2
    assert "A session cannot choose a scale privately" in refused.message
    assert "--centre pilot.zarr --clip auto" in refused.message
    # and that works when typed
    table = np.random.default_rng(3).normal(size=(4000, 2))
    np.savetxt(study / "first.csv", table, delimiter=",", header="age,weight", comments="")
    pilot = call(
        "release", "first.csv", "pilot.zarr", "--epsilon", "2", "--delta", "1e-6", "--header", "yes",
        "--each-row-is-a-person",
    )  # fmt: skip
    assert pilot.code == 0, pilot.err
    created = call("session", "create", "other", *without, "--centre", "pilot.zarr", "--clip", "auto")
    assert created.code == 0, created.err


def test_the_clip_norm_of_a_schema_with_ranges_is_the_default(study: Path, call: Call) -> None:
    ranges = "".join(f'[[column]]\nname = "{name}"\nkind = "number"\nrange = [-5, 5]\n' for name in ("age", "weight"))
    (study / "schema.toml").write_text('scale = "range"\neach_row_is_a_person = true\n' + ranges)
    created = call("session", "create", "other", *CREATE[:2], *CREATE[4:8], "--schema", "schema.toml", "--anyway")
    assert created.code == 0, created.err
    terms = call("inspect", "other", "--json").json["terms"]
    assert (terms["bounding"]["clip_norm"], terms["bound"]["clip_norm"] > 1.41) == ("schema", True)


@pytest.mark.usefixtures("study")
def test_a_file_is_not_taken_for_rows(call: Call) -> None:
    fingerprint = keys(call)
    refused = call("session", "share", "study", "boston.csv", "--site", "boston", "--fingerprint", fingerprint)
    assert refused.code == 4
    assert "its rows may be in boston.zarr already: use that" in " ".join(refused.message.split())
    (Path("boston.zarr")).rename("other.zarr")
    refused = call("session", "share", "study", "boston.csv", "--site", "boston", "--fingerprint", fingerprint)
    assert (refused.code, "dpdist ingest" in refused.message) == (4, True)
