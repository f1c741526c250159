"""Messages and progress bars fit the terminal, and Tab completes commands."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from support.cli_scene import WHERE, Call
from support.folders import ROOT

from dpdist.answers.fitting import fit_components
from dpdist.cli.output import Bars
from dpdist.core.errors import DataError
from dpdist.core.mechanisms.registry import MECHANISMS
from dpdist.core.pipeline.release import release_rows
from dpdist.core.pipeline.scores import project_rows
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.text import NEXT, fitted
from dpdist.estimators import PrivatePCA


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def wide(text: str) -> list[str]:
    """Return the lines that a terminal of 80 columns would break where it likes, but for a path that alone is wide."""
    lines = [line for line in text.splitlines() if len(line) > 80 and not line.startswith(NEXT)]
    return [line for line in lines if max(map(len, line.split())) < 60]


def test_all_that_is_said_of_a_mechanism_or_forecast_fits_the_terminal(call: Call) -> None:
    table = ("--d", "100", "--n", "1000000000", "--epsilon", "0.001", "--delta", "1e-12")
    forecast = ("forecast", *table, "--norms", "0.000123456,1,1234567.8", "--neighbours", "add-remove")
    for command in (*(("mechanisms", name) for name in (*MECHANISMS, "--all")), forecast):
        said = call(*command)
        assert (said.code, wide(said.out + said.told)) == (0, [])


def test_what_things_are_refusals_and_answers_fit_a_terminal(
    released: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = '[rows]\npath = "rows.zarr"\n[release]\npath = "r.zarr"\nepsilon = 1\ndelta = 1e-6\nclip = 8.0\n'
    (released / "job.toml").write_text(job)
    refused = "release rows.zarr r2.zarr --epsilon 900 --clip 300"
    assert len(call(*refused.split()).message) > 80  # elsewhere it is one line
    assert call("inspect", "rows.zarr", "--json").out.count("\n") == 1
    monkeypatch.setattr("dpdist.cli.output.on_terminal", lambda **_: True)
    for code, asked in (
        (0, "pca release.zarr model.zarr --components 2"), (0, "inspect rows.zarr --verify"),
        (0, "inspect release.zarr"), (0, "inspect model.zarr"), (0, "status job.toml"), (0, "ledger show rows.ledger"),
        (3, refused), (2, "release rows.zarr r2.zarr --epsilon 1 --clip 300 --mechanism nonsense"),
    ):  # fmt: skip
        said = call(*asked.split())
        assert (said.code, wide(said.told)) == (code, [])
        assert max(map(len, said.told.splitlines())) > 40


def test_a_command_to_copy_and_a_path_stay_whole() -> None:
    command = f"{NEXT}dpdist release {'rows' * 30} RELEASE --epsilon E"
    path = "/a/very" + "/long" * 30
    text = fitted(f"Look at {path} {'and then think ' * 10}\n{command}")
    assert command in text.splitlines()
    assert path in text.splitlines()
    assert all(len(line) <= 80 for line in text.splitlines() if line not in {command, path})


def test_every_step_tells_how_far_it_is_and_the_library_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, int, int]] = []
    cluster = Cluster(progress=lambda *facts: told.append(facts))
    rows, release, model = (tmp_path / f"{name}.zarr" for name in ("rows", "release", "model"))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(200, 3)))
    budget = PrivacyLoss.parse("2", "1e-5")
    ingest_rows(tmp_path / "x.npy", rows, budget=budget, progress=lambda *facts: told.append(facts))
    release_rows(rows, release, ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), 4.0), cluster=cluster)
    fit_components(release, model, 1)
    project_rows(rows, model, tmp_path / "scores.zarr", cluster=cluster)
    assert capfd.readouterr() == ("", "")
    labels = list(dict.fromkeys(label for label, _, _ in told))
    assert [WHERE.sub("", label) for label in labels] == ["Ingesting", "Summing rows", "Projecting rows"]
    assert labels[1] == "Summing rows in this process"
    for label in labels:
        done = [(count, total) for name, count, total in told if name == label]
        assert done == sorted(done)
        assert done[-1][0] == done[-1][1] > 0
        assert len({total for _, total in done}) == 1


class Terminal(io.StringIO):
    """Takes itself for a terminal, so that bars are drawn."""

    def isatty(self) -> bool:
        return True


def test_each_piece_of_work_has_a_bar_and_a_line_of_its_own_that_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    bars = Bars()
    labels = ("Summing rows on 128 workers at tls://10.0.0.111:38786", "Two")
    for label in labels:
        for done in range(3):
            bars(label, done, 2)
    bars("Three", 1, 5)
    bars.end()  # it was interrupted
    bars.end()
    lines = screen.getvalue().split("\n")
    assert [label[:12] in line for line, label in zip(lines, (*labels, "Three"), strict=False)] == [True] * 3
    assert ["100%" in line for line in lines] == [True, True, False, False]
    assert max(map(len, re.split(r"[\r\n]", re.sub(r"\x1b\[\S*?[a-z]", "", screen.getvalue())))) <= 80


PRESS = """
set -u
eval "$(cat "$HOME/.local/share/bash-completion/completions/dpdist")" 2>/dev/null
for line in "dpdist proj" "dpdist release rows.zarr --neighbours add"; do
    read -ra COMP_WORDS <<< "$line"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
    _dpdist_completion dpdist
    echo "${COMPREPLY[*]}"
