"""The first M rows of every privacy unit are kept, independently of the others, and noise is calibrated to M rows."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpdist.core.errors import DataError, RefusedError, ResumableError, UsageError
from dpdist.core.ingest import survey
from dpdist.core.ingest import write as ingesting
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ingest.write import ingest
from dpdist.core.pipeline.release import release_rows
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.opening import open_release
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows import dataset, units
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import KeptRows, Unit, kept_rows
from dpdist.core.rows.writing import RowsWriter
from dpdist.core.runtime.cluster import Cluster
from dpdist.jobs import job_file, run, status

Numbers = npt.NDArray[np.int64]
BUDGET = PrivacyLoss.parse("2", "1e-5")


def by_hand(ids: list[int], most: int) -> list[bool]:
    return [ids[:place].count(unit) < most for place, unit in enumerate(ids)]


def kept(
    ids: list[int], most: int, folder: Path, piece: int = 1000, keep: Any = "first", key: bytes = b"key"
) -> list[bool]:
    array = np.array(ids, dtype=np.int64)
    pieces = (array[start : start + piece] for start in range(0, len(ids), piece))
    found = kept_rows(pieces, len(ids), Unit("who", most, keep), folder, key)
    mask = found.among(0, len(ids))
    assert mask.sum() == found.count
    assert list(folder.iterdir()) == []
    return [bool(keep) for keep in mask]


@settings(max_examples=50)
@given(
    st.lists(st.one_of(st.integers(0, 4), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=60),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from([1 << 17, 3]),
)
@example([0] * 12, 4, 5, 3)  # one unit in four batches, each of which counts the earlier ones
def test_the_first_rows_of_every_unit_are_kept(ids: list[int], most: int, piece: int, looked_at: int) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(units, "_PIECE", looked_at)
        patch.setattr(units, "_BITS", 2)
        assert kept(ids, most, Path(folder), piece) == by_hand(ids, most)


@pytest.mark.parametrize("keep", ["first", "random"])
def test_one_unit_cannot_change_which_rows_of_others_are_kept(tmp_path: Path, keep: Any) -> None:
    """The theorem: with any rows of one unit, anywhere, the same rows of the others are kept."""
    chance = np.random.default_rng(4)
    for _ in range(3):
        others = chance.integers(1, 6, 40).tolist()
        before = kept(others, 2, tmp_path, keep=keep)
        mixed: list[tuple[int, int]] = [(unit, i) for i, unit in enumerate(others)]
        for _ in range(int(chance.integers(1, 30))):
            mixed.insert(int(chance.integers(0, len(mixed) + 1)), (0, -1))
        after = kept([unit for unit, _ in mixed], 2, tmp_path, piece=7, keep=keep)
        assert [keep for keep, (unit, _) in zip(after, mixed, strict=True) if unit != 0] == before
        assert sum(keep for keep, (unit, _) in zip(after, mixed, strict=True) if unit == 0) <= 2


def test_a_random_sample_of_the_rows_of_each_unit_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1000 units keep 3 of 10 rows each. A count exceeds the tolerance by chance in 1 of 10^9 runs."""
    monkeypatch.setattr(units, "_PIECE", 97)
    ids = np.tile(np.arange(1000), 10)
    same = kept(ids.tolist(), 3, tmp_path, 3001, "random")
    assert np.array_equal(same, kept(ids.tolist(), 3, tmp_path, 10_000, "random"))  # for any batches
    other = kept(ids.tolist(), 3, tmp_path, keep="random", key=b"another")
    chosen = np.reshape(same, (10, 1000))
    assert set(chosen.sum(axis=0)) == {3}
    far = 7 * (1000 * 0.3 * 0.7) ** 0.5
    assert np.abs(chosen.sum(axis=1) - 300).max() < far
    both = (chosen & np.reshape(other, (10, 1000))).sum()  # two keys give independent samples
    assert abs(both - 1000 * 0.9) < 7 * (1000 * 0.49) ** 0.5
    first = np.reshape(kept(ids.tolist(), 3, tmp_path), (10, 1000))
    assert np.abs(first.sum(axis=1) - 300).max() > far  # the first rows are not a random sample
    digests = np.ascontiguousarray(np.stack([ids, ids], 1).astype(np.uint64)).view("S16")[:, 0]
    apart = kept_rows(iter([digests]), ids.size, Unit("who", 3, "random"), tmp_path, b"key")
    whole = apart.among(0, ids.size)
    assert set(np.reshape(whole, (10, 1000)).sum(axis=0)) == {3}
    for start in (0, 9, 9_989):  # any slice of it
        np.testing.assert_array_equal(apart.among(start, 11), whole[start : start + 11])


def table(folder: Path, ids: list[float] | Numbers, name: str = "source.csv") -> Path:
    """Write a source whose second value is the number of the row."""
    source = folder / name
    lines = [f"{unit},{row},{row % 3}" for row, unit in enumerate(ids)]
    source.write_text("\n".join(["person,a,b", *lines]) + "\n")
    return source


