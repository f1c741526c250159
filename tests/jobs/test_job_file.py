"""JOB.toml and public centres: read exactly, checked completely, and refused with the location of each mistake."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from support.folders import ROOT

from dpdist.cli import cli
from dpdist.core.errors import DataError, DpdistError, UsageError
from dpdist.core.ledger.address import Address
from dpdist.core.naming import naming, parameter
from dpdist.core.options import Amount, Clip, RequestOptions
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.parse import read_public_centre, request_from
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.runtime.cluster import Cluster
from dpdist.jobs.job_file import Job, read_job
from dpdist.jobs.sections import JOB_FILE, SCHEMA, schema

FULL = """
[rows]
path = "rows.zarr"
source = "data.csv"
budget_epsilon = 2
budget_delta = 1e-6
columns = ["age", "height"]

[release]
path = "release.zarr"
epsilon = 0.1
clip = 100.5
delta = 1e-7
mechanism = "gaussian"
neighbours = "add-remove"
centre = "private"
grid_bits = 12
period = "2026-W47"
id = "week-47"
ledger = "postgresql+psycopg://me@host/db?ledger=books"

[pca]
path = "model.zarr"
components = 2

[project]
path = "scores.zarr"

[cluster]
scheduler = "tcp://127.0.0.1:8786"
trusted = "worker"
"""
MINIMAL = {"rows": {"path": '"rows.zarr"'}, "release": {"path": '"release.zarr"', "epsilon": "1", "clip": "2"}}


def toml(sections: dict[str, dict[str, str]]) -> str:
    return "\n".join(
        line for name, keys in sections.items() for line in (f"[{name}]", *(f"{k} = {v}" for k, v in keys.items()))
    )


def minimal(**changes: Mapping[str, str | None]) -> str:
    """Return the shortest job with keys added, replaced or (None) left out, section by section."""
    sections: dict[str, dict[str, str | None]] = {name: dict(keys) for name, keys in MINIMAL.items()}
    for name, keys in changes.items():
        sections.setdefault(name, {}).update(keys)
    return toml({n: {k: v for k, v in keys.items() if v is not None} for n, keys in sections.items()})


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str], Job]:
    def read(text: str) -> Job:
        (tmp_path / "job.toml").write_text(text)
        return read_job(tmp_path / "job.toml")

    return read


@pytest.fixture
def refused(job: Callable[[str], Job], tmp_path: Path) -> Callable[..., str]:
    """Return a function that reads a bad job and gives the message, which must be one paragraph."""

    def read(text: str, kind: type[DpdistError] = UsageError) -> str:
        with pytest.raises(kind) as error:
            job(text)
        assert type(error.value) is kind
        assert "\n" not in str(error.value)
        return str(error.value).replace(str(tmp_path), "")

    return read


def test_every_key_of_a_job_arrives_and_the_shortest_has_the_documented_defaults(
    job: Callable[[str], Job], tmp_path: Path
) -> None:
    assert job(FULL) == Job(
        rows=tmp_path / "rows.zarr",
        source=tmp_path / "data.csv",
        budget=PrivacyLoss(2_000_000, 10**12),
        columns=("age", "height"),
        release=tmp_path / "release.zarr",
        request=ReleaseRequest(
            mechanism="gaussian",
            loss=PrivacyLoss(100_000, 10**11),
            clip_norm=100.5,
            neighbours=Neighbours.ADD_REMOVE,
            centring=Centring.PRIVATE,
            grid_bits=12,
            period="2026-W47",
            name="week-47",
        ),
        ledger=Address("postgresql+psycopg://me@host/db?ledger=books"),
        model=tmp_path / "model.zarr",
        components=2,
        scores=tmp_path / "scores.zarr",
        cluster=Cluster("tcp://127.0.0.1:8786", None, trusted_worker=True),
    )
    assert job(minimal()) == Job(
        tmp_path / "rows.zarr",
        tmp_path / "release.zarr",
        ReleaseRequest("two-sided-wishart", PrivacyLoss(1_000_000), 2.0),
    )


def test_numbers_are_read_exactly_and_none_out_of_range(job: Callable[[str], Job], refused: Callable[..., str]) -> None:
    for written, micro in (("0.3", 3 * 10**5), ("1e-6", 1), ('"0.1"', 10**5), ("123.456789", 123_456_789)):
        assert job(minimal(release={"epsilon": written})).request.loss.epsilon_micro == micro
    for written, atto in (("1e-6", 10**12), ('"1e-6"', 10**12), ("1e-18", 1), ("3e-7", 3 * 10**11)):
        found = job(minimal(release={"delta": written})).request
        assert (found.mechanism, found.loss.delta_atto) == ("gaussian", atto)
    assert "millionths" in refused(minimal(release={"epsilon": "0.1234567"}), DataError)
    assert "1e-18" in refused(minimal(release={"delta": "1.5e-18"}), DataError)
    assert job(minimal(rows={"budget_epsilon": "3"})).budget == PrivacyLoss(3_000_000, 0)
    for key, value in (("epsilon", "nan"), ("delta", "1"), ("clip", "-1.5"), ("clip", "1e400"), ("clip", f"1{0:0400}")):
        refused(minimal(release={key: value}), DataError)


def test_relative_paths_start_at_the_job_file_and_not_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "centre.json").write_text('{"centre": [1, 2]}')
    text = minimal(release={"centre": '"centre.json"', "ledger": '"/data/rows.ledger"'})
    (tmp_path / "jobs" / "job.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    found = read_job(Path("jobs") / "job.toml")
    assert found.rows == tmp_path / "jobs" / "rows.zarr"
    assert found.release == tmp_path / "jobs" / "release.zarr"
    assert found.request.centre == (1.0, 2.0)
    assert found.ledger == Path("/data/rows.ledger")


def test_what_is_no_job_file_is_said_to_be_none(tmp_path: Path, refused: Callable[..., str]) -> None:
    with pytest.raises(DataError, match=r"is a folder, .*dpdist inspect"):
        read_job(tmp_path)
    for text in ("[rows", "[rows]\npath = ", "[rows]\npath = 1\npath = 2", "\x00"):
        assert "/job.toml is not TOML" in refused(text)


def test_a_key_missing_unknown_or_of_the_wrong_kind_is_refused_with_its_place(refused: Callable[..., str]) -> None:
    for section, key, value in (
        ("release", "epsilon", None), ("pca", "components", None), ("project", "path", None),
        ("release", "neighbors", '"x"'), ("cluster", "threads", '"x"'),
        ("rows", "source", "[]"), ("rows", "columns", '"age,height"'), ("rows", "columns", "[1, 2]"),
        ("rows", "budget_epsilon", "true"), ("release", "epsilon", "1979-05-27"), ("release", "clip", "true"),
        ("release", "grid_bits", "16.0"), ("release", "centre", "0"), ("release", "id", "47"),
        ("pca", "components", "-0.5"), ("pca", "components", "1.5"), ("pca", "components", "nan"),
        ("pca", "components", "true"), ("pca", "components", '"few"'), ("cluster", "trusted", '"client"'),
        ("cluster", "workers", '"2"'), ("cluster", "scheduler", "8786"),
    ):  # fmt: skip
        whole: dict[str, dict[str, str | None]] = {"pca": {"path": '"m"', "components": "1"}}
        whole |= {"project": {"path": '"s"'}}
        whole.setdefault(section, {})[key] = value
        assert re.search(rf"\[{section}\].* '?{key}", refused(minimal(**whole)))


def test_components_may_be_a_share_of_the_variance_or_those_above_the_noise(job: Callable[[str], Job]) -> None:
    for written, known in (("0.9", 0.9), ('"auto"', None), ("2", 2)):
        found = job(minimal(pca={"path": '"m"', "components": written})).components
        assert (found, type(found)) == (known, type(known))


PERIODS = {"periods": "true", "source": '"incoming"'}
PERSONS = PERIODS | {"privacy_unit": '"who"', "max_rows": "2"}
SCHEMED = {"schema": '"schema.toml"', "source": '"incoming"'}
NUMBERS = "".join(f'[[column]]\nname = "{name}"\nkind = "number"\n' for name in "ab")


def test_what_makes_no_sense_together_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(NUMBERS)
    (tmp_path / "wrong.toml").write_text(NUMBERS.replace("number", "nothing"))
    pca, project = {"path": '"m"', "components": "1"}, {"path": '"s"'}
    for said, changes in (
        ("[project] needs [pca]", {"project": {"path": '"s"'}}),
        ("budget_epsilon", {"rows": {"budget_delta": "1e-6"}}),
        ("not both", {"cluster": {"scheduler": '"tcp://127.0.0.1:1"', "workers": "2"}}),
        ("is not possible with periods", {"rows": PERIODS, "cluster": {"trusted": '"worker"'}}),
        ("needs source", {"rows": PERIODS | {"source": None}}),
        ("schema needs source", {"rows": SCHEMED | {"source": None}}),
        ("columns is defined by the schema", {"rows": SCHEMED | {"columns": '["a", "b"]'}}),
        ("schema converts rows", {"rows": SCHEMED | {"in_place": "true"}}),
        ("source is an address", {"rows": PERIODS | {"source": '"s3://bucket/incoming"'}}),
        ("id is set by the periods", {"rows": PERIODS, "release": {"id": '"x"'}}),
        ("from 1 to", {"rows": PERIODS, "release": {"continual": "0"}}),
        ("at most 4096", {"rows": PERIODS, "release": {"factorisation": '"square-root"', "continual": "5000"}}),
        ("Omit continual", {"rows": PERIODS, "release": {"factorisation": '"banded"', "continual": "3"}}),
        ("band needs factorisation", {"rows": PERIODS, "release": {"band": "3"}}),
        ("needs periods = true", {"release": {"continual": "3"}}),
        ("for a table without periods", {"rows": PERIODS, "pca": pca, "project": project}),
        ("needs max_periods", {"rows": PERSONS}),
        ("from 1 to 4096", {"rows": PERSONS | {"max_periods": "5000"}}),
        ("needs periods = true and privacy_unit", {"rows": PERIODS | {"max_periods": "2"}}),
        ("need a privacy unit", {"rows": PERIODS | SCHEMED | {"exclude": '"left.txt"'}}),
        ("cannot be used: lines 3, 6, columns", {"rows": SCHEMED | {"schema": '"wrong.toml"'}}),
        ('mechanism = "two-sided-wishart" in [release]', {"release": {"mechanism": '"gaussian"'}}),
        ('mechanism = "gaussian" in [release]', {"release": {"mechanism": '"two-sided-wishart"', "delta": "1e-6"}}),
    ):
        assert said in refused(minimal(**changes))


WRONG = """
[rows]
sauce = "table.csv"
columns = []
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


