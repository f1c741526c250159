"""Jobs: a dry run shows charges and refusals, status the state; two concurrent copies are charged once."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from faults.nightly import JOB, events
from support.cli_scene import Call

from dpdist import Schema, open_release
from dpdist.answers import model as models
from dpdist.cli import cli
from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.pipeline import budget, release
from dpdist.core.pipeline import sources as ingesting
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage.store import FolderStore
from dpdist.jobs import job_file, status, totals
from dpdist.jobs import run as job_runs
from dpdist.jobs.text import preview_message, status_message

PLAIN = """
[rows]
path = "rows.zarr"
source = "table.npy"
budget_epsilon = 1.5

[release]
path = "release.zarr"
epsilon = 1
clip = 8.0
"""
WHOLE = PLAIN + '[pca]\npath = "model.zarr"\ncomponents = 2\n[project]\npath = "scores.zarr"\n'
SERIES = WHOLE.replace('"table.npy"', '"incoming"\nperiods = true').partition("[project]")[0]
NIGHTLY = JOB + "continual = 4\n"
OTHER = PLAIN.replace("clip = 8.0", "clip = 9.0").replace("release.zarr", "other.zarr")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path) -> Path:  # noqa: ARG001
    monkeypatch.setattr(Cluster, "named", False)
    (tmp_path / "incoming").mkdir()
    arrive(tmp_path, "table")
    return tmp_path


def arrive(folder: Path, *names: str) -> None:
    for name in names:
        np.save(folder / f"{name}.npy", np.random.default_rng(ord(name[-1])).normal(size=(30, 3)))


def job(folder: Path, text: str) -> job_file.Job:
    (folder / "job.toml").write_text(text)
    return job_file.read_job(folder / "job.toml")


def run(read: job_file.Job) -> None:
    job_runs.run(read, say=print)


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("text", [PLAIN, SERIES])
def test_a_job_says_nothing_that_depends_on_a_row(folder: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    place = folder / ("incoming/d1.zarr" if text == SERIES else "table.zarr")
    array = zarr.create_array(place, shape=(30, 3), chunks=(10, 3), dtype="f8")
    array[:20] = np.random.default_rng(1).normal(size=(20, 3))  # the others are zeros, which are not stored
    said: list[str] = []
    ingest_rows(place, folder / "alone.zarr", say=said.append)
    assert "1 of 3 chunks are not stored" in " ".join(said)
    run(job(folder, text.replace("table.npy", "table.zarr")))
    told = capsys.readouterr()
    assert "not stored" not in told.out + told.err


def test_a_dry_run_tells_what_a_run_then_spends_and_does_nothing(folder: Path) -> None:
    read = job(folder, NIGHTLY)
    arrive(folder, "incoming/d1", "incoming/d2")
    before = everything(folder)
    found = status.preview(read)
    command = ["run", str(folder / "job.toml"), "--dry-run"]
    words = CliRunner().invoke(cli, command, catch_exceptions=False).output
    assert "Periods to close: d1, d2." in words
    assert "Nothing was charged or published." in words
    told = json.loads(CliRunner().invoke(cli, [*command, "--json"], catch_exceptions=False).stdout)
    assert tuple(told["new_periods"]) == found.new_periods == ("d1", "d2")
    assert everything(folder) == before
    assert [of for of, _ in found.releases] == ["d1", "d2", "d1--d2"]
    assert (found.fits, found.charged) == (True, 0)
    run(read)
    after = status.preview(read)
    assert (after.fits, after.releases, after.new_periods, after.left) == (True, (), (), found.left)
    assert after.charged == len(Ledger(folder / "visits.ledger").charges) == 3


def test_a_dry_run_of_a_plain_job_tells_when_it_would_be_refused(folder: Path, call: Call) -> None:
    read = job(folder, PLAIN)
    found = status.preview(read)
    assert (found.fits, found.charged, found.left and found.left.pure_micro) == (True, 0, 500_000)
    assert not (folder / "rows.zarr").exists()
    run(read)
    assert status.preview(read).releases == ()
    again = job(folder, OTHER)
    found = status.preview(again)
    assert (found.fits, found.charged, found.left and found.left.pure_micro) == (False, 1, 500_000)
    assert "WOULD BE REFUSED" in preview_message(found)
    with pytest.raises(RefusedError, match="1 release is charged already"):
        run(again)
    Ledger.create(folder / "else", dataset_id="e" * 32, budget=Ledger(folder / "rows.ledger").budget)
    (folder / "empty").mkdir()
    for other in ("empty", "else"):
        shutil.rmtree(folder / "rows.ledger")
        (folder / other).rename(folder / "rows.ledger")
        for words in (("run", folder / "job.toml", "--dry-run"), ("status", folder / "job.toml")):
            told = call(*words)
            assert (told.code, "ledger" in told.told, "left" in told.out) == (3, True, False)


def test_more_components_than_columns_are_refused_before_the_source_is_read(folder: Path) -> None:
    with pytest.raises(UsageError, match="4 components are more than the 3 columns"):
        run(job(folder, WHOLE.replace("components = 2", "components = 4")))
    assert not (folder / "rows.zarr").exists()
    assert not (folder / "rows.ledger").exists()


@pytest.mark.parametrize("again", [False, True])
def test_a_dry_run_refuses_what_the_run_refuses(folder: Path, *, again: bool) -> None:
    if again:
        run(job(folder, WHOLE))
    before = everything(folder)
    once = ("components = 2", "components = 4") if again else ("table.npy", "no.npy")  # a source is not read again
    for old, new in (
        once, ("rows.zarr", "no/rows.zarr"), ("release.zarr", "no/r.zarr"), ("release.zarr", "table.npy"),
        ("model.zarr", "no/m.zarr"), ("model.zarr", "table.npy"), ("scores.zarr", "table.npy"),
    ):  # fmt: skip
        read = job(folder, WHOLE.replace(old, new))
        kind = UsageError if old.startswith("components") else DataError
        for made in everything(folder) - before - {"job.toml"}:  # rows and a ledger, before what follows was refused
            shutil.rmtree(folder / made, ignore_errors=True)
        with pytest.raises(kind):
            status.preview(read)
        assert everything(folder) - {"job.toml"} == before - {"job.toml"}
        with pytest.raises(kind):
            run(read)


def test_status_tells_what_is_closed_waiting_and_unfinished(folder: Path) -> None:
    read = job(folder, NIGHTLY)
    assert status.status_of(read).releases == dict.fromkeys(list(State), 0)
    arrive(folder, "incoming/d1")
    run(read)
    arrive(folder, "incoming/d2")
    ledger = Ledger(folder / "visits.ledger")
    guarantee, seals = ledger.records[0].guarantee, ledger.periods
    ledger.reserve("dead", dataset_id=ledger.dataset_id, parameters={}, guarantee=guarantee, periods=seals)
    ledger.begin("dead")
    found = status.status_of(read)
    assert found.releases == {"reserved": 1, "staged": 0, "committed": 0, "published": 1, "aborted": 0, "adopted": 0}
    assert [(r.release_id, r.state, r.fence) for r in found.unfinished] == [("dead", State.RESERVED, 1)]
    assert (found.periods_closed, found.last_period, found.periods_waiting) == (1, "d1", ("d2",))
    words = status_message(found)
    assert "dead is reserved, 1 attempt\n" in words
    assert "1 closed, the last d1; waiting: d2" in words


def test_of_a_ledger_behind_its_witness_it_is_told_that_the_run_would_be_refused(folder: Path, call: Call) -> None:
    read = job(folder, NIGHTLY)
    arrive(folder, "incoming/d1")
    place = budget.default_ledger(read.rows)
    budget.periodic_table(read.rows, read.budget)
    shutil.copytree(place, folder / "backup")
    run(read)
    command = str(folder / "job.toml")
    assert call("status", command).code == call("run", command, "--dry-run").code == 0
    shutil.rmtree(place)
    (folder / "backup").rename(place)
    before = everything(folder)
    told = call("run", command, "--dry-run", "--json")
    assert (told.code, "behind its witness" in told.json["error"]) == (3, True)
    told = call("status", command, "--textfile", str(folder / "dpdist.prom"))
    assert (told.code, "behind its witness" in told.told) == (3, True)
    assert "NOTHING NEW CAN BE RELEASED" in told.out
    assert re.search(r"dpdist_refused\{[^}]*\} 1\n", (folder / "dpdist.prom").read_text())
    assert re.search(r"dpdist_left_pure_epsilon\{[^}]*\} 0\n", (folder / "dpdist.prom").read_text())
    assert everything(folder) - before == {"dpdist.prom"}
    with pytest.raises(RefusedError, match="behind its witness"):
        run(read)
    assert "behind its witness" in call("inspect", read.rows).out


def test_the_textfile_is_what_prometheus_reads(folder: Path, call: Call) -> None:
    arrive(folder, "incoming/d1")
    run(job(folder, NIGHTLY))
    assert call("status", folder / "job.toml", "--textfile", folder / "dpdist.prom").code == 0
    text = (folder / "dpdist.prom").read_text()
    values = [line for line in text.splitlines() if not line.startswith("#")]
    sample = re.compile(r'dpdist_[a-z_]+\{rows="[^"]+"(,state="[a-z]+")?\} [0-9.e+-]+')
    assert all(sample.fullmatch(line) for line in values)
    label = str(folder / "visits")
    assert f'dpdist_releases{{rows="{label}",state="published"}} 1' in values
    assert f'dpdist_budget_epsilon{{rows="{label}"}} 1' in values
    kinds = re.findall(r"# TYPE (\S+) (gauge|counter)", text)
    assert {name for name, _ in kinds} == {line.partition("{")[0] for line in values}


@pytest.mark.parametrize(
    ("text", "owner", "name"),
    [
        (WHOLE, ingesting, "ingest, after"),
        (WHOLE, budget, "complete_ingest"),
        (WHOLE, release, "release_table"),
        (WHOLE, job_runs, "project_rows"),
        (SERIES, budget, "create_periods, after"),
        (SERIES, FolderStore, "locked"),
        (SERIES, release, "release_table"),
        (SERIES, totals, "write_sum"),
        (SERIES, models, "save"),
    ],
)
def test_what_another_run_made_meanwhile_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, owner: Any, name: str
) -> None:
    arrive(folder, "incoming/d1")
    call, _, after = name.partition(", ")
    original, seen = getattr(owner, call), list[dict[str, bytes]]()

    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in folder.rglob("*.zarr/**/*") if path.is_file()}

    def overtaken(*arguments: Any, **options: Any) -> Any:
        """Let another run finish before or after the first call."""
        if seen:
            return original(*arguments, **options)
        seen.append({})
        result = original(*arguments, **options) if after else None
        run(job(folder, text))
        seen.append(content())
        return result if after else original(*arguments, **options)

    monkeypatch.setattr(owner, call, overtaken)
    run(job(folder, text))
    assert content() == seen[1]  # as the other left it
    counts = events(folder / "rows.ledger")
    assert (counts["created"], counts["reserved"], counts["committed"], counts["published"]) == (1, 1, 1, 1)
    Ledger(folder / "rows.ledger").verify()


def test_a_folder_without_locks_gets_no_ledger_and_is_used_with_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    rows = folder / "rows.zarr"
    ingest_rows(folder / "table.npy", rows)
    with monkeypatch.context() as patch:
        patch.setattr("dpdist.core.storage.atomic.fcntl.flock", no_locks)
        with pytest.raises(DataError, match="cannot be locked: No locks available"):
            budget.create_ledger(folder / "rows.ledger", rows, PrivacyLoss.parse("1"))
    budget.create_ledger(folder / "rows.ledger", rows, PrivacyLoss.parse("1"))
    monkeypatch.setattr("dpdist.core.storage.atomic.fcntl.flock", no_locks)
    assert budget.complete_ingest(rows).ledger_id is not None


SCHEMA = """\
[[column]]
name = "age"
kind = "number"
range = [0, 100]
[[column]]
name = "sex"
kind = "category"
categories = ["f", "m"]
"""
PERSONS = 'max_rows = 1\n[[column]]\nname = "who"\nkind = "privacy unit"\n' + SCHEMA


def by_schema(folder: Path, source: str, more: str = "") -> None:
    text = PLAIN.replace('"table.npy"', f'"{source}"\nschema = "schema.toml"\n{more}').replace("8.0", "1.5")
    run(job(folder, text))


def test_a_job_takes_rows_by_its_schema_and_no_others(folder: Path) -> None:
    (folder / "table.csv").write_text("who,age,sex\na,41,m\nb,30,f\na,22,f\n")
    (folder / "schema.toml").write_text(PERSONS)
    with pytest.raises(UsageError, match=r"has a privacy unit. With periods = true it needs max_periods in \[rows\]"):
        by_schema(folder, "table.csv", "periods = true")
    by_schema(folder, "table.csv")
    by_schema(folder, "table.csv")  # leaves all alone
    found = open_release(folder / "release.zarr")
    assert found.schema == Schema.read(folder / "schema.toml")
    assert (found.names, found.rows, found.unit) == (("age", "sex=f", "sex=m"), 2, found.schema.unit)
    (folder / "schema.toml").write_text(PERSONS.replace("100", "90"))
    with pytest.raises(RefusedError, match="has another schema, but the job file asks for its own"):
        by_schema(folder, "table.csv")


@pytest.mark.parametrize("periods", ["", "periods = true"])
def test_a_schema_whose_gaps_have_no_centre_is_refused_before_a_period_is_closed(folder: Path, periods: str) -> None:
    (folder / "incoming" / "d1.csv").write_text("age,sex\n41,m\n,f\n")
    (folder / "schema.toml").write_text(f'missing = "centre"\n{SCHEMA}')
    before = sorted(folder.rglob("*"))
    with pytest.raises(
        RefusedError, match=r'which must be known before rows are summed. .*missing = "fill" at the top'
    ):
        by_schema(folder, "incoming", periods)
    assert sorted({*folder.rglob("*")} - {*before}) == [folder / "job.toml"]
    (folder / "schema.toml").write_text(f'scale = "range"\nmissing = "fill"\neach_row_is_a_person = true\n{SCHEMA}')
    for _ in range(2):  # again: the rows have this schema
        by_schema(folder, "incoming", periods)


def test_periods_have_one_schema(folder: Path) -> None:
    (folder / "schema.toml").write_text(f'scale = "range"\n{SCHEMA}')
    for day, text in (("d1", "41,m"), ("d3", "30,f")):
        (folder / "incoming" / f"{day}.csv").write_text(f"age,sex\n{text}\n")
    (folder / "incoming" / "d2").mkdir()  # a period without rows
    by_schema(folder, "incoming", "periods = true")
    released = [open_release(folder / "release.zarr" / f"{day}.zarr") for day in ("d1", "d2", "d3")]
    assert [found.schema for found in released] == [Schema.read(folder / "schema.toml")] * 3
    (folder / "schema.toml").write_text(f'scale = "range"\n{SCHEMA.replace("100", "90")}')
    (folder / "incoming" / "d4.csv").write_text("age,sex\n50,f\n")
    with pytest.raises(RefusedError, match="another schema than the closed periods"):
        by_schema(folder, "incoming", "periods = true")
    wider = SCHEMA.replace('"m"]', '"m", "x"]')  # another number of columns
    (folder / "schema.toml").write_text(f'scale = "range"\n{wider}')
    with pytest.raises(RefusedError, match="another schema than the closed periods"):
        status.preview(job_file.read_job(folder / "job.toml"))
