"""The command release: it prints the guarantee; a refusal gives the reason, costs nothing and leaves nothing."""

from __future__ import annotations

import re
import socket
from contextlib import closing
from pathlib import Path

import pytest
from distributed import LocalCluster
from support.cli_scene import BUDGET, LOSS, ROWS, Call, Said, assert_nothing_spent
from support.ledgers import losses

from dpdist.core.ledger.ledger import Ledger
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.runtime import cluster, sums


def test_a_release_tells_its_guarantee_and_is_charged_once(here: Path, call: Call, scheduler: str) -> None:
    said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler)
    assert said.code == 0
    assert "gaussian, epsilon 1, delta 1e-06 under replace-one, integer-exact" in said.out  # the result
    assert "Summing rows" in said.err  # progress
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "-q").err == ""

    again = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler, "--json")
    assert again.code == 0
    assert (again.json["release"], again.json["fresh"], again.json["n"]) == ("release.zarr", False, ROWS)
    guarantee = again.json["guarantee"]
    assert (guarantee["epsilon_micro"], guarantee["delta_atto"]) == (10**6, 10**12)
    assert losses(Ledger(here / "rows.ledger")) == [PrivacyLoss.parse("1", "1e-6")]


def test_an_option_takes_both_spellings_but_not_at_once(here: Path, call: Call) -> None:
    said = call("release", "rows.zarr", "r.zarr", *LOSS, "--centre", "private", "--center=none")
    assert (said.code, said.message) == (
        2,
        "dpdist: --centre or --center is given twice, and takes one value. Give it once.",
    )
    assert_nothing_spent(here)
    first = call("release", "rows.zarr", "release.zarr", *LOSS, "--center", "private", "--json")
    again = call("release", "rows.zarr", "release.zarr", *LOSS, "--centre", "private", "--json")
    assert (first.json["fresh"], again.json["fresh"]) == (True, False)


@pytest.mark.usefixtures("impatient")
def test_a_refused_release_says_why_and_costs_nothing(here: Path, call: Call, scheduler: str) -> None:
    (here / "narrow.json").write_text('{"centre": [1, 2]}')
    (here / "empty.ledger").mkdir()
    Ledger.create(here / "other.ledger", dataset_id="0" * 32, budget=BUDGET)
    for code, words, options in (
        (4, "clip norm", ("--clip", "1e200")),
        (2, "a variable is not set", ("--scheduler", "")),
        (2, "not both", ("--workers", "1", "--scheduler", "tcp://127.0.0.1:1")),
        (2, "(--tls-ca, --tls-cert and --tls-key)", ("--scheduler", "tls://127.0.0.1:1")),
        (2, "--id", ("--id", "../week")),
        (2, "for 3 columns", ("--centre", "narrow.json")),
        (3, "not the ledger of", ("--ledger", "other.ledger")),
        (3, "restore it from a copy", ("--ledger", "empty.ledger")),
        (4, "trusted", ("--trusted", "worker")),
    ):
        where = () if {"--scheduler", "--workers"} & {*options} else ("--scheduler", scheduler)
        said = call(
            "release", "rows.zarr", "release.zarr", *LOSS[: -2 * ("--clip" in options) or None], *options, *where
        )
        assert (said.code, words in said.message) == (code, True), (options, said.told)
        assert_nothing_spent(here, "narrow.json", "empty.ledger", "other.ledger")
    assert Ledger(here / "other.ledger").charges == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(sums, "WORKER_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
def test_a_scheduler_that_is_unreachable_or_without_workers_is_refused_with_the_cure(here: Path, call: Call) -> None:
    def told(address: str) -> Said:
        return call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", address)

    with closing(socket.create_server(("127.0.0.1", 0))) as server:  # it never answers
        silent = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        refused = [(f"No Dask scheduler answers at {silent}", told(silent))]
    refused.append((f"No Dask scheduler answers at {silent}", told(silent)))
    with LocalCluster(
        n_workers=0, processes=False, protocol="tcp://", host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        idle = cluster.scheduler_address
        refused.append((f"has no workers.*dask worker {idle}", told(idle)))
    for words, said in refused:
        assert (said.code, bool(re.search(words, said.message))) == (4, True)
    assert_nothing_spent(here)
