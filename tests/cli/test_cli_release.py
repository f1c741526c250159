"""The command release: it prints the guarantee; a refusal gives the reason, costs nothing and leaves nothing."""

from __future__ import annotations

import re
import shutil
import socket
from contextlib import closing
from pathlib import Path

import pytest
from distributed import LocalCluster
from support.cli_scene import BUDGET, CHUNK, LOSS, ROWS, Call, assert_nothing_spent, names_in, tree
from support.ledgers import losses

from dpdist.ledger.ledger import Ledger
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.runtime import cluster, sums


def test_a_release_tells_its_guarantee_and_is_the_same_bytes_again_without_a_cluster(
    here: Path, call: Call, scheduler: str
) -> None:
    said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler)
    assert (said.code, said.out) == (0, "")
    assert "gaussian, epsilon 1, delta 1e-06 under replace-one, integer-exact" in said.err
    spent = losses(Ledger(here / "rows.ledger"))
    assert spent == [PrivacyLoss.parse("1", "1e-6")]
    again = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler, "--json")
    assert again.code == 0
    assert (again.json["release"], again.json["fresh"], again.json["n"]) == ("release.zarr", False, ROWS)
    guarantee = again.json["guarantee"]
    assert (guarantee["epsilon_micro"], guarantee["delta_atto"]) == (10**6, 10**12)
    first = tree(here / "release.zarr")
    shutil.rmtree(here / "release.zarr")
    # no scheduler there; the bytes come from the ledger
    said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", "tcp://127.0.0.1:1")
    assert (said.code, "nothing spent" in said.err) == (0, True)
    assert tree(here / "release.zarr") == first
    assert losses(Ledger(here / "rows.ledger")) == spent


def test_an_option_takes_both_spellings_but_not_at_once(here: Path, call: Call) -> None:
    assert "--centre, --center" in call("release", "--help").out
    said = call("release", "rows.zarr", "r.zarr", *LOSS, "--centre", "private", "--center=none")
    assert (said.code, said.message) == (2, "dpdist: --centre and --center are the same option. Use one of them.")
    assert_nothing_spent(here)
    first = call("release", "rows.zarr", "release.zarr", *LOSS, "--center", "private", "--json")
    again = call("release", "rows.zarr", "release.zarr", *LOSS, "--centre", "private", "--json")
    assert (first.json["fresh"], again.json["fresh"]) == (True, False)


REFUSED: list[tuple[int, str, tuple[str, ...]]] = [  # each without its own --scheduler uses the running cluster
    # numbers
    (4, "Epsilon", ("--epsilon", "nan")),
    (2, "Epsilon must be a number", ("--epsilon", "")),
    (4, "Delta", ("--delta", "1")),
    (4, "clip norm", ("--clip", "1e200")),
    (2, "--grid-bits", ("--grid-bits", "99")),
    # names and combinations
    (2, "a variable is not set", ("--scheduler", "")),
    (2, "not both", ("--workers", "1", "--scheduler", "tcp://127.0.0.1:1")),
    (4, "answers at 127.0.0.1", ("--scheduler", "127.0.0.1")),
    (2, "(--tls-ca, --tls-cert and --tls-key)", ("--scheduler", "tls://127.0.0.1:1")),
    (2, "--id", ("--id", "../week")),
    (4, "--centre", ("--centre", "nothing.npy")),
    (2, "for 3 columns", ("--centre", "narrow.json")),
    # budget and places
    (3, "the budget of", ("--epsilon", "2.5")),
    (3, "not the ledger of", ("--ledger", "other.ledger")),
    (3, "restore it from a copy", ("--ledger", "empty.ledger")),
    (4, "trusted", ("--trusted", "worker")),
]


@pytest.mark.usefixtures("impatient")
def test_a_refused_release_says_why_and_costs_nothing(here: Path, call: Call, scheduler: str) -> None:
    (here / "narrow.json").write_text('{"centre": [1, 2]}')
    (here / "empty.ledger").mkdir()
    Ledger.create(here / "other.ledger", dataset_id="0" * 32, budget=BUDGET)
    for code, words, options in REFUSED:
        where = () if {"--scheduler", "--workers"} & set(options) else ("--scheduler", scheduler)
        said = call("release", "rows.zarr", "release.zarr", *LOSS, *options, *where)
        assert (said.code, words in said.message) == (code, True), (options, said.err)
        assert_nothing_spent(here, "narrow.json", "empty.ledger", "other.ledger")
    assert Ledger(here / "other.ledger").charges == []


