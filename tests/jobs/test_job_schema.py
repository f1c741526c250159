"""A job with a schema: its rows are made by it, whenever they come, and rows that were made otherwise are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdist import RefusedError, Schema, UsageError, open_release
from dpdist.errors import DpdistError
from dpdist.jobs import job_file
from dpdist.jobs import run as job_runs
from dpdist.runtime.cluster import Cluster

SCHEMA = """\
scale = "range"
[[column]]
name = "age"
kind = "number"
range = [0, 100]
[[column]]
name = "sex"
kind = "category"
categories = ["f", "m"]
"""
UNIT = 'max_rows = 1\n[[column]]\nname = "who"\nkind = "privacy unit"\n'
JOB = """
[rows]
path = "rows.zarr"
source = "{source}"
schema = "schema.toml"
budget_epsilon = 9
{more}
[release]
path = "release.zarr"
epsilon = 1
clip = 1.5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Cluster, "named", False)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "table.csv").write_text("who,age,sex\na,41,m\nb,30,f\na,22,f\n")
    return tmp_path


def run(folder: Path, source: str, more: str = "") -> None:
    (folder / "job.toml").write_text(JOB.format(source=source, more=more))
    job_runs.run(job_file.read_job(folder / "job.toml"), say=print)


def test_a_job_takes_rows_by_its_schema_and_no_others(folder: Path) -> None:
    (folder / "schema.toml").write_text(UNIT + SCHEMA.replace('scale = "range"\n', ""))
    run(folder, "table.csv")
    run(folder, "table.csv")  # leaves all alone
    release = open_release(folder / "release.zarr")
    assert release.schema == Schema.read(folder / "schema.toml")
    assert release.names == ("age", "sex=f", "sex=m")
    assert release.rows == 2
    assert release.unit == release.schema.unit
    (folder / "schema.toml").write_text(UNIT + SCHEMA.replace('scale = "range"\n', "").replace("100", "90"))
    with pytest.raises(RefusedError, match="made with another schema, and the job asks for its own"):
        run(folder, "table.csv")


def test_what_contradicts_a_schema_and_its_mistakes_are_refused(folder: Path) -> None:
    (folder / "schema.toml").write_text(UNIT + SCHEMA.replace('scale = "range"\n', ""))
    for more, said in (
        ('columns = ["age", "sex"]', "columns is said by the schema"),
        ("in_place = true", "schema maps rows to others as they are copied"),
        ("periods = true", r"has a privacy unit. With periods = true it needs max_periods in \[rows\]"),
    ):
        with pytest.raises(UsageError, match=said):
            run(folder, "table.csv", more)
    (folder / "schema.toml").write_text(SCHEMA.replace("[0, 100]", "[]"))
    with pytest.raises(UsageError, match=r"job.toml: The schema .*schema.toml cannot be used: line 5, column 'age'"):
        run(folder, "table.csv")


def test_periods_have_one_schema(folder: Path) -> None:
    incoming = folder / "incoming"
    incoming.mkdir()
    for day, text in (("d1", "41,m"), ("d3", "30,f")):
        (incoming / f"{day}.csv").write_text(f"age,sex\n{text}\n")
    (incoming / "d2").mkdir()  # a night without rows
    more = "periods = true\n"
    run(folder, "incoming", more)
    for day in ("d1", "d2", "d3"):
        assert open_release(folder / "release.zarr" / f"{day}.zarr").schema == Schema.read(folder / "schema.toml")
    (folder / "schema.toml").write_text(SCHEMA.replace("100", "90"))
    (incoming / "d4.csv").write_text("age,sex\n50,f\n")
    with pytest.raises(DpdistError, match="another schema than earlier periods"):
        run(folder, "incoming", more)
