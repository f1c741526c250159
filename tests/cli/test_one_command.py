"""From a file to an answer by one command: decisions are reported, and what software cannot know is asked."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.cli_scene import Call, tree
from support.ingest_scene import GENES, write_h5ad

import dpdist
from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ingest import write
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.pipeline import table as module
from dpdist.core.pipeline.release import release_table
from dpdist.core.runtime.cluster import Cluster

ROWS = 4000
LOSS = ("--epsilon", "1", "--delta", "1e-6")


@pytest.fixture
def folder(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001 - its own state
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(seed: int = 1) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    size = random.normal(size=ROWS)
    frame = pd.DataFrame({
        "height": 170 + 9 * size, "weight": 70 + 12 * size + 6 * random.normal(size=ROWS),
        "income": 30_000 + 9000 * random.normal(size=ROWS), "visits": random.poisson(3, ROWS),
    })  # fmt: skip
    return frame.mask(random.random(frame.shape) < 0.05)


def test_one_command_publishes_prints_components_and_is_free_again(folder: Path, call: Call) -> None:
    table().to_csv("t.csv", index=False, na_rep="unknown")
    said = call("release", "t.csv", "r.zarr", *LOSS, "--json")
    assert (said.code, said.json["fresh"], said.json["n"]) == (0, True, ROWS)
    assert said.json["shares"][0] == pytest.approx(0.48, abs=0.05)
    for decision in (
        "t.csv: 4000 rows of 4 columns.",
        "No column is named like a person, so each row is assumed to be a different person.",
        "epsilon 1, delta 1e-06, in t.ledger.",
        "Missing cells, if any, are replaced by the centre of their column, which weakens its correlations.",
    ):  # fmt: skip
        assert decision in said.told
    before = tree(folder / "r.zarr")
    again = call("release", "t.csv", "again.zarr", *LOSS)
    assert (again.code, "nothing spent" in again.told) == (0, True)
    assert tree(folder / "again.zarr") == before
    assert "Its rows are in t.zarr." in again.told
    headed = call("release", "t.csv", "headed.zarr", *LOSS, "--header", "yes")  # it was recognised without
    assert (headed.code, tree(folder / "headed.zarr") == before) == (0, True)
    assert Ledger(folder / "t.ledger").balance().charged == 1
    assert {path.name for path in folder.iterdir()} >= {"t.zarr", "t.ledger", "r.zarr"}


def test_after_add_remove_no_forecast_and_no_refusal_tells_the_number_of_rows(folder: Path, call: Call) -> None:
    table().to_csv("t.csv", index=False)
    assert call("release", "t.csv", "r.zarr", *LOSS, "--neighbours", "add-remove", "--budget-epsilon", "3").code == 0
    for source in ("t.csv", "t.zarr"):
        forecast = call("forecast", source, *LOSS, "--clip", "9", "--scale", "private")
        assert (forecast.code, "A forecast needs --n" in forecast.err) == (2, True), source
        assert str(ROWS) not in forecast.told
    reviewed = list[object]()
    few = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse("0.5", "0.01"), "private", scale="private")
    for cluster in (None, Cluster(trusted_worker=True)):
        with pytest.raises(RefusedError, match="add-remove") as refused:
            release_table(open_rows("t.zarr"), folder / "x.zarr", few, cluster=cluster, review=reviewed.append)
        assert str(ROWS) not in str(refused.value)
    assert reviewed == []
    few_rows = ("--epsilon", "0.001", "--delta", "1e-6")
    (folder / "t.ledger").rename(folder / "moved.ledger")  # so nothing near the rows says what was charged
    shutil.copy(folder / "t.csv", folder / "other")
    with (folder / "t.csv").open("a") as file:
        file.write("1,2,3,4\n")  # other rows, of the same people
    for command in (
        ("forecast", "t.csv", *few_rows), ("forecast", "t.zarr", *few_rows), ("release", "t.zarr", "x.zarr", *few_rows),
        ("release", "t.zarr", "x.zarr", *few_rows, "--ledger", "none.ledger"),
        ("bound", "t.zarr", "--epsilon", "0.01", "--delta", "0.5"),
    ):  # fmt: skip
        said = call(*command)
        assert said.code != 0, command
        assert str(ROWS) not in said.told, said.told
        assert str(ROWS + 1) not in said.told
    np.save("o.npy", np.eye(50))  # a ledger of other rows in its place tells nothing either
    assert call("ingest", "o.npy", "o.zarr").code == 0
    assert call("ledger", "create", "t.ledger", "--rows", "o.zarr", "--budget-epsilon", "1").code == 0
    assert str(ROWS) not in call("forecast", "t.zarr", *few_rows).told


def test_a_copy_made_before_the_budget_tells_no_private_number_of_rows(folder: Path, call: Call) -> None:
    table().fillna(0).to_csv("t.csv", index=False)
    assert call("ingest", "t.csv", "rows.zarr").code == 0
    shutil.copytree(folder / "rows.zarr", folder / "copy.zarr")
    assert call("ledger", "create", "t.ledger", "--rows", "rows.zarr", "--budget-epsilon", "1",
                "--budget-delta", "1e-6").code == 0  # fmt: skip
    charged = (*LOSS, "--clip", "9", "--neighbours", "add-remove", "--ledger", "t.ledger")
    done = call("release", "rows.zarr", "r.zarr", *charged)
    assert done.code == 0, done.err
    for command in (
        ("forecast", "copy.zarr", "--epsilon", "0.001", "--delta", "1e-6"),
        ("release", "copy.zarr", "x.zarr", "--epsilon", "0.001", "--delta", "1e-6"),
        ("bound", "copy.zarr", "--epsilon", "0.01", "--delta", "0.5"),
    ):  # fmt: skip
        said = call(*command)
        assert said.code != 0, command
        assert str(ROWS) not in said.told, said.told


def test_a_forecast_of_a_file_is_of_what_its_release_would_be(folder: Path, call: Call) -> None:
    frame = table().assign(person=np.arange(ROWS) // 8)
    frame.to_csv("t.csv", index=False)
    owned = ("--privacy-unit", "person")
    kept = call("forecast", "t.csv", *LOSS, *owned, "--max-rows", "2", "--clip", "9", "--scale", "private")
    assert (kept.code, "A forecast needs --n" in kept.err) == (2, True)  # as the limit decides how many rows are kept
    large = ("t.csv", "--epsilon", "1", "--delta", "0.01", *owned, "--neighbours", "replace-one")
    forecast, release = call("forecast", *large), call("release", large[0], "r.zarr", *large[1:])
    assert "Delta 0.01 is not below one over the number of rows" in " ".join(forecast.told.split())
    assert "Delta 0.01 is not below one over the number of rows" in release.err
    assert "THE RELEASE WOULD BE REFUSED" not in call("forecast", *large, "--accept-large-delta").told
    assert not (folder / "t.ledger").exists()


def test_under_add_remove_the_number_of_rows_is_printed_nowhere(folder: Path, call: Call) -> None:
    table().to_csv("t.csv", index=False)
    said = call("release", "t.csv", "r.zarr", *LOSS, "--neighbours", "add-remove", "--verbose")
    assert said.code == 0, said.err
    decisions: list[str] = []
    found = dpdist.private_pca(table(3), epsilon=1, delta=1e-6, neighbours="add-remove", say=decisions.append)
    assert "The table: 4 columns." in decisions[0]
    for text in (
        said.told,
        *decisions,
        found.summary(),
        found._repr_html_(),
        (folder / "r.zarr/zarr.json").read_text(),
    ):
        assert str(ROWS) not in text


@pytest.mark.usefixtures("folder")
def test_a_private_number_of_rows_is_printed_by_no_later_command_under_the_other_relation(call: Call) -> None:
    table().to_csv("t.csv", index=False)
    assert call("release", "t.csv", "r.zarr", *LOSS, "--neighbours", "add-remove").code == 0
    for command in (
        ("release", "t.csv", "r2.zarr", *LOSS), ("release", "t.zarr", "r2.zarr", "--epsilon", "0.001"),
        ("release", "t.zarr", "r2.zarr", "--epsilon", "1", "--delta", "0.001"),
    ):  # fmt: skip
        said = call(*command)
        assert (said.code, "is for the neighbouring relation add-remove" in said.err) == (3, True), said.err
        assert str(ROWS) not in said.told


def test_another_epsilon_on_the_file_or_on_a_copy_is_refused(folder: Path, call: Call) -> None:
    table().to_parquet("t.parquet")
    assert call("release", "t.parquet", "r.zarr", *LOSS).code == 0
    said = call("release", "t.parquet", "r2.zarr", "--epsilon", "0.5", "--delta", "1e-6")
    assert (said.code, "left: next to nothing" in said.told) == (3, True)
    (folder / "copy.parquet").write_bytes((folder / "t.parquet").read_bytes())
    said = call("release", "copy.parquet", "copied.zarr", *LOSS)
    assert (said.code, "nothing spent" in said.out) == (0, True)
    said = call("release", "copy.parquet", "r2.zarr", "--epsilon", "0.5", "--delta", "1e-6")
    assert (said.code, f"the budget of {folder}/t.ledger is epsilon 1" in said.err) == (3, True)
    assert not (folder / "copy.ledger").exists()
    table(seed=2).to_parquet("t.parquet")
    said = call("release", "t.parquet", "r2.zarr", *LOSS)
    assert (said.code, "t.zarr has other rows than t.parquet now." in said.message) == (4, True)
    assert not (folder / "r2.zarr").exists()


def test_a_column_named_like_a_person_needs_a_word_and_the_cures_work_as_typed(folder: Path, call: Call) -> None:
    rows = pd.concat([table(seed) for seed in range(3)], ignore_index=True)
    rows.assign(PatientId=np.arange(3 * ROWS) // 4).to_parquet("t.parquet")
    said = call("release", "t.parquet", "r.zarr", *LOSS)
    assert said.code == 2
    assert "1 column is named like an identifier of persons: PatientId." in said.message
    assert not (folder / "t.zarr").exists()
    cure = re.search(r"give (--privacy-unit \S+): all rows", said.message)
    assert cure is not None
    said = call("release", "t.parquet", "r.zarr", *LOSS, *shlex.split(cure[1]))
    assert (said.code, "All rows of one PatientId are protected together." in said.err) == (0, True)
    release = dpdist.open_release("r.zarr")
    assert (release.rows, release.unit is not None, len(release.names)) == (3 * ROWS, True, 4)
    rows.assign(PatientId=np.arange(3 * ROWS) // 4).to_parquet("m.parquet")
    said = call("release", "m.parquet", "m2.zarr", *LOSS, *shlex.split(cure[1]), "--max-rows", 2)
    assert (said.code, "protects another privacy unit" in said.err) == (3, True)  # the same file
    others = pd.concat([table(seed) for seed in range(4, 7)], ignore_index=True)
    others.assign(PatientId=np.arange(3 * ROWS) // 4).to_parquet("n.parquet")
    said = call("release", "n.parquet", "n2.zarr", *LOSS, *shlex.split(cure[1]), "--max-rows", 2)
    assert (said.code, "one PatientId are protected together, and at most 2 of them" in said.err) == (0, True)
    (folder / "u.parquet").write_bytes(b"")
    table(seed=3).assign(PatientId=np.arange(ROWS)).to_parquet("u.parquet")
    said = call("release", "u.parquet", "u.release.zarr", *LOSS, "--each-row-is-a-person")
    assert (said.code, "4 columns, without PatientId." in said.told) == (0, True)


def test_another_schema_has_its_own_rows_and_releases_and_the_same_budget(folder: Path, call: Call) -> None:
    """With the id of the first release it would publish the old answer, or draw it with other rows."""
    table().assign(sex=np.where(np.arange(ROWS) % 2, "m", "f")).to_parquet("t.parquet")
    for number, words in enumerate(('"m", "f"', '"f", "m"')):
        lines = [f'[[column]]\nname = "{name}"\nkind = "number"\nmissing = "centre"' for name in table().columns]
        lines.append(f'[[column]]\nname = "sex"\nkind = "category"\ncategories = [{words}]')
        Path(f"s{number}.toml").write_text("\n".join(lines))
    asked = ("--epsilon", "1", "--delta", "1e-6", "--budget-epsilon", "9", "--budget-delta", "1e-5")
    assert call("release", "t.parquet", "r0.zarr", *asked, "--schema", "s0.toml").code == 0
    second = call("release", "t.parquet", "r1.zarr", *asked[:4], "--schema", "s1.toml")
    assert (second.code, "released now" in second.out) == (0, True), second.err
    assert dpdist.open_release("r1.zarr").names[-2:] == ("sex=f", "sex=m")
    assert Ledger(folder / "t.ledger").balance().charged == 2
    assert "nothing spent" in call("release", "t.parquet", "again.zarr", *asked[:4], "--schema", "s0.toml").out
    frame = pd.read_parquet("t.parquet").assign(who=np.arange(ROWS) // 2).drop(columns="sex")
    frame.to_parquet("u.parquet")
    assert call("release", "u.parquet", "u0.zarr", *asked).code == 0
    said = call("release", "u.parquet", "u1.zarr", *LOSS, "--person", "who", "--max-rows", 2)
    assert (said.code, "protects another privacy unit" in said.err) == (3, True)
    assert call("release", "u.parquet", "u1.zarr", *LOSS, "--max-rows", 2).code == 2


@pytest.mark.usefixtures("folder")
def test_what_is_for_files_is_refused_for_rows_and_a_release_over_the_rows(call: Call) -> None:
    table().to_parquet("t.parquet")
    assert call("release", "t.parquet", "t.zarr", *LOSS).code == 2
    assert call("ingest", "t.parquet", "t.zarr", "--schema", "none.toml").code == 4
    np.save("n.npy", table().fillna(0).to_numpy())
    assert call("ingest", "n.npy", "n.zarr", "--budget-epsilon", "1", "--budget-delta", "1e-6").code == 0
    said = call("release", "n.zarr", "r.zarr", *LOSS, "--each-row-is-a-person")
    assert (said.code, "n.zarr is not a file." in said.message) == (2, True)
    said = call("release", "n.npy", "r.zarr", *LOSS)
    assert said.code == 4
    assert re.search(r"n\.zarr exists already, .* release the rows there: dpdist release n\.zarr RELEASE", said.message)
    assert call("release", "n.zarr", "r.zarr", *LOSS).code == 0  # centre, scale and clip norm are chosen here, too
    assert dpdist.open_release("r.zarr").stage is not None


def test_a_request_that_cannot_succeed_declares_no_budget(folder: Path, call: Call) -> None:
    table().to_parquet("t.parquet")
    for asked, cure in (
        (("--clip", "300"), "Add --scale private"), (("--budget-epsilon", "0.5"), "exceeds the budget"),
        (("--budget-epsilon", "2", "--budget-delta", "0"), "exceeds the budget"),
    ):  # fmt: skip
        said = call("release", "t.parquet", "r.zarr", *LOSS, *asked)
        assert (said.code != 0, cure in said.message) == (True, True), said.message
    for wrong in ({"ledger": "other.ledger"}, {"budget_delta": 1e-5}):
        with pytest.raises(UsageError):
            dpdist.private_pca("t.parquet", epsilon=1, delta=1e-6, **wrong)
    assert not (folder / "t.ledger").exists()
    assert call("release", "t.parquet", "r.zarr", *LOSS).code == 0
    table().head(50).to_parquet("few.parquet")
    said = call("release", "few.parquet", "few.release.zarr", *LOSS)
    assert (said.code, (folder / "few.ledger").exists()) == (3, False)
    assert "Nothing was spent." in said.message
    assert "The rows of few.parquet were copied to few.zarr." in said.message


def test_whose_cells_they_are_is_asked_too(folder: Path, call: Call) -> None:  # noqa: ARG001
    donors = pd.DataFrame({"donor": [f"d{row % 4}" for row in range(40)]}, index=[str(row) for row in range(40)])
    write_h5ad(Path("t.h5ad"), np.random.default_rng(1).normal(size=(40, len(GENES))), obs=donors)
    said = call("release", "t.h5ad", "r.zarr", "--epsilon", "1")
    assert (said.code, "named like an identifier of persons: obs/donor" in said.message) == (2, True)


def before_ingest(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen between the decision where rows are written and their first byte."""
    original = write.ingest

    def delayed(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(module, "ingest", original)
        act()
        return original(*given, **options)

    monkeypatch.setattr(module, "ingest", delayed)


def test_rows_that_another_process_made_first_are_not_taken_for_these(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    table().to_csv("t.csv", index=False)
    table(seed=2).to_csv("t.csv.gz", index=False)
    before_ingest(monkeypatch, lambda: call("release", "t.csv.gz", "other.zarr", *LOSS))
    said = call("release", "t.csv", "r.zarr", *LOSS)
    assert (said.code, "t.zarr has other rows than t.csv now." in said.message) == (4, True)
    assert not (folder / "r.zarr").exists()
    table().assign(who=np.arange(ROWS) // 2).to_csv("u.csv", index=False)
    before_ingest(monkeypatch, lambda: call("release", "u.csv", "u1.zarr", *LOSS))
    said = call("release", "u.csv", "u2.zarr", *LOSS, "--person", "who", "--max-rows", 1)
    assert (said.code, "protects another privacy unit" in said.err) == (3, True)
    assert not (folder / "u2.zarr").exists()


def test_a_file_that_changes_while_it_is_read_has_no_rows(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    table().to_csv("t.csv", index=False)
    original = write.ingest

    def changed(*given: Any, **options: Any) -> None:
        table(seed=2).to_csv("t.csv", index=False)
        original(*given, **options)
        raise AssertionError("these rows were published, and a process that dies here leaves them")

    with monkeypatch.context() as patch:
        patch.setattr(module, "ingest", changed)
        said = call("release", "t.csv", "r.zarr", *LOSS)
    assert (said.code, "t.csv changed while it was read" in said.message) == (4, True)
    assert not list(folder.glob("*.zarr"))
    assert call("release", "t.csv", "r.zarr", *LOSS).code == 0


def test_a_folder_that_was_moved_takes_its_ledger_along(tmp_path: Path, state: Path, call: Call) -> None:  # noqa: ARG001
    (tmp_path / "a").mkdir()
    table().to_csv(tmp_path / "a/t.csv", index=False)
    assert call("release", tmp_path / "a/t.csv", tmp_path / "r.zarr", *LOSS).code == 0
    (tmp_path / "a").rename(tmp_path / "b")
    said = call("release", tmp_path / "b/t.csv", tmp_path / "again.zarr", *LOSS)
    assert (said.code, "nothing spent" in said.out) == (0, True)
    (tmp_path / "b/t.ledger").rename(tmp_path / "c.ledger")
    said = call("release", tmp_path / "b/t.csv", tmp_path / "third.zarr", *LOSS)
    assert (said.code, f"or move it to {tmp_path}/b/t.ledger" in said.message) == (4, True)


def test_python_has_the_same_in_one_call(folder: Path) -> None:
    frame = table()
    frame.to_parquet("t.parquet")
    decisions: list[str] = []
    found = dpdist.private_pca("t.parquet", epsilon=1, delta=1e-6, say=decisions.append)
    assert "each row" in decisions[0].lower()
    again = dpdist.private_pca(folder / "t.parquet", epsilon=1, delta=1e-6, say=decisions.append)
    assert np.array_equal(found.components_, again.components_)
    with pytest.raises(RefusedError, match="left: next to nothing"):
        dpdist.private_pca("t.parquet", epsilon=2, delta=1e-6)
    held = dpdist.private_pca(frame[1:], epsilon=1, delta=1e-6, say=decisions.append)
    direction = np.array([0.5**0.5, 0.5**0.5, 0, 0])
    for pca in (found, held):
        assert abs(pca.components_[0] @ direction) > 0.98
    with pytest.raises(UsageError, match="named like an identifier of persons: user_id"):
        dpdist.private_pca(frame.assign(user_id=1), epsilon=1)
    with pytest.raises(
        DataError, match=r"2 columns are not numeric.*: 'w', 'mixed'.*Then pass schema='table.schema.toml'"
    ):
        dpdist.private_pca(frame.assign(w="word", mixed=[1, "1,5"] * (ROWS // 2)), epsilon=1)
    with pytest.raises(UsageError, match="leave max_rows out"):
        dpdist.private_pca(frame, epsilon=1, privacy_unit="id", max_rows=2)
    with pytest.raises(UsageError, match="Add scale='private'"):
        dpdist.private_pca("t.parquet", epsilon=1, delta=1e-6, clip=3)
    normal = np.random.default_rng(8).normal(size=(ROWS + 9, 3))
    complete = pd.DataFrame(normal + 2 * normal[:, :1], columns=list("abc"))
    by_norm = dpdist.private_pca(complete, epsilon=1, delta=1e-6, clip=9, centre="private", say=decisions.append)
    assert (by_norm.release_.bound.scale, "without a number" in decisions[-1]) == (None, False)
    assert dpdist.PrivatePCA(epsilon=1).fit(frame.fillna(0).to_numpy()[2:] + 1).release_.bound.scale is not None


@pytest.mark.usefixtures("folder")
def test_what_is_said_of_components_that_are_not_listed_holds_of_them(call: Call) -> None:
    random = np.random.default_rng(6)
    columns: dict[str, Any] = {}
    for number, correlation in enumerate((0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)):
        first, second = random.normal(size=(2, 20_000))
        columns |= {f"a{number}": first, f"b{number}": correlation * first + np.sqrt(1 - correlation**2) * second}
    pd.DataFrame(columns).to_csv("seven.csv", index=False)
    pd.DataFrame({name: columns[name] for name in ("a0", "b0", "a1", "a2", "a3")}).to_csv("one.csv", index=False)
    loss = ("--epsilon", "8", "--delta", "1e-6")
    seven = " ".join(call("release", "seven.csv", "seven.release.zarr", *loss).out.split())
    assert re.search(
        r"The other \d+ explain less than these, or cannot be told apart\.", seven
    )  # two of them are clear
    one = " ".join(call("release", "one.csv", "one.release.zarr", *loss).out.split())
    assert re.search(r"The other \d+ explain hardly more than one column does, or cannot be told apart\.", one)
