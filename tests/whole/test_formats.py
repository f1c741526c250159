"""Formats for readers that are not dpdist: JSON schemas, tables and the card; and R reads releases."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
import zarr
from faults.packages import missing, need
from formats.schemas import schemas
from support.cli_scene import Call
from support.folders import ROOT, unpack
from support.samples import SAMPLES

import dpdist
from dpdist.core.storage.arrays import array_options

HOSTILE = ["=1+1", "@x", "a,b", 'q"t', "mass"]
LOSS: dict[str, Any] = {"epsilon": 50, "delta": 1e-6, "clip": 12}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a release of five columns; the first two explain the last."""
    here = tmp_path_factory.mktemp("formats")
    rows = np.random.default_rng(1).normal(size=(4000, 5)) @ np.diag([4, 3, 2, 1, 1])
    rows[:, 4] += rows[:, 0] - rows[:, 1] / 2
    dpdist.PrivateCovariance(**LOSS, release=here / "release.zarr").fit(pd.DataFrame(rows, columns=HOSTILE))
    dpdist.fit_components(here / "release.zarr", here / "model.zarr", 2)
    return here


def attributes(path: Path) -> Any:
    return json.loads((path / "zarr.json").read_text())["attributes"]["dpdist"]


def test_the_published_schemas_are_those_of_the_code() -> None:
    for name, schema in schemas().items():
        jsonschema.Draft202012Validator.check_schema(schema)
        written = json.loads((ROOT / "docs" / "formats" / name).read_text())
        assert written == json.loads(json.dumps(schema)), "run: python docs/formats/schemas.py"


def test_stored_releases_and_models_are_as_the_schemas_say(tmp_path: Path, place: Path) -> None:
    check = jsonschema.Draft202012Validator(schemas()["release.schema.json"])
    unpack(SAMPLES, tmp_path)
    stored = (attributes(found.parent) for found in tmp_path.rglob("zarr.json") if is_release(found))
    seen = [attributes(place / "release.zarr"), *stored]
    assert len(seen) > 15
    kinds = set[str]()
    for each in seen:
        check.validate(each)
    for path, name in [
        *((path, "session.schema.json") for path in tmp_path.rglob("session.json")),
        *((path, "key.schema.json") for path in tmp_path.rglob("*.key.json")),
        *((path, "share.schema.json") for path in tmp_path.rglob("*.share")),
    ]:
        content = json.loads(path.read_bytes().partition(b"\n" if path.suffix == ".share" else b"\0")[0])
        jsonschema.Draft202012Validator(schemas()[name]).validate(content)
        assert set(content) <= set(properties(schemas()[name])), path
        kinds.add(name)
    assert len(kinds) == 3
    for each in seen:
        assert set(each) <= set(properties(schemas()["release.schema.json"]))
    dpdist.release_matrix(np.eye(3), tmp_path / "matrix", epsilon=1, frobenius=1, ledger=tmp_path / "people.ledger")
    matrix = attributes(tmp_path / "matrix")
    jsonschema.Draft202012Validator(schemas()["matrix.schema.json"]).validate(matrix)
    assert set(matrix) <= set(properties(schemas()["matrix.schema.json"]))
    models = jsonschema.Draft202012Validator(schemas()["model.schema.json"])
    models.validate(attributes(place / "model.zarr"))
    wrong: list[dict[str, Any]] = [{"format": "dpdist-release/2"}, {"columns": "abc"}, {"n": -1}, {"neighbours": "all"}]
    for change in [*wrong, {"guarantee": {}}]:
        with pytest.raises(jsonschema.ValidationError):
            check.validate(seen[0] | change)
    for key in ("bound", "status", "noise"):
        with pytest.raises(jsonschema.ValidationError):
            check.validate({name: value for name, value in seen[0].items() if name != key})


