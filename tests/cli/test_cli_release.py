"""A release by the command line: what it guarantees is told; one that is refused says why, costs and leaves nothing."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import zarr
from distributed import LocalCluster
from support.cli_scene import BUDGET, CHUNK, LOSS, ROWS, Call, assert_nothing_spent, names_in, tree
from support.ledgers import losses

from dpdist.ledger.ledger import Ledger
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release.artefact import open_release
from dpdist.runtime import cluster, sums

# A release that succeeds


def test_a_release_tells_what_was_guaranteed_in_words_and_in_json(here: Path, call: Call, scheduler: str) -> None:
    said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler)
    assert (said.code, said.out) == (0, "")
    assert "gaussian, epsilon 1, delta 1e-06 under replace-one, integer-exact" in said.err
    again = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler, "--json")
    assert again.code == 0
    assert again.json["release"] == "release.zarr"
    assert again.json["fresh"] is False
    assert again.json["guarantee"]["epsilon_micro"] == 10**6
    assert again.json["guarantee"]["delta_atto"] == 10**12
    assert again.json["n"] == ROWS
    spent = losses(Ledger(here / "rows.ledger"))
    assert spent == [PrivacyLoss.parse("1", "1e-6")]


def test_the_same_release_again_is_the_same_bytes_and_needs_no_cluster(here: Path, call: Call, scheduler: str) -> None:
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 0
    first, spent = tree(here / "release.zarr"), losses(Ledger(here / "rows.ledger"))
    shutil.rmtree(here / "release.zarr")
    # nobody answers there; the bytes come from the ledger
    said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", "tcp://127.0.0.1:1")
    assert said.code == 0
    assert "nothing spent" in said.err
    assert tree(here / "release.zarr") == first
    assert losses(Ledger(here / "rows.ledger")) == spent


def test_without_a_delta_the_release_is_pure(here: Path, call: Call, scheduler: str) -> None:
    arguments = ("--epsilon", "1", "--clip", "300", "--neighbours", "add-remove", "--scheduler", scheduler, "--json")
    said = call("release", "rows.zarr", "release.zarr", *arguments)
    assert said.json["mechanism"] == "two-sided-wishart"
    assert said.json["n"] is None
    published = (here / "release.zarr" / "zarr.json").read_text()  # of which random hexadecimal words are no numbers
    assert str(ROWS) not in re.findall(r"(?<![0-9a-f])\d+(?![0-9a-f])", published)


def test_the_options_of_a_release_reach_it(here: Path, call: Call, scheduler: str) -> None:
    (here / "public.json").write_text('{"centre": [100, 100, 100], "scale": [2, 2, 2]}')
    options = ("--centre", "public.json", "--grid-bits", "9", "--id", "week-47", "--scheduler", scheduler)
    assert call("release", "rows.zarr", "release.zarr", *LOSS, *options).code == 0
    found = open_release(here / "release.zarr")
    assert (found.release_id, found.bound.grid_bits, found.bound.clip_norm) == ("week-47", 9, 300.0)
    assert (found.bound.centre, found.bound.scale) == ((100.0,) * 3, (2.0,) * 3)
    private = (*LOSS, "--centre", "private", "--id", "week-48", "--scheduler", scheduler)
    assert call("release", "rows.zarr", "centred.zarr", *private).code == 0
    assert open_release(here / "centred.zarr").row_sum is not None


# A release that is refused. Without its own --scheduler or --workers each of these uses the running cluster.

REFUSED: list[tuple[int, str, tuple[str, ...]]] = [
    # numbers
    (4, "Epsilon", ("--epsilon", "nan")),
    (4, "Epsilon", ("--epsilon", "1e999999999")),
    (4, "millionths", ("--epsilon", "1e-7")),
    (2, "Epsilon must be a number", ("--epsilon", "")),
    (4, "Delta", ("--delta", "1")),
    (4, "1e-18", ("--delta", "1e-19")),
    (4, "--clip", ("--clip", "-1")),
    (4, "clip norm", ("--clip", "1e200")),
    (2, "--grid-bits", ("--grid-bits", "99")),
    # names and combinations
    (2, "takes no delta", ("--mechanism", "two-sided-wishart")),
    (2, "--workers", ("--workers", "0")),
    (2, "a variable that is not set", ("--scheduler", "")),
    (2, "not both", ("--workers", "1", "--scheduler", "tcp://127.0.0.1:1")),
    (4, "answers at 127.0.0.1", ("--scheduler", "127.0.0.1")),
    (2, "(--tls-ca, --tls-cert and --tls-key)", ("--scheduler", "tls://127.0.0.1:1")),
    (4, "tcp://127.0.0.1:port", ("--scheduler", "tcp://127.0.0.1:port")),
    (2, "--id", ("--id", "../week")),
    (4, "--centre", ("--centre", "nothing.npy")),
    (2, "for 3 columns", ("--centre", "narrow.json")),
    # budget and places
    (3, "the budget of", ("--epsilon", "2.5")),
    (3, "the budget of", ("--delta", "1e-4", "--epsilon", "1.9")),
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
        ("--clip", (*places, "--epsilon", "1")),
        ("--clip", (*places, *LOSS, "--clip", "abc")),
        ("two-sided-wishart", (*places, *LOSS, "--mechanism", "laplacian")),
        ("--seed", (*places, *LOSS, "--seed", "1")),
    ):
        said = call("release", *arguments)
        assert (said.code, said.out, words in said.err, "Traceback" in said.err) == (2, "", True, False)
    assert_nothing_spent(here)


def test_a_release_over_what_is_left_is_refused_with_what_is_left(here: Path, call: Call, scheduler: str) -> None:
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 0
    before, head = tree(here / "release.zarr"), Ledger(here / "rows.ledger").head
    # Gaussian releases compose exactly, so only one that takes the whole budget is certainly too much
    more = ("--epsilon", "2", "--delta", "1e-5", "--clip", "300", "--scheduler", scheduler)
    said = call("release", "rows.zarr", "second.zarr", *more)
    assert said.code == 3
    assert "costs epsilon 2" in said.message
    assert "1 release is charged already" in said.message
    assert "left: one gaussian release of epsilon 1." in said.message
    assert "is epsilon 2, delta 1e-05" in said.message
    assert Ledger(here / "rows.ledger").head == head
    assert tree(here / "release.zarr") == before
    assert not (here / "second.zarr").exists()


def test_an_id_that_stands_for_other_parameters_is_refused_with_what_differs(
    here: Path, call: Call, scheduler: str
) -> None:
    common = ("--delta", "1e-6", "--id", "week-47", "--scheduler", scheduler)
    assert call("release", "rows.zarr", "r.zarr", "--epsilon", "0.5", "--clip", "300", *common).code == 0
    said = call("release", "rows.zarr", "s.zarr", "--epsilon", "0.5", "--clip", "301", *common)
    assert said.code == 3
    assert "bound differ" in said.message
    assert not (here / "s.zarr").exists()


def test_another_relation_than_that_of_the_first_release_is_refused(here: Path, call: Call, scheduler: str) -> None:
    assert call("release", "rows.zarr", "r.zarr", *LOSS, "--scheduler", scheduler).code == 0
    said = call(
        "release", "rows.zarr", "s.zarr", "--epsilon", "0.1", "--clip", "300", "--neighbours", "add-remove",
        "--scheduler", scheduler,
    )  # fmt: skip
    assert said.code == 3
    assert "--neighbours replace-one" in said.message
    assert not (here / "s.zarr").exists()


# Rows that cannot be used


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _replace_rows() -> None:
    shutil.rmtree("rows.zarr")
    zarr.create_array("rows.zarr", data=np.ones((4, 3)))


DAMAGES: dict[str, tuple[str, Callable[[], object]]] = {
    "a chunk deleted": ("Chunk 2 of .* is missing", CHUNK.unlink),
    "a chunk too long": ("Chunk 2 of .* was altered", lambda: _rewrite(CHUNK, lambda b: b + b"0")),
    "a chunk altered": ("Chunk 2 .* was altered", lambda: _rewrite(CHUNK, lambda b: bytes([b[0] ^ 1]) + b[1:])),
    "garbage in zarr.json": ("no usable rows", lambda: Path("rows.zarr/zarr.json").write_bytes(b"\xff{garbage")),
    "a foreign array": ("no usable rows", _replace_rows),
}


@pytest.mark.parametrize(("words", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_unusable_rows_are_exit_4_with_the_place_and_the_cure(
    here: Path, call: Call, scheduler: str, words: str, damage: Callable[[], object]
) -> None:
    damage()
    before = names_in(here)
    said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler)
    assert said.code == 4
    assert re.search(words, said.message)
    assert "rows.zarr" in said.message
    assert "ingest" in said.message
    assert Ledger(here / "rows.ledger").charges == []
    assert names_in(here) == before
    assert names_in(here / "rows.ledger" / "blobs") == []


def test_a_chunk_that_was_mended_is_released_under_the_same_id(here: Path, call: Call, scheduler: str) -> None:
    # the reservation was refunded; a refund must not bar the way
    sound = CHUNK.read_bytes()
    CHUNK.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 4
    CHUNK.write_bytes(sound)
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 0
    assert [r.state.value for r in Ledger(here / "rows.ledger").records] == ["published"]


# Clusters that cannot be used


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon."""
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(sums, "WORKER_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
def test_a_port_where_nothing_listens_or_answers_is_an_unreachable_scheduler(here: Path, call: Call) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        # the connection succeeds, the greeting never comes: without a limit this would not end
        said = [call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", f"tcp://127.0.0.1:{port}")]
    for address in (f"tcp://127.0.0.1:{port}", f"127.0.0.1:{port}"):
        said.append(call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", address))
        assert f"No Dask scheduler answers at {address}" in said[-1].message
    for each in said:
        assert (each.code, "--scheduler" in each.message) == (4, True)
    assert_nothing_spent(here)


@pytest.mark.usefixtures("impatient")
def test_a_scheduler_without_workers_is_refused_with_how_to_start_some(here: Path, call: Call) -> None:
    with LocalCluster(
        n_workers=0, processes=False, protocol="tcp://", host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", cluster.scheduler_address)
        assert said.code == 4
        assert "has no workers" in said.message
        assert f"dask worker {cluster.scheduler_address}" in said.message
    assert_nothing_spent(here)


# Places that cannot be written


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


def test_a_release_of_something_else_is_not_replaced(here: Path, call: Call, scheduler: str) -> None:
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 0
    before, head = tree(here / "release.zarr"), Ledger(here / "rows.ledger").head
    less = ("--epsilon", "0.1", "--delta", "1e-6", "--clip", "300", "--scheduler", scheduler)
    said = call("release", "rows.zarr", "release.zarr", *less)
    assert said.code == 4
    assert "release.zarr holds another release, of other rows or other parameters" in said.message
    assert f"dpdist inspect {here / 'release.zarr'} shows them" in said.message
    job = here / "job.toml"
    job.write_text(
        '[rows]\npath = "rows.zarr"\n[release]\npath = "release.zarr"\nepsilon = 0.1\ndelta = 1e-6\nclip = 300\n'
    )
    assert "holds another release" in call("run", job, "--dry-run").message
    assert tree(here / "release.zarr") == before
    assert Ledger(here / "rows.ledger").head == head


def test_a_path_that_names_no_file_is_not_taken_for_a_defect(here: Path, call: Call) -> None:
    # an unset shell variable is an empty path
    (here / "table.csv").write_text("a,b\n1,2\n3,4\n")
    for command in (
        ("ingest", "table.csv", ".", "--budget-epsilon", "1"),
        ("ingest", "table.csv", "/", "--budget-epsilon", "1"),
        ("release", "rows.zarr", "", *LOSS),
        ("release", ".", "release.zarr", *LOSS),
        ("pca", "", "model.zarr", "--components", "1"),
        ("ledger", "create", "", "--rows", "rows.zarr"),
        ("run", ""),
    ):
        assert call(*command).code in {2, 4}
        assert_nothing_spent(here, "table.csv")
