"""What people read: it fits their terminal, names what they can type, and its numbers can be typed back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.cli_scene import LOSS, Call
from support.ledgers import gaussian, pure

import dpdist
from dpdist._util.text import NEXT, exactly, fitted
from dpdist.errors import RefusedError, UsageError
from dpdist.ledger.balance import refusal
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.privacy.accounting import caps_for
from dpdist.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.privacy.parallel import Charge, PeriodFilters
from dpdist.release.artefact import open_release
from dpdist.release.combine import combined


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")


def wide(text: str) -> list[str]:
    """Return the lines that a terminal of 80 columns would break where it likes, but for a path that alone is wide."""
    lines = [line for line in text.splitlines() if len(line) > 80 and not line.startswith(NEXT)]
    return [line for line in lines if max(map(len, line.split())) < 60]


def test_all_that_is_said_of_a_mechanism_fits_the_terminal(call: Call) -> None:
    for name in (*MECHANISMS, "--all"):
        said = call("mechanisms", name)
        assert (said.code, wide(said.out)) == (0, [])


def test_a_forecast_fits_a_terminal(call: Call) -> None:
    table = ("--d", "100", "--n", "1000000000", "--epsilon", "0.001", "--delta", "1e-12")
    cluster = ("--cluster", "--workers", "1", "--workers", "1024", "--memory-per-worker", "2")
    norms = ("--norms", "0.000123456,1,1234567.8")
    for more in (norms, (*cluster, "--neighbours", "add-remove", "--centre", "private")):
        said = call("forecast", *table, *more)
        assert (said.code, wide(said.out + said.err)) == (0, [])


def test_what_things_are_and_where_a_job_stands_fits_the_terminal(released: Path, call: Call) -> None:
    assert call("pca", "release.zarr", "model.zarr", "--components", "2").code == 0
    (released / "job.toml").write_text(
        '[rows]\npath = "rows.zarr"\n[release]\npath = "r.zarr"\nepsilon = 1\ndelta = 1e-6\nclip = 8.0\n'
    )
    for asked in ("inspect rows.zarr --verify", "inspect release.zarr", "inspect model.zarr", "status job.toml",
                  "ledger show rows.ledger"):  # fmt: skip
        said = call(*asked.split())
        assert said.code == 0
        assert wide(said.out) == []
    assert call("inspect", "rows.zarr", "--json").out.count("\n") == 1  # whatever its width


@pytest.mark.usefixtures("released")
def test_refusals_and_answers_are_wrapped_on_a_terminal(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = "release rows.zarr r2.zarr --epsilon 900 --clip 300"
    assert len(call(*refused.split()).message) > 80  # elsewhere it is one line
    monkeypatch.setattr("dpdist.cli.output.on_terminal", lambda: True)
    for asked, code in (
        (refused, 3),
        ("bound rows.zarr --epsilon 0.01", 3),
        ("pca release.zarr model.zarr --components 2", 0),
        ("release rows.zarr r2.zarr --epsilon 1 --clip 300 --mechanism nonsense", 2),
    ):
        said = call(*asked.split())
        assert (said.code, wide(said.err)) == (code, [])
        assert max(map(len, said.err.splitlines())) > 40


def test_a_command_to_copy_and_a_path_stay_whole() -> None:
    command = f"{NEXT}dpdist release {'rows' * 30} RELEASE --epsilon E"
    path = "/a/very" + "/long" * 30
    text = fitted(f"Look at {path} {'and then think ' * 10}\n{command}")
    assert command in text.splitlines()
    assert path in text.splitlines()
    assert all(len(line) <= 80 for line in text.splitlines() if line not in {command, path})


@pytest.mark.parametrize("value", [16384.0, 46340.950011841574, 1234567.0, 1e22, 2.0**-10, 0.1, 1e-300])
def test_a_number_that_is_printed_reads_back_as_itself(value: float) -> None:
    assert float(exactly(value)) == value
    assert not exactly(value).endswith(".0")


def test_a_clip_norm_is_said_as_it_is(here: Path, call: Call) -> None:
    assert call("release", "rows.zarr", "long.zarr", *LOSS[:-1], "1234567.5").code == 0
    assert "clip norm  1234567.5\n" in call("inspect", "long.zarr").out
    said = call("pca", "long.zarr", "model.zarr", "--components", "1")
    assert "clipped to norm 12" in said.err  # a little less than the clip norm, for the rounding
    assert here.exists()


# --- refusals name what can be typed ----------------------------------------------------------------------------------

BUDGET = PrivacyLoss.parse("2", "1e-6")


@pytest.mark.parametrize(("charged", "asked"), [(gaussian("0.5", "1e-6"), pure(1)), (pure(1), gaussian("0.5", "1e-6"))])
def test_a_refusal_for_the_kind_of_noise_names_the_kind_that_fits(charged: Guarantee, asked: Guarantee) -> None:
    said = refusal(
        "rows.ledger", BUDGET, PeriodFilters(BUDGET, caps_for(BUDGET, charged)), [Charge(charged)], Charge(asked)
    )
    assert "for a mechanism of the kind charged already." in said


def test_releases_that_cannot_be_added_up_say_in_what_they_differ(here: Path, call: Call) -> None:
    for name, clip in (("a.zarr", "300"), ("b.zarr", "200")):
        loss = ("--epsilon", "0.1", "--delta", "1e-6", "--clip", clip)
        assert call("release", "rows.zarr", name, *loss).code == 0
    with pytest.raises(
        UsageError, match=r"differ in their bound \(clip norm, grid bits, centre or scale\): they cannot"
    ):
        combined([open_release(here / "a.zarr"), open_release(here / "b.zarr")])


@pytest.mark.filterwarnings("ignore::dpdist.errors.BelowNoiseWarning")
def test_an_estimator_that_runs_out_of_budget_names_the_object_to_pass() -> None:
    rows = np.random.default_rng(3).normal(size=(500, 3))
    fit = dpdist.PrivatePCA(n_components=1, epsilon=1.0, delta=1e-6, clip=3.0).fit(rows)
    with pytest.raises(RefusedError, match=r"budget=dpdist\.Budget\(epsilon, delta\)"):
        fit.set_params(epsilon=0.5).fit(rows)
