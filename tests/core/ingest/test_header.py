"""Header or row: guessed if certain, reported, and otherwise asked for."""

from __future__ import annotations

import pathlib
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.cli_scene import Call
from support.ingest_scene import refused, stored

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest.readers.base import Choices
from dpdist.core.ingest.write import ingest
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.release.parse import columns_from
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Unit
from dpdist.estimators import PrivatePCA

pytestmark = pytest.mark.usefixtures("typed")


def test_a_first_line_that_may_be_a_row_is_asked_for_and_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for text in (
        "0,1,2\n73519.25,5,6\n7,8,9\n",  # as pandas names columns
        "172.5,secretword,4711\n180.0,Jones,4712\n160.5,Miller,4713\n",
        "id,2019\n73519.25,2\n3,4\n",
        "secretword,Ann\nJones,Bob\nMiller,Eve\n",
        "secretword,1980-02-03\nJones,1981\nMiller,1979\n",
        "true,secretword\nfalse,Jones\n",
        "a,,c\n1,2,3\n4,5,6\n",
        "a,NA\n1,2\n3,4\n",
    ):
        path.write_text(text)
        never = ("4711", "2019", "Ann", "172", "Jones", "1980", "secretword")
        message = refused(path, "may be a header or a row", never=never)
        for word in ("yes", "no"):
            assert f"dpdist ingest {path} {tmp_path / 'rows.zarr'} --header {word} (" in message


def test_a_first_line_without_any_name_of_the_schema_is_asked_for_and_not_repeated(tmp_path: Path) -> None:
    path, schema = tmp_path / "t.csv", Schema([Column("who", "ignored"), Column("a", "number"), Column("b", "number")])
    for text in ("secretword,Ann\nJones,5\n", "secretword,Ann\n"):
        path.write_text(text)
        refused(path, "may be a header or a row", choices=Choices(schema=schema))
    path.write_text("who,a,c\n1,2,3\n")  # one name of the schema is enough
    with pytest.raises(UsageError, match=r"column 'b': the source has no such column.*The source has: who, a, c"):
        ingest(path, tmp_path / "rows.zarr", choices=Choices(schema=schema))


@pytest.mark.parametrize("text", ["secretword,Ann,unknown\nJones,Bob,5\n", "secretword,Ann\n", "who,age\nAnn,5\n"])
def test_a_draft_of_text_never_guesses_that_a_first_line_holds_names(tmp_path: Path, call: Call, text: str) -> None:
    """It would be written into a public file."""
    source, draft, first = tmp_path / "d", tmp_path / "s.toml", text[: text.index(",")]
    source.mkdir()
    (source / "t.csv").write_text(text)
    refusal = call("schema", source, draft)
    assert refusal.code == 4
    assert "or --header no (" in refusal.message
    assert not {"secretword", "Ann", "who"} & set(re.findall(r"\w+", refusal.message))
    assert not draft.exists()
    assert "--header no" in call("schema", source, draft, "--header", "no", "--json").json["next"]
    assert 'name = "c0"' in draft.read_text()
    assert f'"{first}"' not in draft.read_text()
    assert f'name = "{first}"' in call("schema", source, "--header", "yes", "--json").json["draft"]


