"""What a folder is, is told from what is declared; no value of a row is, and damage is named chunk by chunk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import sentinel
from support.norms import call

from dpdist.core.errors import DataError, RefusedError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.pipeline import budget, inspect
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.rows import dataset
from dpdist.core.rows.dataset import RowsTable, created
from dpdist.core.rows.units import Unit
from dpdist.core.rows.writing import chunk_key
from dpdist.core.runtime.cluster import Cluster

BUDGET = PrivacyLoss.parse("2", "1e-5")
NAMES = tuple(f"column-{i}" for i in range(sentinel.COLUMNS))


def inspected(*arguments: object) -> tuple[int, str]:
    """Return exit code and output, as JSON and as words, of which neither holds the sentinel."""
    said, told = call("inspect", *arguments), call("inspect", *arguments, "--json")
    assert said.exit_code == told.exit_code
    everything = "".join([said.output, told.output, said.output, told.output, str(said.exception)])
    assert not sentinel.holds(everything.encode())
    row = sentinel.planted_table()[3]
    assert not any(f"{value:.6g}" in everything for value in row[1:])
    if said.exit_code == 0:
        assert json.loads(told.stdout)["path"] == str(arguments[0])
    return said.exit_code, said.stdout


def told(*arguments: object) -> str:
    """Return the words, however they are wrapped."""
    return " ".join(inspected(*arguments)[1].split())


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RowsTable:
    """Write a table with the sentinel in it, in eight chunks, and its ledger."""
    monkeypatch.setattr(Cluster, "named", False)
    return table_at(tmp_path / "rows.zarr")


def table_at(path: Path, *, compress: bool = False) -> RowsTable:
    values = sentinel.planted_table()
    how: dict[str, Any] = {"rows": sentinel.ROWS, "dtype": "float64", "names": NAMES, "unit": Unit("person", 3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_TARGET_CHUNK", sentinel.CHUNK_ROWS * values[0].nbytes)
        with created(path, budget=BUDGET, compress=compress, **how) as writer:
            writer.append(values)
    budget.create_ledger(budget.default_ledger(path), path)
    return open_rows(path)


def altered(chunk: Path) -> None:
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)


def test_rows_are_described_and_no_value_of_them_is_told(rows: RowsTable, tmp_path: Path) -> None:
    for table in (rows, table_at(tmp_path / "compressed.zarr", compress=True)):
        words = told(table.path)
        for part in (
            "PRIVATE", str(sentinel.ROWS), "72: column-0, column-1", "and 66 more", "float64, 8 chunks of 40 rows",
            "Blosc LZ4" if table.compressed else "compression none", "CRC32C", table.dataset_id,
            "all rows of one person, 3 at most",
            ".ledger: budget epsilon 2, delta 1e-05; charged 0 releases; left: one more release",
        ):  # fmt: skip
            assert part in words
        facts = inspect.inspect_path(table.path)
        assert facts.kind == "rows"
        assert facts.values["bytes"] == sum(p.stat().st_size for p in (table.path / "c").rglob("*") if p.is_file())
        assert facts.values["columns"] == NAMES
        assert facts.damaged is None  # nobody looked


def test_every_damaged_chunk_is_named(rows: RowsTable) -> None:
    seen: list[tuple[str, int, int]] = []
    assert inspect.inspect_path(rows.path, verify=True, progress=lambda *at: seen.append(at)).damaged == ()
    assert seen == [("Checking chunks", i, 8) for i in range(9)]
    code, words = inspected(rows.path, "--verify")
    assert (code, "nothing is damaged" in words) == (0, True)
    altered(rows.path / chunk_key(1))
    (rows.path / chunk_key(4)).unlink()
    altered(rows.path / chunk_key(7))
    code, words = inspected(rows.path, "--verify")
    assert code == 4
    assert [line.split()[2] for line in words.splitlines() if line.startswith("DAMAGED")] == ["1", "4", "7"]
    # without reading, what is missing is seen all the same, and what was altered is not
    facts = inspect.inspect_path(rows.path)
    assert [sentence.split()[1] for sentence in facts.damaged or ()] == ["4"]
    assert inspected(rows.path)[0] == 4


def test_the_ledger_and_its_balance_are_told(rows: RowsTable, tmp_path: Path) -> None:
    asked = ("bound", rows.path, "--epsilon", "1", "--grid", "1:8192:1", "--quantile", "0.5")
    assert call(*asked).exit_code in {0, 4}
    assert "budget epsilon 2, delta 1e-05; charged 1 release; left: one " in told(rows.path)
    place, moved = budget.default_ledger(rows.path), tmp_path / "moved.ledger"
    place.rename(moved)
    assert f"{place} is not there; budget epsilon 2" in told(rows.path)
    assert "charged 1 release; left" in told(rows.path, "--ledger", moved)
    other = plain(tmp_path / "other.zarr")
    assert "other.ledger is not created; no budget declared" in told(other)
    budget.create_ledger(budget.default_ledger(other), other, BUDGET)
    assert "is of other rows" in told(rows.path, "--ledger", budget.default_ledger(other))
    with pytest.raises(DataError, match="dpdist ledger show"):
        inspect.inspect_path(moved)


def plain(path: Path) -> Path:
    with created(path, rows=2, dtype="uint8", names=("a", "b"), budget=None) as writer:
        writer.append(np.zeros((2, 2), dtype=np.uint8))
    return path


def test_releases_models_and_scores_say_what_they_are(rows: RowsTable, tmp_path: Path) -> None:
    release, model, scores = (tmp_path / f"{name}.zarr" for name in ("release", "model", "scores"))
    made = call("release", rows.path, release, "--epsilon", "1", "--delta", "1e-6", "--clip", "2048")
    assert made.exit_code == 0
    assert call("pca", release, model, "--components", "2").exit_code == 0
    assert call("project", rows.path, model, scores).exit_code == 0
    size = str(sentinel.ROWS)
    of = "epsilon 1, delta 1e-06 under replace-one of the rows of one person"
    for path, parts in (
        (release, ("Public", "gaussian, private", of, "2048", size, "nothing is damaged")),
        (model, ("Public", "2, with eigenvalues", "gaussian, private")),
        (scores, ("PRIVATE", size, rows.dataset_id, "nothing is damaged")),
    ):
        words = inspected(path, *["--verify"] * (path == scores))[1]
        assert [part for part in parts if part not in words] == []
    altered(scores / "c" / "2" / "0")
    (scores / "c" / "5" / "0").unlink()
    damaged = inspect.inspect_path(scores, verify=True).damaged
    assert [sentence.split()[1] for sentence in damaged or ()] == ["2", "5"]
    assert inspected(scores, "--verify")[0] == 4
    said = json.loads((model / "zarr.json").read_text())
    del said["attributes"]["dpdist"]["mechanism"]
    (model / "zarr.json").write_text(json.dumps(said))
    with pytest.raises(DataError, match="damaged"):
        inspect.inspect_path(model)


def test_a_folder_of_periods_is_described_and_verified_against_its_seals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    folder = nightly_folder(tmp_path)
    code, words = inspected(folder)
    assert code == 0
    for part in ("PRIVATE", "2 closed, d1 to d2", "budget epsilon 1, delta 1e-06; charged 2 releases"):
        assert part in words
    assert "nothing is damaged" in inspected(folder, "--verify")[1]
    assert "period    d2" in inspected(folder / "d2.zarr")[1]
    chunk = folder / "d2.zarr" / "c" / "0" / "0"
    sentinel.seal(chunk, np.frombuffer(chunk.read_bytes()[:-4], dtype="<f8") + 1)
    assert inspected(folder / "d2.zarr", "--verify")[0] == 0  # its checksum is right
    code, words = inspected(folder, "--verify")  # and the seal is not
    assert (code, "differs from the rows sealed" in words) == (4, True)
    budget.default_ledger(folder).rename(tmp_path / "away")
    assert "is not there" in inspected(folder)[1]
    with pytest.raises(RefusedError, match="seals of the periods"):
        inspect.inspect_path(folder, verify=True)


def nightly_folder(tmp_path: Path) -> Path:
    """Run two nights."""
    (tmp_path / "incoming").mkdir()
    for seed, name in enumerate(("d1", "d2")):
        np.save(tmp_path / "incoming" / f"{name}.npy", np.random.default_rng(seed).normal(size=(30, 3)))
    (tmp_path / "job.toml").write_text(
        '[rows]\npath = "visits"\nsource = "incoming"\nperiods = true\nbudget_epsilon = 1\nbudget_delta = 1e-6\n'
        '[release]\npath = "published"\nepsilon = 1\ndelta = 1e-6\nclip = 8.0\n'
    )
    assert call("run", tmp_path / "job.toml").exit_code == 0
    return tmp_path / "visits"


def test_anything_else_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    for name, written in {"later": "rows/9", "broken": "scores/1", "ragged": "rows/1"}.items():
        (tmp_path / f"{name}.zarr").mkdir()
        head = {"attributes": {"dpdist": {"format": f"dpdist-{written}"}}}
        (tmp_path / f"{name}.zarr" / "zarr.json").write_text(json.dumps(head))
    for name, said in {
        "nowhere": "does not exist", "empty": "was not written by dpdist", "table.csv": r"dpdist\.ingest_rows",
        "later.zarr": "dpdist-rows/9", "broken.zarr": "damaged", "ragged.zarr": "no usable rows",
    }.items():  # fmt: skip
        with pytest.raises(DataError, match=said):
            inspect.inspect_path(tmp_path / name)