def test_all_mistakes_of_a_file_are_told_at_once(refused: Callable[..., str]) -> None:
    said = refused(WRONG)
    assert said.startswith("/job.toml has 9 mistakes. (1) ")
    for sentence in (
        "[rows] has no key 'sauce'; its keys are path, source, ",
        "[rows] needs 'path', a path in quotes.",
        "[rows] columns must be a list of at least one column name.",
        "[release] path must be a path in quotes.",
        '[release] clip must be a number, such as 8.5, "private", "auto" or "schema".',
        '[release] neighbours must be "replace-one" or "add-remove".',
        "[pca] path contains a control or invisible character; remove it.",
        '[pca] components must be a whole number of at least 1, a share of the variance such as 0.9, or "auto"',
        "There is no section or key 'projection'; the sections are rows, release, pca, project, cluster.",
    ):
        assert sentence in said
    assert not re.search("msgspec|Struct|`|Expected|decimal|int\\b", said)
    release = {"epsilon": "0", "clip": "-1", "grid_bits": "99", "delta": "2", "mechanism": '"laplacian"'}
    said = refused(minimal(release=release, project={"path": '"s"'}, cluster={"workers": "0"}))
    for word in ("Epsilon must be positive", "Delta must be", "clip norm must be", "Grid bits must", "laplacian"):
        assert said.count(word) == 1
    assert "[project] needs [pca]" in said
    assert "At least one worker is needed (workers in [cluster])" in said