def test_the_commands_that_are_told_do_what_they_say(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("2019,2020,2021\n1,2,3\n3,4,5\n")
    assert ingest(path, tmp_path / "yes.zarr", choices=Choices(header="yes")).names == ("2019", "2020", "2021")
    assert ingest(path, tmp_path / "no.zarr", choices=Choices(header="no")).names == ("c0", "c1", "c2")
    assert stored(tmp_path / "no.zarr").tolist() == [[2019, 2020, 2021], [1, 2, 3], [3, 4, 5]]
    with pytest.raises(UsageError, match="--header takes yes"):
        Choices(header="maybe")
    np.save(tmp_path / "t.npy", np.ones((3, 2)))
    with pytest.raises(UsageError, match=r"--header is for \.csv, \.csv\.gz"):
        ingest(tmp_path / "t.npy", tmp_path / "rows.zarr", choices=Choices(header="yes"))


def test_a_guess_is_told_and_repeats_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.chdir(tmp_path)
    Path("parts").mkdir()
    for number in range(3):
        Path("parts", f"{number}.csv").write_text(f"weight,height\n60,17{number}\n70,180\n")
    outcome = call("ingest", "parts", "rows.zarr")
    assert outcome.code == 0
    assert "parts/0.csv: the first line is read as the names of the columns (--header yes)" in outcome.err
    assert "2 other files" in outcome.err
    assert "weight" not in outcome.err
    assert "first line" not in call("ingest", "parts", "more.zarr", "--header", "yes").err


@pytest.mark.parametrize(
    ("kind", "name"),
    [("csv", "c0"), ("twice.csv", "Unnamed: 0"), ("parquet", "__index_level_0__"), ("named.parquet", "person")],
)
def test_an_index_is_asked_for(tmp_path: Path, kind: str, name: str) -> None:
    frame = pd.DataFrame({"a": [5.5, 73519.25, 7.5], "b, c": [8, 9, 7]}, index=[5, 7, 6])
    path = tmp_path / f"t.{kind}"
    if path.suffix == ".parquet":
        frame.rename_axis("person" if kind == "named.parquet" else None).to_parquet(path, index=True)
    else:
        frame.to_csv(path)
        if kind == "twice.csv":
            pd.read_csv(path).to_csv(path, index=False)
    message = refused(path, repr(name), "would be summed like a measurement", "keeps it)")
    for number, (typed, columns) in enumerate(zip(re.findall(r"--columns (.*?) \(", message), (2, 3), strict=True)):
        names = columns_from(shlex.split(typed)[0])
        assert ingest(path, tmp_path / f"{number}.zarr", columns=names).columns == columns


def test_csv_takes_true_and_false_as_parquet_does_in_columns_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    frame = pd.DataFrame({"a": [True, False, True], "b": [1.5, 2.5, 3.5], "c": [False, False, True]})
    frame.to_csv(path, index=False)
    for number, columns in enumerate((None, ["c", "a"])):
        table = ingest(path, tmp_path / f"{number}.zarr", columns=columns)
        assert table.dtype == ("float64" if columns is None else "uint8")
        assert np.array_equal(stored(table.path), frame[columns or list(frame.columns)].astype(float))
    for content, needle in (
        ("a,b\ntrue,1\n73519.25,2\n", "line 3, column 'a': the cell is neither true nor false"),
        ("a,b\n73519.25,1\ntrue,2\n", "line 3, column 'a': the cell is not a number"),
        ("a,b\ntrue,1\n,2\n", "line 3, column 'a': the value is missing"),
        ("a,b\nTRUE,1\ntrue,2\nyes,3\n", "line 4, column 'a': the cell is neither true nor false"),
    ):
        path.write_text(content)
        refused(path, needle)


def test_all_columns_that_hold_no_numbers_are_named_with_the_command_that_leaves_them_out(tmp_path: Path) -> None:
    frame = pd.DataFrame({
        "who": ["secretword", "Ann", "Bob"], "age": [50, 60, 70], "born": ["1970-01-02", "1960-03-04", "1950-05-06"],
        "height, cm": [180.5, 170, 160], "note": [None, None, None], "smokes": [True, False, True],
    })  # fmt: skip
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    command = f"""dpdist ingest {path} {tmp_path / "rows.zarr"} --columns 'age,"height, cm",smokes' (leaves"""
    refused(path, "'who' (text), 'born' (dates), 'note' (no values).", command, never=("Ann", "1970"))
    refused(path, "'who' (text). Fewer than two columns hold numbers", columns=["who", "age"])
    unit = r"'who' \(text\)\. A privacy unit of text is declared in a schema"
    with pytest.raises(DataError, match=unit):
        ingest(path, tmp_path / "rows.zarr", columns=["age", "smokes"], unit=Unit("who", 1))
    frame.drop(columns="note").to_parquet(tmp_path / "t.parquet", index=False)
    message = refused(tmp_path / "t.parquet", "'who' (", "'born' (", never=("Ann", "1970"))
    assert "--columns 'age,\"height, cm\",smokes' (leaves" in message


# --- text of another dialect ---


def cured(path: Path, header: str) -> Any:
    """Run the Python of an error message, and return the rows of its output."""
    line = re.search(r"in Python(?:, if [^:]*)?: (.*\))\.", refused(path, "in Python", choices=Choices(header=header)))
    assert line is not None
    new = path.with_name("new.csv")
    eval(line[1], {"pandas": pd, "pathlib": pathlib}, {"FILE": path, "NEW": new})  # noqa: S307 - it is the product's
    rows: Any = stored(ingest(new, path.with_name("new.zarr"), choices=Choices(header=header)).path).tolist()
    return rows


@pytest.mark.parametrize(
    ("text", "code", "header", "wanted"),
    [
        ("a|b\n1.5|2\n3.25|4\n", "utf-8-sig", "yes", [[1.5, 2], [3.25, 4]]),
        ("x (a, b);y\n11,5;2\n12,5;3\n", "utf-8", "yes", [[11.5, 2], [12.5, 3]]),
        ("# made by a machine, on Monday\na,b,c\n1,2,3\n", "utf-8-sig", "yes", [[1, 2, 3]]),
        ("# made by a machine\na;b\n1,5;2\n", "utf-8", "yes", [[1.5, 2]]),
        ("sep=;\na;b\n1,5;2\n", "utf-8-sig", "yes", [[1.5, 2]]),
        ("sep=,\na,b\n1.5,2\n", "utf-8", "yes", [[1.5, 2]]),
        ("a\tb\n0,250\t2\n1,500\t3\n", "utf-8", "yes", [[0.25, 2], [1.5, 3]]),
        ("# c\n#a,b\n1,2\n3,4\n", "utf-8", "yes", [[1, 2], [3, 4]]),
        ("# c\n\n# d\na;b\n1,5;2\n", "utf-8", "yes", [[1.5, 2]]),
        ('"x";"a";"b"\n7;1,5;2\n8;3,5;4\n', "utf-8", "yes", [[7, 1.5, 2], [8, 3.5, 4]]),
        ("  a   b\n  1   2\n  3   4\n", "utf-8", "yes", [[1, 2], [3, 4]]),
        ("a,größe\n1,2\n", "cp1252", "yes", [[1, 2]]),
        ("\ufeffa,b\n1,2\n", "utf-16-le", "yes", [[1, 2]]),
        ("\ufeffa,b\n1,2\n", "utf-16-be", "yes", [[1, 2]]),
        ("1,5;2,5\n11,5;2,1\n12,5;2,2\n", "utf-8", "no", [[1.5, 2.5], [11.5, 2.1], [12.5, 2.2]]),
        ("sep=;\n1,5;2\n3;4\n", "utf-8", "no", [[1.5, 2], [3, 4]]),
        ("Registry export,\nof 2026,\na,b\n1,2\n3,4\n", "utf-8", "yes", [[1, 2], [3, 4]]),
        ("Registry export;;\na;b;c\n1,5;2;3\n3,5;4;5\n", "utf-8", "yes", [[1.5, 2, 3], [3.5, 4, 5]]),
        ("Registry export\nDate: 2026-01-01\n\na,b\n1,2\n3,4\n", "utf-8", "yes", [[1, 2], [3, 4]]),
        ("All of 2026\n\na;b\n1,5;2\n3,5;4\n", "utf-8", "yes", [[1.5, 2], [3.5, 4]]),
        ("income;age\n1.234,50;42\n345;43\n", "utf-8", "yes", [[1234.5, 42], [345, 43]]),
        ("income;age\n1,234.50;42\n345;43\n", "utf-8", "yes", [[1234.5, 42], [345, 43]]),
    ],
)
def test_a_dialect_has_a_cure(tmp_path: Path, text: str, code: str, header: str, wanted: list[list[float]]) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode(code))
    assert cured(tmp_path / "t.csv", header) == wanted


