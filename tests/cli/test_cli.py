"""The command line: exit codes, one paragraph per failure, one JSON object; a job run again publishes once."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli_scene import LOSS, Call, assert_nothing_spent, names_in, start, tree
from support.ledgers import losses

from dpdist import __version__
from dpdist.ledger.ledger import Ledger
from dpdist.mechanisms.registry import MECHANISMS, RECOMMENDED
from dpdist.pipeline import release as release_steps

# Processes of their own


def test_the_installed_command_is_the_module(tmp_path: Path) -> None:
    said = start("mechanisms", "--json", folder=tmp_path)
    assert (said.code, said.err) == (0, "")
    listed = said.json["mechanisms"]
    for field in ("name", "output", "claimed", "proved", "arithmetic", "cost", "delta"):
        assert [entry[field] for entry in listed] == [getattr(each.info, field) for each in MECHANISMS.values()]


def test_a_refused_number_is_one_paragraph_and_exit_4_in_a_real_process(here: Path) -> None:
    said = start("release", "rows.zarr", "release.zarr", "--epsilon", "0", "--clip", "1", "--json", folder=here)
    assert said.code == 4
    assert "Epsilon must be positive" in said.message
    assert_nothing_spent(here)


DEFECT = """
import sys
from dpdist import cli
from dpdist.pipeline import release as release_steps

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
    assert "sentinel" not in said.out + said.err
    assert "Traceback" not in said.err  # which Dask's workers like to log of a failed task, on our standard error
    assert re.search(r"RuntimeError at (defect\.py|<dynamic-code>):7 in broken:", said.err)
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
{release}

[pca]
path = "model.zarr"
components = 2

[project]
path = "scores.zarr"