def test_a_job_that_is_run_is_refused_in_the_words_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    np.save(tmp_path / "table.npy", np.eye(3))
    job = tmp_path / "job.toml"
    job.write_text(minimal(rows={"source": '"table.npy"', "budget_epsilon": "1"}, release={"delta": "1e-6"}))
    said = str(CliRunner().invoke(cli, ["run", str(job)]).exception)
    assert 'omit delta in [release], or use mechanism = "two-sided-wishart" in [release]' in said
    assert "budget_delta = D in [rows]" in said
    assert "--" not in said.partition("dpdist ledger raise")[0]  # which is a command


def jobs() -> Iterator[str]:
    for file in (ROOT / "cluster" / "job.toml", *sorted((ROOT / "workflows").glob("*.toml"))):
        yield file.read_text()
    for page in ("docs/howto/jobs.md", "docs/howto/nightly.md"):
        yield from re.findall(r"```toml\n(# job.toml\n.*?)```", (ROOT / page).read_text(), re.DOTALL)


def valid(text: str) -> bool:
    return bool(jsonschema.Draft202012Validator(schema()).is_valid(tomllib.loads(text)))


def test_the_schema_that_editors_read_is_that_of_the_types_and_takes_every_job_on_our_pages(
    refused: Callable[..., str],
) -> None:
    assert json.loads(SCHEMA.read_text()) == schema(), "write it anew: python -m dpdist.jobs.sections"
    jsonschema.Draft202012Validator.check_schema(schema())
    assert [valid(text) for text in (*jobs(), minimal())] == [True] * 7
    for old, new in (("epsilon", "epsilom"), ("clip = 2", 'clip = "2"'), ("epsilon = 1", "epsilon = true")):
        assert not valid(minimal().replace(old, new))
        refused(minimal().replace(old, new))


