"""Golden samples: what no change may alter, and texts that change on purpose only.

``tests/stored/golden-1.tar.gz`` (:mod:`support.samples`) has rows, releases, models, scores, a job, nights, ledgers,
and witness records in ``state``. Three releases died between two draws. ``promises.json`` holds public signatures,
release ids and exit codes, ``texts.json`` help pages and refusals;
``DPDIST_RECORD=1 pytest tests/whole/test_golden.py`` writes the texts again.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from support.cli_scene import Call, tree
from support.folders import STORED, unpack
from support.samples import DEAD, RELEASES, SITES, recorded

import dpdist
from dpdist import PrivacyLoss, ReleaseRequest, cli, open_model, open_release, open_rows
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.release.plan import plan_of

GOLDEN = STORED / "golden"
NOWHERE = ("--scheduler", "tcp://127.0.0.1:1")
"""Nobody answers there: nothing is read, and nothing is drawn."""


@pytest.fixture
def golden(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> Path:
    unpack(recorded(tmp_path, call), tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_a_stored_release_is_published_again_byte_for_byte_and_not_drawn(golden: Path, call: Call) -> None:
    before = Ledger("rows.ledger").charges
    for name, options in RELEASES.items():
        for place in (f"{name}-again.zarr", f"{name}.zarr"):
            done = call("release", "rows.zarr", place, *options, *NOWHERE)
            assert (done.code, "nothing spent" in done.told) == (0, True), done.told
            assert tree(golden / place) == tree(golden / f"{name}.zarr")
    assert Ledger("rows.ledger").charges == before


def test_a_stored_release_that_died_between_two_draws_goes_on_from_what_it_drew(golden: Path, call: Call) -> None:
    charges = Ledger("rows.ledger").charges
    staged = {each.release_id: each.stages for each in Ledger("rows.ledger").records if each.state is State.STAGED}
    assert len(staged) == len(DEAD)
    for name, options in DEAD.items():
        done = call("release", "rows.zarr", f"{name}.zarr", *options)
        assert done.code == 0, done.told
        release_id = open_release(golden / f"{name}.zarr").release_id
        (record,) = [each for each in Ledger("rows.ledger").records if each.release_id == release_id]
        assert (record.state, record.stages) == (State.PUBLISHED, staged.pop(release_id))
    assert Ledger("rows.ledger").charges == charges


def test_stored_ledgers_verify_beside_their_witness_and_stored_models_project(golden: Path, call: Call) -> None:
    assert (golden / "state" / "witness").is_dir()
    for ledger in ("rows", "job-rows", "visits"):
        for action in ("verify", "show"):
            assert call("ledger", action, f"{ledger}.ledger").code == 0
    for model in ("model", "correlation", "job-model", "models/2026-01-02"):
        vectors = open_model(f"{model}.zarr").components.components
        assert np.allclose(vectors @ vectors.T, np.eye(len(vectors)))
    before = tree(golden / "scores.zarr")
    for _ in range(2):  # left alone, and made anew
        assert call("project", "rows.zarr", "model.zarr", "scores.zarr").code == 0
        assert tree(golden / "scores.zarr") == before
        shutil.rmtree("scores.zarr")


def test_stored_rows_of_patients_with_a_schema_and_their_report_are_read(golden: Path, call: Call) -> None:
    table, release = open_rows("patients.zarr"), open_release("patients-release.zarr")
    assert table.schema is not None
    assert table.schema == dpdist.Schema.read("schema.toml") == release.schema
    assert call("inspect", "patients.zarr", "--verify").code == 0
    assert call("ledger", "verify", "patients.ledger", "--release", "patients-release.zarr").code == 0
    assert call("relate", "patients-release.zarr", "ward", "smoker").code == 0
    assert call("project", "patients.zarr", "patients-model.zarr", "patients-scores.zarr").code == 0
    before = (golden / "report.html").read_bytes()
    assert release.release_id.encode() in before
    assert call("report", "patients-release.zarr", "report.html").code == 0  # a page of ours is replaced


def test_a_stored_session_is_combined_again_and_one_that_waits_goes_on(golden: Path, call: Call) -> None:
    shares = tree(golden / "study")
    fingerprint = call("inspect", "study", "--json").json["fingerprint"]
    for site in SITES:
        (golden / "study" / f"{site}.share").unlink()
        words = ("--site", site, "--fingerprint", fingerprint)
        assert "nothing spent" in call("session", "share", "study", f"{site}.zarr", *words).told
    assert tree(golden / "study") == shares
    assert call("session", "combine", "study", "again.zarr").code == 0
    assert tree(golden / "again.zarr") == tree(golden / "study.zarr")
    waiting = call("inspect", "waiting", "--json").json
    assert waiting["missing_shares"] == ["oslo"]
    words = ("--site", "oslo", "--fingerprint", waiting["fingerprint"])
    assert call("session", "share", "waiting", "oslo.zarr", *words).code == 0
    assert call("session", "combine", "waiting", "waiting.zarr").code == 0
    assert open_release("waiting.zarr").rows == 120


def test_proofs_that_stored_guarantees_name_stay_where_they_are(golden: Path) -> None:
    named = set(re.findall(r'"proof": ?"([\w.]+)"', (GOLDEN / "record.json").read_text()))
    for path in golden.rglob("zarr.json"):
        named |= set(re.findall(r'"proof": ?"([\w.]+)"', path.read_text()))
    assert len(named) > 15
    assert "dpdist.core.mechanisms.noise_share" in named
    for name in named:
        assert len(importlib.import_module(name).__doc__ or "") > 500, name  # it has the proof


def test_a_stored_job_is_done_and_stored_nights_go_on(golden: Path, call: Call) -> None:
    def job() -> dict[str, bytes]:
        return {name: read for name, read in tree(golden).items() if name[:4] == "job-" and "ledger" not in name}

    before = job()
    assert call("run", "job.toml").code == 0
    assert job() == before
    shown, charges = tree(golden / "published"), Ledger("visits.ledger").charges
    assert call("run", "nightly.toml").code == 0
    assert tree(golden / "published") == shown
    (golden / "incoming" / "2026-01-03.csv").write_text("person,a,b\n2001,0.5,-1\n2002,1.5,0.25\n")
    assert call("run", "nightly.toml").code in {0, 4}  # four means that no component stood above the noise
    assert shown.items() <= tree(golden / "published").items()
    (*old, _) = Ledger("visits.ledger").charges
    assert old == charges


def signatures() -> dict[str, list[str]]:
    shapes = {}
    for name in dpdist.__all__:
        thing = getattr(dpdist, name)
        if isinstance(thing, enum.EnumType):
            members: dict[str, enum.Enum] = dict(thing.__members__)
            shapes[name] = [f"{key}={each.value!r}" for key, each in members.items()]
        elif callable(thing):
            with suppress(ValueError):  # an exception of C
                shapes[name] = [
                    f"{'*' * (each.kind is each.KEYWORD_ONLY)}{each.name}"
                    + ("" if each.default is each.empty else f"={each.default!r}")
                    for each in inspect.signature(thing).parameters.values()
                ]
    return shapes


def requests() -> dict[str, ReleaseRequest]:
    loss, pure = PrivacyLoss.parse(1, "1e-6"), PrivacyLoss.parse("0.5", 0)
    made: dict[str, tuple[Any, ...]] = {
        "gaussian": ("gaussian", loss, 200, {}),
        "centred": ("gaussian", loss, 200, {"centring": "private"}),
        "add-remove": ("gaussian", loss, 200, {"neighbours": "add-remove"}),
        "public centre and scale": ("gaussian", loss, 3, {"centre": (1.0,) * 4, "scale": (2.0,) * 4}),
        "bits": ("gaussian", loss, 200, {"grid_bits": 14}),
        "period": ("gaussian", loss, 200, {"period": "2026-W47"}),
        "private clip": ("gaussian", loss, "private", {}),
        "private clip, for components": ("gaussian", loss, "private", {"clip_components": 2}),
        "private scale": ("gaussian", loss, "auto", {"scale": "private"}),
        "private scale, a share": ("gaussian", loss, "auto", {"scale": "private", "scale_share": "0.2"}),
        "both private": ("gaussian", loss, "private", {"scale": "private", "centring": "private"}),
        "two-sided-wishart": ("two-sided-wishart", pure, 200, {}),
        "both private, pure": ("two-sided-wishart", pure, "private", {"scale": "private"}),
        "laplace": ("laplace", pure, 200, {}),
        "bingham": ("bingham", pure, 200, {"options": {"components": 2}}),
        "reproduction": ("none", pure, 200, {"for_reproduction": True}),
    }
    return {name: ReleaseRequest(*args[:3], **args[3]) for name, args in made.items()}


@pytest.mark.usefixtures("golden")
def test_signatures_and_release_ids_are_what_they_were() -> None:
    promised = json.loads((GOLDEN / "promises.json").read_text())
    table = open_rows("rows.zarr")
    assert signatures() == promised["signatures"]
    assert {name: plan_of(request, table).release_id(table) for name, request in requests().items()} == promised[
        "release_ids"
    ]


def commands(command: click.Command, *names: str) -> Iterator[tuple[str, ...]]:
    yield names
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from commands(inner, *names, name)


def test_refusals_keep_their_exit_codes_and_texts_change_on_purpose_only(
    golden: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # else usage lines name python -m pytest
    (golden / "words.csv").write_text("name,age\nAda,36\nGrace,45\n")
    promised = json.loads((GOLDEN / "promises.json").read_text())["exit_codes"]
    before, charges = tree(golden), Ledger("rows.ledger").charges
    codes, texts = {}, {}
    for line in promised:
        done = call(*line.split())
        assert "Traceback" not in done.told, line
        codes[line] = done.code
        texts[line] = done.told.replace(str(golden), "FOLDER")
    assert codes == promised
    assert 0 not in codes.values()
    assert Ledger("rows.ledger").charges == charges
    assert {name for name in tree(golden) if "state" not in name} <= set(before)  # nothing was left
    pages = {" ".join(names): call(*names, "--help").out for names in commands(cli.cli)}
    every = {name: call(*name.split(), "--help-all").out for name, page in pages.items() if "--help-all" in page}
    recorded = {"help": pages, "help of all options": every, "refusals": texts}
    if os.environ.get("DPDIST_RECORD"):
        (GOLDEN / "texts.json").write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")
    assert recorded == json.loads((GOLDEN / "texts.json").read_text())
