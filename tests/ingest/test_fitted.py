"""Files and frames with a schema: whoever reads which piece, the rows are the same, and what does not fit is told."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import zarr
from support.ingest_scene import stored

import dpdist
from dpdist import Column, DataError, Schema, UsageError, draft_schema, ingest_rows, open_rows
from dpdist.errors import DpdistError
from dpdist.ingest import collection, survey, write
from dpdist.ingest.readers import text
from dpdist.ingest.readers.base import Choices
from dpdist.pipeline.sources import computed
from dpdist.rows import encoding

SCHEMA = Schema(
    [
        Column("kind", "category", categories=["a", "b"], other="column", missing="indicator"),
        Column("mass", "number", range=(0, 100), missing="drop"),
        Column("seen", "date", range=(date(2020, 1, 1), date(2021, 1, 1)), missing="fill", fill="2020-02-01"),
        Column("note", "ignored"),
        Column("count", "integer"),
    ]
)
N = 300


def people(rows: int = N) -> pa.Table:
    """Return a table whose columns stand in another order than in the schema."""
    chance = np.random.default_rng(3)
    kinds = [["a", "b", "c", None][i] for i in chance.integers(0, 4, rows)]
    seen = [None if i % 7 == 0 else date(2020, 1, 1) + timedelta(days=int(i)) for i in range(rows)]
    mass = [None if i % 11 == 0 else float(i) for i in range(rows)]
    return pa.table({
        "mass": mass, "kind": kinds, "seen": pa.array(seen, pa.date32()), "note": ["x, y"] * rows,
        "count": np.arange(rows), "who": [f"p{i // 3}" for i in range(rows)],
    })  # fmt: skip


def others(schema: Schema = SCHEMA) -> Schema:
    return Schema(schema.columns, schema.scale, "ignored")


def written(path: Path, found: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(found, path, row_group_size=37)
    else:
        pacsv.write_csv(found, path)
        if path.name.endswith(".gz"):
            path.write_bytes(gzip.compress(path.read_bytes()))
    return path


def expected(found: pa.Table) -> Any:
    rows = []
    for each in found.to_pylist():
        kind, mass = each["kind"], each["mass"]
        seen = (each["seen"] or date(2020, 2, 1)) - date(1970, 1, 1)
        row = [
            kind == "a",
            kind == "b",
            kind == "c",
            kind is None,
            min(mass or 0, 100),
            min(seen.days, 18628),
            each["count"],
        ]
        rows.append(row if mass is not None else [math.nan] * 7)  # dropped
    return np.array(rows, dtype=float)


class Others:
    """Workers, one after the other, in the wrong order: each opens what it reads anew."""

    named = True

    def connected(self, place: Any, choices: Choices) -> Any:
        from contextlib import nullcontext

        def run(job: Any, units: Any) -> list[Any]:
            return [computed(unit, (job, place, choices)) for unit in reversed(units)][::-1]

        return nullcontext(run)


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.parquet"])
def test_every_kind_of_file_gives_the_same_rows_whoever_reads_which_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(text, "_LINE", 1 << 10)
    monkeypatch.setattr(encoding, "_PIECE", 1 << 10)
    found = people()
    if name == "p.csv":  # a quote hides where lines end, so that it would be read from the start
        found = found.set_column(3, "note", pa.array(["xy"] * N))
    source = written(tmp_path / name, found)
    if name == "p.csv":
        source.write_text(source.read_text().replace('"', ""))
    choices = Choices(schema=others())
    write.ingest(source, tmp_path / "one.zarr", choices=choices)
    monkeypatch.setattr("dpdist.rows.dataset._TARGET_CHUNK", 7 * 56)
    for module, size in ((survey, "PIECE"), (survey, "FRAGMENT"), (text, "FRAGMENT")):
        monkeypatch.setattr(module, size, 2000)
    made = write.ingest(source, tmp_path / "two.zarr", choices=choices, elsewhere=Others())
    if name != "p.csv.gz":
        assert made.schema == others()
    np.testing.assert_array_equal(stored(tmp_path / "one.zarr"), expected(found))
    np.testing.assert_array_equal(stored(tmp_path / "two.zarr"), expected(found))
    assert open_rows(tmp_path / "one.zarr").names == SCHEMA.features
    assert open_rows(tmp_path / "one.zarr").rows == N  # dropped rows count


def test_frames_give_the_rows_that_files_do(tmp_path: Path) -> None:
    found = people(40)
    frame = found.to_pandas()
    ingest_rows(frame, tmp_path / "one.zarr", schema=others())
    ingest_rows(frame, tmp_path / "one.zarr", schema=others())  # and is known again
    np.testing.assert_array_equal(stored(tmp_path / "one.zarr"), expected(found))
    import dask.dataframe

    lazy = dask.dataframe.from_pandas(frame, npartitions=3)
    ingest_rows(lazy, tmp_path / "two.zarr", schema=others())
    np.testing.assert_array_equal(stored(tmp_path / "two.zarr"), expected(found))
    frame.loc[17, "mass"] = np.inf
    strict = Schema([Column("mass", "number", missing="drop"), Column("count", "integer")], others="ignored")
    with pytest.raises(DataError, match=r"row 17 \(counting from 0\), column 'mass': the value is not finite"):
        ingest_rows(frame, tmp_path / "three.zarr", schema=strict)
    with pytest.raises(DataError, match="was not ingested from this collection"):
        ingest_rows(found.to_pandas(), tmp_path / "one.zarr", schema=SCHEMA_OF_TWO)


SCHEMA_OF_TWO = Schema([Column("mass", "number", missing="drop"), Column("count", "integer")], others="ignored")


WORDS: dict[str, Callable[[pa.Table], pd.DataFrame]] = {
    "as pandas makes them": lambda people: people.to_pandas(),
    "objects": lambda people: people.to_pandas().astype({"kind": object, "who": object}),
    "pandas' own strings": lambda people: people.to_pandas().astype({"kind": "string", "who": "string"}),
    "Arrow's": lambda people: people.to_pandas(types_mapper=pd.ArrowDtype),
    "categories": lambda people: people.to_pandas().astype({"kind": "category", "who": "category"}),
}


@pytest.mark.parametrize("words", WORDS)
def test_words_of_a_frame_are_categories_and_units_whatever_type_pandas_gives_them(tmp_path: Path, words: str) -> None:
    schema = Schema([Column("who", "privacy unit"), *SCHEMA.columns], max_rows=2)
    from_file = ingest_rows(written(tmp_path / "p.parquet", people()), tmp_path / "file.zarr", schema=schema)
    made = ingest_rows(WORDS[words](people()), tmp_path / "frame.zarr", schema=schema)
    assert (made.rows, made.names) == (from_file.rows, from_file.names) == (200, from_file.names)
    np.testing.assert_array_equal(stored(tmp_path / "frame.zarr"), stored(tmp_path / "file.zarr"))


@pytest.mark.parametrize("fill", [-9, 300, 2**40])
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_what_fills_a_cell_need_not_fit_the_integers_of_its_file(tmp_path: Path, kind: Any, fill: int) -> None:
    # NumPy up to 2.4 made 247 of -9 in an array of uint8, and a newer one raises
    table = pa.table({"a": pa.array([1, None, 255], pa.uint8()), "b": pa.array([None, 1, 2], pa.int8())})
    pq.write_table(table, tmp_path / "t.parquet")
    columns = [Column(name, kind, range=(-10, 2**41), missing="fill", fill=fill) for name in ("a", "b")]
    ingest_rows(tmp_path / "t.parquet", tmp_path / "rows.zarr", schema=Schema(columns, "none"))
    assert stored(tmp_path / "rows.zarr").tolist() == [[1, fill], [fill, 1], [255, 2]]


def test_of_each_unit_of_a_frame_the_first_rows_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = people(60).take(np.random.default_rng(5).permutation(60))  # the rows of a unit are not beside one another
    frame, schema = found.to_pandas(), Schema([Column("who", "privacy unit"), *SCHEMA.columns], max_rows=2)
    one = ingest_rows(written(tmp_path / "p.parquet", found), tmp_path / "one.zarr", schema=schema)
    for piece in (1 << 20, 300):  # of a few rows
        monkeypatch.setattr(collection, "PIECE", piece)
        made = ingest_rows(frame, tmp_path / f"{piece}.zarr", schema=schema, budget=dpdist.PrivacyLoss.parse(1, 1e-6))
        ingest_rows(frame, tmp_path / f"{piece}.zarr", schema=schema)  # and is known again
        np.testing.assert_array_equal(stored(tmp_path / f"{piece}.zarr"), stored(tmp_path / "one.zarr"))
        assert (made.rows, made.unit, made.max_rows) == (one.rows, one.unit, 2) == (40, schema.unit, 2)
        any_two = Schema(schema.columns, max_rows=2, keep="random")
        drawn = ingest_rows(frame, tmp_path / f"any-{piece}.zarr", schema=any_two)
        assert (drawn.rows, drawn.unit) == (40, any_two.unit)
    bad = frame.copy()
    bad.loc[bad.index[7], "who"] = None
    with pytest.raises(DataError, match=r"row 7 \(counting from 0\), column 'who': the privacy unit is missing"):
        ingest_rows(bad, tmp_path / "two.zarr", schema=schema)
    bad = frame.assign(count=[1.5 if i == 59 else 1 for i in range(60)])
    with pytest.raises(DataError, match=r"row 59 \(counting from 0\), column 'count': the value is not a whole"):
        ingest_rows(bad, tmp_path / "two.zarr", schema=schema)
    import dask.dataframe

    with pytest.raises(UsageError, match="the partitions of the Dask DataFrame are computed in any"):
        ingest_rows(dask.dataframe.from_pandas(frame, npartitions=3), tmp_path / "two.zarr", schema=schema)


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_units_may_be_called_by_words_in_several_columns(tmp_path: Path, name: str) -> None:
    found = people(30)
    columns = [*SCHEMA.columns, Column("who", "privacy unit")]
    ingest_rows(written(tmp_path / name, found), tmp_path / "rows.zarr", schema=Schema(columns, max_rows=2))
    kept = [i for i in range(30) if i % 3 < 2]
    np.testing.assert_array_equal(stored(tmp_path / "rows.zarr"), expected(found)[kept])
    made = open_rows(tmp_path / "rows.zarr")
    assert made.unit is not None
    assert (made.unit.column, made.unit.max_rows) == ("who", 2)
    ingest_rows(tmp_path / name, tmp_path / "rows.zarr", schema=Schema(columns, max_rows=2))  # is known again
    two = Schema([*SCHEMA.columns[:4], Column("count", "privacy unit"), Column("who", "privacy unit")], max_rows=1)
    assert ingest_rows(tmp_path / name, tmp_path / "all.zarr", schema=two).rows == 30
    with pytest.raises(UsageError, match="whose row it is"):
        ingest_rows(tmp_path / name, tmp_path / "no.zarr", schema=two, privacy_unit="who", max_rows=1)


def test_what_cannot_be_used_is_told_by_line_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_LINE", 50)  # two lines are read at once
    source = tmp_path / "p.csv"
    head = "kind,mass,seen,note,count\n"
    for bad, said in (
        ("a,9secret,2020-01-01,x,1", "line 4, column 'mass': the cell is not a number"),
        ("a,1,2020-13-01,x,1", "line 4, column 'seen': the cell is not a date"),
        ("a,1,2020-01-01,x,1.5", "line 4, column 'count': the value is not a whole number"),
        (
            ",1,20-01-01,x,",
            "for another form, add for example format = \"%d.%m.%Y\"; line 4, column 'count': the",
        ),
        ("a,1,2020-01-01,x", "line 4 has 4 cells, not 5"),
        ('a,1,2020-01-01,"x,1', "line 4: a quote is not closed"),
    ):
        source.write_text(f"{head}b,1,2020-01-01,x,1\n\n{bad}\na,2,2020-01-01,x,1\n")
        with pytest.raises(DataError) as caught:
            ingest_rows(source, tmp_path / "rows.zarr", schema=SCHEMA)
        assert said in str(caught.value), bad
        assert "secret" not in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]
    written(tmp_path / "p.parquet", people(60).set_column(4, "count", pa.array([1.0] * 50 + [1.5] * 10)))
    with pytest.raises(DataError, match=r"row 50 \(counting from 0\), column 'count': the value is not a whole"):
        ingest_rows(tmp_path / "p.parquet", tmp_path / "rows.zarr", schema=others())


def test_a_draft_of_text_is_told_all_columns_that_are_no_numbers_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words may stand anywhere: in the first line, in the last, far from one another."""
    monkeypatch.setattr(text, "_LINE", 50)  # two lines are read at once
    source, draft = tmp_path / "p.csv", tmp_path / "s.toml"
    lines = [["1", "2.5", "", "1"] for _ in range(20)]
    lines[0][1], lines[19][3] = "secret", "2020-01-01"
    source.write_text("who,what,gap,when\n" + "".join(",".join(each) + "\n" for each in lines))
    draft.write_text(draft_schema(source, header="yes"))
    places = {name: draft.read_text().split(f'"{name}"')[0].count("\n") + 3 for name in ("who", "what", "gap", "when")}
    ready = r'kind = "category" and categories = \["...", "..."\], or kind = "date".*or kind = "ignored"'
    words = f"lines {places['what']}, {places['when']}, columns 'what', 'when': the source has a cell in it that"
    blanks = f"lines {places['who']}, {places['gap']}, columns 'who', 'gap': range is blank"
    with pytest.raises(UsageError, match=rf"(?s){blanks}.*{words} is not a number.*{ready}") as caught:
        ingest_rows(source, tmp_path / "rows.zarr", schema=draft, header="yes")
    draft.write_text(draft.read_text().replace("range = []", 'range = [0, 9]\nmissing = "drop"'))
    fits = r"line 2, column 'what': the cell is not a number; line 21, column 'when': the cell is not a number\."
    with pytest.raises(DataError, match=rf"{fits}.*{ready}") as told:
        ingest_rows(source, tmp_path / "rows.zarr", schema=draft, header="yes")
    assert "secret" not in f"{caught.value}{told.value}"
    assert "2020-01-01" not in str(told.value).replace("[2000-01-01, 2030-12-31]", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv", "s.toml"]
    written(
        tmp_path / "p.parquet", pa.table({"who": [1.0], "what": ["x"]})
    )  # its types are stored: nothing is looked at
    draft.write_text('[[column]]\nname="who"\nkind="number"\n[[column]]\nname="what"\nkind="number"\nrange=[]\n')
    with pytest.raises(UsageError, match="column 'what': range is blank"):
        ingest_rows(tmp_path / "p.parquet", tmp_path / "rows.zarr", schema=draft)


def test_a_schema_that_does_not_fit_names_every_column_and_its_line(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        '[[column]]\nname = "count"\nkind = "date"\n\n[[column]]\nname = "gone"\nkind = "number"\n'
        '[[column]]\nname = "mass"\nkind = "number"\n[[column]]\nname = "lost"\nkind = "ignored"\n'
    )
    source = written(tmp_path / "p.parquet", people(10))
    with pytest.raises(UsageError) as caught:
        ingest_rows(source, tmp_path / "rows.zarr", schema=file)
    assert "s.toml, line 6, column 'gone': the source has no such column" in str(caught.value)
    assert "s.toml, line 12, column 'lost'" in str(caught.value)
    assert "does not describe these columns: 'kind', 'seen', 'note', 'who'" in str(caught.value)
    file.write_text(
        'others = "ignored"\n[[column]]\nname = "count"\nkind = "date"\n[[column]]\nname = "mass"\nkind = "number"\n'
    )
    with pytest.raises(UsageError, match=r"line 3, column 'count': its stored type int64 does not match .* 'date'"):
        ingest_rows(source, tmp_path / "rows.zarr", schema=file)
    np.save(tmp_path / "t.npy", np.eye(3))
    for given in (tmp_path / "t.npy", np.eye(3)):
        with pytest.raises(UsageError, match="schema"):
            ingest_rows(given, tmp_path / "rows.zarr", schema=SCHEMA)
    with pytest.raises(UsageError, match="which columns are kept"):
        ingest_rows(source, tmp_path / "rows.zarr", schema=SCHEMA, columns=["mass", "count"])


def test_keys_of_folders_are_columns_too(tmp_path: Path) -> None:
    for key in ("x", "y"):
        (tmp_path / "d" / f"group={key}").mkdir(parents=True)
        written(tmp_path / "d" / f"group={key}" / "p.parquet", people(10))
    schema = Schema([Column("group", "category", categories=["x", "y"]), Column("count", "integer")], others="ignored")
    ingest_rows(tmp_path / "d", tmp_path / "rows.zarr", schema=schema)
    assert stored(tmp_path / "rows.zarr")[[0, 9, 10, 19]].tolist() == [[1, 0, 0], [1, 0, 9], [0, 1, 0], [0, 1, 9]]


def test_a_draft_is_made_of_names_and_types_and_of_no_value(tmp_path: Path) -> None:
    one, two = people(10), people(N).slice(200)
    drafts = [draft_schema(written(tmp_path / f"{i}.parquet", each)) for i, each in enumerate((one, two))]
    assert drafts[0].replace("0.parquet", "1.parquet") == drafts[1]
    assert 'name = "kind"\nkind = "category"\ncategories = []' in drafts[0]
    assert 'name = "seen"\nkind = "date"' in drafts[0]
    assert 'name = "seen"\nkind = "number"' in draft_schema(written(tmp_path / "2.csv", one), header="yes")
    assert 'name = "mass"\nkind = "number"' in draft_schema(one.to_pandas())
    for given in (tmp_path / "t.npy", np.eye(2)):
        np.save(tmp_path / "t.npy", np.eye(2))
        with pytest.raises(DpdistError, match="no columns of different kinds"):
            draft_schema(given)


def test_it_travels_with_release_and_model_and_rows_of_another_are_not_projected(tmp_path: Path) -> None:
    source, budget = written(tmp_path / "p.parquet", people()), dpdist.PrivacyLoss.parse(20, 1e-4)
    mass = Column("mass", "number", range=(0, 300), missing="fill", fill=150)
    schema = Schema([mass, Column("count", "number", range=(0, 300))], "range", "ignored")
    ingest_rows(source, tmp_path / "rows.zarr", schema=schema, budget=budget)
    request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(9, 1e-4), schema.norm or 1)
    release = dpdist.release_rows(tmp_path / "rows.zarr", tmp_path / "release.zarr", request).release
    dpdist.fit_components(tmp_path / "release.zarr", tmp_path / "model.zarr", 1)
    assert release.schema == schema == dpdist.open_model(tmp_path / "model.zarr").schema
    for made in ("rows", "release", "model"):
        assert Schema.read(tmp_path / f"{made}.zarr") == schema
        assert dpdist.inspect_path(tmp_path / f"{made}.zarr").to_json()["schema"] == schema.to_json()
    ingest_rows(source, tmp_path / "more.zarr", schema=tmp_path / "release.zarr")
    dpdist.project_rows(tmp_path / "more.zarr", tmp_path / "model.zarr", tmp_path / "scores.zarr")
    other = Schema(schema.columns, "none", "ignored")
    ingest_rows(source, tmp_path / "other.zarr", schema=other)
    with pytest.raises(DataError, match="another schema"):
        dpdist.project_rows(tmp_path / "other.zarr", tmp_path / "model.zarr", tmp_path / "no.zarr")
    assert "schema" not in str(dict(zarr.open(plain(tmp_path), mode="r").attrs)["dpdist"])  # as it always was


def plain(folder: Path) -> Path:
    np.save(folder / "plain.npy", np.eye(3))
    return Path(ingest_rows(folder / "plain.npy", folder / "plain.zarr").path)
