"""The command line: exit codes, one paragraph per failure, one JSON object; a job run again publishes once."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import worker_environment
from support.cli_scene import LOSS, Call, assert_nothing_spent, names_in, start, tree

from dpdist import __version__
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.mechanisms.registry import MECHANISMS, RECOMMENDED
from dpdist.core.runtime.cluster import Cluster

DEFECT = """
import sys
from dpdist import cli
from dpdist.core.pipeline import release as release_steps

def broken(task):
    raise RuntimeError("sentinel-73519")

if __name__ == "__main__":
    release_steps.partition_of_own_key = broken
    sys.argv[0] = "dpdist"
    cli.main()
"""


def test_a_defect_in_a_worker_process_tells_its_type_and_place_but_not_its_text(here: Path) -> None:
    (here.parent / "defect.py").write_text(DEFECT)
    arguments = ("release", "rows.zarr", "release.zarr", *LOSS, "--workers", "1")
    said = start(*arguments, folder=here, script=here.parent / "defect.py")
    assert said.code == 1
    assert "sentinel" not in said.out + said.told
    assert "Traceback" not in said.told  # which Dask's workers like to log of a failed task, on our standard error
    assert re.search(r"RuntimeError at (defect\.py|<dynamic-code>):7 in broken:", said.told)
    assert not (here / "release.zarr").exists()


JOB = """
[rows]
path = "rows.zarr"
source = "table.csv"
budget_epsilon = 2
budget_delta = 1e-5

[release]
path = "release.zarr"
epsilon = 1
delta = 1e-6
clip = 300

[pca]
path = "model.zarr"
components = 2

[project]
path = "scores.zarr"