def stored(rows: Path) -> list[int]:
    opened = open_rows(rows)
    reader = ChunkReader(opened, opened.chunk_rows)
    return [int(row[0]) for index in range(opened.chunks) for piece in reader.read(index) for row in piece]


def test_ingest_keeps_the_first_rows_over_all_files_and_drops_the_column(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table(tmp_path / "in", [7, 8, 7, 7, 9], "1.csv")
    table(tmp_path / "in", [7, 8, 8, 9, 10], "2.csv")
    unit = Unit("person", 2)
    made = ingest(tmp_path / "in", tmp_path / "rows.zarr", unit=unit)
    assert made.names == ("a", "b")
    assert made.unit == unit
    assert open_rows(tmp_path / "rows.zarr").max_rows == 2
    assert stored(tmp_path / "rows.zarr") == [0, 1, 2, 4, 1, 3, 4]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "rows.zarr"]


def test_units_that_may_be_taken_for_one_another_are_refused(tmp_path: Path) -> None:
    wrong: list[tuple[list[Any], str]] = [
        ([1, 2, 1.5], "row 2"),
        ([1, float(2**53), 1], "row 1"),
        ([1, "", 2], "missing"),
    ]
    for ids, what in wrong:
        with pytest.raises(DataError, match=what):
            ingest(table(tmp_path, ids), tmp_path / "rows.zarr", unit=Unit("person", 2))
    assert not (tmp_path / "rows.zarr").exists()
    ids = [2**62, 2**62 + 1, 2**62, -(2**62)]
    pq.write_table(pa.table({"person": ids, "a": [0.0, 1.0, 2.0, 3.0], "b": [1.0] * 4}), tmp_path / "x.parquet")
    ingest(tmp_path / "x.parquet", tmp_path / "rows.zarr", unit=Unit("person", 1))
    assert stored(tmp_path / "rows.zarr") == [0, 1, 3]


@pytest.mark.parametrize(("kind", "bits"), [("float16", 11), ("float32", 24)])
def test_units_are_refused_from_where_their_type_rounds(tmp_path: Path, kind: str, bits: int) -> None:
    assert np.array([2**bits + 1]).astype(kind)[0] == 2**bits  # the next unit is assumed to be this one
    source = tmp_path / "source.parquet"

    def written(*ids: int) -> Path:
        columns = [np.array(ids).astype(kind), *(np.arange(len(ids)).astype(kind) for _ in range(2))]
        pq.write_table(pa.table({f"c{i}": column for i, column in enumerate(columns)}), source)
        return source

    ingest(written(2**bits - 1, 2**bits - 2, 2**bits - 1, 2 - 2**bits), tmp_path / "sound.zarr", unit=Unit("c0", 1))
    assert stored(tmp_path / "sound.zarr") == [0, 1, 3]
    for sign in (1, -1):
        with pytest.raises(DataError, match="row 1 "):
            ingest(written(1, sign * 2**bits), tmp_path / "rounded.zarr", unit=Unit("c0", 1))
    assert not (tmp_path / "rounded.zarr").exists()


