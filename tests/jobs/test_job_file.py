"""JOB.toml and public centres: read exactly, checked completely, and refused with the place of each mistake."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from support.folders import ROOT

from dpdist.cli import cli
from dpdist.errors import DataError, DpdistError, RefusedError, UsageError
from dpdist.jobs.job_file import Job, read_job
from dpdist.jobs.sections import JOB_FILE, SCHEMA, schema, sections_of
from dpdist.ledger.address import Address
from dpdist.naming import naming, parameter, step
from dpdist.options import Amount, Clip, RequestOptions
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release.parse import read_public_centre, request_from
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.runtime.cluster import Cluster

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
ledger = "elsewhere/rows.ledger"

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
    """Return a function that writes a job file and reads it."""

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


# What a job says


def test_every_key_of_a_full_job_arrives(job: Callable[[str], Job], tmp_path: Path) -> None:
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
        ledger=tmp_path / "elsewhere" / "rows.ledger",
        model=tmp_path / "model.zarr",
        components=2,
        scores=tmp_path / "scores.zarr",
        cluster=Cluster("tcp://127.0.0.1:8786", None, trusted_worker=True),
    )


def test_the_shortest_job_has_the_documented_defaults(job: Callable[[str], Job], tmp_path: Path) -> None:
    assert job(minimal()) == Job(
        rows=tmp_path / "rows.zarr",
        source=None,
        budget=None,
        columns=None,
        release=tmp_path / "release.zarr",
        request=ReleaseRequest("two-sided-wishart", PrivacyLoss(1_000_000), 2.0),
        ledger=None,
        model=None,
        components=None,
        scores=None,
        cluster=Cluster(),
    )


def test_numbers_are_read_exactly(job: Callable[[str], Job], refused: Callable[..., str]) -> None:
    # 1e-6 and 3e-7 are no binary fractions: as a float they would be some other number of units
    for written, micro in (("0.3", 3 * 10**5), ("1e-6", 1), ('"0.1"', 10**5), ("123.456789", 123_456_789)):
        assert job(minimal(release={"epsilon": written})).request.loss.epsilon_micro == micro
    for written, atto in (("1e-6", 10**12), ('"1e-6"', 10**12), ("1e-18", 1), ("3e-7", 3 * 10**11)):
        found = job(minimal(release={"delta": written})).request
        assert (found.mechanism, found.loss.delta_atto) == ("gaussian", atto)
    assert "millionths" in refused(minimal(release={"epsilon": "0.1234567"}), DataError)
    assert "1e-18" in refused(minimal(release={"delta": "1.5e-18"}), DataError)
    assert job(minimal(rows={"budget_epsilon": "3"})).budget == PrivacyLoss(3_000_000, 0)
    content = tomllib.loads(minimal(release={"epsilon": "0.30000000000000004", "clip": "0.1"}), parse_float=Decimal)
    release = sections_of(content).release
    assert (Decimal(release.epsilon), Decimal(release.clip)) == (Decimal("0.30000000000000004"), Decimal("0.1"))


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


# What a job may not say


def test_what_is_no_job_file_is_said_to_be_none(tmp_path: Path, refused: Callable[..., str]) -> None:
    with pytest.raises(DataError, match=r"nothing\.toml cannot be read: No such file"):
        read_job(tmp_path / "nothing.toml")
    with pytest.raises(DataError, match=r"is a folder, .*dpdist inspect"):
        read_job(tmp_path)
    for text in ("[rows", "[rows]\npath = ", "[rows]\npath = 1\npath = 2", "\x00"):
        assert "/job.toml is not TOML" in refused(text)
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not TOML"):
        read_job(tmp_path / "job.toml")


@pytest.mark.parametrize(
    ("section", "key"),
    [("rows", "path"), ("release", "path"), ("release", "epsilon"), ("release", "clip"), ("pca", "path"),
     ("pca", "components"), ("project", "path")],
)  # fmt: skip
def test_what_is_missing_is_named_with_its_section(refused: Callable[..., str], section: str, key: str) -> None:
    whole: dict[str, dict[str, str | None]] = {
        "pca": {"path": '"m"', "components": "1"},
        "project": {"path": '"s"'},
    }
    whole.setdefault(section, {})[key] = None
    message = refused(minimal(**whole))
    assert f"[{section}]" in message
    assert repr(key) in message
    if section in MINIMAL:
        assert f"[{section}]" in refused(toml({name: keys for name, keys in MINIMAL.items() if name != section}))


@pytest.mark.parametrize(
    ("section", "key"),
    [("rows", "sauce"), ("release", "neighbors"), ("pca", "k"), ("project", "rows"), ("cluster", "threads")],
)
def test_what_is_unknown_is_refused_and_what_is_known_listed(
    refused: Callable[..., str], section: str, key: str
) -> None:
    # a misspelt optional key that were passed over would run with a default nobody asked for
    message = refused(minimal(**{"pca": {"path": '"m"', "components": "1"}, section: {key: '"x"'}}))
    assert f"[{section}]" in message
    assert repr(key) in message
    assert "path" in message or "workers" in message
    assert "'epsilon'" in refused("epsilon = 1\n" + minimal())


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("rows", "path", "1"), ("rows", "source", "[]"), ("rows", "columns", '"age,height"'),
        ("rows", "budget_epsilon", "true"), ("release", "epsilon", "true"), ("release", "epsilon", "[1]"),
        ("release", "epsilon", "1979-05-27"), ("release", "clip", '"100"'), ("release", "clip", "true"),
        ("release", "grid_bits", "true"), ("release", "grid_bits", "16.0"), ("release", "centre", "0"),
        ("rows", "columns", "[1, 2]"), ("rows", "columns", "[]"), ("pca", "components", "0"),
        ("pca", "components", "-0.5"), ("pca", "components", "1.5"), ("pca", "components", "nan"),
        ("cluster", "trusted", '"client"'), ("release", "neighbours", '"both"'), ("release", "id", "47"),
        ("pca", "components", '"few"'), ("pca", "components", "2.0"), ("pca", "components", "true"),
        ("cluster", "workers", "true"), ("cluster", "workers", '"2"'), ("cluster", "scheduler", "8786"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused_with_its_place(
    refused: Callable[..., str], section: str, key: str, value: str
) -> None:
    message = refused(minimal(**{"pca": {"path": '"m"', "components": "1"}, section: {key: value}}))
    assert f"[{section}] {key}" in message


def test_components_may_be_a_share_of_the_variance_or_those_above_the_noise(job: Callable[[str], Job]) -> None:
    for written, known in (("0.9", 0.9), ('"auto"', None), ("2", 2)):
        for more in ({}, {"correlation": "true"}):
            found = job(minimal(pca={"path": '"m"', "components": written, **more})).components
            assert (found, type(found)) == (known, type(known))


def test_who_is_trusted_is_the_driver_unless_told_otherwise_and_where_it_would_be_kept(
    job: Callable[[str], Job], refused: Callable[..., str]
) -> None:
    rows, worker = {"periods": "true", "source": '"incoming"'}, {"trusted": '"worker"'}
    assert "cannot be kept with periods" in refused(minimal(rows=rows, cluster=worker))
    assert job(minimal(rows=rows, cluster={"trusted": '"driver"'})).periodic
    assert job(minimal(cluster=worker)).cluster.trusted_worker
    assert not job(minimal()).cluster.trusted_worker


def test_what_makes_no_sense_together_is_refused(refused: Callable[..., str]) -> None:
    for said, changes in (
        ("[project] needs [pca]", {"project": {"path": '"s"'}}),
        ("budget_epsilon", {"rows": {"budget_delta": "1e-6"}}),
        ("not both", {"cluster": {"scheduler": '"tcp://127.0.0.1:1"', "workers": "2"}}),
        ("one worker", {"cluster": {"workers": "0"}}),
        ('mechanism = "two-sided-wishart" in [release]', {"release": {"mechanism": '"gaussian"'}}),
        (
            'mechanism = "gaussian" in [release]',
            {"release": {"mechanism": '"two-sided-wishart"', "delta": "1e-6"}},
        ),
    ):
        assert said in refused(minimal(**changes))


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("epsilon", "nan", DataError), ("epsilon", "-1", DataError), ("epsilon", '"abc"', UsageError),
        ("delta", "1", DataError), ("clip", "-1.5", DataError), ("clip", "1e400", DataError),
        ("clip", "1" + 400 * "0", DataError), ("grid_bits", "25", UsageError),
        ("mechanism", '"laplacian"', UsageError),
    ],
)  # fmt: skip
def test_a_parameter_out_of_range_is_refused_before_anything_starts(
    refused: Callable[..., str], key: str, value: str, kind: type[DpdistError]
) -> None:
    refused(minimal(release={key: value}), kind)


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


def test_all_mistakes_of_a_file_are_told_at_once(refused: Callable[..., str]) -> None:
    said = refused(WRONG)
    assert said.startswith("/job.toml has 10 mistakes. (1) ")
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


def test_values_that_are_out_of_range_are_told_together_too(refused: Callable[..., str]) -> None:
    release = {"epsilon": "0", "clip": "-1", "grid_bits": "99", "delta": "2", "mechanism": '"laplacian"'}
    said = refused(minimal(release=release, project={"path": '"s"'}, cluster={"workers": "0"}))
    for word in ("Epsilon must be positive", "Delta must be", "clip norm must be", "Grid bits must", "laplacian"):
        assert said.count(word) == 1
    assert "[project] needs [pca]" in said
    assert "At least one worker is needed (workers in [cluster])" in said


def test_mistakes_of_one_kind_keep_its_exit_code(refused: Callable[..., str]) -> None:
    said = refused(minimal(release={"epsilon": "0", "clip": "-1"}), DataError)
    assert "has 2 mistakes" in said


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
    job.write_text(minimal(rows={"source": '"table.npy"', "budget_epsilon": "1"}, release={"delta": "1e-6"}))
    said = str(CliRunner().invoke(cli, ["run", str(job)]).exception)
    assert 'leave out delta in [release], or take mechanism = "two-sided-wishart" in [release]' in said
    assert "budget_delta = D in [rows]" in said
    assert "--" not in said


def test_a_ledger_may_be_an_address_but_carries_no_password(tmp_path: Path) -> None:
    secret = "hunter2"  # noqa: S105 - nobody's
    for user, refused in (("me", False), (f"me:{secret}", True)):
        text = f"postgresql+psycopg://{user}@host/db?ledger=books"
        path = tmp_path / "job.toml"
        path.write_text(minimal(release={"ledger": f'"{text}"'}))
        if refused:
            with pytest.raises(UsageError, match="carries a password") as refusal:
                read_job(path)
            assert secret not in str(refusal.value)
        else:
            assert read_job(path).ledger == Address(text)


def test_an_address_from_the_command_replaces_where_the_file_computes(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    for place in ('scheduler = "tcp://127.0.0.1:1"', "workers = 3"):
        path.write_text(toml(MINIMAL) + f"\n[cluster]\n{place}\n")
        found = read_job(path, scheduler="tcp://127.0.0.1:2").cluster
        assert (found.scheduler, found.workers) == ("tcp://127.0.0.1:2", None)
        with pytest.raises(RefusedError):  # it is judged as the file's own
            read_job(path, scheduler="tcp://192.0.2.1:8786")


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
def test_an_editor_sees_what_a_run_would_refuse(refused: Callable[..., str], old: str, new: str) -> None:
    assert valid(tomllib.loads(minimal()))
    assert not valid(tomllib.loads(minimal().replace(old, new)))
    refused(minimal().replace(old, new))


# Public centres


def test_files_hold_centre_or_scale_or_both(tmp_path: Path) -> None:
    np.save(tmp_path / "centre.npy", np.array([1, 200], dtype=np.uint8))
    assert read_public_centre(tmp_path / "centre.npy") == {"centre": (1.0, 200.0), "scale": None}
    for names in (("centre",), ("scale",), ("centre", "scale")):
        np.savez(tmp_path / "centre.npz", allow_pickle=False, **{name: np.array([1.5, 0.1]) for name in names})
        (tmp_path / "centre.json").write_text(json.dumps({name: [1.5, 0.1] for name in names}))
        expected = {"centre": None, "scale": None} | dict.fromkeys(names, (1.5, 0.1))
        for kind in ("npz", "json"):
            assert read_public_centre(tmp_path / f"centre.{kind}") == expected


def _bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _npy(values: Any) -> Callable[[Path], object]:
    return lambda path: np.save(path, values)


def _damaged_npz(path: Path) -> None:
    np.savez(path, centre=np.arange(3.0))
    path.write_bytes(path.read_bytes().replace(np.arange(3.0).tobytes(), np.arange(1, 4.0).tobytes()))


def _truncated_npz(path: Path) -> None:
    np.savez(path, centre=np.arange(3.0))
    path.write_bytes(path.read_bytes()[:100])


BAD_CENTRES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a missing file": ("c.npy", lambda _: None),
    "a folder": ("c.npy", lambda path: path.mkdir()),
    "another kind of file": ("c.csv", _bytes(b"1,2,3")),
    "a truncated npz": ("c.npz", _truncated_npz),
    "a damaged npz": ("c.npz", _damaged_npz),
    "json that is no text": ("c.json", _bytes(b"\xff\xfe")),
    "json of another shape": ("c.json", _bytes(b"[1, 2]")),
    "json of words": ("c.json", _bytes(b'{"centre": ["a", "b"]}')),
    "json of a huge number": ("c.json", _bytes(b'{"centre": [1' + 400 * b"0" + b"]}")),
    "json with nothing known": ("c.json", _bytes(b'{"center": [1, 2]}')),
    "json with one key misspelt": ("c.json", _bytes(b'{"centre": [1, 2], "scales": [1, 2]}')),
    "a matrix": ("c.npy", _npy(np.ones((2, 2)))),
    "words": ("c.npy", _npy(np.array(["a", "b"]))),
    "objects": ("c.npy", _npy(np.array([{}, None], dtype=object))),
}


@pytest.mark.parametrize("bad", BAD_CENTRES.values(), ids=BAD_CENTRES)
def test_a_bad_centre_is_refused_with_the_file_and_what_is_wanted(
    tmp_path: Path, bad: tuple[str, Callable[[Path], object]]
) -> None:
    name, write = bad
    write(tmp_path / name)
    with pytest.raises(DataError) as error:
        read_public_centre(tmp_path / name)
    message = str(error.value)
    assert str(tmp_path / name) in message
    assert all(word in message for word in ("none", "private", ".npy", ".npz", ".json", "(centre)"))


def request(centre: Path) -> ReleaseRequest:
    return request_from(RequestOptions(epsilon=Amount(1), clip=Clip(1), centre=str(centre), grid_bits=16))


@pytest.mark.parametrize(
    "vectors",
    [
        {"centre": [1, float("nan")]},
        {"centre": [1, float("inf")]},
        {"scale": [1, 0]},
        {"scale": [1, -1]},
        {"centre": [1, 2], "scale": [1, 2, 3]},
        {"centre": []},
    ],
    ids=str,
)
def test_numbers_that_no_row_can_be_shifted_or_divided_by_are_refused_before_anything_starts(
    tmp_path: Path, vectors: dict[str, list[float]]
) -> None:
    (tmp_path / "centre.json").write_text(json.dumps(vectors))
    with pytest.raises((UsageError, DataError), match=r"public (centre|scale)"):
        request(tmp_path / "centre.json")


def test_a_public_centre_and_scale_reach_the_bound_of_the_rows(tmp_path: Path) -> None:
    (tmp_path / "centre.json").write_text('{"centre": [1, 2], "scale": [3, 4]}')
    bound = request(tmp_path / "centre.json").bound(2)
    assert (bound.centre, bound.scale, bound.constant) == ((1.0, 2.0), (3.0, 4.0), 0)


def test_a_public_scale_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    np.save(tmp_path / "by.npy", np.array([2.0, 4.0]))
    np.savez(tmp_path / "centre.npz", centre=np.array([1.0, 5.0]))
    np.savez(tmp_path / "both.npz", centre=np.array([1.0, 5.0]), scale=np.array([2.0, 4.0]))

    def asked(centre: str, scale: str) -> Any:
        options = RequestOptions(epsilon=Amount(1), clip=Clip("auto"), centre=centre, scale=scale, grid_bits=16)
        return request_from(options, tmp_path)

    assert asked("none", "by.npy").scale == (2.0, 4.0)
    assert asked("private", "by.npy").scale == asked("private", "both.npz").scale == (2.0, 4.0)
    assert (asked("centre.npz", "by.npy").centre, asked("both.npz", "none").scale) == ((1.0, 5.0), (2.0, 4.0))
    for centre, scale, said in (
        ("both.npz", "by.npy", "take one"),
        ("both.npz", "private", "take one"),
        ("none", "both.npz", "holds a centre as well"),
    ):
        with pytest.raises(UsageError, match=said):
            asked(centre, scale)
    with pytest.raises(DataError, match=r"holds no public scale.*\(scale\)"):
        asked("none", "centre.npz")