[cluster]
{cluster}
"""


def write_job(folder: Path, cluster: str, release: str = "") -> Path:
    (folder / "job.toml").write_text(JOB.format(cluster=cluster, release=release))
    rows = np.random.default_rng(10).integers(0, 255, size=(40, 3))
    lines = ["a,b,c", *(",".join(map(str, row)) for row in rows.tolist())]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder / "job.toml"


OUTPUTS = ("rows.zarr", "release.zarr", "model.zarr", "scores.zarr")


def test_a_job_run_twice_by_real_workers_publishes_once_and_changes_nothing(tmp_path: Path) -> None:
    job = write_job(tmp_path, "workers = 1")
    first = start("run", job, "--json", folder=tmp_path)
    assert first.code == 0
    files = {name: tree(tmp_path / name) for name in OUTPUTS}
    head = Ledger(tmp_path / "rows.ledger").head

    again = start("run", job, "--json", folder=tmp_path)
    assert again.code == 0
    assert {name: tree(tmp_path / name) for name in OUTPUTS} == files
    assert Ledger(tmp_path / "rows.ledger").head == head  # nothing was even written

    assert (first.json["release"]["fresh"], again.json["release"]["fresh"]) == (True, False)
    assert first.json["model"] == str(tmp_path / "model.zarr")
    assert first.json["scores"] == str(tmp_path / "scores.zarr")
    assert len(Ledger(tmp_path / "rows.ledger").records) == 1
    assert names_in(tmp_path) == sorted([*OUTPUTS, "rows.ledger", "job.toml", "table.csv"])


# Whole jobs


def job_here(folder: Path, scheduler: str, release: str = "") -> Path:
    return write_job(folder, f'scheduler = "{scheduler}"', release)


@pytest.fixture
def done(tmp_path: Path, call: Call, scheduler: str) -> Path:
    """Return the folder of a job that has run."""
    said = call("run", job_here(tmp_path, scheduler))
    assert (said.code, said.out) == (0, "")
    for words in ("ingested, 3 columns", "released now", "2 components", "PRIVATE"):
        assert words in said.err
    return tmp_path


def test_a_job_run_again_makes_what_is_missing_and_spends_nothing(done: Path, call: Call, scheduler: str) -> None:
    spent = losses(Ledger(done / "rows.ledger"))
    for lost in OUTPUTS[1:]:
        before = tree(done / lost)
        shutil.rmtree(done / lost)
        assert call("run", job_here(done, scheduler)).code == 0
        assert tree(done / lost) == before
    assert losses(Ledger(done / "rows.ledger")) == spent


def test_a_job_whose_model_is_of_another_release_is_refused(done: Path, call: Call, scheduler: str) -> None:
    model = tree(done / "model.zarr")
    (done / "release.zarr").rename(done / "old.zarr")
    said = call("run", job_here(done, scheduler, release='period = "2"'))
    assert said.code == 4
    assert "model.zarr exists already and was made from something else" in said.err
    assert tree(done / "model.zarr") == model


def test_a_job_whose_scores_are_of_other_rows_is_refused(done: Path, call: Call, scheduler: str) -> None:
    file = done / "scores.zarr" / "zarr.json"
    whole = json.loads(file.read_text())
    whole["attributes"]["dpdist"]["dataset_id"] = "0" * 32
    file.write_text(json.dumps(whole))
    said = call("run", job_here(done, scheduler))
    assert said.code == 4
    assert "scores.zarr exists already and was made from something else" in said.err


def test_a_job_without_rows_and_without_a_source_is_refused(tmp_path: Path, call: Call, scheduler: str) -> None:
    job = job_here(tmp_path, scheduler)
    job.write_text("\n".join(line for line in job.read_text().splitlines() if not line.startswith("source")))
    said = call("run", job)
    assert said.code == 4
    assert "dpdist ingest" in said.message
    assert names_in(tmp_path) == ["job.toml", "table.csv"]


# Defects and interruptions


def test_an_unexpected_error_tells_its_type_and_place_but_not_its_text(
    here: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("sentinel-73519") from ValueError("sentinel-73519 in the cause")

    monkeypatch.setattr(release_steps, "open_rows", broken)
    said = call("release", "rows.zarr", "release.zarr", *LOSS)
    assert said.code == 1
    assert re.search(r"defect in dpdist: RuntimeError at test_cli\.py:\d+", said.message)
    assert "sentinel" not in said.message
    assert "report" in said.message
    assert_nothing_spent(here)


def test_an_interruption_is_exit_5(here: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(release_steps, "open_rows", interrupted)
    said = call("release", "rows.zarr", "release.zarr", *LOSS)
    assert said.code == 5
    assert said.err == "\ndpdist: Interrupted: the same command resumes, and charges nothing twice.\n"
    assert_nothing_spent(here)


# Mechanisms and help


def test_mechanisms_are_told_with_claim_and_proof(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = call("mechanisms", "--all")
    assert (said.code, said.err) == (0, "")
    words = " ".join(said.out.split())
    for mechanism in MECHANISMS.values():
        for text in (mechanism.info.name, mechanism.info.claimed, mechanism.info.proved):
            assert " ".join(text.split()) in words
    names = [line.split()[0] for line in said.out.splitlines() if line[:1].strip()]
    assert (names[:2], sorted(names)) == (list(RECOMMENDED), sorted(MECHANISMS))
    said = call("mechanisms", "power-published")
    for words in ("instead      power", "--option components=...", "required"):
        assert words in said.out


def test_the_recommended_mechanisms_are_shown_first_and_the_others_named(call: Call) -> None:
    said = call("mechanisms").out
    names = [line.split()[0] for line in said.splitlines() if line[:1].strip()]
    assert names[:-1] == list(RECOMMENDED)
    assert said.endswith(f"There are {len(MECHANISMS) - 2} others: dpdist mechanisms --all\n")


def test_the_version_is_told_and_an_unknown_command_is_usage(call: Call) -> None:
    assert __version__ in call("--version").out
    for asked in (("frobnicate",), ("ledger", "frobnicate"), ("--frobnicate",)):
        said = call(*asked)
        assert (said.code, said.out, "frobnicate" in said.err) == (2, "", True)


def test_an_option_that_is_an_unset_variable_of_a_shell_is_none_or_told(call: Call, tmp_path: Path) -> None:
    given = ("forecast", "--d", "3", "--n", "1000", "--epsilon", "1", "--delta", "1e-6")
    assert call(*given, "--arithmetic", "").code == 0
    said = call(*given, "--clip", "")
    assert (said.code, "takes a number, private or auto, not ''" in said.err) == (2, True)
    (tmp_path / "job.toml").write_text('[rows]\npath = "r"\n[release]\npath = "x"\nepsilon = 1\nclip = 2\n')
    assert "(--tls-ca)" in call("run", tmp_path / "job.toml", "--tls-ca", "a").err
