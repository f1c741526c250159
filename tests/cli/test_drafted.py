"""A table with words, dates, gaps and an id is refused once, with a draft of all that its owner must say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.cli_scene import Call

import dpdist
from dpdist.core.errors import DataError
from dpdist.core.ledger.ledger import Ledger

ROWS = 4000
LOSS = ("--epsilon", "1", "--delta", "1e-6")
CITIES = ["Kvasir", "Ymir", "Bragi"]
FILLED = {
    "confirmed = false": "confirmed = true",
    'each_row_is_a_person = ""': "each_row_is_a_person = true",
    "categories = []": f"categories = {CITIES}".replace("'", '"'),
    'format = ""': 'format = "%d.%m.%Y"',
    "range = []  # fill in, such as [2000": "range = [2000",
}


@pytest.fixture
def folder(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001 - its own state
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(**more: Any) -> pd.DataFrame:
    random = np.random.default_rng(1)
    days = pd.to_datetime("2021-03-04") + pd.to_timedelta(random.integers(0, 900, ROWS), unit="D")
    frame = pd.DataFrame({
        "customer_id": [f"K{row:05d}" for row in range(ROWS)], "joined": days.strftime("%Y-%m-%d"),
        "city": random.choice(CITIES, ROWS), "left": random.choice(["yes", "no"], ROWS),
        "income": random.normal(31_337, 900, ROWS).round(2), "visits": random.poisson(3, ROWS).astype(float),
    })  # fmt: skip
    gaps = frame.drop(columns="customer_id").mask(random.random((ROWS, 5)) < 0.03)
    return pd.concat([frame[["customer_id"]], gaps], axis=1).assign(**more)


def completed(draft: Path) -> None:
    text = draft.read_text()
    for blank, answer in FILLED.items():
        text = text.replace(blank, answer)
    draft.write_text(text)


def following(message: str) -> list[str]:
    found = re.search(r"Then run: dpdist (.*)$", message)
    assert found is not None, message
    return shlex.split(found[1])


def test_one_refusal_asks_everything_and_the_command_it_ends_with_goes_on(folder: Path, call: Call) -> None:
    table().to_csv("t.csv", index=False, na_rep="n/a")
    said = call("release", "t.csv", "r.zarr", *LOSS)
    assert said.code == 4
    for part in (
        "'joined' (dates)",
        "'city' (words)",
        "'left' (yes or no)",
        "persons: customer_id",
        "fill in its 3 bl",
    ):
        assert part in said.message
    draft = folder / "t.schema.toml"
    assert stat.S_IMODE(draft.stat().st_mode) == 0o600
    assert not (folder / "t.zarr").exists()
    unfinished = call(*following(said.message))
    assert unfinished.code == 2
    for mistake in ("is not confirmed", "categories is blank", "range is blank", "each_row_is_a_person is blank"):
        assert mistake in unfinished.message
    completed(draft)
    went_on = call(*following(said.message))
    assert went_on.code == 0, went_on.told
    assert "without customer_id. Each row is protected as a person." in went_on.err
    assert Ledger(folder / "t.ledger").balance().charged == 1
    release = dpdist.open_release("r.zarr")
    assert release.names[1:4] == ("city=Kvasir", "city=Ymir", "city=Bragi")
    assert {"city=missing", "left=yes", "left=missing", "income"} <= {*release.names}
    assert release.counts("left")["count"].sum() == pytest.approx(ROWS)
    assert call("relate", "r.zarr", "left", "city").code == 0
    assert "confirmed" not in str(release.schema and release.schema.to_json())


def test_a_draft_holds_names_and_what_cells_look_like_and_no_cell(folder: Path, call: Call) -> None:
    """Tables of the same kinds with other cells have the same draft."""
    drafts = []
    other = table(
        joined=["1999-12-31"] * ROWS, city=[f"place {row}" for row in range(ROWS)], left=["no"] * ROWS,
        income=["42"] * ROWS, visits=["7"] * ROWS,
    )  # fmt: skip
    for number, each in enumerate((table(), other)):
        (folder / f"{number}").mkdir()
        each.to_csv(f"{number}/t.csv", index=False)
        assert call("release", f"{number}/t.csv", "r.zarr", *LOSS).code == 4
        drafts.append(Path(f"{number}/t.schema.toml").read_text().partition("\n")[2])
    assert drafts[0] == drafts[1]
    for cell in (*CITIES, "31337", "2021", "K00001", "n/a"):
        assert cell not in drafts[0]


def test_the_kinds_of_a_draft_are_those_that_cells_or_types_suggest(folder: Path, call: Call) -> None:  # noqa: ARG001
    days = pd.date_range("2020-01-01", periods=ROWS, freq="h")
    cells = {
        "iso": (days.strftime("%Y-%m-%d %H:%M:%S"), "date"), "german": (days.strftime("%d.%m.%Y"), "date"),
        "words": (["a b"] * ROWS, "category"), "codes": ([f"A{row % 7}" for row in range(ROWS)], "category"),
        "amount": ([f"{1000 + row:,}" for row in range(ROWS)], "category"),
        "flag": (["TRUE", "FALSE"] * 2000, "boolean"),
        "gaps": (["1.5", "?"] * 2000, "number"), "stored_flag": ([True, False] * 2000, "boolean"),
        "stored_day": (days, "date"), "dictionary": (pd.Categorical(["x", "y"] * 2000), "category"),
    }  # fmt: skip
    pd.DataFrame({name: values for name, (values, _) in cells.items()}).to_parquet("t.parquet")
    said = call("release", "t.parquet", "r.zarr", *LOSS)
    assert "'german' (dates not written as 2026-01-31)" in said.message
    assert "'gaps' (numbers, with words between them that would count as missing)" in said.message
    draft = Path("t.schema.toml").read_text()
    for name, (_, kind) in cells.items():
        assert f'name = "{name}"\nkind = "{kind}"' in draft
    assert draft.count('format = ""  # fill in') == 1


def test_a_draft_replaces_nothing_and_stands_in_the_working_folder_if_need_be(folder: Path, call: Call) -> None:
    (folder / "in").mkdir()
    table().to_csv("in/t.csv", index=False)
    kept = folder / "in" / "t.schema.toml"
    kept.write_text("mine")
    said = call("release", "in/t.csv", "r.zarr", *LOSS)
    assert "in/t.schema.toml is there already, and was left as it is" in said.message
    assert kept.read_text() == "mine"
    kept.unlink()
    kept.symlink_to(folder / "in" / "gone")  # it cannot be written, as in a folder that is read-only
    said = call("forecast", "in/t.csv", *LOSS)
    assert following(said.message)[-1] == "t.schema.toml"
    assert (folder / "t.schema.toml").is_file()
    (folder / "t.schema.toml").unlink()
    (folder / "t.schema.toml").symlink_to(folder / "gone")
    said = call("release", "in/t.csv", "r.zarr", *LOSS)
    assert (said.code, "its draft could not be written" in said.message) == (4, True)
    with pytest.raises(DataError, match=r"dates.*its draft could not be written"):
        dpdist.private_pca("in/t.csv", epsilon=1, delta=1e-6)


def test_numbers_between_words_are_words_and_words_between_numbers_are_told(folder: Path, call: Call) -> None:
    """One cell with a digit made a column of words one of numbers, all but one of them missing."""
    words, numbers = np.array(["red", "blue"] * (ROWS // 2)), np.arange(ROWS).astype(str)
    words[7], numbers[7] = "7", "none"
    pd.DataFrame({"a": np.arange(ROWS), "words": words, "numbers": numbers}).to_csv("t.csv", index=False)
    said = call("release", "t.csv", "r.zarr", *LOSS)
    assert "'words' (words); 'numbers' (numbers, with words between them that would count as missing)" in said.message
    pd.DataFrame({"a": np.arange(ROWS) % 97, "numbers": numbers}).to_csv("alone.csv", index=False)
    assert (
        "Words between the numbers of numbers count as missing." in call("release", "alone.csv", "a.zarr", *LOSS).told
    )
    draft = (folder / "t.schema.toml").read_text()
    assert 'name = "words"\nkind = "category"' in draft
    assert 'name = "numbers"\nkind = "number"  # looks like numbers, with words between them' in draft


def test_odd_files_have_a_draft_that_is_read_and_a_command_that_can_be_typed(folder: Path, call: Call) -> None:
    for name in ("a\x7fb.csv", "-w.csv", "an\udcffother.csv"):
        table().to_csv(folder / name, index=False)
        said = call("release", *LOSS, "--", name, "r.zarr")
        assert said.code == 4, said.err
        (draft,) = folder.glob("*.schema.toml")
        completed(draft)
        assert dpdist.Schema.read(draft).each_row_is_a_person
        if name.isprintable():
            words = following(said.message)
            assert words[words.index("--") - 2 : words.index("--")] == ["--schema", draft.name]
        draft.unlink()
    table().assign(again=1).rename(columns={"again": "city"}).to_csv("twice.csv", index=False)
    assert "several columns with the same name: 'city'" in call("release", "twice.csv", "r.zarr", *LOSS).message


def test_a_draft_beside_files_is_no_file_of_their_folder(folder: Path, call: Call) -> None:
    (folder / "data").mkdir()
    table()[["income", "visits"]].assign(word="a").to_csv("data/t.csv", index=False)
    assert call("release", "data/t.csv", "r.zarr", *LOSS).code == 4
    Path("data/t.csv").write_text("income,visits\n1,2\n3,4\n")
    assert call("ingest", "data", "rows.zarr").code == 0


def test_whose_a_row_is_is_asked_of_another_table_with_the_same_columns(folder: Path, call: Call) -> None:
    table().to_csv("t.csv", index=False)
    said = call("release", "t.csv", "r.zarr", *LOSS)
    completed(folder / "t.schema.toml")
    assert call(*following(said.message)).code == 0
    table().head(ROWS - 9).to_csv("u.csv", index=False)
    said = call("release", "u.csv", "u.release.zarr", *LOSS, "--schema", "r.zarr")
    assert (said.code, "persons: customer_id" in said.message) == (2, True)


def test_the_demo_touches_no_table_of_yours(folder: Path, call: Call) -> None:
    (folder / "mine").mkdir()
    table().to_csv("mine/customers.csv", index=False)
    said = call("demo", "mine")
    assert (said.code, "mine/customers.csv is not that of the demo" in said.message) == (4, True)
    assert sorted(path.name for path in (folder / "mine").iterdir()) == ["customers.csv"]
    (folder / "file").touch()
    assert "file is no folder" in call("demo", "file").message


def test_the_demo_says_where_it_cannot_write(folder: Path, call: Call) -> None:
    (folder / "file").touch()
    said = call("demo", "file/below")
    assert said.code == 4
    assert said.message.startswith("dpdist: The folder file/below cannot be created: ")


def test_the_demo_runs_again_where_the_first_was_deleted(folder: Path, call: Call) -> None:
    for _ in range(2):  # its customers are invented: no budget of theirs is anywhere
        assert call("demo").code == 0
        shutil.rmtree(folder / "dpdist-demo")


def test_what_was_said_of_persons_is_in_the_draft(folder: Path, call: Call) -> None:
    table().to_csv("t.csv", index=False)
    said = call("release", "t.csv", "r.zarr", *LOSS, "--person", "customer_id", "--max-rows", 2)
    assert "persons" not in said.message
    draft = folder / "t.schema.toml"
    assert 'name = "customer_id"\nkind = "privacy unit"' in draft.read_text()
    completed(draft)
    went_on = call(*following(said.message))
    assert (went_on.code, "of one customer_id are protected together" in went_on.err) == (0, True), went_on.told
    draft.unlink()
    said = call("release", "t.csv", "r.zarr", *LOSS, "--each-row-is-a-person")
    assert "\neach_row_is_a_person = true\n" in draft.read_text()
    completed(draft)
    assert call("forecast", *following(said.message)[1:2], *following(said.message)[3:]).code == 0


def test_an_id_that_is_ignored_is_no_answer_to_whose_a_row_is(folder: Path, call: Call) -> None:
    table().to_csv("t.csv", index=False)
    said = call("release", "t.csv", "r.zarr", *LOSS)
    draft = folder / "t.schema.toml"
    completed(draft)
    text = draft.read_text()
    draft.write_text(text.replace("each_row_is_a_person = true", "each_row_is_a_person = false"))
    asked = call(*following(said.message))
    assert (asked.code, "named like an identifier of persons: customer_id" in asked.message) == (2, True)
    draft.write_text(text.replace('kind = "ignored"', 'kind = "privacy unit"'))
    assert "each_row_is_a_person contradicts the privacy unit" in call(*following(said.message)).message


def test_ranges_are_asked_only_where_the_release_needs_them(folder: Path, call: Call) -> None:
    table().to_csv("t.csv", index=False)
    said = call("release", "t.csv", "r.zarr", *LOSS, "--clip", "schema", "--centre", "schema")
    draft = folder / "t.schema.toml"
    assert draft.read_text().count("range = []  # fill in") == 3
    completed(draft)
    text = draft.read_text()
    for name, ends in (("income", "[20_000, 40_000]"), ("visits", "[0, 30]")):
        text = re.sub(rf'(name = "{name}"(?:\n.+)*?\nrange = )\[\].*', rf"\g<1>{ends}", text)
    draft.write_text(text)
    went_on = call(*following(said.message))
    assert went_on.code == 0, went_on.told
    draft.unlink()
    call("release", "t.csv", "r.zarr", *LOSS)
    assert draft.read_text().count("range = []  # fill in") == 1, "dates are far from 0"


def test_columns_are_kept_or_left_out(folder: Path, call: Call) -> None:
    frame = table()
    frame.to_csv("t.csv", index=False)
    words = "joined,city,left"
    said = call("release", "t.csv", "r.zarr", *LOSS, "--ignore", words)
    assert (said.code, "persons: customer_id" in said.message) == (2, True)  # to leave a column out answers nothing
    more = ("--each-row-is-a-person", "--budget-epsilon", "9", "--budget-delta", "1e-5")
    left_out = call("release", "t.csv", "r.zarr", *LOSS, *more, "--ignore", words)
    assert left_out.code == 0, left_out.told
    assert dpdist.open_release("r.zarr").names == ("income", "visits")
    assert call("release", "t.csv", "k.zarr", *LOSS, *more[:1], "--columns", "visits,income").code == 0
    assert dpdist.open_release("k.zarr").names == ("visits", "income")
    forecast = call("forecast", "t.csv", *LOSS, *more[:1], "--columns", "visits,income")
    assert "n = 4000, d = 2." in forecast.out
    for options, reason in (
        (("--columns", "visits,nothing"), "has no column 'nothing'"), (("--ignore", "nothing"), "has no column 'nothi"),
        (("--ignore", "city", "--columns", "visits,income"), "exclude each other"),
        (("--columns", "visits,visits"), "named twice"),
    ):  # fmt: skip
        said = call("release", "t.csv", "w.zarr", *LOSS, *more[:1], *options)
        assert (said.code, reason in said.message) == (2, True), said.message
    said = call("release", "t.csv", "s.zarr", *LOSS, "--ignore", "left", "--each-row-is-a-person")
    assert "'left'" not in said.message
    completed(folder / "t.schema.toml")
    went_on = call(*following(said.message))
    assert went_on.code == 0, went_on.told
    found = dpdist.open_release("s.zarr").names
    assert not any(name.startswith("left") for name in found)
    kept = call("release", "t.csv", "o.zarr", *LOSS, "--schema", "t.schema.toml", "--columns", "city,income")
    assert kept.code == 0, kept.told
    assert {name.partition("=")[0] for name in dpdist.open_release("o.zarr").names} == {"city", "income"}
    assert call("release", "t.csv", "p.zarr", *LOSS, "--schema", "t.schema.toml", "--columns", "income,city").code == 0
    assert dpdist.open_release("p.zarr").names[0] == "income", "in the order that was asked for"
    np.save("n.npy", np.random.default_rng(2).normal(size=(ROWS, 3)))
    assert call("release", "n.npy", "n.release.zarr", *LOSS, "--ignore", "c1").code == 0
    assert dpdist.open_release("n.release.zarr").names == ("c0", "c2")
    said = call("release", "n.npy", "none.zarr", *LOSS, "--ignore", "c0,c1,c2")
    assert (said.code, Path("none.zarr").exists()) != (0, True)
    assert said.code in {2, 4}
    assert call("release", "n.npy", "none.zarr", *LOSS, "--columns", "").code == 2


def test_python_gets_the_same_draft_and_takes_it(folder: Path) -> None:
    table().to_csv("t.csv", index=False)
    with pytest.raises(DataError, match=r"'city' \(words\).*Then pass schema='t.schema.toml'\.$"):
        dpdist.private_pca("t.csv", epsilon=1, delta=1e-6)
    completed(folder / "t.schema.toml")
    said: list[str] = []
    fitted = dpdist.private_pca("t.csv", epsilon=1, delta=1e-6, schema="t.schema.toml", n_components=1, say=said.append)
    assert "left=yes" in fitted.release_.names
    frame = pd.read_csv("t.csv").head(ROWS - 500)
    memory = dpdist.private_pca(frame, epsilon=1, delta=1e-6, schema="t.schema.toml", n_components=1, say=said.append)
    assert memory.release_.names == fitted.release_.names
    assert "Each row is protected as a person." in said[-1]


def test_a_file_in_a_read_only_folder_is_released_by_what_is_typed(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mounted").mkdir()
    numbers = np.random.default_rng(1).normal(size=(ROWS, 3))
    pd.DataFrame(numbers, columns=list("abc")).to_csv("mounted/t.csv", index=False)
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (mode & os.W_OK and "mounted" in str(path)) and access(path, mode)
    )
    said = call("release", "mounted/t.csv", "r.zarr", *LOSS)
    assert (said.code, "The folder of mounted/t.csv is not writable" in said.message) == (4, True)
    ingest, release = re.findall(r"dpdist (ingest .*?); and release these: dpdist (release .*?), with", said.message)[0]
    assert call(*shlex.split(ingest)).code == 0
    assert call(*shlex.split(release.replace("RELEASE", "r.zarr")), *LOSS).code == 0
    assert (folder / "t.ledger").exists()
