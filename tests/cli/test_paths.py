"""Paths: text, or anything that stands for one; an address is refused with the reason; a dry run looks at them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dpdist
from dpdist._util.paths import AnyPath
from dpdist.cli import cli
from dpdist.errors import DataError, UsageError
from dpdist.jobs import job_file, run, status
from dpdist.pipeline import budget
from dpdist.report import html
from dpdist.runtime.cluster import Cluster

REQUEST = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(1, 1e-6), 8.0)


class Named:
    """Stands for a path, as pathlib's and other libraries' do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


def _everything(folder: Path, form: Callable[[Path], AnyPath]) -> list[Any]:
    """Call every public function that takes a path, with one in this form."""

    def at(name: str) -> AnyPath:
        return form(folder / name)

    np.save(folder / "table.npy", np.random.default_rng(1).normal(size=(300, 3)) * [3, 2, 1])
    (folder / "job.toml").write_text("[rows]\npath = 'rows.zarr'\n[release]\npath = 'r.zarr'\nepsilon = 1\nclip = 8\n")
    table = dpdist.ingest_rows(at("table.npy"), at("rows.zarr"), columns=["c0", "c1", "c2"])
    dpdist.create_ledger(at("rows.ledger"), at("rows.zarr"), dpdist.PrivacyLoss.parse(9, 1e-5))
    dpdist.release_rows(at("rows.zarr"), at("r.zarr"), REQUEST, ledger=at("rows.ledger"))
    release = dpdist.open_release(at("r.zarr"))
    dpdist.combine_releases([at("r.zarr")], at("sum.zarr"))
    dpdist.fit_components(at("r.zarr"), at("m.zarr"), 2)
    dpdist.project_rows(at("rows.zarr"), at("m.zarr"), at("s.zarr"))
    html.write(release, at("r.html"))
    norms = dpdist.NormsRequest(dpdist.PrivacyLoss.parse(1), dpdist.NormGrid(1, 16))
    dpdist.choose_clip_norm(at("rows.zarr"), norms, 0.5, ledger=at("rows.ledger"))
    return [
        dpdist.open_rows(at("rows.zarr")).dataset_id == table.dataset_id,
        budget.complete_ingest(at("rows.zarr")).dataset_id == table.dataset_id,
        budget.verify_ledger(at("rows.ledger"), [at("r.zarr")]).head == dpdist.Ledger(at("rows.ledger")).head,
        dpdist.open_model(at("m.zarr")).release_id == release.release_id,
        dpdist.inspect_path(at("r.zarr"), ledger=at("rows.ledger")).kind,
        job_file.read_job(at("job.toml")).rows == folder / "rows.zarr",
        dpdist.PrivatePCA.from_release(at("r.zarr"), 2).transform(at("rows.zarr")).shape,
        sorted(path.name for path in folder.iterdir()),
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_public_function_takes_a_path_in_any_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    found = []
    for form in (str, Named):
        folder = tmp_path / form.__name__
        folder.mkdir()
        found.append(_everything(folder, form))
    assert found[0] == found[1]
    assert found[0][:4] == [True] * 4


@pytest.mark.parametrize(
    "function", [dpdist.open_rows, dpdist.open_release, dpdist.open_model, job_file.read_job, dpdist.inspect_path]
)
def test_an_address_of_a_kind_that_nobody_reads_is_refused(function: Callable[[str], Any]) -> None:
    with pytest.raises(UsageError, match=r"hdfs://bucket/x\.zarr is an address.*copy it here"):
        function("hdfs://bucket/x.zarr")


@pytest.mark.parametrize(
    "command",
    ["inspect AT", "bound AT --epsilon 1", "release AT r --epsilon 1 --clip 1", "pca AT m --components 1",
     "report AT r.html", "project AT m s", "project r AT s", "run AT", "status AT", "combine sum AT",
     "ledger create l --rows AT", "ledger verify l --release AT"],
)  # fmt: skip
def test_a_command_refuses_an_address_that_holds_a_password_and_one_of_no_store(command: str) -> None:
    for place, said in (
        ("s3://me:secretword@bucket/rows.zarr", "no user name, password"),
        ("hdfs://b/r", "an address"),
    ):
        found = CliRunner().invoke(cli, command.replace("AT", place).split())
        words = " ".join((found.output + str(found.exception)).split())
        assert isinstance(found.exception, UsageError | SystemExit)
        assert said in words or "this machine, and no address" in words
        assert "secretword" not in words


def test_a_job_names_no_address_of_a_kind_that_nobody_reads(tmp_path: Path) -> None:
    text = "[rows]\npath = 'rows.zarr'\n[release]\npath = 'hdfs://bucket/r.zarr'\nepsilon = 1\nclip = 8\n"
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(UsageError, match=r"hdfs://bucket/r\.zarr is an address"):
        job_file.read_job(tmp_path / "job.toml")


JOB = """
[rows]
path = "{rows}"
source = "{source}"
budget_epsilon = 2

[release]
path = "{release}"
epsilon = 1
clip = 8.0

[pca]
path = "{model}"
components = {count}

[project]
path = "{scores}"
"""
GOOD = {
    "rows": "rows.zarr",
    "source": "t.npy",
    "release": "r.zarr",
    "model": "m.zarr",
    "scores": "s.zarr",
    "count": "2",
}


WRONG = [{"rows": "no/rows.zarr"}, {"release": "no/r.zarr"}, {"release": "t.npy"}, {"model": "no/m.zarr"},
         {"model": "t.npy"}, {"scores": "t.npy"}]  # fmt: skip


@pytest.mark.parametrize("again", [False, True])
def test_a_dry_run_refuses_what_the_run_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    monkeypatch.chdir(tmp_path)
    np.save("t.npy", np.random.default_rng(1).normal(size=(30, 3)))
    job = Path("job.toml")
    job.write_text(JOB.format(**GOOD))
    assert status.preview(job_file.read_job(job)).fits
    if again:
        run.run(job_file.read_job(job), say=print)
        assert status.preview(job_file.read_job(job)).fits
    before = sorted(Path().iterdir())
    once = {"count": "4"} if again else {"source": "no.npy"}  # a source is not read again
    for wrong in (once, *WRONG):
        job.write_text(JOB.format(**(GOOD | wrong)))
        kind = UsageError if "count" in wrong else DataError
        with pytest.raises(kind):
            status.preview(job_file.read_job(job))
        assert sorted(Path().iterdir()) == before
        with pytest.raises(kind):
            run.run(job_file.read_job(job), say=print)
        for made in set(Path().iterdir()) - set(before):  # rows and a ledger, before what follows was refused
            shutil.rmtree(made)
