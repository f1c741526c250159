"""JOB.toml and public centres: read exactly, checked completely, and refused with the place of the mistake."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdist.errors import DataError, DpdistError, RefusedError, UsageError
from dpdist.jobs.job_file import Job, read_job
from dpdist.ledger.address import Address
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


@pytest.mark.parametrize(
    ("written", "micro"),
    [("1", 10**6), ("0.1", 10**5), ("0.3", 3 * 10**5), ("1e-6", 1), ('"0.1"', 10**5), ("123.456789", 123_456_789)],
)
def test_epsilon_is_read_exactly(job: Callable[[str], Job], written: str, micro: int) -> None:
    assert job(minimal(release={"epsilon": written})).request.loss.epsilon_micro == micro


@pytest.mark.parametrize(
    ("written", "atto"), [("1e-6", 10**12), ('"1e-6"', 10**12), ("0.1", 10**17), ("1e-18", 1), ("3e-7", 3 * 10**11)]
)
def test_delta_is_read_exactly(job: Callable[[str], Job], written: str, atto: int) -> None:
    # 1e-6 and 3e-7 are no binary fractions: as a float they would be some other number of units
    assert job(minimal(release={"delta": written})).request.loss.delta_atto == atto


def test_a_number_finer_than_its_units_is_refused_and_not_rounded(refused: Callable[..., str]) -> None:
    assert "millionths" in refused(minimal(release={"epsilon": "0.1234567"}), DataError)
    assert "1e-18" in refused(minimal(release={"delta": "1.5e-18"}), DataError)


def test_the_mechanism_follows_from_whether_a_delta_is_given(job: Callable[[str], Job]) -> None:
    assert job(minimal()).request.mechanism == "two-sided-wishart"
    assert job(minimal(release={"delta": "1e-9"})).request.mechanism == "gaussian"


def test_a_budget_without_delta_is_pure(job: Callable[[str], Job]) -> None:
    assert job(minimal(rows={"budget_epsilon": "3"})).budget == PrivacyLoss(3_000_000, 0)


def test_relative_paths_start_at_the_job_file_and_not_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "centre.json").write_text('{"centre": [1, 2]}')
    (tmp_path / "jobs" / "job.toml").write_text(minimal(release={"centre": '"centre.json"'}))
    monkeypatch.chdir(tmp_path)
    found = read_job(Path("jobs") / "job.toml")
    assert found.rows == tmp_path / "jobs" / "rows.zarr"
    assert found.release == tmp_path / "jobs" / "release.zarr"
    assert found.request.centre == (1.0, 2.0)


def test_absolute_paths_are_taken_as_they_are(job: Callable[[str], Job]) -> None:
    assert job(minimal(rows={"path": '"/data/rows.zarr"'})).rows == Path("/data/rows.zarr")


# What a job may not say


def test_a_missing_job_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.toml cannot be read: No such file"):
        read_job(tmp_path / "nothing.toml")


def test_a_folder_is_no_job_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder, .*dpdist inspect"):
        read_job(tmp_path)


@pytest.mark.parametrize("text", ["[rows", "rows", "[rows]\npath = ", "[rows]\npath = 1\npath = 2", "\x00"])
def test_what_is_not_toml_is_said_not_to_be(refused: Callable[..., str], text: str) -> None:
    assert "/job.toml is not TOML" in refused(text)


def test_bytes_that_are_not_text_are_not_toml(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not TOML"):
        read_job(tmp_path / "job.toml")


@pytest.mark.parametrize("section", ["rows", "release"])
def test_a_missing_section_is_named(refused: Callable[..., str], section: str) -> None:
    rest = {name: keys for name, keys in MINIMAL.items() if name != section}
    assert f"[{section}]" in refused(toml(rest))


@pytest.mark.parametrize(
    ("section", "key"),
    [("rows", "path"), ("release", "path"), ("release", "epsilon"), ("release", "clip"), ("pca", "path"),
     ("pca", "components"), ("project", "path")],
)  # fmt: skip
def test_a_missing_key_is_named_with_its_section(refused: Callable[..., str], section: str, key: str) -> None:
    whole: dict[str, dict[str, str | None]] = {
        "pca": {"path": '"m"', "components": "1"},
        "project": {"path": '"s"'},
    }
    whole.setdefault(section, {})[key] = None
    message = refused(minimal(**whole))
    assert f"[{section}]" in message
    assert repr(key) in message


def test_an_unknown_section_is_refused_and_the_known_ones_are_listed(refused: Callable[..., str]) -> None:
    message = refused(minimal(projection={"path": '"s"'}))
    assert "'projection'" in message
    assert "rows, release, pca, project, cluster" in message


def test_a_key_outside_every_section_is_refused(refused: Callable[..., str]) -> None:
    assert "'epsilon'" in refused("epsilon = 1\n" + minimal())


@pytest.mark.parametrize(
    ("section", "key"),
    [("rows", "sauce"), ("release", "neighbors"), ("pca", "k"), ("project", "rows"), ("cluster", "threads")],
)
def test_an_unknown_key_is_refused_and_the_known_ones_are_listed(
    refused: Callable[..., str], section: str, key: str
) -> None:
    # a misspelt optional key that were passed over would run with a default nobody asked for
    message = refused(minimal(**{"pca": {"path": '"m"', "components": "1"}, section: {key: '"x"'}}))
    assert f"[{section}]" in message
    assert repr(key) in message
    assert "path" in message or "workers" in message


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("rows", "path", "1"), ("rows", "source", "[]"), ("rows", "columns", '"age,height"'),
        ("rows", "budget_epsilon", "true"), ("release", "epsilon", "true"), ("release", "epsilon", "[1]"),
        ("release", "epsilon", "1979-05-27"), ("release", "clip", '"100"'), ("release", "clip", "true"),
        ("release", "grid_bits", "true"), ("release", "grid_bits", "16.0"), ("release", "centre", "0"),
        ("release", "id", "47"), ("pca", "components", '"few"'), ("pca", "components", "2.0"),
        ("pca", "components", "true"), ("cluster", "workers", "true"), ("cluster", "workers", '"2"'),
        ("cluster", "scheduler", "8786"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused_with_its_place(
    refused: Callable[..., str], section: str, key: str, value: str
) -> None:
    message = refused(minimal(**{"pca": {"path": '"m"', "components": "1"}, section: {key: value}}))
    assert f"[{section}] {key}" in message


@pytest.mark.parametrize("columns", ["[1, 2]", '["age", true]', '[["age"]]', "[]"])
def test_columns_that_are_not_names_are_refused(refused: Callable[..., str], columns: str) -> None:
    # an empty list must not silently mean all columns
    assert "columns" in refused(minimal(rows={"columns": columns}))


@pytest.mark.parametrize("components", ["0", "-1", "0.0", "-0.5", "1.5", "nan"])
def test_a_number_of_components_that_no_release_has_is_refused_before_anything_starts(
    refused: Callable[..., str], components: str
) -> None:
    # otherwise the budget is spent first, and the same job fails for ever after
    assert "components" in refused(minimal(pca={"path": '"m"', "components": components}))


def test_components_may_be_a_share_of_the_variance_also_of_the_correlation_matrix(job: Callable[[str], Job]) -> None:
    for more in ({}, {"correlation": "true"}):
        found = job(minimal(pca={"path": '"m"', "components": "0.9", **more})).components
        assert (found, isinstance(found, float)) == (0.9, True)


def test_components_may_be_those_above_the_noise(job: Callable[[str], Job]) -> None:
    assert job(minimal(pca={"path": '"m"', "components": '"auto"'})).components is None


def test_project_without_pca_is_refused(refused: Callable[..., str]) -> None:
    assert "[project] needs [pca]" in refused(minimal(project={"path": '"s"'}))


@pytest.mark.parametrize("trusted", ["client", "", "Worker"])
def test_the_trusted_node_is_the_driver_or_a_worker(refused: Callable[..., str], trusted: str) -> None:
    message = refused(minimal(cluster={"trusted": f'"{trusted}"'}))
    assert "driver or worker" in message


def test_a_trusted_worker_is_refused_where_it_would_not_be_kept(
    job: Callable[[str], Job], refused: Callable[..., str]
) -> None:
    rows = {"periods": "true", "source": '"incoming"'}
    assert "cannot be kept with periods" in refused(minimal(rows=rows, cluster={"trusted": '"worker"'}))
    assert job(minimal(rows=rows, cluster={"trusted": '"driver"'})).periodic
    assert job(minimal(cluster={"trusted": '"worker"'})).cluster.trusted_worker


def test_the_driver_is_trusted_unless_told_otherwise(job: Callable[[str], Job]) -> None:
    assert not job(minimal()).cluster.trusted_worker
    assert not job(minimal(cluster={"trusted": '"driver"'})).cluster.trusted_worker


def test_a_budget_delta_without_epsilon_is_refused(refused: Callable[..., str]) -> None:
    assert "budget_epsilon" in refused(minimal(rows={"budget_delta": "1e-6"}))


def test_scheduler_and_workers_exclude_each_other(refused: Callable[..., str]) -> None:
    assert "not both" in refused(minimal(cluster={"scheduler": '"tcp://127.0.0.1:1"', "workers": "2"}))


def test_no_workers_at_all_are_refused(refused: Callable[..., str]) -> None:
    assert "one worker" in refused(minimal(cluster={"workers": "0"}))


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("epsilon", "0", DataError), ("epsilon", "-1", DataError), ("epsilon", "nan", DataError),
        ("epsilon", "inf", DataError), ("epsilon", '"abc"', UsageError), ("delta", "0", DataError),
        ("delta", "1", DataError), ("delta", "-1e-6", DataError), ("clip", "0", DataError), ("clip", "-1.5", DataError),
        ("clip", "nan", DataError), ("clip", "inf", DataError), ("clip", "1e400", DataError),
        ("clip", "1" + 400 * "0", DataError), ("grid_bits", "1", UsageError), ("grid_bits", "25", UsageError),
        ("neighbours", '"both"', UsageError), ("mechanism", '"laplacian"', UsageError),
    ],
)  # fmt: skip
def test_a_parameter_out_of_range_is_refused_before_anything_starts(
    refused: Callable[..., str], key: str, value: str, kind: type[DpdistError]
) -> None:
    refused(minimal(release={key: value}), kind)


def test_a_mechanism_that_does_not_go_with_the_delta_is_refused_with_the_other_one(
    refused: Callable[..., str],
) -> None:
    assert 'mechanism = "two-sided-wishart" in [release]' in refused(minimal(release={"mechanism": '"gaussian"'}))
    both = {"mechanism": '"two-sided-wishart"', "delta": "1e-6"}
    assert 'mechanism = "gaussian" in [release]' in refused(minimal(release=both))


# Public centres


def test_a_npy_file_holds_the_centre(tmp_path: Path) -> None:
    np.save(tmp_path / "centre.npy", np.array([1.5, -2.0, 0.1]))
    assert read_public_centre(tmp_path / "centre.npy") == {"centre": (1.5, -2.0, 0.1), "scale": None}


@pytest.mark.parametrize("names", [("centre",), ("scale",), ("centre", "scale")], ids=" and ".join)
def test_npz_and_json_files_hold_centre_or_scale_or_both(tmp_path: Path, names: tuple[str, ...]) -> None:
    vectors = {name: [1.5, 0.1] for name in names}
    np.savez(tmp_path / "centre.npz", allow_pickle=False, **{k: np.array(v) for k, v in vectors.items()})
    (tmp_path / "centre.json").write_text(json.dumps(vectors))
    expected = {"centre": None, "scale": None} | dict.fromkeys(names, (1.5, 0.1))
    assert read_public_centre(tmp_path / "centre.npz") == expected
    assert read_public_centre(tmp_path / "centre.json") == expected


def test_integers_and_single_precision_become_floats(tmp_path: Path) -> None:
    np.save(tmp_path / "centre.npy", np.array([1, 200], dtype=np.uint8))
    assert read_public_centre(tmp_path / "centre.npy")["centre"] == (1.0, 200.0)


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
    "a mistyped word": ("privat", lambda _: None),
    "another kind of file": ("c.csv", _bytes(b"1,2,3")),
    "an empty npy": ("c.npy", _bytes(b"")),
    "an empty npz": ("c.npz", _bytes(b"")),
    "an empty json": ("c.json", _bytes(b"")),
    "a truncated npz": ("c.npz", _truncated_npz),
    "a damaged npz": ("c.npz", _damaged_npz),
    "json that is no text": ("c.json", _bytes(b"\xff\xfe")),
    "json of another shape": ("c.json", _bytes(b"[1, 2]")),
    "json null": ("c.json", _bytes(b'{"centre": null}')),
    "json of words": ("c.json", _bytes(b'{"centre": ["a", "b"]}')),
    "json of rows": ("c.json", _bytes(b'{"centre": [[1], [2, 3]]}')),
    "json of a huge number": ("c.json", _bytes(b'{"centre": [1' + 400 * b"0" + b"]}")),
    "json with nothing known": ("c.json", _bytes(b'{"center": [1, 2]}')),
    "json with one key misspelt": ("c.json", _bytes(b'{"centre": [1, 2], "scales": [1, 2]}')),
    "a scalar": ("c.npy", _npy(np.float64(1))),
    "a matrix": ("c.npy", _npy(np.ones((2, 2)))),
    "words": ("c.npy", _npy(np.array(["a", "b"]))),
    "objects": ("c.npy", _npy(np.array([{}, None], dtype=object))),
    "complex numbers": ("c.npy", _npy(np.array([1j, 2]))),
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


def test_a_ledger_may_be_an_address_but_carries_no_password(tmp_path: Path) -> None:
    secret = "hunter2"  # noqa: S105 - nobody's
    for user, refused in (("me", False), (f"me:{secret}", True)):
        text = f"postgresql+psycopg://{user}@host/db?ledger=books"
        path = tmp_path / "job.toml"
        path.write_text(
            f'[rows]\npath = "rows.zarr"\n[release]\npath = "r.zarr"\nepsilon = 1\nclip = 1\nledger = "{text}"\n'
        )
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
