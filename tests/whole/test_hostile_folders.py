"""Releases, models, rows, ledgers and small files from anybody: whatever they hold or lead to, one sentence, soon."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli_scene import Call

from dpdist import PrivacyLoss, ReleaseRequest, fit_components, ingest_rows, release_rows
from dpdist.answers.model import open_model
from dpdist.core.errors import DataError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.release.opening import open_release
from dpdist.core.rows.chunks import ChunkReader

SECONDS = 60
OPENED: dict[str, Callable[[Path], object]] = {
    "release.zarr": open_release, "model.zarr": open_model, "rows.zarr": open_rows,
}  # fmt: skip


def read_rows(path: Path) -> None:
    table = open_rows(path)
    reader = ChunkReader(table, table.chunk_rows)
    for index in range(table.chunks):
        for _ in reader.read(index):
            pass


READ: dict[str, Callable[[Path], object]] = {**OPENED, "rows.zarr": read_rows}
CHUNKS = {"release.zarr": "lattice/c/0/0", "model.zarr": "components/c/0/0", "rows.zarr": "c/0/0"}
LOSS = ("--epsilon", "1", "--clip", "8")


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    np.save(folder / "table.npy", np.arange(12).reshape(4, 3))
    budget = PrivacyLoss.parse("3", "1e-6")
    ingest_rows(folder / "table.npy", folder / "rows.zarr", budget=budget)
    release_rows(folder / "rows.zarr", folder / "release.zarr", ReleaseRequest("laplace", PrivacyLoss.parse("1"), 8))
    fit_components(folder / "release.zarr", folder / "model.zarr", 2)
    return folder


@pytest.fixture
def here(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def hole(path: Path) -> None:
    os.truncate(path, 1 << 40)


def elsewhere(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


@pytest.mark.parametrize("way", [fifo, device, hole, elsewhere])
@pytest.mark.parametrize("name", OPENED)
def test_what_a_folder_holds_are_plain_files_of_the_length_announced(here: Path, name: str, way: Any) -> None:
    READ[name](here / name)
    for damaged in ("zarr.json", CHUNKS[name]):
        if (way, damaged) != (elsewhere, "zarr.json"):
            kept = shutil.copytree(here / name, here / "kept")
            way(here / name / damaged)
            with pytest.raises(DataError, match=name):
                READ[name](here / name)
            shutil.rmtree(here / name)
            kept.rename(here / name)


@pytest.mark.parametrize("name", OPENED)
def test_a_small_folder_is_opened_in_little_memory(here: Path, name: str) -> None:
    OPENED[name](here / name)  # whatever is imported or started late
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + (128 << 20), before[1]))
    try:
        OPENED[name](here / name)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_attributes_that_cannot_be_are_refused_everywhere(here: Path, call: Call) -> None:
    whole = {name: json.loads((here / name / "zarr.json").read_text()) for name in OPENED}
    wrong: list[dict[str, Any]] = [{"columns": ["a\ud800", "b", "c"]}, {"columns": [1, None, {}]}, {"n": 10**400}]
    for changed in wrong:
        for name, about in whole.items():
            attributes = {"dpdist": about["attributes"]["dpdist"] | changed}
            (here / name / "zarr.json").write_text(json.dumps(about | {"attributes": attributes}))
        for command in (
            "pca release.zarr a --components 1",
            "report release.zarr n.html",
            "combine new release.zarr",
        ):
            assert call(*command.split()).code == 4, command
        for name in ("model.zarr", "rows.zarr") if "columns" in changed else ():
            with pytest.raises(DataError):
                OPENED[name](here / name)


def test_a_key_of_a_later_version_is_refused_in_rows_and_ignored_in_what_is_published(here: Path) -> None:
    for name, read in OPENED.items():
        path = here / name / "zarr.json"
        about = json.loads(path.read_text())
        about["attributes"]["dpdist"]["later"] = True
        path.write_text(json.dumps(about))
        if name == "rows.zarr":
            with pytest.raises(DataError, match=name):
                read(here / name)
        else:
            read(here / name)


@pytest.mark.parametrize("way", [fifo, device])
@pytest.mark.parametrize("name", ["periods.json", "key"])
def test_a_folder_of_periods_is_told_by_plain_files(tmp_path: Path, call: Call, name: str, way: Any) -> None:
    (tmp_path / "in").mkdir()
    job = '[rows]\npath = "rows"\nsource = "in"\nperiods = true\nbudget_epsilon = 3\n'
    (tmp_path / "job.toml").write_text(job + '[release]\npath = "rel"\nepsilon = 1\nclip = 8.0\n')
    assert call("run", tmp_path / "job.toml").code == 0
    (tmp_path / "in" / "2026.csv").write_text("a,b\n1,2\n")
    way(tmp_path / "rows" / name)
    assert call("run", tmp_path / "job.toml").code == 4


@pytest.mark.parametrize("way", [fifo, device, Path.mkdir])
def test_a_job_a_centre_and_a_certificate_are_plain_files(here: Path, call: Call, way: Any) -> None:
    for name in ("job.toml", "centre.json", "centre.npy", "ca.pem"):
        way(here / name)
    away = ("release", "rows.zarr", "new", *LOSS, "--id", "other", "--scheduler")
    assert call("run", "job.toml").code == 4
    for centre in ("centre.json", "centre.npy"):
        assert call(*away, "tcp://127.0.0.1:9", "--centre", centre).code == 4
    certificates = ("--tls-ca", "ca.pem", "--tls-cert", "ca.pem", "--tls-key", "ca.pem")
    assert call(*away, "tls://127.0.0.1:9", *certificates).code == 4


def test_a_centre_that_unpacks_to_gigabytes_is_refused(here: Path, call: Call) -> None:
    with zipfile.ZipFile(here / "centre.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("centre.npy", bytes(100 << 20))
    said = call("release", "rows.zarr", "new", *LOSS, "--scheduler", "tcp://127.0.0.1:9", "--centre", "centre.npz")
    assert said.code == 4
    assert "contains no public centre" in said.message


def test_a_ledger_that_computes_what_is_read_and_a_device_in_place_of_a_committed_file_are_refused(
    here: Path, call: Call
) -> None:
    (blob,) = (here / "rows.ledger" / "blobs").iterdir()
    device(blob)
    assert call("ledger", "verify", "rows.ledger").code == 4
    with closing(sqlite3.connect(here / "rows.ledger" / "ledger.sqlite")) as connection:
        connection.execute("ALTER TABLE journal RENAME TO other")
        connection.execute(
            "CREATE VIEW journal AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) "
            "SELECT sequence, entry, digest FROM other, r"
        )
        connection.commit()
    for action in ("show", "verify"):
        said = call("ledger", action, "rows.ledger")
        assert said.code == 4
        assert "has more than a journal" in said.message
