"""Sources by URL: the rows equal those of a file, no copy remains, and messages repeat no credential."""

from __future__ import annotations

import functools
import http.server
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from support.ingest_scene import (
    WRITERS,
    counts,
    stored,
    table,
    write_h5ad,
)
from support.s3_server import s3_server, variables

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest import remote
from dpdist.core.ingest.remote import Remote, location_of
from dpdist.core.ingest.write import ingest, write_tasks
from dpdist.core.pipeline.sources import ingest_rows


@pytest.fixture
def memory() -> Iterator[Any]:
    """Give an empty store in the memory of this process, which reads it."""
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serve a folder on the loopback interface like python -m http.server: no ranges, correct HEAD."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a client of an S3 server on the loopback interface; credentials are in the environment."""
    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.client.create_bucket(Bucket="private")
        yield server.client


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_changed_is_another(tmp_path: Path, web: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    url, folder = web
    for name in ("day.npy", "night.npy"):
        np.save(folder / name, table())
        os.utime(folder / name, (1e9, 1e9))
    first = ingest_rows(f"{url}/day.npy", tmp_path / "rows.zarr")
    assert ingest_rows(f"{url}/day.npy", tmp_path / "rows.zarr").dataset_id == first.dataset_id
    np.save(folder / "day.npy", table() + 1)
    with pytest.raises(DataError, match="not ingested from these files in their current state"):
        ingest_rows(f"{url}/day.npy", tmp_path / "rows.zarr")

    def changing(*arguments: Any, **options: Any) -> Any:
        np.save(folder / "night.npy", table() + 1)
        return write_tasks(*arguments, **options)

    monkeypatch.setattr("dpdist.core.ingest.write.write_tasks", changing)
    with pytest.raises(DataError, match="changed while it was read"):
        ingest_rows(f"{url}/night.npy", tmp_path / "other.zarr")
    assert left(tmp_path) == ["rows.zarr", "served"]


@pytest.mark.parametrize("name", ["t.npy", "t.csv", "t.parquet"])
def test_a_file_of_a_web_server_is_fetched_once_and_not_by_each_task(
    tmp_path: Path, web: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    url, folder = web
    WRITERS[name](folder / name, table(rows=500) + 0.25)
    monkeypatch.setattr(remote, "_PIECE", 100)
    for module in ("survey.FRAGMENT", "readers.text.FRAGMENT", "survey.PIECE"):
        monkeypatch.setattr(f"dpdist.core.ingest.{module}", 300)
    fetched: list[str] = []
    fetch = Remote.fetch

    def noted(self: Remote, into: Path) -> None:
        fetched.append(self.name)
        fetch(self, into)

    monkeypatch.setattr(Remote, "fetch", noted)
    monkeypatch.setattr("dpdist.core.ingest.write.LARGE", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    ingest_rows(f"{url}/{name}", tmp_path / "rows.zarr")
    assert np.array_equal(stored(tmp_path / "rows.zarr"), table(rows=500) + 0.25)
    assert fetched == [name]
    assert left(tmp_path) == ["rows.zarr", "served"]


@pytest.mark.parametrize("name", ["t.npy", "t.zarr"])
def test_what_changed_in_a_store_is_another(tmp_path: Path, memory: Any, name: str) -> None:
    """Also a folder, of which a store knows only the name."""

    def put(rows: Any) -> None:
        if name == "t.npy":
            np.save(tmp_path / name, rows)
        else:
            zarr.create_array(tmp_path / name, shape=rows.shape, dtype=rows.dtype, overwrite=True)[:] = rows
        memory.put(str(tmp_path / name), f"/private/{name}", recursive=True)

    put(table())
    first = ingest_rows(Remote(f"memory://private/{name}"), tmp_path / "rows.zarr")
    assert ingest_rows(Remote(f"memory://private/{name}"), tmp_path / "rows.zarr").dataset_id == first.dataset_id
    memory.rm(f"/private/{name}", recursive=True)
    put(table() + 1)
    with pytest.raises(DataError, match="not ingested from these files in their current state"):
        ingest_rows(Remote(f"memory://private/{name}"), tmp_path / "rows.zarr")


def test_formats_that_need_files_are_fetched_privately_and_removed(tmp_path: Path, memory: Any) -> None:
    made, out = tmp_path / "made", tmp_path / "out"
    abandoned = out / ".fetched.0a1b2c3d.partial"  # of an ingest that was killed
    for folder in (made, out, abandoned):
        folder.mkdir()
    (abandoned / "t.csv").write_text("secretword")
    write_h5ad(made / "t.h5ad", counts())
    memory.pipe("/private/t.h5ad", (made / "t.h5ad").read_bytes())
    modes: set[tuple[str, int]] = set()

    def progress(_: int, __: int) -> None:
        for folder in out.glob(".fetched.*"):
            assert folder.stat().st_mode & 0o777 == 0o700
            modes.update((path.name, path.stat().st_mode & 0o777) for path in folder.iterdir())

    ingest(Remote("memory://private/t.h5ad"), out / "rows.zarr", progress=progress)
    assert np.array_equal(stored(out / "rows.zarr"), counts())
    assert modes == {("t.h5ad", 0o600)}
    assert left(out) == ["rows.zarr"]


def test_what_a_web_server_does_not_have_is_named_and_leaves_nothing(tmp_path: Path, web: tuple[str, Path]) -> None:
    url, _ = web
    with pytest.raises(DataError, match=rf"{url}/none\.csv does not exist, or the store denies access"):
        ingest(Remote(f"{url}/none.csv"), tmp_path / "rows.zarr")
    assert left(tmp_path) == ["served"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(DataError, match=r"does not exist|cannot be read"):
        ingest(Remote(f"{closed}/t.csv"), tmp_path / "rows.zarr")


@pytest.mark.parametrize(
    ("target", "refused"), [("{url}/t.csv", False), ("/t.csv", False), ("//192.0.2.1:9/t.csv", True)]
)
def test_a_web_server_does_not_send_on_to_another_in_plain(
    tmp_path: Path, web: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, target: str, *, refused: bool
) -> None:
    url, folder = web
    WRITERS["t.csv"](folder / "t.csv", table())
    serving = http.server.SimpleHTTPRequestHandler
    serve = {"GET": serving.do_GET, "HEAD": serving.do_HEAD}

    def sent_on(self: http.server.SimpleHTTPRequestHandler) -> None:
        if self.path == "/t.csv":
            serve[self.command](self)
            return
        self.send_response(302)
        self.send_header("Location", target.format(url=url))
        self.send_header("Content-Length", "0")
        self.end_headers()

    for method in serve:
        monkeypatch.setattr(serving, f"do_{method}", sent_on)
    with pytest.raises(UsageError, match=r"moved\.csv gives is unencrypted") if refused else nullcontext():
        ingest(Remote(f"{url}/moved.csv"), tmp_path / "rows.zarr")
    assert (tmp_path / "rows.zarr").exists() is not refused


def test_rows_come_out_of_s3_past_any_proxy_and_what_is_not_there_is_named(
    tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, key in (("t.parquet", "t.parquet"), ("t.npy", "parts/0.npy"), ("t.npy", "parts/1.npy")):
        WRITERS[name](tmp_path / name, table() + float("1" in key))
        bucket.upload_file(str(tmp_path / name), "private", key)
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))  # no listener: connections fail
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{other.getsockname()[1]}")
        ingest(Remote("s3://private/t.parquet"), tmp_path / "one.zarr")
        ingest_rows("s3://private/parts", tmp_path / "two.zarr")
    assert np.array_equal(stored(tmp_path / "one.zarr"), table())
    assert np.array_equal(stored(tmp_path / "two.zarr"), np.vstack([table(), table() + 1]))
    for absent in ("s3://private/none", "s3://absent/none"):
        with pytest.raises(DataError, match=absent) as caught:
            ingest(Remote(f"{absent}.csv"), tmp_path / "none.zarr")
        assert "secretword" not in str(caught.value) + "".join(capfd.readouterr())


def test_a_cut_or_forbidden_object_is_refused(tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_h5ad(tmp_path / "t.h5ad", counts() + 73519)
    memory.pipe("/private/t.h5ad", (tmp_path / "t.h5ad").read_bytes()[:3000])

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("secretword")

    for message in ("^memory://private/t.h5ad cannot be read", r"the store denies access, .*\(PermissionError\)"):
        with pytest.raises(DataError, match=message) as caught:
            ingest(Remote("memory://private/t.h5ad"), tmp_path / "rows.zarr")
        assert not {"73519", "secretword"} & set(re.findall(r"\w+", str(caught.value)))
        monkeypatch.setattr(type(memory), "_open", refused)
    assert left(tmp_path) == ["t.h5ad"]


@pytest.mark.parametrize(
    ("url", "needle"),
    [
        ("https://me:secretword@host/t.csv", "user name or password"),
        ("https://secretword@host/t.csv", "user name or password"),
        ("s3://key:secretword@bucket/t.csv", "user name or password"),
        ("https://host/t.csv?X-Amz-Signature=secretword", "query"),
        ("s3://bucket/t.csv#secretword", "query"),
        ("memory://a::https://secretword/t.csv", "chain"),
        ("https://[secretword/t.csv", "not a URL"),
        ("ftp://host/t.csv", "ftp://"),
        ("http://example.org/t.csv", "unencrypted"),
        ("http://127.0.0.1.example.org/t.csv", "unencrypted"),
        ("file://host/t.csv", "three slashes"),
    ],
)
def test_an_unsafe_address_is_refused_and_its_secret_not_repeated(tmp_path: Path, url: str, needle: str) -> None:
    with pytest.raises(UsageError, match=needle) as caught:
        ingest_rows(url, tmp_path / "rows.zarr")
    assert "secretword" not in str(caught.value)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "profile", "emulator"])
def test_a_store_over_plain_http_is_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    class Storage:
        base = "http://192.0.2.1:9/storage/v1/"  # of gcsfs, where STORAGE_EMULATOR_HOST says so

    for variable, value in variables(9).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    if name == "profile":
        (tmp_path / "config").write_text("[default]\nendpoint_url = http://192.0.2.1:9\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    elif name == "emulator":
        monkeypatch.setattr(fsspec, "filesystem", lambda *_, **__: Storage())
    else:
        monkeypatch.setenv(name, "http://192.0.2.1:9")
    with pytest.raises(UsageError, match=r"gives is unencrypted"):
        ingest(Remote(f"{'gs' if name == 'emulator' else 's3'}://private/t.npy"), tmp_path / "rows.zarr")


def test_plain_paths_and_file_addresses_are_paths(tmp_path: Path) -> None:
    assert location_of("data/t.csv") == Path("data/t.csv")
    assert location_of(f"file://{tmp_path}/t.csv") == tmp_path / "t.csv"
    assert location_of("C:\\t.csv") == Path("C:\\t.csv")
    for address in ("http://localhost:1/t.csv", "http://[::1]:1/t.csv", "https://example.org/t.csv"):
        assert str(location_of(address)) == address
