"""Two files of one source with the same rows: one person would count twice, however the file was saved again."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from support.ingest_scene import stored

from dpdist import ingest_rows, register_rows
from dpdist.core.errors import DataError
from dpdist.core.ingest import copies, survey
from dpdist.core.runtime.cluster import Cluster

PEOPLE = pd.DataFrame(np.random.default_rng(1).integers(0, 90, (40, 3)), columns=["c0", "c1", "c2"])


def csv(path: Path, frame: pd.DataFrame = PEOPLE, **options: str) -> None:
    frame.to_csv(path, index=False, **options)


def parquet(path: Path) -> None:
    PEOPLE.astype("float64").to_parquet(path, compression="gzip", row_group_size=7)


SAVED_AGAIN: dict[str, tuple[str, Callable[[Path], object]]] = {
    "the same bytes": ("b.csv", csv),
    "CRLF": ("b.csv", lambda path: csv(path, lineterminator="\r\n")),
    "a final empty line": ("b.csv", lambda path: path.write_text("c0,c1,c2\n" + rows_as_text() + "\n")),
    "quotes": ("b.csv", lambda path: path.write_text("c0,c1,c2\n" + re.sub(r"(\d+)", r'"\1"', rows_as_text()))),
    "gzip": ("b.csv.gz", lambda path: path.write_bytes(gzip.compress(("c0,c1,c2\n" + rows_as_text()).encode()))),
    "Parquet": ("b.parquet", PEOPLE.to_parquet),
    "Parquet of doubles in small row groups": ("b.parquet", parquet),
    "Feather": ("b.feather", PEOPLE.to_feather),
    "NumPy": ("b.npy", lambda path: np.save(path, PEOPLE.to_numpy())),
    "Zarr": ("b.zarr", lambda path: zarr.create_array(path, data=PEOPLE.to_numpy().astype("f4"), chunks=(9, 2))),
    "another order": ("b.csv", lambda path: csv(path, PEOPLE[::-1])),
}


def rows_as_text() -> str:
    return str(PEOPLE.to_csv(index=False, header=False))


@pytest.mark.parametrize("way", SAVED_AGAIN)
def test_a_copy_that_was_saved_again_is_refused_before_any_row_appears(tmp_path: Path, way: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    csv(folder / "a.csv")
    name, save = SAVED_AGAIN[way]
    save(folder / name)
    for _ in range(2):  # a second try may find chunks of the first
        with pytest.raises(DataError, match=rf"a\.csv and .*{re.escape(name)} have the same rows.*would count twice"):
            ingest_rows(folder, tmp_path / "rows.zarr")
    assert not (tmp_path / "rows.zarr").exists()
    PEOPLE.add(1).to_parquet(folder / "b.parquet")
    for path in folder.glob("b.[cfnz]*"):
        path.rename(tmp_path / path.name)
    assert ingest_rows(folder, tmp_path / "rows.zarr").rows == 80


def test_rows_in_place_and_on_workers_are_compared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    PEOPLE.to_parquet(tmp_path / "in" / "a.parquet")
    parquet(tmp_path / "in" / "b.parquet")
    with pytest.raises(DataError, match="have the same rows"):
        register_rows(tmp_path / "in", tmp_path / "placed.zarr")
    monkeypatch.setattr(survey, "PIECE", 1)
    with pytest.raises(DataError, match="have the same rows"):
        ingest_rows(tmp_path / "in", tmp_path / "rows.zarr", cluster=Cluster(workers=1))
    assert not (tmp_path / "placed.zarr").exists()
    assert not (tmp_path / "rows.zarr").exists()


def test_the_cure_for_rows_of_other_people_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    csv(Path("in/a.csv"))
    csv(Path("in/b.csv"), lineterminator="\r\n")
    with pytest.raises(DataError) as caught:
        ingest_rows("in", "rows.zarr")
    code = str(caught.value).partition("in Python: ")[2].removesuffix(".")
    exec(code, {"pandas": pd})  # noqa: S102 - as a user would
    assert ingest_rows("NEW.parquet", "rows.zarr").rows == 80


def test_the_same_answers_of_other_people_in_another_order_are_no_copy(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    answers = pd.DataFrame({"a": [0, 0, 1, 1, 1] * 9, "b": [0, 1, 0, 1, 1] * 9})
    csv(tmp_path / "in" / "a.csv", answers)
    csv(tmp_path / "in" / "b.csv", answers[::-1])
    assert ingest_rows(tmp_path / "in", tmp_path / "rows.zarr").rows == 90


def test_with_a_privacy_unit_equal_rows_are_no_copy_as_each_unit_is_bounded_wherever_its_rows_are(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    csv(tmp_path / "in" / "a.csv", PEOPLE.assign(who=range(40)))
    csv(tmp_path / "in" / "b.csv", PEOPLE.assign(who=range(40, 80)))  # other people with the same answers
    both = ingest_rows(tmp_path / "in", tmp_path / "both.zarr", privacy_unit="who", max_rows=1)
    assert both.rows == 80
    csv(tmp_path / "in" / "b.csv", PEOPLE.assign(who=range(40)), lineterminator="\r\n")
    once = ingest_rows(tmp_path / "in", tmp_path / "once.zarr", privacy_unit="who", max_rows=1)
    assert once.rows == 40


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "float32", "float64"])
@pytest.mark.parametrize("width", [2, 7, 600])
def test_a_mark_is_the_sum_of_the_marks_of_any_parts(dtype: str, width: int) -> None:
    rows = np.random.default_rng(1).integers(0, 2, (37, width)).astype(dtype)
    weights = copies.weights_of(b"key", width)
    parts = [copies.mark_of(part, rows.dtype, weights) for part in (rows[:3], rows[20:], rows[3:20])]
    assert sum(parts) % 2**64 == copies.mark_of(rows, rows.dtype, weights)
    other = rows.copy()
    other[5, 1] = 1 - other[5, 1]
    assert copies.mark_of(other, rows.dtype, weights) != copies.mark_of(rows, rows.dtype, weights)


def test_many_files_of_one_length_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that told too little would read each file twice."""
    (tmp_path / "in").mkdir()
    random = np.random.default_rng(1)
    for number in range(60):
        np.save(tmp_path / "in" / f"{number}.npy", random.integers(0, 2, (50, 4)).astype("f8"))
    read: list[int] = []
    original = copies._digests

    def counting(*given: Any) -> dict[str, int]:
        read.append(1)
        return original(*given)

    monkeypatch.setattr(copies, "_digests", counting)
    assert stored(Path(ingest_rows(tmp_path / "in", tmp_path / "rows.zarr").path)).shape == (3000, 4)
    assert len(read) < 6
