"""Files and frames with a schema: rows do not depend on batches, and errors name all misfits."""

from __future__ import annotations

import gzip
import math
import shutil
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask.dataframe
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather
from support.ingest_scene import Others, refused, stored

import dpdist
from dpdist import Column, DataError, Schema, UsageError, draft_schema, ingest_rows
from dpdist.core.errors import DpdistError
from dpdist.core.ingest import collection, survey, write
from dpdist.core.ingest.readers import text
from dpdist.core.ingest.readers.base import Choices
from dpdist.core.rows import encoding
from dpdist.core.rows.encoding import floats

SCHEMA = Schema(
    [
        Column("kind", "category", categories=["a", "b"], other="column", missing="indicator"),
        Column("mass", "number", range=(0, 100), missing="drop"),
        Column("seen", "date", range=(date(2020, 1, 1), date(2021, 1, 1)), missing="fill", fill="2020-02-01"),
        Column("note", "ignored"),
        Column("count", "integer"),
    ],
    others="ignored",
)
N = 300


def people(rows: int = N) -> pa.Table:
    """Return a table with columns in another order than the schema."""
    chance = np.random.default_rng(3)
    kinds = [["a", "b", "c", None][i] for i in chance.integers(0, 4, rows)]
    dates = [None if i % 7 == 0 else date(2020, 1, 1) + timedelta(days=int(i)) for i in range(rows)]
    mass = [None if i % 11 == 0 else float(i) for i in range(rows)]
    return pa.table({
        "mass": mass, "kind": kinds, "seen": pa.array(dates, pa.date32()), "note": ["x, y"] * rows,
        "count": np.arange(rows), "who": [f"p{i // 3}" for i in range(rows)],
    })  # fmt: skip


def written(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=37)
    else:
        pacsv.write_csv(table, path)
        if path.name.endswith(".gz"):
            path.write_bytes(gzip.compress(path.read_bytes()))
    return path


def expected(table: pa.Table) -> Any:
    rows = []
    for record in table.to_pylist():
        kind, mass = record["kind"], record["mass"]
        days = (record["seen"] or date(2020, 2, 1)) - date(1970, 1, 1)
        kinds = [kind == "a", kind == "b", kind == "c", kind is None]
        row = [*kinds, min(mass or 0, 100), min(days.days, 18628), record["count"]]
        rows.append(row if mass is not None else [math.nan] * 7)  # dropped
    return np.array(rows, dtype=float)


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(text, "_LINE", 1 << 10)
    monkeypatch.setattr(encoding, "_PIECE", 1 << 10)
    table = people()
    if name == "p.csv":  # a quote hides where lines end, so that it would be read from the start
        table = table.set_column(3, "note", pa.array(["xy"] * N))
    source = written(tmp_path / name, table)
    if name == "p.csv":
        source.write_text(source.read_text().replace('"', ""))
    write.ingest(source, tmp_path / "one.zarr", choices=Choices(schema=SCHEMA))
    monkeypatch.setattr("dpdist.core.rows.dataset._TARGET_CHUNK", 7 * 56)
    for module, size in ((survey, "PIECE"), (survey, "FRAGMENT"), (text, "FRAGMENT")):
        monkeypatch.setattr(module, size, 2000)
    again = write.ingest(source, tmp_path / "two.zarr", choices=Choices(schema=SCHEMA), elsewhere=Others())
    assert (again.schema, again.names, again.rows) == (SCHEMA, SCHEMA.features, N)  # dropped rows count
    np.testing.assert_array_equal(stored(tmp_path / "one.zarr"), expected(table))
    np.testing.assert_array_equal(stored(tmp_path / "two.zarr"), expected(table))


def test_frames_give_the_rows_that_files_do(tmp_path: Path) -> None:
    table = people(40)
    frame = table.to_pandas()
    ingest_rows(frame, tmp_path / "one.zarr", schema=SCHEMA)
    ingest_rows(frame, tmp_path / "one.zarr", schema=SCHEMA)  # and is known again
    ingest_rows(dask.dataframe.from_pandas(frame, npartitions=3), tmp_path / "two.zarr", schema=SCHEMA)
    for name in ("one", "two"):
        np.testing.assert_array_equal(stored(tmp_path / f"{name}.zarr"), expected(table))
    two = Schema([Column("mass", "number", missing="drop"), Column("count", "integer")], others="ignored")
    with pytest.raises(DataError, match="was not ingested from this collection"):
        ingest_rows(frame, tmp_path / "one.zarr", schema=two)
    frame.loc[17, "mass"] = np.inf
    with pytest.raises(DataError, match=r"row 17 \(counting from 0\), column 'mass': the value is not finite"):
        ingest_rows(frame, tmp_path / "three.zarr", schema=two)