[cluster]
workers = 1
"""


OUTPUTS = ("rows.zarr", "release.zarr", "model.zarr", "scores.zarr")


def test_a_job_run_again_changes_nothing_spends_nothing_and_makes_what_is_missing(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in worker_environment.declared().items():  # which suits one machine too
        monkeypatch.setenv(name, value)
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    rows = np.random.default_rng(10).integers(0, 255, size=(40, 3))
    np.savetxt(tmp_path / "table.csv", rows, "%d", ",", header="a,b,c", comments="")
    first = start("run", job, "--json", folder=tmp_path)
    assert first.code == 0
    for words in ("ingested, 3 columns", "released now", "2 components", "PRIVATE"):
        assert words in first.told
    assert len(set(re.findall(r"on 1 worker at (\S+?:\d+)", first.told))) == 1  # started once, for all steps
    files = {name: tree(tmp_path / name) for name in OUTPUTS}
    head = Ledger(tmp_path / "rows.ledger").head

    again = start("run", job, "--json", folder=tmp_path)
    assert again.code == 0
    assert (first.json["release"]["fresh"], again.json["release"]["fresh"]) == (True, False)
    assert (first.json["model"], first.json["scores"]) == (str(tmp_path / "model.zarr"), str(tmp_path / "scores.zarr"))
    monkeypatch.setattr(Cluster, "named", False)
    for lost in ("", *OUTPUTS[1:]):
        if lost:
            shutil.rmtree(tmp_path / lost)
            said = call("run", job)
            assert (said.code, "alignment" in said.out) == (0, True)  # the components are the result
        assert {name: tree(tmp_path / name) for name in OUTPUTS} == files
        assert Ledger(tmp_path / "rows.ledger").head == head  # nothing was even written
    assert len(Ledger(tmp_path / "rows.ledger").records) == 1
    assert names_in(tmp_path) == sorted([*OUTPUTS, "rows.ledger", "job.toml", "table.csv"])


def test_an_unexpected_error_tells_its_type_and_place_but_not_its_text_and_an_interruption_is_exit_5(
    here: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("sentinel-73519") from ValueError("sentinel-73519 in the cause")

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpdist.cli.release.open_rows", broken)
    said = call("release", "rows.zarr", "release.zarr", *LOSS)
    assert said.code == 1
    assert re.search(r"defect in dpdist: RuntimeError at test_cli\.py:\d+.*report", said.message)
    assert "sentinel" not in said.message
    monkeypatch.setattr("dpdist.cli.release.open_rows", interrupted)
    said = call("release", "rows.zarr", "release.zarr", *LOSS)
    assert said.code == 5
    assert said.told.splitlines() == [
        "",
        "dpdist: Interrupted: the same command resumes, and charges nothing twice.",
    ]
    assert_nothing_spent(here)


def test_mechanisms_are_told_with_claim_and_proof_the_recommended_first(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = call("mechanisms", "--all")
    assert (said.code, said.err) == (0, "")
    words = " ".join(said.out.split())
    for mechanism in MECHANISMS.values():
        for text in (mechanism.info.name, mechanism.info.claimed, mechanism.info.proved):
            assert " ".join(text.split()) in words
    names = [line.split()[0] for line in said.out.splitlines() if line[:1].strip()]
    assert (names[:2], sorted(names)) == (list(RECOMMENDED), sorted(MECHANISMS))
    listed = call("mechanisms", "--json").json["mechanisms"]
    for field in ("name", "output", "claimed", "proved", "arithmetic", "cost", "delta"):
        assert [entry[field] for entry in listed] == [getattr(each.info, field) for each in MECHANISMS.values()]
    said = call("mechanisms")
    assert [line.split()[0] for line in said.out.splitlines() if line[:1].strip()][:-1] == list(RECOMMENDED)
    assert said.out.endswith(f"dpdist mechanisms --all lists {len(MECHANISMS) - 2} others.\n")
    said = call("mechanisms", "power-published")
    for words in ("instead      power", "--option components=...", "required"):
        assert words in said.out


def test_the_version_is_told_and_an_unknown_command_is_usage(call: Call) -> None:
    assert __version__ in call("--version").out
    for asked in (("frobnicate",), ("ledger", "frobnicate"), ("--frobnicate",)):
        said = call(*asked)
        assert (said.code, said.out, "frobnicate" in said.told) == (2, "", True)


def test_an_unset_variable_of_a_shell_is_no_option_or_told_and_no_defect_as_a_path(here: Path, call: Call) -> None:
    given = ("forecast", "--d", "3", "--n", "1000", "--epsilon", "1", "--delta", "1e-6")
    assert call(*given, "--arithmetic", "").code == 0
    said = call(*given, "--clip", "")
    assert (said.code, "must be a number, private, auto or schema, not ''" in said.told) == (2, True)
    for command in (
        ("ingest", "rows.zarr", ".", "--budget-epsilon", "1"), ("release", "rows.zarr", "", *LOSS),
        ("release", ".", "release.zarr", *LOSS), ("ledger", "create", "", "--rows", "rows.zarr"), ("run", ""),
    ):  # fmt: skip
        assert call(*command).code in {2, 4}
        assert_nothing_spent(here)


def test_a_command_run_again_changes_nothing_and_says_so_and_replaces_nothing_else(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Cluster, "named", False)
    np.save("table.npy", np.random.default_rng(3).integers(0, 255, (500, 3), dtype=np.uint8))
    budget = ("--budget-epsilon", "2", "--budget-delta", "1e-5")
    ingest = ("ingest", "table.npy", "rows.zarr")
    project = ("project", "rows.zarr", "model.zarr", "scores.zarr")
    commands = {
        (*ingest, *budget): "unchanged. Budget",
        ("release", "rows.zarr", "release.zarr", *LOSS): "nothing spent",
        ("pca", "release.zarr", "model.zarr", "--components", "2"): ", unchanged.",
        project: "written before, and kept",
        ("combine", "sum.zarr", "release.zarr"): ", unchanged.",
    }
    assert [call(*command).code for command in commands] == [0] * 5
    before = tree(tmp_path)
    ledger = ("ledger", "create", "rows.ledger", "--rows", "rows.zarr", *budget)
    commands |= {ingest: "delta 1e-05 in rows.ledger.", ledger: ", unchanged."}
    for command, words in commands.items():
        said = call(*command)
        assert (said.code, words in said.told) == (0, True), said.told
        assert call(*command, "--json").json["fresh"] is False
        assert tree(tmp_path) == before
    for refused in (
        ("ingest", "table.npy", "release.zarr"), ("pca", "release.zarr", "model.zarr", "--components", "1"),
        ("project", "rows.zarr", "model.zarr", "model.zarr"), ("combine", "release.zarr", "release.zarr"),
    ):  # fmt: skip
        said = call(*refused)
        assert (said.code, bool(said.message)) == (4, True)
        assert tree(tmp_path) == before
    next(path for path in Path("scores.zarr", "c").rglob("*") if path.is_file()).unlink()
    said = call(*project)
    assert (said.code, "damaged" in said.message) == (4, True)


def test_a_command_refuses_an_address_that_holds_a_password_and_one_of_no_store(tmp_path: Path, call: Call) -> None:
    job = tmp_path / "job.toml"
    for place, words in (
        ("s3://me:secretword@bucket/rows.zarr", "no user name, password"),
        ("hdfs://b/r", "hdfs://b/r is an address"),
    ):
        job.write_text(f"[rows]\npath = 'rows.zarr'\n[release]\npath = '{place}'\nepsilon = 1\nclip = 8\n")
        for command in (
            "inspect AT", "bound AT --epsilon 1", "release AT r --epsilon 1 --clip 1", "pca AT m --components 1",
            "report AT r.html", "project AT m s", "run AT", "combine sum AT", "ledger create l --rows AT",
            "ledger verify l --release AT", f"status {job}",
        ):  # fmt: skip
            said = call(*command.replace("AT", place).split())
            told = " ".join(said.told.split())
            assert (said.code, said.out) == (2, "")
            assert words in told or "on this machine, not an address" in told, command
            assert "secretword" not in told