def properties(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema.get("properties", {})
    return found


def is_release(path: Path) -> bool:
    said = json.loads(path.read_text()).get("attributes", {}).get("dpdist", {})
    return isinstance(said, dict) and said.get("format") == "dpdist-release/1"


def test_a_card_says_what_the_release_promises(place: Path, call: Call) -> None:
    card = call("inspect", place / "release.zarr", "--json").json["card"]
    schema = json.loads((ROOT / "docs/formats/card.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(card)
    release = dpdist.open_release(place / "release.zarr")
    assert (card["status"], card["release_id"], card["rows"]["n"]) == ("private", release.release_id, 4000)
    assert (card["guarantee"]["epsilon"], card["guarantee"]["delta"]) == (50.0, 1e-6)
    assert card["guarantee"]["mu"] ** 2 == pytest.approx(float(release.guarantee.mu_squared))  # type: ignore[union-attr, arg-type]
    assert card["rows"]["columns"] == HOSTILE
    assert card["cautions"] == list(release.cautions) != []
    refused = call("report", place / "release.zarr", place / "card.json")
    assert (refused.code, "dpdist inspect" in refused.err) == (2, True)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_hold_all_loadings_and_coefficients_to_the_bit(
    place: Path, tmp_path: Path, call: Call, kind: str
) -> None:
    loadings, coefficients = tmp_path / f"l.{kind}", tmp_path / f"c.{kind}"
    shown = call("pca", place / "release.zarr", tmp_path / "m.zarr", "--components", "2", "--table", loadings, "--json")
    told = call("regress", place / "release.zarr", "--target", "mass", "--table", coefficients, "--json")
    assert (shown.code, told.code) == (0, 0)

    def read(path: Path) -> pd.DataFrame:
        if kind == "parquet":
            return pd.read_parquet(path)
        return pa.csv.read_csv(path).to_pandas()  # the floats of pandas 2 may be off by a bit

    names = ["'=1+1", "'@x", *HOSTILE[2:]] if kind == "csv" else HOSTILE
    found, model = read(loadings), dpdist.open_model(tmp_path / "m.zarr").components
    assert list(found.column) == names * 2
    assert list(found.component) == [1] * 5 + [2] * 5
    assert np.array_equal(found.loading, model.components.reshape(-1))
    assert np.array_equal(found.eigenvalue[::5], np.asarray(model.eigenvalues))
    first = shown.json["largest_loadings"][0][0]
    row = found[(found.component == 1) & (found.column == names[HOSTILE.index(first["name"])])]
    assert (row.low.item(), row.high.item()) == (first["low"], first["high"])
    found = read(coefficients).set_index("name")
    assert list(found.index) == ["(intercept)", *names[:4]]
    said = told.json["coefficients"]
    for name, shown_as in zip(HOSTILE[:4], names[:4], strict=True):
        assert [found.loc[shown_as][key] for key in ("value", "low", "high")] == [
            said[name][key] for key in ("value", "low", "high")
        ]
    for command, *more in (("covariance",), ("synthesise", "--rows", "3")):  # no header of a table is a formula
        assert call(command, place / "release.zarr", tmp_path / f"{command}.csv", *more).code == 0
        head = next(csv.reader((tmp_path / f"{command}.csv").read_text().splitlines()))
        assert head == ["'=1+1", "'@x", *HOSTILE[2:]]
    for words in (("pca", place / "release.zarr", tmp_path / "n.zarr", "--components", "1"),
                    ("regress", place / "release.zarr", "--target", "mass")):  # fmt: skip
        wrong = call(*words, "--table", tmp_path / "x.txt")
        assert (wrong.code, "must end in .csv or .parquet" in wrong.err) == (2, True)
    assert not (tmp_path / "n.zarr").exists()


def test_r_reads_what_this_version_stored_for_later_ones(tmp_path: Path) -> None:
    need("r-base-core", "Rscript")
    unpack(SAMPLES, tmp_path)
    arrays = {
        "plain": "second_moment", "centred": "row_sum", "patients-release": "lattice", "study": "lattice",
        "model": "components", "correlation": "scale", "patients-model": "mean",
    }  # fmt: skip
    script = f'source("{ROOT / "docs" / "formats" / "read.R"}")\n'
    for name, array in arrays.items():
        plain = "row.names = FALSE, col.names = FALSE, quote = FALSE"
        script += f'write.table(format(read_array("{name}.zarr", "{array}"), digits = 17), "{name}.txt", {plain})\n'
    script += 'cat(describe("study.zarr")$session$sites[[3]], file = "site")\n'
    subprocess.run(["Rscript", "-e", script], cwd=tmp_path, check=True, timeout=120, capture_output=True)
    for name, array in arrays.items():
        stored = zarr.open_array(tmp_path / f"{name}.zarr" / array, mode="r")
        assert np.array_equal(np.loadtxt(tmp_path / f"{name}.txt"), np.asarray(stored[...])), name
    assert (tmp_path / "site").read_text() == "oslo"


def test_r_reads_a_release_a_model_and_a_table(place: Path, tmp_path: Path, call: Call) -> None:
    """The lines of the page, as they stand there, on arrays of one chunk and of several."""
    need("r-base-core", "Rscript")
    if subprocess.run(["Rscript", "-e", "library(jsonlite)"], capture_output=True, check=False).returncode:
        missing("r-cran-jsonlite", "Debian: apt-get install r-cran-jsonlite")
    for name in ("release.zarr", "model.zarr"):
        (tmp_path / name).symlink_to(place / name)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    table = ("--target", "mass", "--table", tmp_path / "coefficients.csv")
    assert call("regress", place / "release.zarr", *table).code == 0
    group, many = zarr.create_group(tmp_path / "many"), {}
    for kind in ("float64", "int64"):  # chunks that end beyond the shape, as those of wide tables do
        many[kind] = (np.arange(35).reshape(7, 5) * 2**33 - 2**36).astype(kind)
        array = group.create_array(name=kind, shape=(7, 5), chunks=(3, 3), **array_options(many[kind].dtype))
        array[...] = many[kind]
    page = (ROOT / "docs" / "formats" / "README.md").read_text()
    script = page.partition("```r\n")[2].partition("```")[0]
    for value, name in (
        ("moment", "moment"), ("loadings", "loadings"),
        ('read_array("many", "float64")', "float64"), ('read_array("many", "int64")', "int64"),
    ):  # fmt: skip
        plain = "row.names = FALSE, col.names = FALSE, quote = FALSE"
        script += f'write.table(format({value}, digits = 17), "{name}", {plain})\n'
    script += 'cat(colnames(moment), coefficients$name, sep = "\\n", file = "names")\n'
    subprocess.run(["Rscript", "-e", script], cwd=tmp_path, check=True, timeout=120, capture_output=True)
    release, model = dpdist.open_release(place / "release.zarr"), dpdist.open_model(place / "model.zarr")
    expected = {"moment": release.second_moment, "loadings": model.components.components, **many}
    for name, values in expected.items():
        assert np.array_equal(np.loadtxt(tmp_path / name), values), name
    names = (tmp_path / "names").read_text().splitlines()
    assert names == [*HOSTILE, "(intercept)", "'=1+1", "'@x", "a,b", 'q"t']