WORDS: dict[str, Callable[[pa.Table], pd.DataFrame]] = {
    "as pandas makes them": lambda people: people.to_pandas(),
    "objects": lambda people: people.to_pandas().astype({"kind": object, "who": object}),
    "pandas' own strings": lambda people: people.to_pandas().astype({"kind": "string", "who": "string"}),
    "Arrow's": lambda people: people.to_pandas(types_mapper=pd.ArrowDtype),
    "categories": lambda people: people.to_pandas().astype({"kind": "category", "who": "category"}),
}


@pytest.mark.parametrize("words", WORDS)
def test_text_of_a_frame_is_categories_and_units_for_all_pandas_types(tmp_path: Path, words: str) -> None:
    schema = Schema([Column("who", "privacy unit"), *SCHEMA.columns], max_rows=2)
    from_file = ingest_rows(written(tmp_path / "p.parquet", people()), tmp_path / "file.zarr", schema=schema)
    made = ingest_rows(WORDS[words](people()), tmp_path / "frame.zarr", schema=schema)
    assert (made.rows, made.names) == (from_file.rows, from_file.names) == (200, from_file.names)
    np.testing.assert_array_equal(stored(tmp_path / "frame.zarr"), stored(tmp_path / "file.zarr"))


@pytest.mark.parametrize("fill", [-9, 300, 2**40])
def test_what_fills_a_cell_need_not_fit_the_integers_of_its_file(tmp_path: Path, fill: int) -> None:
    table = pa.table({"a": pa.array([1, None, 255], pa.uint8()), "b": pa.array([None, 1, 2], pa.int8())})
    pq.write_table(table, tmp_path / "t.parquet")
    kinds: list[tuple[str, Any]] = [("a", "integer"), ("b", "number")]
    columns = [Column(name, kind, range=(-10, 2**41), missing="fill", fill=fill) for name, kind in kinds]
    ingest_rows(tmp_path / "t.parquet", tmp_path / "rows.zarr", schema=Schema(columns, "none"))
    assert stored(tmp_path / "rows.zarr").tolist() == [[1, fill], [fill, 1], [255, 2]]


def test_of_each_unit_of_a_frame_the_first_rows_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = people(60).take(np.random.default_rng(5).permutation(60))  # the rows of a unit are not adjacent
    schema = Schema([Column("who", "privacy unit"), *SCHEMA.columns], max_rows=2)
    frame, any_two = table.to_pandas(), Schema(schema.columns, max_rows=2, keep="random")
    one = ingest_rows(written(tmp_path / "p.parquet", table), tmp_path / "one.zarr", schema=schema)
    for size in (1 << 20, 300):  # of a few rows
        monkeypatch.setattr(collection, "PIECE", size)
        rows = ingest_rows(frame, tmp_path / f"{size}.zarr", schema=schema, budget=dpdist.PrivacyLoss.parse(1, 1e-6))
        ingest_rows(frame, tmp_path / f"{size}.zarr", schema=schema)  # and is known again
        np.testing.assert_array_equal(stored(tmp_path / f"{size}.zarr"), stored(tmp_path / "one.zarr"))
        assert (rows.rows, rows.unit, rows.max_rows) == (one.rows, one.unit, 2) == (40, schema.unit, 2)
        drawn = ingest_rows(frame, tmp_path / f"any-{size}.zarr", schema=any_two)
        assert (drawn.rows, drawn.unit) == (40, any_two.unit)
    bad = frame.copy()
    bad.loc[bad.index[7], "who"] = None
    for data, message in (
        (bad, r"row 7 \(counting from 0\), column 'who': the privacy unit is missing"),
        (frame.assign(seen="20-01-01"), r"column 'seen': the cell is not a date.*add for example format"),
        (frame.assign(count=[1.5 if i == 59 else 1 for i in range(60)]), r"row 59 .*'count': the value is not a whole"),
    ):
        with pytest.raises(DataError, match=message):
            ingest_rows(data, tmp_path / "two.zarr", schema=schema)
    lazy = dask.dataframe.from_pandas(frame.reset_index(drop=True), npartitions=3)  # a unit is in several partitions
    ingest_rows(lazy, tmp_path / "lazy.zarr", schema=schema)
    np.testing.assert_array_equal(stored(tmp_path / "lazy.zarr"), stored(tmp_path / "one.zarr"))


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_units_may_be_called_by_words_in_several_columns(tmp_path: Path, name: str) -> None:
    table = people(30)
    columns = [*SCHEMA.columns, Column("who", "privacy unit")]
    rows = ingest_rows(written(tmp_path / name, table), tmp_path / "rows.zarr", schema=Schema(columns, max_rows=2))
    np.testing.assert_array_equal(stored(tmp_path / "rows.zarr"), expected(table)[[i for i in range(30) if i % 3 < 2]])
    assert rows.unit is not None
    assert (rows.unit.column, rows.unit.max_rows) == ("who", 2)
    ingest_rows(tmp_path / name, tmp_path / "rows.zarr", schema=Schema(columns, max_rows=2))  # is known again
    two = Schema([*SCHEMA.columns[:4], Column("count", "privacy unit"), Column("who", "privacy unit")], max_rows=1)
    assert ingest_rows(tmp_path / name, tmp_path / "all.zarr", schema=two).rows == 30
    with pytest.raises(UsageError, match="The schema declares the privacy unit"):
        ingest_rows(tmp_path / name, tmp_path / "no.zarr", schema=two, privacy_unit="who", max_rows=1)


