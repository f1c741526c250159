"""Whose rows they are is asked, or told, wherever a column or label is named like a person."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import anndata
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray
from support.cli_scene import Call

import dpdist
from dpdist import Column, Schema
from dpdist.core.errors import UsageError

ROWS = 4000
LOSS = ("--epsilon", "1", "--delta", "1e-6")
CELLS = [f"cell {row}" for row in range(ROWS)]
LIKE = "1 column is named like an identifier of persons: "


@pytest.fixture
def folder(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001 - its own state
    monkeypatch.chdir(tmp_path)
    return tmp_path


def frame(**more: Any) -> pd.DataFrame:
    values = np.random.default_rng(1).normal(size=(ROWS, 2))
    return pd.DataFrame(values, columns=["height", "weight"]).assign(**more)


def numbers(name: str, kind: str) -> Schema:
    return Schema([Column("height", "number"), Column("weight", "number"), Column(name, kind)])


def told(source: Any, folder: Path, **options: Any) -> str:
    messages: list[str] = []
    dpdist.ingest_rows(source, folder / f"{len(list(folder.iterdir()))}.zarr", say=messages.append, **options)
    return "\n".join(messages)


@pytest.mark.parametrize("kind", ["ignored", "integer"])
def test_a_schema_without_a_privacy_unit_is_asked_about_its_columns_too(folder: Path, call: Call, kind: str) -> None:
    frame(customer_id=np.arange(ROWS) // 4).to_parquet("t.parquet")
    schema = Path("schema.toml")
    schema.write_text(
        "".join(f'[[column]]\nname = "{name}"\nkind = "number"\n' for name in ("height", "weight"))
        + f'[[column]]\nname = "customer_id"\nkind = "{kind}"\n'
    )
    asked = ("release", "t.parquet", "r.zarr", *LOSS, "--schema", "schema.toml")
    said = call(*asked)
    assert (said.code, f"{LIKE}customer_id." in said.message) == (2, True)
    assert 'declare customer_id in the schema (kind = "privacy unit"' in said.message
    assert not (folder / "t.zarr").exists()
    said = call(*asked, "--each-row-is-a-person")
    assert (said.code, "Each row is protected as a person." in said.told) == (0, True)
    schema.write_text("max_rows = 2\n" + schema.read_text().replace(f'"{kind}"', '"privacy unit"'))
    said = call("release", "t.parquet", "u.zarr", "--epsilon", "0.5", "--delta", "1e-6", "--schema", "schema.toml")
    assert "named like" not in said.told


def test_a_table_without_such_a_name_is_told_what_is_assumed(folder: Path, call: Call) -> None:  # noqa: ARG001
    frame().to_parquet("t.parquet")
    said = call("release", "t.parquet", "r.zarr", *LOSS)
    assert "No column is named like a person, so each row is assumed to be a different person." in said.told
    decisions: list[str] = []
    dpdist.private_pca(frame(), epsilon=1, delta=1e-6, say=decisions.append)
    assert "No column is named like a person" in decisions[0]


@pytest.mark.usefixtures("folder")
def test_what_is_left_out_does_not_depend_on_how_a_column_is_stored(call: Call) -> None:
    """Whole numbers with a gap are stored by pandas as doubles: one cell would decide what is published."""
    whole, gap = np.arange(ROWS), np.where(np.arange(ROWS) == 7, np.nan, np.arange(ROWS))
    for name, values in (("whole", whole), ("gap", gap), ("fraction", whole + 0.5)):
        frame(hadm_id=values).to_parquet(f"{name}.parquet")
        said = call("release", f"{name}.parquet", f"{name}.release.zarr", *LOSS)
        assert (said.code, f"{LIKE}hadm_id." in said.message) == (2, True)
        said = call("release", f"{name}.parquet", f"{name}.release.zarr", *LOSS, "--each-row-is-a-person")
        assert said.code == 0
        assert dpdist.open_release(f"{name}.release.zarr").names == ("height", "weight")


def test_text_that_names_persons_needs_no_schema(folder: Path, call: Call) -> None:
    frame(username=[f"u{row // 4}" for row in range(ROWS)]).to_csv("t.csv", index=False)
    asked = ("release", "t.csv", folder / "r.zarr", *LOSS)
    said = call(*asked)
    assert (said.code, f"{LIKE}username." in said.message) == (2, True)
    said = call(*asked, "--each-row-is-a-person")
    assert (said.code, "2 columns, without username." in said.told) == (0, True)


def test_ingest_tells_that_the_row_is_the_privacy_unit_and_its_cure_works(folder: Path, call: Call) -> None:
    frame(person=np.arange(ROWS) // 4).to_csv("t.csv", index=False)
    for options in ((), ("--columns", "height,weight")):
        said = call("ingest", "t.csv", folder / f"{len(options)}.zarr", *options)
        assert (said.code, f"t.csv: {LIKE}person. The privacy unit is the row:" in said.told) == (0, True)
    cure = re.search(r"declare person with (--privacy-unit \S+), or", said.told)
    assert cure is not None
    for more, rows in (((), ROWS), (("--max-rows", 2), ROWS // 2)):
        said = call("ingest", "t.csv", folder / f"unit{rows}.zarr", *shlex.split(cure[1]), *more)
        assert (said.code, "named like" in said.told) == (0, False)
        assert dpdist.open_rows(folder / f"unit{rows}.zarr").rows == rows
    assert "named like" not in told(frame(age=1), folder)


def test_every_way_to_rows_tells_it(folder: Path, call: Call) -> None:
    persons = frame(driver_id=np.arange(ROWS) // 4)
    persons.to_parquet("t.parquet")
    like = f"{LIKE}driver_id. The privacy unit is the row"
    assert like in told("t.parquet", folder)
    assert like in told("t.parquet", folder, schema=numbers("driver_id", "ignored"))
    assert like in told("t.parquet", folder, schema=Schema(numbers("x", "number").columns[:2], others="ignored"))
    assert like in told(persons, folder)
    assert like in told(persons.set_index("driver_id"), folder)
    assert like in told(dd.from_pandas(persons, npartitions=2), folder)
    rows = xarray.DataArray(frame(), dims=("row", "item"), coords={"driver_id": ("row", np.arange(ROWS))})
    assert like in told(rows, folder)
    said = call("register", "t.parquet", folder / "placed.zarr")
    copied = f"{like}: if a person may have several rows, copy the rows: dpdist ingest"
    assert (said.code, copied in said.told) == (0, True)
    Path("job.toml").write_text(
        '[rows]\nsource = "t.parquet"\npath = "job.zarr"\ncolumns = ["height", "weight"]\nbudget_epsilon = 1\n'
        'budget_delta = 1e-6\n[release]\npath = "job.release.zarr"\nepsilon = 1\ndelta = 1e-6\nclip = 5.0\n'
    )
    said = call("run", "job.toml")
    assert (said.code, like in said.told) == (0, True), said.told


@pytest.mark.usefixtures("folder")
def test_private_pca_asks_of_every_table_in_memory() -> None:
    donors = np.arange(ROWS) // 4
    rows = xarray.DataArray(frame(), dims=("row", "item"))
    tables = {
        "donor": [
            frame(donor=donors), frame().set_index(pd.Index(donors, name="donor")),
            dd.from_pandas(frame(donor=donors), npartitions=2), rows.assign_coords(donor=("row", donors)),
            xarray.Dataset({"v": rows}).assign_coords(donor=("row", donors)),
            rows.assign_coords(item=["donor", "weight"]),
        ],
        "obs/donor": [anndata.AnnData(frame().to_numpy(), obs=pd.DataFrame({"donor": donors}, index=CELLS))],
    }  # fmt: skip
    for name, given in tables.items():
        for table in given:
            with pytest.raises(UsageError, match=f"{LIKE}{name}"):
                dpdist.private_pca(table, epsilon=1, delta=1e-6)
    with pytest.raises(UsageError, match=f"{LIKE}donor"):
        dpdist.private_pca(frame(donor=donors), epsilon=1, delta=1e-6, schema=numbers("donor", "ignored"))
    for table in (*tables["obs/donor"], frame(donor=donors)[1:] + 1):
        assert dpdist.private_pca(table, epsilon=1, delta=1e-6, each_row_is_a_person=True).n_features_in_ == 2


@pytest.mark.usefixtures("folder")
def test_genes_and_variants_are_no_persons(call: Call) -> None:
    genes = pd.DataFrame(index=["ID1", "NAME"])
    anndata.AnnData(frame().to_numpy(), var=genes).write_h5ad("t.h5ad")
    assert call("release", "t.h5ad", "r.zarr", *LOSS).code == 0