def test_a_source_that_changes_between_the_passes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows chosen for a unit in the first pass would belong to another unit in the second."""
    source = tmp_path / "x.npy"
    rows = np.array([[1, 10, 10], [1, 11, 11], [2, 20, 20], [3, 30, 30]])
    np.save(source, rows)
    os.utime(source, (1, 1))
    original = kept_rows

    def swapped(*arguments: Any) -> KeptRows:
        found = original(*arguments)
        np.save(source, rows[[2, 0, 3, 1]])
        os.utime(source, (1, 1))
        return found

    monkeypatch.setattr(ingesting, "kept_rows", swapped)
    with pytest.raises(DataError, match="changed while it was read"):
        ingest(source, tmp_path / "rows.zarr", unit=Unit("c0", 1))
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("named", [False, True])
def test_an_ingest_that_died_half_way_goes_on_with_the_same_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """With another sample for the second half, more than M rows of a unit could be kept."""
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 200)
    monkeypatch.setattr(survey, "PIECE", 600)
    who = np.tile(np.arange(5), 40)
    columns = {"who": who.astype(str) if named else who, "a": np.arange(200), "b": who}
    (tmp_path / "source").mkdir()
    for part in range(4):  # several files, for several pieces
        some = {name: each[50 * part : 50 * part + 50] for name, each in columns.items()}
        pq.write_table(pa.table(some), tmp_path / "source" / f"{part}.parquet")
    schema = Schema(
        [Column("who", "privacy unit"), Column("a", "number"), Column("b", "number")], max_rows=20, keep="random"
    )
    how: dict[str, Any] = {"schema": schema} if named else {"privacy_unit": "who", "max_rows": 20, "keep": "random"}
    write = RowsWriter._write

    def dies(self: Any, index: int) -> Any:
        if index == 2:
            raise ResumableError("died")
        return write(self, index)

    monkeypatch.setattr(RowsWriter, "_write", dies)
    with pytest.raises(ResumableError, match="died"):
        ingest_rows(tmp_path / "source", tmp_path / "rows.zarr", **how)
    (secret,) = tmp_path.rglob("secret")
    assert secret.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(RowsWriter, "_write", write)
    ingest_rows(tmp_path / "source", tmp_path / "rows.zarr", **how)
    rows = np.array(stored(tmp_path / "rows.zarr"))
    assert np.bincount(rows % 5).tolist() == [20] * 5
    assert len(set(rows)) == 100
    assert not list(tmp_path.rglob("secret"))
    unit = open_rows(tmp_path / "rows.zarr").unit
    assert unit == Unit("who", 20, "random")


def test_a_process_that_is_killed_leaves_no_units_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, seen = units._numbered, []

    def looked_at(file: Any, kind: Any) -> Any:
        seen.append({path.name for path in tmp_path.rglob("*") if path.is_file() and "work" not in path.parts})
        return original(file, kind)

    monkeypatch.setattr(units, "_numbered", looked_at)
    ingest(table(tmp_path, [7, 8, 7]), tmp_path / "rows.zarr", unit=Unit("person", 1))
    assert (
        seen == [{"source.csv", ".identity"}] * 256
    )  # the temporary files have no names, so a killed process leaves nothing


def test_units_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    source = table(tmp_path, [1, 2])
    with pytest.raises(UsageError, match="cannot be a column to keep"):
        ingest(source, tmp_path / "rows.zarr", columns=["a", "person"], unit=Unit("person", 1))
    with pytest.raises(UsageError, match="from 1 to"):
        Unit("person", 0)


def test_a_release_says_whose_rows_it_protects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    rows = tmp_path / "rows.zarr"
    ingest_rows(table(tmp_path, [1, 1, 1, 2]), rows, budget=BUDGET, privacy_unit="person", max_rows=2)
    request = ReleaseRequest(mechanism="gaussian", loss=PrivacyLoss.parse("1", "1e-6"), clip_norm=4.0)
    outcome = release_rows(rows, tmp_path / "r.zarr", request)
    release = open_release(tmp_path / "r.zarr")
    assert release.unit == Unit("person", 2)
    assert release.rows == 3
    alone = planned(request, Dimensions(2, 3, unit_rows=2)).moment.noise["variance_diagonal"]
    assert release.noise["variance_diagonal"] == pytest.approx(4 * alone, rel=1e-4)
    assert "replace-one of the rows of one person, 2 at most" in outcome.describe()
    refused = ReleaseRequest(mechanism="laplace", loss=PrivacyLoss.parse("1"), clip_norm=4.0)
    with pytest.raises(RefusedError, match="no guarantee for units of several rows"):
        release_rows(rows, tmp_path / "s.zarr", refused)
    assert not (tmp_path / "s.zarr").exists()


ROWS = 'source = "source.csv"\nbudget_epsilon = 2\nbudget_delta = 1e-5\n'
UNIT = 'privacy_unit = "person"\nmax_rows = 3\n'


def job(folder: Path, rows: str, release: str) -> job_file.Job:
    text = f'[rows]\npath = "rows.zarr"\n{rows}[release]\npath = "{release}"\nepsilon = 1\nclip = 4.0\n'
    (folder / "job.toml").write_text(text)
    return job_file.read_job(folder / "job.toml")


def test_a_job_refuses_rows_that_were_ingested_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    for ingested, asked, match in (
        ('columns = ["a", "b"]\n', UNIT, "protects each row alone, but the job file asks for up to 3 rows of one"),
        (UNIT, "", "protects up to 3 rows of one person, but the job file asks for each row alone"),
        (UNIT, UNIT.replace("3", "4"), "up to 3 rows of one person, but the job file asks for up to 4 rows"),
        ('columns = ["a", "b"]\n', 'columns = ["b", "a"]\n', "has the columns a, b, but the job file asks for b, a"),
    ):
        folder = Path(mkdtemp(dir=tmp_path))
        table(folder, [5, 5, 6, 5, 5])
        first = job(folder, ROWS + ingested, "r.zarr")
        for _ in range(2):  # the second time there are rows already
            run.run(first, say=print)
        assert stored(folder / "rows.zarr") == ([0, 1, 2, 3] if ingested == UNIT else [0, 1, 2, 3, 4])
        other = job(folder, ROWS + asked, "s.zarr")
        with pytest.raises(RefusedError, match=match):
            run.run(other, say=print)
        with pytest.raises(RefusedError, match=match):
            status.preview(other)
        assert not (folder / "s.zarr").exists()
    run.run(job(folder, "", "t.zarr"), say=print)  # accepts the existing rows
    assert (folder / "t.zarr").exists()