def test_a_malformed_release_command_is_usage(here: Path, call: Call) -> None:
    places = ("rows.zarr", "release.zarr")
    for words, arguments in (
        ("Usage", ()),
        ("--clip", (*places, *LOSS, "--clip", "abc")),
        ("two-sided-wishart", (*places, *LOSS, "--mechanism", "laplacian")),
        ("--seed", (*places, *LOSS, "--seed", "1")),
    ):
        said = call("release", *arguments)
        assert (said.code, said.out, words in said.err, "Traceback" in said.err) == (2, "", True, False)
    assert_nothing_spent(here)


def test_a_second_release_that_cannot_be_is_refused_with_what_differs_or_is_left(
    here: Path, call: Call, scheduler: str
) -> None:
    first = (*LOSS, "--id", "week-47", "--scheduler", scheduler)
    assert call("release", "rows.zarr", "release.zarr", *first).code == 0
    before, head = tree(here / "release.zarr"), Ledger(here / "rows.ledger").head
    less = ("--epsilon", "0.1", "--delta", "1e-6", "--clip", "300", "--scheduler", scheduler)
    left = "1 release is charged already.*is epsilon 2, delta 1e-05; left: one gaussian release of epsilon 1."
    other = rf"contains another release, of other rows or parameters.*dpdist inspect {here / 'release.zarr'} shows"
    for code, words, name, options in (
        # Gaussian releases compose exactly, so only one that takes the whole budget is certainly too much
        (3, f"costs epsilon 2.*{left}", "s.zarr", (*less, "--epsilon", "2", "--delta", "1e-5")),
        (3, "bound differ", "s.zarr", (*first, "--clip", "301")),
        (3, "--neighbours replace-one", "s.zarr", (*less, "--neighbours", "add-remove")),
        (4, other, "release.zarr", less),
    ):
        said = call("release", "rows.zarr", name, *options)
        assert (said.code, bool(re.search(words, said.message))) == (code, True), said.message
        assert (tree(here / "release.zarr"), Ledger(here / "rows.ledger").head) == (before, head)
    assert not (here / "s.zarr").exists()


def test_unusable_rows_are_exit_4_with_the_place_and_the_cure(here: Path, call: Call, scheduler: str) -> None:
    sound = CHUNK.read_bytes()
    for words, file, content in (
        ("Chunk 2 of .* is missing", CHUNK, None),
        ("Chunk 2 of .* was altered", CHUNK, sound + b"0"),
        ("Chunk 2 .* was altered", CHUNK, bytes([sound[0] ^ 1]) + sound[1:]),
        ("no usable rows", Path("rows.zarr/zarr.json"), b"\xff{garbage"),
    ):
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler)
        assert (said.code, bool(re.search(words, said.message))) == (4, True)
        assert all(word in said.message for word in ("rows.zarr", "ingest"))
        assert Ledger(here / "rows.ledger").charges == []
        assert names_in(here) == ["rows.ledger", "rows.zarr"]
        assert names_in(here / "rows.ledger" / "blobs") == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon."""
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(sums, "WORKER_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
def test_a_port_where_nothing_listens_or_answers_is_an_unreachable_scheduler(here: Path, call: Call) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:  # it never answers
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        told = [call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", address)]
    told.append(call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", address))
    for each in told:
        assert (each.code, f"No Dask scheduler answers at {address}" in each.message) == (4, True)
    assert_nothing_spent(here)


@pytest.mark.usefixtures("impatient")
def test_a_scheduler_without_workers_is_refused_with_how_to_start_some(here: Path, call: Call) -> None:
    with LocalCluster(
        n_workers=0, processes=False, protocol="tcp://", host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", cluster.scheduler_address)
        assert said.code == 4
        assert re.search(f"has no workers.*dask worker {cluster.scheduler_address}", said.message)
    assert_nothing_spent(here)


def test_a_release_never_replaces_what_exists(here: Path, call: Call, scheduler: str) -> None:
    (here / "file.zarr").write_text("precious")
    (here / "folder.zarr").mkdir()
    (here / "folder.zarr" / "precious").write_text("precious")
    (here / "link.zarr").symlink_to(here / "nowhere")
    before = {name: content for name, content in tree(here).items() if "ledger" not in name}
    for name in ("file.zarr", "folder.zarr", "link.zarr", "no/release.zarr"):
        said = call("release", "rows.zarr", name, *LOSS, "--scheduler", scheduler)
        assert (said.code, "exists already" in said.message or f"{here / 'no'} does not exist" in said.message) == (
            4, True,
        )  # fmt: skip
    assert_nothing_spent(here, "file.zarr", "folder.zarr", "link.zarr")
    assert {name: content for name, content in tree(here).items() if "ledger" not in name} == before
