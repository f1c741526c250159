"""What names a column and what is a row: guessed where it cannot be otherwise, told, and else asked for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.cli_scene import Call
from support.ingest_scene import refused, stored

from dpdist.errors import DataError, UsageError
from dpdist.ingest.readers.base import Choices
from dpdist.ingest.write import ingest
from dpdist.jobs.job_file import read_job
from dpdist.release.parse import columns_from
from dpdist.rows.columns import Column
from dpdist.rows.schema import Schema
from dpdist.rows.units import Unit

pytestmark = pytest.mark.usefixtures("typed")

AMBIGUOUS = {
    "pandas' default names": "0,1,2\n73519.25,5,6\n7,8,9\n",
    "years": "2019,2020,2021\n73519.25,5,6\n7,8,9\n",
    "a person": "172.5,secretword,4711\n180.0,Jones,4712\n160.5,Miller,4713\n",
    "a word among numbers": "id,2019\n73519.25,2\n3,4\n",
    "a person of words, and no numbers": "secretword,Ann\nJones,Bob\nMiller,Eve\n",
    "a person with a date of birth": "secretword,1980-02-03\nJones,1981\nMiller,1979\n",
    "flags": "true,secretword\nfalse,Jones\n",
    "a missing name": "a,,c\n1,2,3\n4,5,6\n",
    "a name that is read as missing": "a,NA\n1,2\n3,4\n",
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_a_first_line_that_may_be_a_row_is_asked_for_and_not_repeated(tmp_path: Path, case: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(AMBIGUOUS[case])
    message = refused(
        path, "may name the columns or be a row", never=("4711", "2019", "Ann", "172", "Jones", "1980", "secretword")
    )
    for word in ("yes", "no"):
        assert f"dpdist ingest {path} {tmp_path / 'rows.zarr'} --header {word} (" in message


@pytest.mark.parametrize("text", ["secretword,Ann\nJones,5\n", "secretword,Ann\n"])
def test_a_first_line_without_any_name_of_the_schema_is_asked_for_and_not_repeated(tmp_path: Path, text: str) -> None:
    path, schema = tmp_path / "t.csv", Schema([Column("who", "ignored"), Column("a", "number"), Column("b", "number")])
    path.write_text(text)
    with pytest.raises(DataError, match="may name the columns or be a row") as caught:
        ingest(path, tmp_path / "rows.zarr", choices=Choices(schema=schema))
    assert "secretword" not in str(caught.value)
    path.write_text("who,a,c\n1,2,3\n")  # one name of it is enough: no cell is called so by chance
    with pytest.raises(UsageError, match=r"column 'b': the source has no such column.*The source has: who, a, c"):
        ingest(path, tmp_path / "rows.zarr", choices=Choices(schema=schema))


@pytest.mark.parametrize("text", ["secretword,Ann,unknown\nJones,Bob,5\n", "secretword,Ann\n", "who,age\nAnn,5\n"])
def test_a_draft_of_text_never_guesses_that_a_first_line_holds_names(tmp_path: Path, call: Call, text: str) -> None:
    """It would be written into a file that is meant to be public, whatever the lines below it hold."""
    path, draft = tmp_path / "t.csv", tmp_path / "s.toml"
    (tmp_path / "d").mkdir()
    for source in (path, tmp_path / "d"):
        (path if source == path else source / "t.csv").write_text(text)
        said = call("schema", source, draft)
        assert said.code == 4
        assert f"dpdist schema {source} --header no (" in said.message
        assert not {"secretword", "Ann", "who"} & set(re.findall(r"\w+", said.message))
        assert not draft.exists()
        made = call("schema", source, draft, "--header", "no", "--json").json
        assert "--header no" in made["next"]
        assert 'name = "c0"' in draft.read_text()
        first = text[: text.index(",")]
        assert f'"{first}"' not in draft.read_text()
        draft.unlink()
        assert f'name = "{first}"' in call("schema", source, "--header", "yes", "--json").json["draft"]


def test_the_commands_that_are_told_do_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("2019,2020\n1,2\n3,4\n")
    said = call("ingest", "t.csv", "rows.zarr")
    assert said.code == 4
    assert "dpdist ingest t.csv rows.zarr --header yes" in said.message
    assert call("ingest", "t.csv", "yes.zarr", "--header", "yes", "--json").json["n"] == 2
    assert call("ingest", "t.csv", "no.zarr", "--header", "no", "--json").json["n"] == 3
    assert stored(tmp_path / "no.zarr").tolist() == [[2019, 2020], [1, 2], [3, 4]]
    assert call("inspect", "yes.zarr", "--json").json["columns"] == ["2019", "2020"]
    assert call("inspect", "no.zarr", "--json").json["columns"] == ["c0", "c1"]
    Path("job.toml").write_text(
        '[rows]\npath = "rows.zarr"\nsource = "t.csv"\nheader = "no"\n[release]\npath = "r"\nepsilon = 1\nclip = 1\n'
    )
    assert read_job(Path("job.toml")).choices == Choices(header="no")
    with pytest.raises(UsageError, match="--header takes yes"):
        Choices(header="maybe")
    np.save("t.npy", np.ones((3, 2)))
    with pytest.raises(UsageError, match=r"--header is for \.csv, \.csv\.gz"):
        ingest(Path("t.npy"), tmp_path / "rows.zarr", choices=Choices(header="yes"))


def test_what_is_guessed_is_told_and_repeats_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("parts").mkdir()
    for number in range(3):
        Path("parts", f"{number}.csv").write_text(f"weight,height\n60,17{number}\n70,180\n")
    said = call("ingest", "parts", "rows.zarr")
    assert said.code == 0
    assert "parts/0.csv: the first line is taken for the names of the columns (--header yes)" in said.err
    assert "2 other files" in said.err
    assert "weight" not in said.err
    assert "first line" not in call("ingest", "parts", "more.zarr", "--header", "yes").err


def test_one_column_of_several_that_semicolons_part_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("73519.25;secretword\n1;2\n")
    for columns in (None, ["a", "b"]):
        refused(tmp_path / "t.csv", "1 column", "commas", columns=columns)


@pytest.mark.parametrize("index", [[0, 1, 2], [5, 7, 6]], ids=["counting", "filtered"])
@pytest.mark.parametrize(
    ("kind", "name"), [("csv", "c0"), ("twice.csv", "Unnamed: 0"), ("parquet", "__index_level_0__")]
)
def test_an_index_is_asked_for(tmp_path: Path, index: list[int], kind: str, name: str) -> None:
    frame = pd.DataFrame({"a": [5.5, 73519.25, 7.5], "b, c": [8, 9, 7]}, index=index)
    path = tmp_path / f"t.{kind}"
    if kind == "parquet":
        frame.to_parquet(path, index=True)
    else:
        frame.to_csv(path)
        if kind == "twice.csv":
            pd.read_csv(path).to_csv(path, index=False)
    message = refused(path, repr(name), "would be summed like a measurement", "keeps it as a column)")
    for number, (typed, columns) in enumerate(zip(re.findall(r"--columns (.*?) \(", message), (2, 3), strict=True)):
        names = columns_from(shlex.split(typed)[0])
        assert ingest(path, tmp_path / f"{number}.zarr", columns=names).columns == columns


def test_a_column_with_a_name_is_no_index(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("row,a,b\n0,1,2\n1,3,4\n")
    assert ingest(tmp_path / "t.csv", tmp_path / "named.zarr").names == ("row", "a", "b")


def test_csv_takes_true_and_false_as_parquet_does(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [True, False, True], "b": [1.5, 2.5, 3.5], "c": [False, False, True]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    for number, columns in enumerate((None, ["a", "c"], ["c", "a"])):
        found = [
            stored(ingest(tmp_path / f"t.{kind}", tmp_path / f"{kind}-{number}.zarr", columns=columns).path)
            for kind in ("csv", "parquet")
        ]
        assert np.array_equal(found[0], found[1])
        assert {each.dtype for each in found} == {np.dtype("float64" if columns is None else "uint8")}


@pytest.mark.parametrize(
    ("content", "needle"),
    [
        ("a,b\ntrue,1\n73519.25,2\n", "line 3, column 'a': the cell is neither true nor false"),
        ("a,b\ntrue,1\n1,2\n", "line 3, column 'a': the cell is neither true nor false"),
        ("a,b\n73519.25,1\ntrue,2\n", "line 3, column 'a': the cell is not a number"),
        ("a,b\ntrue,1\n,2\n", "line 3, column 'a': the value is missing"),
        ("a,b\nTRUE,1\ntrue,2\nyes,3\n", "line 4, column 'a': the cell is neither true nor false"),
    ],
)
def test_true_and_false_stand_in_columns_of_their_own(tmp_path: Path, content: str, needle: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    refused(tmp_path / "t.csv", needle)


def test_all_columns_that_hold_no_numbers_are_named_with_the_command_that_leaves_them_out(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "who": ["secretword", "Ann", "Bob"],
            "age": [50, 60, 70],
            "born": ["1970-01-02", "1960-03-04", "1950-05-06"],
            "height, cm": [180.5, 170, 160],
            "note": [None, None, None],
            "smokes": [True, False, True],
        }
    )
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    told = "'who' (text), 'born' (dates), 'note' (no values)."
    command = f"""dpdist ingest {path} {tmp_path / "rows.zarr"} --columns 'age,"height, cm",smokes' (leaves"""
    refused(path, told, command, never=("Ann", "1970"))
    with pytest.raises(DataError, match=r"'who' \(text\)\. Fewer than two columns hold numbers"):
        ingest(path, tmp_path / "rows.zarr", columns=["who", "age"])
    with pytest.raises(
        DataError, match=r"'who' \(text\)\. To take them in.* a schema, which also says whose row it is"
    ):
        ingest(path, tmp_path / "rows.zarr", columns=["age", "smokes"], unit=Unit("who", 1))
    frame.drop(columns="note").to_parquet(tmp_path / "t.parquet", index=False)
    message = refused(tmp_path / "t.parquet", "'who' (", "'born' (", never=("Ann", "1970"))
    assert "--columns 'age,\"height, cm\",smokes' (leaves" in message


def test_files_of_other_kinds_are_refused_with_what_makes_them_readable(tmp_path: Path, call: Call) -> None:
    frame = pd.DataFrame({"secretword": [4711, 2], "b": [3.5, 4]})
    for mark, name in ((";", "semicolons"), ("\t", "tabs"), (" ", "spaces"), ("|", "bars")):
        path = tmp_path / "t.csv"
        frame.to_csv(path, sep=mark, index=False)
        for command in (("ingest", path, tmp_path / "rows.zarr"), ("schema", path)):
            said = call(*command)
            assert said.code == 4
            assert f"seem to be separated by {name}. Save it with commas" in said.message
            assert "secretword" not in said.message
    made: dict[str, object] = {"FILE": path, "NEW": tmp_path / "new.csv", "pandas": pd}
    exec(re.search(r"in Python: (.*)\.$", said.message)[1], made)  # type: ignore[index]  # noqa: S102 - what is told
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "new.csv"), frame)

    frame.to_csv(tmp_path / "t.tsv", sep="\t", index=False)
    said = call("ingest", tmp_path / "t.tsv", tmp_path / "rows.zarr")
    assert said.code == 4
    made = {"FILE": tmp_path / "t.tsv", "NEW": tmp_path / "new.csv", "pandas": pd}
    exec(re.search(r"in Python: (.*)\.$", said.message)[1], made)  # type: ignore[index]  # noqa: S102 - what is told
    assert call("ingest", tmp_path / "new.csv", tmp_path / "rows.zarr", "--json").json["n"] == 2
