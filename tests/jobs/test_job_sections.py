"""The types of a job file: all mistakes at once, in sentences of ours, and the schema by which editors find them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from support.folders import ROOT

from dpdist.cli import cli
from dpdist.errors import DataError, UsageError
from dpdist.jobs.job_file import read_job
from dpdist.jobs.sections import JOB_FILE, SCHEMA, schema, sections_of
from dpdist.naming import naming, parameter, step
from dpdist.runtime.cluster import Cluster

SMALL = '[rows]\npath = "r"\n[release]\npath = "x"\nepsilon = 1\nclip = 2\n'
WRONG = """
[rows]
sauce = "table.csv"
columns = []
budget_epsilon = true
[release]
path = 7
epsilon = 1
clip = "100"
neighbours = "both"
[pca]
path = "m\\u001b"
components = 0
[projection]
"""


def refused(folder: Path, text: str, kind: type[Exception] = UsageError) -> str:
    (folder / "job.toml").write_text(text)
    with pytest.raises(kind) as error:
        read_job(folder / "job.toml")
    assert type(error.value) is kind
    return str(error.value)


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    said = refused(tmp_path, WRONG)
    assert said.startswith(f"{tmp_path / 'job.toml'} has 10 mistakes. (1) ")
    for sentence in (
        "[rows] has no key 'sauce'; its keys are path, source, ",
        "[rows] needs 'path', a path in quotes.",
        "[rows] columns must be a list of at least one column name.",
        "[rows] budget_epsilon must be a number, such as 2, 0.5 or 1e-6.",
        "[release] path must be a path in quotes.",
        '[release] clip must be a number, such as 8.5, "private" or "auto".',
        '[release] neighbours must be "replace-one" or "add-remove".',
        "[pca] path holds a control character; take it out.",
        '[pca] components must be a whole number of at least 1, a share of the variance such as 0.9, or "auto"',
        "There is no section or key 'projection'; the sections are rows, release, pca, project, cluster.",
    ):
        assert sentence in said
    assert not re.search("msgspec|Struct|`|Expected|decimal|int\\b", said)
    assert "\n" not in said


def test_values_that_are_out_of_range_are_told_together_too(tmp_path: Path) -> None:
    text = SMALL.replace("epsilon = 1", "epsilon = 0").replace("clip = 2", "clip = -1\ngrid_bits = 99\ndelta = 2")
    text += 'mechanism = "laplacian"\n[project]\npath = "s"\n[cluster]\nworkers = 0\n'
    said = refused(tmp_path, text)
    for word in ("Epsilon must be positive", "Delta must be", "clip norm must be", "Grid bits must", "laplacian"):
        assert said.count(word) == 1
    assert "[project] needs [pca]" in said
    assert "At least one worker is needed (workers in [cluster])" in said


def test_mistakes_of_one_kind_keep_its_exit_code(tmp_path: Path) -> None:
    said = refused(tmp_path, SMALL.replace("epsilon = 1", "epsilon = 0").replace("clip = 2", "clip = -1"), DataError)
    assert "has 2 mistakes" in said


@pytest.mark.parametrize("written", ["0.1", "1e-6", "0.30000000000000004", "123456789012345678.9", '"0.1"'])
def test_decimals_stay_as_they_are_written(written: str) -> None:
    content = tomllib.loads(SMALL.replace("epsilon = 1", f"epsilon = {written}"), parse_float=Decimal)
    assert Decimal(sections_of(content).release.epsilon) == Decimal(written.strip('"'))
    content["release"]["clip"] = Decimal("0.1")
    assert Decimal(sections_of(content).release.clip) == Decimal("0.1")


def test_messages_of_a_job_name_its_keys() -> None:
    with naming(JOB_FILE):
        assert parameter("clip") == "clip in [release]"
        assert parameter("mechanism", "gaussian") == 'mechanism = "gaussian" in [release]'
        assert parameter("components", 3) == "components = 3 in [pca]"
        assert parameter("insecure") == "insecure = true in [cluster]"
        assert parameter("options.sigma", 4) == "options = {sigma = 4} in [release]"
        assert parameter("for_reproduction") == "--for-reproduction"  # no job has it
        assert step("pca", "r.zarr", "m.zarr", components=3) == "dpdist pca r.zarr m.zarr --components 3"


def test_a_job_that_is_run_is_refused_in_the_words_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    np.save(tmp_path / "table.npy", np.eye(3))
    job = tmp_path / "job.toml"
    job.write_text(
        SMALL.replace('path = "r"', 'path = "r"\nsource = "table.npy"\nbudget_epsilon = 1') + "delta = 1e-6\n"
    )
    said = str(CliRunner().invoke(cli, ["run", str(job)]).exception)
    assert 'leave out delta in [release], or take mechanism = "two-sided-wishart" in [release]' in said
    assert "budget_delta = D in [rows]" in said
    assert "--" not in said


# The schema


def jobs() -> Iterator[str]:
    for file in (ROOT / "cluster" / "job.toml", *sorted((ROOT / "workflows").glob("*.toml"))):
        yield file.read_text()
    for page in ("docs/howto/jobs.md", "docs/howto/nightly.md"):
        yield from re.findall(r"```toml\n(# job.toml\n.*?)```", (ROOT / page).read_text(), re.DOTALL)


def valid(content: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft202012Validator(schema()).is_valid(content))


def test_the_schema_that_editors_read_is_that_of_the_types() -> None:
    assert json.loads(SCHEMA.read_text()) == schema(), "write it anew: python -m dpdist.jobs.sections"
    jsonschema.Draft202012Validator.check_schema(schema())


def test_every_key_says_what_it_is_for() -> None:
    for section in schema()["$defs"].values():
        for key in section.get("properties", {}).values():
            assert key["description"].endswith(".")


def test_every_job_on_our_pages_is_as_the_schema_says() -> None:
    found = list(jobs())
    assert len(found) == 6
    for text in found:
        assert valid(tomllib.loads(text)), text


@pytest.mark.parametrize(
    ("old", "new"),
    [("epsilon", "epsilom"), ("clip = 2", 'clip = "2"'), ("epsilon = 1", "epsilon = true"), ("[release]", "[relase]")],
)
def test_an_editor_sees_what_a_run_would_refuse(tmp_path: Path, old: str, new: str) -> None:
    assert valid(tomllib.loads(SMALL))
    assert not valid(tomllib.loads(SMALL.replace(old, new)))
    refused(tmp_path, SMALL.replace(old, new))