done
"""


def test_what_the_page_says_installs_completion_for_bash(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "command_line.md").read_text()
    (commands,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    environment = {
        **os.environ, "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    said = subprocess.run(
        ["bash", "-c", commands + PRESS], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.splitlines() == ["project", "add-remove"], said.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_said_and_work_does_not_depend_on_messages(
    tmp_path: Path, unbuffered: str
) -> None:
    def run(*arguments: str, out: int, err: int) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "dpdist", *arguments], cwd=tmp_path, stdout=out, stderr=err, text=True, check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
        return done.returncode, done.stderr or ""

    forecast = ("forecast", "--d", "10", "--n", "10000", "--epsilon", "1")
    with Path("/dev/full").open("w") as full:
        for command in (
            forecast,
            (*forecast, "--json"),
            ("mechanisms",),
            ("--help",),
            ("demo", "--help"),
            ("--version",),
        ):
            code, said = run(*command, out=full.fileno(), err=subprocess.PIPE)
            assert (code, said.count("\n")) == (4, 1), said
            assert said.startswith("dpdist: Standard output cannot be written: No space left on device.")
        assert run("forecast", "--json", "--d", "x", out=full.fileno(), err=subprocess.PIPE)[0] == 2
        assert run(*forecast, out=subprocess.DEVNULL, err=full.fileno())[0] == 0
        assert run("forecast", "--d", "x", out=subprocess.DEVNULL, err=full.fileno())[0] == 2


def test_an_option_is_given_once(call: Call) -> None:
    for command, name in (
        (("ingest", "a.csv", "r.zarr", "--columns", "a,b", "--columns=b,c"), "--columns"),
        (("forecast", "--n", "10", "--epsilon", "1", "--n", "20"), "--n"),
        (("ledger", "create", "a.ledger", "--rows", "a", "--rows", "b"), "--rows"),
        (("release", "a.zarr", "b.zarr", "--epsilon", "1", "--epsilon", "2"), "--epsilon"),
    ):
        said = call(*command)
        assert (said.code, f"{name} is given twice" in said.message) == (2, True)


def test_no_message_names_a_table_of_the_user_as_an_output(tmp_path: Path, call: Call) -> None:
    (tmp_path / "customers.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.csv").write_text("a,b\n1,2\n")
    zarr.create_array(tmp_path / "plain.zarr", data=np.eye(9, 3))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for own in ("customers.csv", "parts", "plain.zarr"):
        table = str(tmp_path / own)
        for command in (
            ("release", table, "out.zarr", "--epsilon", "1", "--delta", "1e-6"), ("bound", table, "--epsilon", "1"),
            ("pca", table, "m.zarr", "--components", "1"), ("project", table, "m.zarr", "s.zarr"),
            ("report", table, "o.html"), ("regress", table, "--target", "a"), ("combine", "sum.zarr", table),
            ("forecast", table, "--epsilon", "1"), ("inspect", table),
        ):  # fmt: skip
            if command[0] in {"release", "forecast"} and own == "customers.csv":
                continue  # it is read
            said = call(*command).message
            of_release = own == "customers.csv" and command[0] in {"pca", "report", "regress", "combine"}
            cure = f"dpdist release {table} RELEASE" if of_release else f"dpdist ingest {table} ROWS"
            assert cure in said
            assert said.count(table) == 2
        with pytest.raises(DataError, match=r"ingest_rows.*ROWS"):
            PrivatePCA(1, epsilon=1, delta=1e-6, clip=1).fit(table)
        for target in (("schema", str(tmp_path / "customers.csv"), table, "--header", "yes"),
                       ("ingest", str(tmp_path / "parts"), table), ("report", table, table)):  # fmt: skip
            assert call(*target).code in {2, 4}
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