def test_a_tsv_has_a_cure(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\tb\n1.5\t2\n")
    assert cured(tmp_path / "t.tsv", "yes") == [[1.5, 2]]


def test_numbers_with_commas_or_signs_are_told_as_that(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for cell in ('"1,234"', '"1,5"', "12%", "$2"):
        path.write_text(f"a,b\n{cell},2\n{cell},3\n")
        refused(path, "These columns hold numbers with commas or signs: ['a']")
    for text in ("day;amount\n01.02.2024;1.234,50\n", "lat;rent\n52.520;1.234,50\n", "icd;cost\n250.00;1.234,50\n"):
        path.write_text(text)  # pandas has one mark of thousands for all columns
        assert "thousands='" not in refused(path, "decimal=','", "state separators of thousands")
    path.write_text("a;b\n1.234;2\n")
    refused(
        path, "state separators of thousands or decimals (thousands=, decimal=)", "sep=';'",
        "if 1.234 is near one there, or pandas.read_csv(FILE, sep=';', thousands='.').to_csv(NEW, index=False) if",
    )  # fmt: skip
    path.write_text("a,b;c,d\n1.5,red;blue,3\n2.5,green;red,4\n")
    assert stored(ingest(path, tmp_path / "rows.zarr", columns=["a", "d"]).path).tolist() == [[1.5, 3], [2.5, 4]]


def test_text_over_several_lines_is_one_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdist.core.ingest.readers.text._LINE", 18)  # a block ends within a cell
    path = tmp_path / "t.csv"
    path.write_text('a,note,b\n1,"two\nlines",3\n5,"say ""yes""\r\n,",6\n')
    assert stored(ingest(path, tmp_path / "rows.zarr", columns=["a", "b"]).path).tolist() == [[1, 3], [5, 6]]


@pytest.mark.parametrize(
    "name", ["index", "Unnamed: 0.1", "level_0", "rowid", "row_nr", "row_number", "rownames", "...1"]
)
def test_a_count_of_the_rows_of_any_usual_name_is_asked_for_and_no_advice_keeps_another(
    tmp_path: Path, name: str
) -> None:
    frame = pd.DataFrame({name: [0, 1, 2], "Unnamed: 0": [0, 2, 4], "age": [30, 40, 50], "height": [1.5, 1.6, 1.8]})
    for kind, write in (("csv", frame.to_csv), ("parquet", frame.to_parquet)):
        write(tmp_path / f"t.{kind}", index=False)
        message = refused(tmp_path / f"t.{kind}", repr(name), "'Unnamed: 0'", "--columns age,height (leaves them out)")
        assert "keeps them" in message
    for use in (PrivatePCA(1, epsilon=1, delta=1e-6, clip=9).fit, lambda x: ingest_rows(x, tmp_path / "no.zarr")):
        with pytest.raises(DataError, match=re.escape(repr(name))):
            use(frame)


def test_a_draft_asks_whether_a_column_named_like_a_person_is_the_privacy_unit(tmp_path: Path, call: Call) -> None:
    (tmp_path / "t.csv").write_text("visit_id,age,patient_id,mass\n7,41,p1,60\n8,52,p2,70\n")
    draft = call("schema", tmp_path / "t.csv", "--header", "yes", "--json").json["draft"]
    assert re.findall(r'name = "(\w+)"\nkind = "([\w ]*)"', draft) == [
        ("visit_id", "ignored"), ("age", "number"), ("patient_id", "ignored"), ("mass", "number"),
    ]  # fmt: skip
    draft = draft.replace("confirmed = false", "confirmed = true")
    asked = ("ingest", tmp_path / "t.csv", tmp_path / "r.zarr", "--schema", tmp_path / "s.toml", "--header", "yes")
    (tmp_path / "s.toml").write_text(draft)
    refusal = call(*asked)
    assert refusal.code == 2
    assert "each_row_is_a_person is blank: true if no person has two rows" in " ".join(refusal.err.split())
    draft = draft.replace('name = "patient_id"\nkind = "ignored"', 'name = "patient_id"\nkind = "privacy unit"')
    (tmp_path / "s.toml").write_text(draft)
    done = call(*asked)
    assert done.code == 0, done.err


@pytest.mark.parametrize("first", [
    "-0.652,-0.175,1.664", "47,812,3", "47,81234.5,x", "Ann,1.5,7", "34,35,", "47,,inf", "5,5,5", "true,,false",
    f"a,b,{'9' * 5000}",
])  # fmt: skip
def test_a_row_does_not_become_the_names_of_columns_which_are_published(tmp_path: Path, first: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{first}\n1,2,3\n4,5,6\n")
    told = refused(path, "It may be a row, and names are published", choices=Choices(header="yes"))
    assert not any(cell in told for cell in first.split(",") if len(cell) > 1)


@pytest.mark.parametrize("first", ["0,1,2", "1,2,3", "2019,2020,2021", "id,2019,2020", "400,410,420", "inf,b,c"])
def test_numbers_that_count_may_name_columns(tmp_path: Path, first: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{first}\n7,8,9\n4,5,7\n")
    assert ingest(path, tmp_path / "rows.zarr", choices=Choices(header="yes")).names == tuple(first.split(","))


@pytest.mark.usefixtures("apart")
def test_a_schema_of_another_table_is_told_by_its_columns(call: Call) -> None:
    Path("t.csv").write_text("who,cost,when\na,3,2020-01-01\nb,4,2020-01-02\n")
    Path("s.toml").write_text('[[column]]\nname = "age"\nkind = "number"\n[[column]]\nname = "b"\nkind = "number"\n')
    asked = ("release", "t.csv", "r.zarr", "--epsilon", "1", "--delta", "1e-6", "--schema", "s.toml")
    said = call(*asked)
    assert said.code == 4
    assert "the schema is of a table with other columns. Add --header yes or --header no." in said.message
    assert "column 'age': the source has no such column" in call(*asked, "--header", "yes").message