def test_a_job_file_takes_both_spellings_of_a_key_but_not_at_once(
    job: Callable[[str], Job], refused: Callable[..., str]
) -> None:
    british, american = (minimal(release={name: '"private"'}) for name in ("centre", "center"))
    assert (job(american), valid(american)) == (job(british), True)
    both = minimal(release={"centre": '"private"', "center": '"none"'})
    assert refused(both) == "/job.toml: [release] centre and center are the same key; use one of them."
    assert "[rows] has no key 'center'" in refused(minimal(rows={"center": '"private"'}))


BAD_CENTRES: list[tuple[str, bytes | np.ndarray | None]] = [
    ("missing.npy", None), ("c.csv", b"1,2,3"), ("truncated.npz", b"PK\x03\x04"), ("no_text.json", b"\xff\xfe"),
    ("words.json", b'{"centre": ["a", "b"]}'), ("huge.json", b'{"centre": [1' + 400 * b"0" + b"]}"),
    ("misspelt.json", b'{"centre": [1, 2], "scales": [1, 2]}'), ("matrix.npy", np.ones((2, 2))),
    ("objects.npy", np.array([{}, None], dtype=object)),
]  # fmt: skip


def test_a_bad_centre_is_refused_with_the_file_and_what_is_wanted(tmp_path: Path) -> None:
    for name, content in BAD_CENTRES:
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
        elif content is not None:
            np.save(tmp_path / name, content)
        with pytest.raises(DataError) as error:
            read_public_centre(tmp_path / name)
        for word in (str(tmp_path / name), "none", "private", ".npy", ".npz", ".json", "(centre)"):
            assert word in str(error.value)


def request(folder: Path, centre: str, scale: str = "none") -> ReleaseRequest:
    options = RequestOptions(epsilon=Amount(1), clip=Clip("auto"), centre=centre, scale=scale, grid_bits=16)
    return request_from(options, folder)


def test_numbers_that_no_row_can_be_shifted_or_divided_by_are_refused_before_anything_starts(tmp_path: Path) -> None:
    for vectors in ('{"centre": [1, NaN]}', '{"centre": [1, Infinity]}', '{"scale": [1, 0]}', '{"scale": [1, -1]}',
                    '{"centre": [1, 2], "scale": [1, 2, 3]}', '{"centre": []}'):  # fmt: skip
        (tmp_path / "centre.json").write_text(vectors)
        with pytest.raises((UsageError, DataError), match=r"public (centre|scale)"):
            request(tmp_path, "centre.json")


def test_files_hold_a_public_centre_or_scale_or_both(tmp_path: Path) -> None:
    np.save(tmp_path / "by.npy", np.array([2, 4], dtype=np.uint8))
    np.savez(tmp_path / "centre.npz", centre=np.array([1.0, 5.0]))
    np.savez(tmp_path / "both.npz", centre=np.array([1.0, 5.0]), scale=np.array([2.0, 4.0]))
    (tmp_path / "scale.json").write_text('{"scale": [2, 4]}')
    assert request(tmp_path, "none", "by.npy").scale == request(tmp_path, "none", "scale.json").scale == (2.0, 4.0)
    assert request(tmp_path, "private", "by.npy").scale == request(tmp_path, "private", "both.npz").scale == (2.0, 4.0)
    assert request(tmp_path, "centre.npz", "by.npy").centre == request(tmp_path, "both.npz").centre == (1.0, 5.0)
    for centre, scale, said in (
        ("both.npz", "by.npy", "leave one out"),
        ("both.npz", "private", "leave one out"),
        ("none", "both.npz", "contains a centre as well"),
    ):
        with pytest.raises(UsageError, match=said):
            request(tmp_path, centre, scale)
    with pytest.raises(DataError, match=r"contains no public scale.*\(scale\)"):
        request(tmp_path, "none", "centre.npz")


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("options.route", "products", 'options = {route = "products"} in [release]'),
        ("options.iterations", 3, "options = {iterations = 3} in [release]"),
        ("genotypes.haploid", "single", 'genotypes = {haploid = "single"} in [rows]'),
        ("columns", 'age,"a, b"', 'columns = ["age", "a, b"] in [rows]'),
    ],
)
def test_a_rule_is_named_as_it_is_written_in_the_file(name: str, value: object, written: str) -> None:
    with naming(JOB_FILE):
        assert parameter(name, value) == written
    tomllib.loads(written.partition(" in ")[0])
