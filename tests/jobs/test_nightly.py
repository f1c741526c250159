"""Jobs with periods: new ones are ingested, released once and added up; late, changed or duplicate ones are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zarr
from faults import crash_driver
from faults.nightly import JOB
from pyarrow import parquet
from support.nightly_scene import Place

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.pipeline import budget
from dpdist.core.pipeline.release import release_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.opening import open_release
from dpdist.core.rows.chunks import SEAL, ChunkReader, sealed_tags
from dpdist.core.rows.periods import open_periods
from dpdist.jobs import job_file


def test_each_night_releases_the_new_period_and_reads_nothing_else(place: Place, chunks: list[str]) -> None:
    spent = set()
    for number, name in enumerate(["d1", "d2", "d3"], 1):
        place.arrive(name)
        chunks.clear()
        outcome = place.run()
        assert chunks == [f"{name}/0", f"{name}/0"]  # once to seal it, once to release it
        assert outcome.periods == number
        assert len(outcome.released) == 1
        spent.add(str(place.ledger.balance().left_closed))
    assert spent == {"next to nothing"}  # of every period closed, and all is left of those to come
    assert place.ledger.balance().left.gaussian_micro == 10**6
    assert place.ledger.budget == PrivacyLoss.parse("1", "1e-6")
    chunks.clear()
    before = place.files()
    assert place.run().released == ()
    assert chunks == []
    assert place.files() == before
    place.ledger.verify()
    place.arrive("d6", "d4", "d5")  # missed periods are caught up in order
    place.run()
    names = [f"d{number}" for number in range(1, 7)]
    assert list(place.ledger.periods) == [r.parameters["period"] for r in place.ledger.records] == names
    parts = [open_release(place.published / f"{name}.zarr") for name in names]
    total = open_release(place.published / "total" / "d6.zarr")  # of that of d3 and what was published since
    np.testing.assert_array_equal(total.lattice, sum(part.lattice for part in parts))
    assert total.releases == tuple(sorted(part.release_id for part in parts))


def test_late_changed_and_repeated_files_are_refused_and_new_periods_still_released(place: Place) -> None:
    place.arrive("d1", "d3")
    folder = place.incoming / "d4"
    folder.mkdir()
    place.arrive("d4/a")
    place.run()
    before = place.ledger.records

    place.arrive("d2", "d5")
    place.refused(r"d2.npy is late: its period d2 is before d4")
    assert len(place.ledger.records) == len(before) + 1  # d5
    (place.incoming / "d2.npy").unlink()

    place.arrive("d4/b")
    place.refused(r"d4/b.npy came late: the period d4 is closed")
    (folder / "b.npy").unlink()

    kept = (place.incoming / "d3.npy").read_bytes()
    place.arrive("d3", count=31)
    place.refused(r"d3.npy changed after the period d3 was closed")
    (place.incoming / "d3.npy").write_bytes(kept)
    place.run()  # its time differs, its bytes do not

    shutil.copy(place.incoming / "d1.npy", place.incoming / "d6.npy")
    place.arrive("d7")
    place.refused(r"d6.npy of the period d6 .* is identical to d1.npy of the period d1")
    assert list(place.ledger.periods) == ["d1", "d3", "d4", "d5", "d7"]
    assert (place.published / "d7.zarr").exists()
    place.refused(r"d6.npy is late")
    (place.incoming / "d6.npy").unlink()

    place.run()
    np.savetxt(place.incoming / "d8.csv", place.rows["d5"], delimiter=",", fmt="%.17g", header="c0,c1,c2", comments="")
    place.arrive("d9")
    place.refused("The rows of the period d8 are equal to those of d5")
    (place.incoming / "d8.csv").unlink()
    assert not (place.folder / "visits" / "d8.zarr").exists()
    for path in place.incoming.glob("*.npy"):
        path.unlink()  # archived: nothing is missed
    place.run()
    assert list(place.ledger.periods) == ["d1", "d3", "d4", "d5", "d7", "d9"]


def test_a_period_may_be_a_store_or_files_that_belong_together(place: Place) -> None:
    values = np.random.default_rng(5).integers(0, 3, (2, 30, 3)).astype(np.int8)
    zarr.create_group(place.incoming / "d1.zarr").create_array("a", data=values[0])
    place.run(JOB.replace("periods", 'columns = ["c0", "c1", "c2"]\nperiods'))
    place.job.write_text(JOB)
    (place.incoming / "d3").mkdir()
    np.save(place.incoming / "d3" / "x.npy", values[1][:20])
    np.save(place.incoming / "d3" / "y.npy", values[1][20:])
    place.run()
    assert list(place.ledger.periods) == ["d1", "d3"]
    place.run()  # and nothing has changed
    np.save(place.incoming / "d3" / "y.npy", values[1][19:])
    place.refused(r"d3/y.npy changed after the period d3 was closed")
    shutil.rmtree(place.incoming / "d3")
    (chunk, *_) = [path for path in (place.incoming / "d1.zarr" / "a" / "c").rglob("*") if path.is_file()]
    chunk.write_bytes(chunk.read_bytes()[:-1])
    place.refused(r"d1.zarr changed after the period d1 was closed")


def test_a_message_tells_no_digest_and_the_release_no_seal(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.arrive("d1")
    place.run()
    shutil.copy(place.incoming / "d1.npy", place.incoming / "d2.npy")
    with pytest.raises(RefusedError) as caught:
        place.run()
    seal = place.ledger.periods["d1"]
    tags = sealed_tags(replace(open_rows(place.folder / "visits" / "d1.zarr"), seal=seal))
    sources = json.loads((place.folder / "visits" / "d1.zarr" / "sources.json").read_text())
    words = capfd.readouterr()
    public = b"".join(place.files().values()) + (str(caught.value) + words.out + words.err).encode()
    for secret in (seal, *tags, sources[0]["digest"], open_periods(place.folder / "visits").dataset_id):
        assert secret.encode() not in public
    for name in (".", "key", "periods.json", "d1.zarr/seal.json", "d1.zarr/sources.json"):
        assert (place.folder / "visits" / name).stat().st_mode & 0o077 == 0, name


def test_a_new_period_that_cannot_be_used_keeps_those_after_it_waiting(place: Place) -> None:
    (place.incoming / "d0").mkdir()
    place.refused("The first period needs rows", DataError)
    (place.incoming / "d0").rmdir()
    place.arrive("d1", "d3")
    wrong = place.incoming / "d2.csv"
    for text, said in (
        ("c0,c1,c2\n1,2,x\n", "not a number"),
        ("c0,c1\n1,2\n", r"d2.csv has other columns than earlier periods, which have c0, c1, c2"),
    ):
        wrong.write_text(text)
        place.refused(said, DataError)
    wrong.write_text("c0,c1,c2\n1,2,3\n")
    (place.incoming / "d2").mkdir()
    place.refused("both belong to the period d2", DataError)
    assert list(place.ledger.periods) == ["d1"]
    (place.incoming / "d2").rmdir()
    place.run()
    assert list(place.ledger.periods) == ["d1", "d2", "d3"]


def test_a_wrong_name_is_told_and_ends_no_series(place: Place) -> None:
    """The name that is closed first is the pattern of all others, so it is not guessed."""
    np.save(place.incoming / "test.npy", np.ones((4, 3)))
    place.arrive("d1")
    place.refused(r"d1.npy and test.npy in .* have names of different shapes", DataError)
    assert place.ledger.periods == {}
    (place.incoming / "test.npy").rename(place.folder / "x.npy")
    place.run()
    shutil.rmtree(place.published)  # and keeps no half-done release waiting
    for number, name in enumerate(("notes.txt", "d10.npy", "a b.npy"), 2):
        place.arrive(f"d{number}")
        shutil.copy(place.folder / "x.npy", place.incoming / name)
        place.refused(rf"{name} (does not name a period|is not named like the closed periods, such as d1)")
        assert all((place.published / f"d{known}.zarr").exists() for known in (1, number))
        (place.incoming / name).rename(place.incoming / f"_{name}")
    assert place.run().periods == 4


def test_links_and_pipes_are_not_followed(place: Place) -> None:
    place.arrive("d1", "d3")
    np.save(place.folder / "elsewhere.npy", np.ones((4, 3)))
    (place.incoming / "d2.npy").symlink_to(place.folder / "elsewhere.npy")
    place.refused(r"d2.npy is a link, pipe or device")
    assert list(place.ledger.periods) == ["d1", "d3"]
    (place.incoming / "d2.npy").unlink()
    (place.incoming / "d4").mkdir()
    os.mkfifo(place.incoming / "d4" / "a.npy")  # opening it never ends
    place.refused(r"d4/a.npy is a link, pipe or device")


def test_a_file_without_rows_is_a_night_like_any_other(place: Place) -> None:
    """Under add-remove neither an exit code nor a missing release may show whether it had one row."""
    place.job.write_text(JOB + 'neighbours = "add-remove"\n')
    (place.incoming / "d3").mkdir()
    for name in ("d1", "d2", "d3/a", "d3/b"):  # the first period too; and the same bytes again repeat no row
        (place.incoming / f"{name}.csv").write_text("c0,c1,c2\n")
    place.arrive("d3/c", count=5)
    parquet.write_table(
        pa.table({f"c{i}": pa.array([], pa.float64()) for i in range(3)}), place.incoming / "d4.parquet"
    )
    (place.incoming / "d5").mkdir()
    outcome = place.run()
    assert len(outcome.released) == 5
    first, second = (open_release(place.published / f"{name}.zarr") for name in ("d2", "d5"))
    assert first.rows is None
    assert np.count_nonzero(first.lattice) > 0
    assert not np.array_equal(first.lattice, second.lattice)
    assert [open_rows(place.folder / "visits" / f"d{i}.zarr").rows for i in (1, 2, 3, 4)] == [0, 0, 5, 0]
    assert open_rows(place.folder / "visits" / "d3.zarr").dtype == "float64"
    assert place.run().released == ()


@pytest.mark.parametrize(
    "change",
    [
        ("\ndelta = 1e-6", "\ndelta = 1e-3"), ("\nepsilon = 1", "\nepsilon = 0.002"),
        ("clip = 8.0", 'clip = "auto"\nscale = "private"'), ("clip = 8.0", "clip = 7.0"),
    ],
)  # fmt: skip
def test_a_job_under_the_other_relation_does_not_say_how_many_private_rows_there_are(
    place: Place, change: tuple[str, str]
) -> None:
    """Not by a preview, a run or a refusal that comes before that of the relation."""
    place.job.write_text(JOB + 'neighbours = "add-remove"\n')
    place.arrive("d1", count=4321)
    place.run()
    place.arrive("d2")
    other = (JOB + 'neighbours = "replace-one"\n').replace("published", "elsewhere").replace(*change)
    assert change[1] in other
    with pytest.raises(RefusedError, match="is for the neighbouring relation add-remove") as caught:
        place.run(other)
    assert "4321" not in str(caught.value)
    with pytest.raises(RefusedError, match="is for the neighbouring relation add-remove"):
        place.preview()


def altered_chunk(rows: Path) -> None:
    """Change a row and its checksum: only the seal detects it."""
    array = zarr.open_array(rows, mode="r+")
    array[0, 0] = float(np.asarray(array[0, 0])) + 1.0


def other_seal(rows: Path) -> None:
    """Change a row and its seal: only the ledger detects it."""
    altered_chunk(rows)
    content = json.loads((rows / SEAL).read_text())
    content["chunks"] = [ChunkReader(open_rows(rows), 100).tag(0)]
    (rows / SEAL).write_text(json.dumps(content))


def other_rows(rows: Path) -> None:
    """Put the rows of another period in their place."""
    shutil.rmtree(rows)
    shutil.copytree(rows.with_name("d2.zarr"), rows)


def other_shape(rows: Path, shape: tuple[int, int] = (45, 2)) -> None:
    """Let the same bytes be read as other rows."""
    content = json.loads((rows / "zarr.json").read_text())
    content["shape"] = shape
    content["chunk_grid"]["configuration"]["chunk_shape"] = [max(1, shape[0]), shape[1]]
    content["attributes"]["dpdist"]["columns"] = ["c0", "c1", "c2"][: shape[1]]
    (rows / "zarr.json").write_text(json.dumps(content))


def no_rows(rows: Path) -> None:
    """Leave no chunk that could show the change."""
    other_shape(rows, (0, 3))


@pytest.mark.parametrize("alter", [altered_chunk, other_seal, other_rows, other_shape, no_rows])
def test_altered_rows_of_a_closed_period_are_never_released(place: Place, alter: Callable[[Path], None]) -> None:
    place.arrive("d1", "d2")
    place.run(continual=4)
    alter(place.folder / "visits" / "d1.zarr")
    place.arrive("d3", "d4")  # d4 completes the node of all four
    place.refused(r"differs from the rows sealed|does not contain the rows", DataError, continual=4)
    assert not (place.published / "d1--d4.zarr").exists()
    if alter is altered_chunk:  # the others are seen before anything is read
        assert (place.published / "d3--d4.zarr").exists()


def test_a_period_cannot_be_charged_to_another_ledger_or_as_a_table_of_its_own(place: Place) -> None:
    place.arrive("d1")
    place.run()
    rows = place.folder / "visits" / "d1.zarr"
    with pytest.raises(RefusedError, match="has a ledger already"):
        budget.create_ledger(place.folder / "second.ledger", rows, PrivacyLoss.parse("1"))
    request = job_file.read_job(place.job).request
    with pytest.raises(RefusedError, match="belongs to another data set"):
        release_rows(rows, place.folder / "r.zarr", request, ledger=place.folder / "visits.ledger")


@pytest.mark.parametrize("point", ["inside the closing", "after the draw"])
def test_a_night_that_dies_anywhere_is_resumed_by_the_next(place: Place, point: str) -> None:
    place.arrive("d1")
    place.run(continual=2)
    first = place.files()
    place.arrive("d2")
    arguments = ["kill", point, str(place.folder / "struck"), "inline", "run", str(place.job), "--continual", "2"]
    died = subprocess.run([sys.executable, crash_driver.__file__, *arguments], capture_output=True, check=False)
    assert died.returncode == -9, died.stderr
    assert (place.folder / "struck").exists()
    seen = place.files()
    place.arrive("d3")
    place.run(continual=2)
    assert place.events() == {
        "created": 1, "capped": 1, "closed": 3, "reserved": 4, "committed": 4, "witnessed": 4, "published": 4,
        "begun": place.events()["begun"],
    }  # fmt: skip
    after = place.files()
    assert first.items() <= seen.items() <= after.items()  # published files do not change
    assert sorted(p.name for p in place.published.glob("*.zarr")) == ["d1--d2.zarr", "d1.zarr", "d2.zarr", "d3.zarr"]
    place.ledger.verify()


def test_what_a_series_cannot_give_spends_nothing(place: Place) -> None:
    place.arrive("d1")
    for more, match in (
        ('mechanism = "bingham"\noptions = {components = 2}\n', "cannot be added up over periods"),
        ('mechanism = "two-sided-wishart"\nfactorisation = "banded"\n', "cannot release weighted sums"),
        ('delta = 1e-6\nmechanism = "mvg-exact"\n[pca]\npath = "m"\ncomponents = "auto"\n', "no known distribution"),
        ('delta = 1e-6\n[pca]\npath = "m"\ncomponents = 4\n', "4 components are more than the 3 columns"),
    ):
        place.refused(match, UsageError, job=JOB.replace("\ndelta = 1e-6", "") + more)
        assert place.ledger.records == []


def test_a_job_keeps_its_budget_and_its_parameters(place: Place) -> None:
    place.refused(
        "Declare a budget for it", UsageError, job=JOB.replace("budget_epsilon = 1\nbudget_delta = 1e-6\n", "")
    )
    place.run(JOB)
    place.refused(
        "a budget is declared once", UsageError, job=JOB.replace("budget_epsilon = 1\n", "budget_epsilon = 2\n")
    )
    place.job.write_text(JOB)
    place.arrive("d1")
    place.run()
    place.refused("was released with other parameters", job=JOB.replace("clip = 8.0", "clip = 9.0"))
    assert len(place.ledger.records) == 1