def test_all_columns_that_are_no_numbers_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words may be anywhere: in the first line, in the last, far from one another."""
    monkeypatch.setattr(text, "_LINE", 50)  # two lines are read at once
    source, draft = tmp_path / "p.csv", tmp_path / "s.toml"
    lines = [["1", "2.5", "", "1"] for _ in range(20)]
    lines[0][1], lines[19][3] = "secret", "2020-01-01"
    source.write_text("who,what,gap,when\n" + "".join(",".join(cells) + "\n" for cells in lines))
    draft.write_text(draft_schema(source, header="yes"))
    with pytest.raises(UsageError, match=r"line \d+: this draft is not confirmed: check the kind of each column"):
        ingest_rows(source, tmp_path / "rows.zarr", schema=draft, header="yes")
    draft.write_text(draft.read_text().replace("confirmed = false", "confirmed = true"))
    ready = r'replace kind by kind = "boolean", or kind = "category" and categories = \["...", "..."\]'
    fits = r"line 2, column 'what': the cell is not a number; line 21, column 'when': the cell is not a number\."
    with pytest.raises(DataError, match=rf"{fits}.*{ready}") as told:
        ingest_rows(source, tmp_path / "rows.zarr", schema=draft, header="yes")
    assert "secret" not in str(told.value)
    assert "2020-01-01" not in str(told.value).replace("[2000-01-01, 2030-12-31]", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv", "s.toml"]


def test_a_schema_that_does_not_fit_names_every_column_and_its_line(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    kinds = [("count", "date"), ("gone", "number"), ("mass", "number"), ("lost", "ignored")]
    columns = [f'[[column]]\nname = "{name}"\nkind = "{kind}"\n' for name, kind in kinds]
    file.write_text("\n".join(columns))
    source = written(tmp_path / "p.parquet", people(10))
    with pytest.raises(UsageError) as caught:
        ingest_rows(source, tmp_path / "rows.zarr", schema=file)
    for needle in (
        "s.toml, line 6, column 'gone': the source has no such column",
        "does not describe these columns: 'kind', 'seen', 'note', 'who'",
    ):  # fmt: skip
        assert needle in str(caught.value)
    assert "'lost'" not in str(caught.value)  # nothing is read of an ignored column
    file.write_text('others = "ignored"\n' + columns[0] + columns[2])
    with pytest.raises(UsageError, match=r"line 3, column 'count': its stored type int64 does not match .* 'date'"):
        ingest_rows(source, tmp_path / "rows.zarr", schema=file)
    np.save(tmp_path / "t.npy", np.eye(3))
    for data in (tmp_path / "t.npy", np.eye(3)):
        with pytest.raises(UsageError, match="schema"):
            ingest_rows(data, tmp_path / "rows.zarr", schema=SCHEMA)
    with pytest.raises(UsageError, match="The schema chooses the columns"):
        ingest_rows(source, tmp_path / "rows.zarr", schema=SCHEMA, columns=["mass", "count"])


def test_a_draft_is_made_of_names_and_of_no_value_or_type(tmp_path: Path) -> None:
    one = people(10)
    drafts = [
        draft_schema(written(tmp_path / "0.parquet", one)), draft_schema(one.to_pandas()),
        draft_schema(written(tmp_path / "2.csv", one), header="yes"),
    ]  # fmt: skip
    expected = "".join(
        f'\n[[column]]\nname = "{name}"\nkind = "number"  # not read: correct it\n' for name in one.column_names
    )
    assert all(draft.endswith(expected) for draft in drafts)
    np.save(tmp_path / "t.npy", np.eye(2))
    for source in (tmp_path / "t.npy", np.eye(2)):
        with pytest.raises(DpdistError, match=r"cannot take a schema|no columns of different kinds"):
            draft_schema(source)


def test_it_travels_with_release_and_model_and_rows_of_another_are_not_projected(tmp_path: Path) -> None:
    source, budget = written(tmp_path / "p.parquet", people()), dpdist.PrivacyLoss.parse(20, 1e-4)
    mass = Column("mass", "number", range=(0, 300), missing="fill", fill=150)
    schema = Schema([mass, Column("count", "number", range=(0, 300))], "range", "ignored")
    ingest_rows(source, tmp_path / "rows.zarr", schema=schema, budget=budget)
    request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(9, 1e-4), schema.norm or 1)
    dpdist.release_rows(tmp_path / "rows.zarr", tmp_path / "release.zarr", request)
    dpdist.fit_components(tmp_path / "release.zarr", tmp_path / "model.zarr", 1)
    for step in ("rows", "release", "model"):
        assert Schema.read(tmp_path / f"{step}.zarr") == schema
        assert dpdist.inspect_path(tmp_path / f"{step}.zarr").to_json()["schema"] == schema.to_json()
    ingest_rows(source, tmp_path / "more.zarr", schema=tmp_path / "release.zarr")
    dpdist.project_rows(tmp_path / "more.zarr", tmp_path / "model.zarr", tmp_path / "scores.zarr")
    ingest_rows(source, tmp_path / "other.zarr", schema=Schema(schema.columns, "none", "ignored"))
    with pytest.raises(DataError, match=r"The schemas of .* differ, or one has none"):
        dpdist.project_rows(tmp_path / "other.zarr", tmp_path / "model.zarr", tmp_path / "no.zarr")
    ingest_rows(np.eye(3), tmp_path / "plain.zarr")
    assert "schema" not in str(dict(zarr.open(tmp_path / "plain.zarr", mode="r").attrs)["dpdist"])  # as it always was


# --- cells ---

TWO = Schema([Column("a", "number"), Column("b", "number")], others="ignored")


def rows_of(path: Path, schema: Schema, **more: Any) -> Any:
    shutil.rmtree(path.with_name("read.zarr"), ignore_errors=True)
    ingest_rows(path, path.with_name("read.zarr"), schema=schema, **more)
    return stored(path.with_name("read.zarr")).tolist()


def test_words_and_codes_for_missing_are_named_by_a_schema(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,c\n?,-999,x\n3,4,.\n")
    columns = [
        Column("a", "number", missing="fill", fill=0, missing_values=["?"]),
        Column("b", "integer", missing="fill", fill=1, missing_values=[-999]),
        Column("c", "category", categories=["x"], missing="indicator", missing_values=["."]),
    ]
    plain = [Column(column.name, column.kind, **{**column.given, "missing_values": None}) for column in columns]
    for schema in (Schema(columns), Schema(plain, missing_values=["?", ".", -999])):
        assert rows_of(tmp_path / "t.csv", schema) == [[0, 1, 1, 0], [3, 4, 0, 1]]
    message = 'missing_values = ["?"]'
    refused(tmp_path / "t.csv", message, choices=Choices(schema=Schema(plain)))


def test_dates_of_iso_8601_with_parts_of_seconds_and_zones_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("d,b\n1970-01-01T00:00:01.500Z,1\n1970-01-01 01:00:02+01:00,2\n")
    schema = Schema([Column("d", "date", unit="seconds"), Column("b", "number")])
    assert rows_of(tmp_path / "t.csv", schema) == [[1.5, 1], [2, 2]]


def test_decimals_bytes_and_uuids_are_numbers_words_and_ids(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    integers, cents = pa.decimal128(38, 0), pa.decimal128(12, 2)
    pq.write_table(pa.table({
        "id": pa.array([Decimal(7), Decimal(7), Decimal(9)], integers), "pay": pa.array([Decimal("1.25")] * 3, cents),
        "sex": pa.array([b"f", b"m", b"f"], pa.binary()),
    }), path)  # fmt: skip
    ingest_rows(path, tmp_path / "plain.zarr", columns=["id", "pay"])
    assert stored(tmp_path / "plain.zarr").tolist() == [[7, 1.25], [7, 1.25], [9, 1.25]]
    columns = [Column("id", "privacy unit"), Column("pay", "number"), Column("sex", "category", categories=["f", "m"])]
    assert rows_of(path, Schema(columns, max_rows=1)) == [[1.25, 1, 0], [1.25, 1, 0]]


@pytest.mark.parametrize("name", ["x\x0cy", "x\u2028y", '"x\ny"', '"\r\nx"'])
def test_only_line_breaks_end_a_line_of_names(tmp_path: Path, name: str) -> None:
    (tmp_path / "t.csv").write_bytes(f"a,b,{name}\n1,2,3\n4,5,6\n".encode())
    assert rows_of(tmp_path / "t.csv", TWO, header="yes") == [[1, 2], [4, 5]]


def test_a_date_beyond_what_is_counted_is_refused(tmp_path: Path) -> None:
    schema = Schema([Column("when", "date", range=("1900-01-01", "2100-01-01")), *TWO.columns])
    for kind, far in (("ms", 2**63 - 1), ("s", 2**62), ("s", -(2**62))):
        when = pa.array([0, far], pa.int64()).cast(pa.timestamp(kind))
        feather.write_feather(pa.table({"when": when, "a": [1.0, 2], "b": [1.0, 2]}), tmp_path / "t.feather")
        refused(tmp_path / "t.feather", "row 1 ", "'when': the date is more than", choices=Choices(schema=schema))


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        (Column("a", "date", range=("2000-01-01", "2030-12-31"), missing_values=["9999-12-31"]),
         ["2020-01-01", "9999-12-31", "2021-05-05"], pa.date32()),
        (Column("a", "category", categories=["1"], other="column", missing_values=[9]), ["1", "9", "3"], pa.int64()),
        (Column("a", "category", categories=["1", "2"], missing_values=[9]), ["1.0", "9.0", "2.0"], pa.float64()),
        (Column("a", "number", range=(-50, 50), missing_values=[-99.9]), ["12.5", "-99.9", "3.25"], pa.float32()),
        (Column("a", "number", range=(0, 120), missing_values=[-999]), ["41", "-999", "52"], pa.decimal128(38, 9)),
        (Column("a", "integer", range=(0, 120), missing_values=["?"]), ["15", "?", "58"], pa.decimal128(38, 9)),
        (Column("a", "boolean"), ["1.0", "", "0.0"], pa.float64()),
    ],
    ids=lambda each: getattr(each, "kind", None),
)  # fmt: skip
def test_missing_values_are_of_any_type(tmp_path: Path, column: Column, values: list[str], kind: pa.DataType) -> None:
    column = Column(column.name, column.kind, **column.given, missing="indicator")
    schema = Schema([column, Column("x", "number")])
    (tmp_path / "t.csv").write_text("a,x\n" + "".join(f"{value},1\n" for value in values))
    expected_rows = rows_of(tmp_path / "t.csv", schema)
    cells = pa.array([None if value in {"?", ""} else value for value in values])
    table = pa.table({"a": cells.cast(kind), "x": [1.0] * 3})
    pq.write_table(table, tmp_path / "t.parquet")
    assert rows_of(tmp_path / "t.parquet", schema) == expected_rows
    assert schema.transform(table).to_numpy().tolist() == expected_rows
    assert [row[-2] for row in expected_rows] == [0, 1, 0]


def test_a_code_for_a_missing_person_is_no_person(tmp_path: Path) -> None:
    pq.write_table(pa.table({"p": [1, -1, -1], "x": [1.0, 2, 3], "y": [1.0, 2, 3]}), tmp_path / "t.parquet")
    columns = [Column("p", "privacy unit", missing_values=[-1]), Column("x", "number"), Column("y", "number")]
    refused(tmp_path / "t.parquet", "the privacy unit is missing", choices=Choices(schema=Schema(columns, max_rows=1)))


@given(st.lists(st.decimals(-(10**9), 10**9, places=5), min_size=1), st.sampled_from([(38, 9), (38, 5), (18, 5)]))
def test_decimals_are_the_nearest_floats(values: list[Decimal], kind: tuple[int, int]) -> None:
    numbers = floats(pa.array(values, pa.decimal128(*kind))).to_pylist()
    assert numbers == [float(value) for value in values]
