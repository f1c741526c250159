"""What a schema says of all its columns at once, and the draft of one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pandas as pd
import pytest

from dpdist import Column, Schema, UsageError
from dpdist.core.rows.draft import Looks, blanks_of, draft_of, write_draft
from dpdist.core.rows.units import Owner


def test_missing_of_all_columns_suits_each_kind_and_yields_to_their_own() -> None:
    columns = [
        Column("number", "number"), Column("day", "date"), Column("kind", "category", categories=["a", "b"]),
        Column("flag", "boolean"), Column("own", "number", missing="drop"), Column("out", "ignored"),
    ]  # fmt: skip
    for missing in ("centre", "pairwise"):
        schema = Schema(columns, missing=missing)
        found = [column.missing for column in schema.columns]
        assert found == [missing, missing, "indicator", "indicator", "drop", None]
        assert Schema.from_json(schema.to_json()) == Schema(schema.columns)
    with pytest.raises(UsageError, match='missing, of all columns, must be "centre", "fill" or "pairwise"'):
        Schema(columns, missing="drop")


def test_a_boolean_that_may_be_missing_is_a_category_of_three() -> None:
    schema = Schema([Column("left", "boolean", missing="indicator"), Column("x", "number")])
    assert schema.features == ("left=no", "left=yes", "left=missing", "x")
    rows = schema.transform(pd.DataFrame({"left": ["yes", "no", None], "x": [1, 2, 3]}))
    assert rows.to_numpy().tolist() == [[0, 1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3]]


def test_whose_a_row_is_is_said_of_one_table() -> None:
    """Of another table with these columns it may be false."""
    columns = [Column("person", "ignored"), Column("x", "number"), Column("y", "number")]
    schema = Schema(columns, each_row_is_a_person=True)
    assert schema.each_row_is_a_person
    assert schema.to_json() == Schema(columns).to_json()
    with pytest.raises(UsageError, match="contradicts the privacy unit"):
        Schema([Column("person", "privacy unit"), *columns[1:]], each_row_is_a_person=True)
    with pytest.raises(UsageError, match="must be true or false"):
        Schema(columns, each_row_is_a_person="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("ranged", [False, True])
def test_a_draft_is_toml_that_lacks_only_its_blanks(tmp_path: Path, ranged: bool) -> None:
    looks = {f'{look.name} "{number}"': look for number, look in enumerate(Looks)}
    text = draft_of('odd "name".csv', looks | {"who": Looks.WORDS}, ["who"], ranged=ranged)
    content = tomllib.loads(text)
    assert [column["name"] for column in content["column"]] == [*looks, "who"]
    assert blanks_of(text) == 5 + 2 * ranged  # categories, a format, two dates, whose rows; ranges of numbers
    path = tmp_path / "s.toml"
    write_draft(path, text)
    with pytest.raises(UsageError) as told:
        Schema.read(path)
    for mistake in ("range is blank", "categories is blank", "format must be", "each_row_is_a_person is blank"):
        assert mistake in str(told.value)
    for blank, answer in (
        ("confirmed = false", "confirmed = true"), ('each_row_is_a_person = ""', "each_row_is_a_person = true"),
        ("categories = []", 'categories = ["a", "b"]'), ('format = ""', 'format = "%d.%m.%Y"'),
    ):  # fmt: skip
        text = text.replace(blank, answer)
    text = text.replace("range = []  # fill in, such as ", "range = ").replace("\nrange = [0, 120]\n#", "\n#")
    path.write_text(text)
    schema = Schema.read(path)
    assert schema.each_row_is_a_person
    assert (schema.norm is not None) is ranged


def test_what_was_said_of_persons_is_no_blank() -> None:
    looks = {"who": Looks.WORDS, "x": Looks.NUMBERS, "y": Looks.NUMBERS}
    assert blanks_of(draft_of("t.csv", looks, ["who"], owner=Owner(each_row=True))) == 0
    unit = tomllib.loads(draft_of("t.csv", looks, ["who"], owner=Owner("who", 2)))
    assert (unit["max_rows"], unit["column"][0]["kind"]) == (2, "privacy unit")
    assert "each_row_is_a_person" not in unit
