"""Schemas: they map each row independently of the others, and report all their mistakes together."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline

from dpdist import Column, PrivateCovariance, Schema, UsageError
from dpdist.core.rows import encoding, schema_mistakes
from dpdist.core.rows.encoding import UnfitError, encoded, units_of

PENGUINS = Schema(
    [
        Column("species", "category", categories=["Adelie", "Gentoo"], other="column", missing="indicator"),
        Column("island", "ignored"),
        Column("mass", "integer", range=(2000, 7000), weight=2, missing="fill", fill=4000),
        Column("alive", "boolean", missing="drop"),
        Column("size", "category", categories=["small", "NA", "large"], encoding="ordinal", other="missing",
               missing="drop"),
        Column("seen", "date", range=(date(2020, 1, 1), date(2020, 1, 11)), origin="2020-01-01", missing="fill",
               fill="2020-01-01"),
    ],
    scale="range",
)  # fmt: skip
TEXT = ("Adelie", "Gentoo", "Chinstrap", "", " Adelie ")


def rows_of(schema: Schema, columns: dict[str, Any]) -> Any:
    arrays = {name: each if isinstance(each, pa.Array) else pa.array(each) for name, each in columns.items()}
    return np.concatenate(list(encoded(schema, arrays, len(next(iter(arrays.values()))))))


def one(kind: str, cells: list[Any], **more: Any) -> list[float]:
    """Return the encoding of the cells of one column next to another."""
    schema = Schema([Column("x", kind, **more), Column("y", "boolean")])
    found: list[float] = rows_of(schema, {"x": cells, "y": [True] * len(cells)})[:, 0].tolist()
    return found


def test_each_kind_of_column_becomes_the_numbers_that_are_said() -> None:
    assert PENGUINS.features == (
        "species=Adelie", "species=Gentoo", "species=other", "species=missing", "mass", "alive", "size", "seen",
    )  # fmt: skip
    found = rows_of(
        PENGUINS,
        {
            "species": ["Adelie", "Gentoo", "Chinstrap", "NA", " Adelie "],
            "mass": ["2000", "9e9", "", " 4500 ", "1"],
            "alive": ["true", "FALSE", "1", "0", ""],
            "size": ["small", "NA", "large", "NA", "NA"],
            "seen": ["2020-01-01", "2020-01-11", "2020-01-06 12:00:00", "", "2020-01-01"],
        },
    )
    wanted: list[list[float]] = [
        [1, 0, 0, 0, -2, 1, -1, -1],
        [0, 1, 0, 0, 2, -1, 0, 1],  # clipped to the range
        [0, 0, 1, 0, -0.4, 1, 1, 0.1],
        [0, 0, 0, 1, 0, -1, 0, -1],
        [math.nan] * 8,  # dropped: it counts as the centre
    ]
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_stored_types_give_the_numbers_that_text_does() -> None:
    assert one("number", ["1", "", "-2.5e0"], missing="fill", fill=9) == [1, 9, -2.5]
    for cells in ([1.0, math.nan, -2.5], [1.0, None, -2.5]):
        assert one("number", cells, missing="fill", fill=9) == [1, 9, -2.5]
    assert one("number", pa.array([1, None], pa.int64()), missing="indicator") == [1, 0]
    names: Any = ([3, 1], [3.0, 1.0], ["3", "1"], pa.array(["3", "1"]).dictionary_encode())
    for each in names:
        assert one("category", each, categories=[1, 2, 3], encoding="ordinal") == [2, 0]
    assert one("number", ["1", "", "3"], missing="fill", range=(0, 10)) == [1, 5, 3]  # the middle of the range
    for kind in ("number", "boolean"):
        with pytest.raises(UsageError, match="needs fill, a public constant, or a range"):
            Schema([Column(kind, kind, missing="fill")])
    whole = Schema([Column("a", "number", range=(2, 4)), Column("b", "boolean")], missing="fill")
    assert [column.missing for column in whole.columns] == ["fill", "indicator"]
    assert not whole.uncentred
    assert one("boolean", [True, False, None], missing="fill", fill=True) == [1, 0, 1]
    assert one("boolean", ["yes", "No", "TRUE", "0"]) == [1, 0, 1, 0]
    days = [date(1970, 1, 3), None]
    assert one("date", days, missing="fill", fill="1970-01-02") == [2, 1]
    assert one("date", pa.array(days).cast(pa.timestamp("ns", "UTC")), unit="hours", missing="fill",
               fill="1970-01-02") == [48, 24]  # fmt: skip
    assert one("date", ["03.01.1970"], format="%d.%m.%Y", origin="1970-01-02") == [1]
    assert one("number", [math.inf, -math.inf], range=(-1, 3)) == [3, -1]


@pytest.mark.parametrize("kind", ["number", "category", "date", "privacy unit"])
def test_bytes_that_are_not_text_are_named_by_their_row(kind: str) -> None:
    offsets = pa.py_buffer(np.array([0, 1, 5], np.int32).tobytes())
    found = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"12h\xffh")])
    unit = kind == "privacy unit"
    more: dict[str, Any] = {"categories": ["1"]} if kind == "category" else {}
    columns = [Column("x", kind, **more), Column("y", "number"), Column("z", "number")]
    schema, arrays = Schema(columns, max_rows=1 if unit else None), {"x": found, "y": pa.array([1, 2])}
    arrays["z"] = arrays["y"]
    with pytest.raises(UnfitError) as caught:
        units_of(schema, arrays, b"key") if unit else list(encoded(schema, arrays, 2))
    assert caught.value.faults[0][:2] == (1, "x")
    assert caught.value.faults[0].reason == "the cell is not UTF-8 text"


def test_categories_that_are_whole_numbers_are_these_and_no_others() -> None:
    most = 2**53 + 1  # not a float
    schema = Schema([Column("x", "category", categories=[most, 0], other="column")])
    assert schema.columns[0].categories == ("9007199254740993", "0")
    assert Schema.from_json(schema.to_json()) == schema
    rows = np.concatenate(list(encoded(schema, {"x": pa.array([most, most - 1, 0])}, 3)))
    assert rows.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    rows = np.concatenate(list(encoded(schema, {"x": pa.array([-0.0, 1.5])}, 2)))
    assert rows.tolist() == [[0, 1, 0], [0, 0, 1]]
    with pytest.raises(UsageError, match="names in quotes, or of whole numbers"):
        Schema([Column("x", "category", categories=[16**9999, 0])])


def test_a_cell_that_is_not_what_is_said_is_named_by_row_and_column_and_never_quoted() -> None:
    hidden = "9hidden"
    for kind, cells, more in (
        ("number", ["1", "2", hidden], {}), ("integer", ["1", "2", "1.5"], {}), ("boolean", ["1", "0", hidden], {}),
        ("category", ["a", "a", hidden], {"categories": ["a"]}), ("date", ["2020-01-01", "2020-01-01", hidden], {}),
        ("date", ["01/2020", "01/2020", hidden], {"format": "%m/%Y"}), ("number", [1.0, 2.0, math.inf], {}),
        ("number", ["1", "2", ""], {}), ("category", ["a", "a", None], {"categories": ["a"]}),
        ("number", [1, 2, None], {}),
    ):  # fmt: skip
        with pytest.raises(UnfitError) as caught:
            one(kind, cells, **more)
        (fault,) = caught.value.faults
        assert (fault.row, fault.column) == (2, "x")
        assert hidden not in fault.reason


cells = st.fixed_dictionaries({
    "species": st.sampled_from(TEXT), "mass": st.sampled_from(["2000", "", "1e300", "-5", "3333"]),
    "alive": st.sampled_from(["true", "false", ""]), "size": st.sampled_from(["small", "NA", "huge", ""]),
    "seen": st.sampled_from(["2020-01-05", "", "1900-01-01"]),
})  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(st.lists(cells, min_size=1, max_size=12), cells, st.data())
def test_neighbouring_tables_become_neighbouring_tables(table: list[Any], other: Any, data: st.DataObject) -> None:
    """The theorem: each row has one image, in whatever piece it comes, so n is unchanged and one row differs."""

    def made(rows: list[Any]) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(encoding, "_PIECE", 8 * len(PENGUINS.features) * data.draw(st.integers(1, 12)))
            return rows_of(PENGUINS, {name: [row[name] for row in rows] for name in table[0]})

    place = data.draw(st.integers(0, len(table) - 1))
    before, after = made(table), made([*table[:place], other, *table[place + 1 :]])
    fewer = made([*table[:place], *table[place + 1 :], other])[:-1]
    assert len(before) == len(after) == len(table)
    np.testing.assert_array_equal(np.delete(before, place, 0), np.delete(after, place, 0))
    np.testing.assert_array_equal(np.delete(before, place, 0), fewer)
    norm = PENGUINS.norm
    assert norm is not None
    lengths = np.linalg.norm(before, axis=1)
    assert ((lengths <= norm * (1 + 1e-12)) | np.isnan(before).all(axis=1)).all()


BROKEN = '''\
scale = "log"
[[column]]
name = "a"
kind = "number"
range = [3, 3]
weight = -1
text = """
[[column]]
name = "b"
"""
[[column]]
name = "a"
kind = "integer"   # and so on
range = []
fill = 3

[[column]]
name = "c"
kind = "category"
categories = [
  "x",
  "x",
]
other = "maybe"
[[column]]
kind = "privacy unit"
others = "ignored"
'''


def test_all_mistakes_of_a_file_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(BROKEN)
    with pytest.raises(UsageError) as caught:
        Schema.read(tmp_path / "s.toml")
    said = str(caught.value)
    for words in (
        'line 1: scale must be "none" or "range", not \'log\'',
        "line 5, column 'a': range must have a positive width, not 3 to 3",
        "line 6, column 'a': weight must be a number from 1e-06 to 1e+06, not -1",
        "line 7, column 'a': there is no key 'text'",
        "line 12, column 'a': an earlier column has the same name (line 3)",
        "line 14, column 'a': range is blank: fill it in from public knowledge",
        "line 20, column 'c': duplicate categories: x",
        "line 24, column 'c': other must be one of refuse, column, missing",
        "line 25, column '?': it lacks 'name'",
        "line 27, column '?': others applies to all columns: move it above the first column",
    ):
        assert words in said
    (tmp_path / "s.toml").write_text(
        '[[column]]\nname = "a"\nkind = "date"\nformat = "%Y\\u001b[2J"\n'
        '[[column]]\nname = "b"\nkind = "date"\norigin = "2020-01-01\\u001b10:00"\n'
    )
    with pytest.raises(
        UsageError,
        match=r"(?s)line 4, .*contains a control or invisible char.*line 8, .*contains a control or invisible char",
    ):
        Schema.read(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text("[[column]\n")
    with pytest.raises(UsageError, match=r"is not TOML: .*line 1"):
        Schema.read(tmp_path / "s.toml")


def test_a_missing_category_is_one_more_category_and_not_the_centre() -> None:
    with pytest.raises(UsageError, match=r"'c': missing = \"centre\" is for numbers: use \"indicator\""):
        Schema([Column("c", "category", categories=["x", "y"], missing="centre"), Column("n", "number")])
    for sound in ({"encoding": "ordinal", "missing": "centre"}, {"missing": "indicator"}, {"missing": "drop"}):
        Schema([Column("c", "category", categories=["x", "y"], **sound), Column("n", "number")])


def test_rows_that_are_too_wide_or_named_twice_are_refused_with_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_mistakes, "MOST_FEATURES", 5)
    for columns, said in (
        ([Column("a", "category", categories=range(6))], "it describes 6 columns of rows, and the limit is 5"),
        ([Column("a", "number")], "it describes 1 column of rows, and a table needs at least two"),
        ([Column("a", "category", categories=[1, 2]), Column("a=1", "number")], "would have the name a=1"),
    ):
        with pytest.raises(UsageError, match=said):
            Schema(columns)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    assert Schema.from_json(PENGUINS.to_json()) == PENGUINS
    assert pickle.loads(pickle.dumps(PENGUINS)) == PENGUINS  # noqa: S301
    (tmp_path / "s.toml").write_text(
        'scale = "range"\ncolumn = [{name="a b", kind="number", range=[0, 1.5]}, {name="c", kind="date", range=['
        "2020-01-01, 2020-06-01T12:00:00]}]"
    )
    read = Schema.read(tmp_path / "s.toml")
    assert read == Schema(
        [Column("a b", "number", range=(0, 1.5)), Column("c", "date", range=("2020-01-01", "2020-06-01 12:00:00"))],
        "range",
    )
    with pytest.raises(
        UsageError, match=r"column 'a b': the source has no such column.*not describe these columns: 'a'"
    ):
        read.places(["a", "c"])


def test_a_schema_transforms_frames_as_a_step_of_a_pipeline_and_stays_as_it_is() -> None:
    pd = pytest.importorskip("pandas")
    schema = Schema([Column("a", "number", range=(0, 2)), Column("b", "category", categories=["x", "y"])], "range")
    frame = pd.DataFrame({"b": ["y", "x"] * 50, "a": [1, 5] * 50}, index=range(7, 107))
    found = schema.fit(frame).transform(frame)
    assert list(found.columns) == list(schema.get_feature_names_out()) == ["a", "b=x", "b=y"]
    assert found.to_numpy()[:2].tolist() == [[0, 0, 1], [1, 1, 0]]
    assert list(found.index) == list(frame.index)
    fitted = make_pipeline(schema, PrivateCovariance(epsilon=1, delta=1e-6, clip=2)).fit(frame)
    assert list(fitted[-1].feature_names_in_) == list(fitted[:-1].get_feature_names_out()) == ["a", "b=x", "b=y"]
    for wrong in (pd.DataFrame({"a": [1], "b": [3.5j]}), pd.DataFrame({"a": [1], "c": ["x"]})):
        with pytest.raises(UsageError, match="does not fit the source"):
            schema.transform(wrong)
    with pytest.raises(FrozenInstanceError):
        schema.scale = "none"  # type: ignore[misc]
    unit = Schema([Column("who", "privacy unit"), Column("a", "number"), Column("b", "number")], max_rows=1)
    with pytest.raises(UsageError, match="would protect each row separately"):
        unit.transform(pd.DataFrame({"who": ["x"] * 3, "a": [1, 2, 3], "b": [1, 2, 3]}))


def test_each_column_of_the_rows_has_the_range_that_its_numbers_lie_in_and_the_norm_follows() -> None:
    columns = [
        Column("a", "number", range=(0, 10), missing="indicator"),
        Column("b", "category", categories=["x", "y"], other="column", weight=3),
        Column("c", "number"),
        Column("d", "boolean"),
        Column("e", "category", categories=["x", "y", "z"], encoding="ordinal"),
        Column("f", "ignored"),
    ]
    plain = Schema(columns)
    assert plain.ranges == ((0, 10), (0, 1), (0, 3), (0, 3), (0, 3), None, (0, 1), (0, 2))
    assert len(plain.ranges) == len(plain.features)
    assert plain.norm is None
    scaled = Schema([each for each in columns if each.name != "c"], scale="range")
    assert scaled.ranges == ((-1, 1), (0, 1), (0, 3), (0, 3), (0, 3), (-1, 1), (-1, 1))
    signed = [Column("a", "number", range=(-3, 4)), Column("b", "category", categories=["x"], missing="indicator")]
    assert Schema(signed).norm == pytest.approx(math.sqrt(17))


def test_integers_that_float64_does_not_hold_are_refused_and_not_rounded() -> None:
    most: Any = 2**53
    for cells in (
        ["1", str(most + 1)], [1, most + 1], [1, -most], pa.array([1, 2**64 - 1], pa.uint64()), [1.0, 2.0**53],
        pa.array([Decimal(1), Decimal(most + 1)]),
    ):  # fmt: skip
        with pytest.raises(UnfitError) as caught:
            one("integer", cells)
        assert caught.value.faults[0][:2] == (1, "x")
        assert "2^53" in caught.value.faults[0].reason
        assert str(most) not in caught.value.faults[0].reason
        assert one("integer", cells, range=(-5, most)) in ([1, most], [1, -5])
        assert one("number", cells)[0] == 1
    assert one("integer", [str(most - 1), "0"]) == [most - 1, 0]
    for wrong in ({"range": (0, most + 2)}, {"missing": "fill", "fill": most}):
        with pytest.raises(UsageError, match=r"2\^53"):
            Schema([Column("x", "integer", **wrong), Column("y", "boolean")])
    names = pa.array([Decimal(most + 1), Decimal(most), Decimal("1.50")])
    assert one("category", names, categories=[most, most + 1, "1.5"], encoding="ordinal") == [1, 0, 2]


def test_no_part_of_a_date_is_passed_over_in_silence() -> None:
    for form in ("%Y-%m-%d %Z", "%Y-W%W", "%V %G %u", "%s", "%c", "%Oy-%m-%d", "%3Y", "%Y-%m-%d%", "%C%y-%m-%d",
                 "%d.%m", "%H:%M", "%Y-%d", "%Y-%m-%d %I:%M", "%F %H %p", "%A %Y-%m", "%Y %j %d", "%Y %y", "%F %d",
                 "Y"):  # fmt: skip
        with pytest.raises(UsageError, match="format"):
            Schema([Column("x", "date", format=form), Column("y", "boolean")])
    for form, cell, hours in (
        ("%d.%m.%Y", "03.01.1970", 48), ("%m/%Y", "02/1970", 744), ("%j %y", "3 70", 48), ("%D", "01/03/70", 48),
        ("%a %e %b %Y %R", "Sat 3 Jan 1970 07:30", 55.5), ("%F %I %p", "1970-01-03 05 PM", 65), ("%Y", "1971", 8760),
        ("%FT%T%z", "1970-01-03T01:00:00+0200", 47), ("%A, %h %d %Y", "Saturday, Jan 3 1970", 48),
    ):  # fmt: skip
        assert one("date", [cell], format=form, unit="hours") == [hours], form


@pytest.mark.parametrize(
    ("form", "wrong", "sound"),
    [
        ("%d.%m.%Y", "31.02.2020", ["29.02.2020", "01.03.2020", "3.3.2020", "31.12.2020"]),
        ("%F", "2019-02-29", ["2020-02-29", "2031-03-01"]),
        ("%e %h %y", "31 Apr 21", ["1 May 31", "30 Apr 21"]),
        ("%FT%T%z", "2021-02-29T00:30:00+0200", ["2021-03-01T00:30:00+0200", "2021-02-28T23:30:00-0200"]),
        ("%j %Y", "366 2019", ["366 2020", "1 2020", "001 2366"]),
    ],
)
def test_a_day_that_its_month_does_not_have_is_no_date(form: str, wrong: str, sound: list[str]) -> None:
    assert one("date", [*sound, None], format=form, missing="fill", fill="1970-01-02")
    with pytest.raises(UnfitError) as caught:
        one("date", [sound[0], sound[0], wrong, sound[0]], format=form)
    assert [fault[:2] for fault in caught.value.faults] == [(2, "x")]
    assert wrong not in str(caught.value)
