"""Cleaning removes leftovers of this user only, and refuses if names could be forged."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cli_scene import Call
from support.s3_server import S3Server

from dpdist.core.errors import DataError, UsageError
from dpdist.core.storage.store import store_at

OLD = time.time() - 2 * 86400
TOKEN, OTHER = "0" * 32, "f" * 32


def litter(folder: Path, name: str = ".rows.zarr.0123abcd.partial") -> Path:
    """Create the leftover of a builder that was killed two days ago."""
    staging = folder / name
    (staging / "c").mkdir(parents=True)
    (staging / "c" / "0").write_bytes(b"rows")
    aged(staging)
    return staging


def aged(root: Path, when: float = OLD) -> None:
    """Set the times of a folder and its contents."""
    for path in (root, *root.rglob("*")):
        os.utime(path, (when, when), follow_symlinks=False)


def test_the_command_lists_what_it_removed(tmp_path: Path, call: Call) -> None:
    staging, rows = litter(tmp_path), tmp_path / "rows.zarr"
    rows.mkdir()
    (rows / ".zarr.json.0123abcd.partial").write_bytes(b"{}")
    aged(rows)
    names = (".other.zarr.0123abcd.partial", ".rows.zarr.partial", "rows.zarr.0.partial", ".rows.zarr.00000000.partial")
    others = [litter(tmp_path, name) for name in names]
    (others[-1] / "c" / "1").write_bytes(b"rows")  # young
    result = call("inspect", "--clean", "--json", rows)
    assert result.json["removed"] == [str(staging), str(rows / ".zarr.json.0123abcd.partial")]
    assert not staging.exists()
    assert all(path.exists() for path in (rows, *others))
    assert "There is nothing to remove" in call("inspect", "--clean", rows).out
    assert call("inspect", "--clean", "--verify", rows).code == 2


def a_hard_link(staging: Path) -> None:
    (staging.parent / "precious").write_bytes(b"rows")
    (staging / "c" / "1").hardlink_to(staging.parent / "precious")


def a_link_in_its_place(staging: Path) -> None:
    staging.rename(staging.parent / "precious")
    staging.symlink_to(staging.parent / "precious")


PLANTED: dict[str, Callable[[Path], object]] = {
    "a link": lambda staging: (staging / "c" / "1").symlink_to(staging.parent),
    "a hard link": a_hard_link,
    "a pipe": lambda staging: os.mkfifo(staging / "c" / "1"),
    "the future": lambda staging: aged(staging, time.time() + 1e6),
    "a link in its place": a_link_in_its_place,
}


@pytest.mark.parametrize("planted", [*PLANTED, "another user"])
def test_files_of_other_origin_stay(tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = litter(tmp_path)
    if planted == "another user":
        monkeypatch.setattr("dpdist.core.storage.cleaning._require_own", lambda _: None)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    else:
        PLANTED[planted](staging)
    if planted != "the future":
        aged(tmp_path)
    assert store_at(tmp_path / "rows.zarr").clean() == ()
    assert (staging / "c" / "0").exists()


def test_nothing_is_removed_if_others_could_have_given_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "mine"
    folder.mkdir(parents=True)
    staging = litter(folder)
    for open_to_all in (folder, folder.parent):
        open_to_all.chmod(0o777)
        with pytest.raises(DataError, match="Other users can change"):
            store_at(folder / "rows.zarr").clean()
        open_to_all.chmod(0o755)
    assert staging.exists()
    assert store_at(folder / "rows.zarr").clean() == (str(staging),)


@pytest.fixture
def place(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"{tmp_path.name}/rows.zarr"


def put(server: S3Server, *keys: str, content: bytes = b"dpdist-attempt/1 building") -> None:
    for key in keys:
        server.client.put_object(Bucket="private", Key=key, Body=content)


def test_in_a_bucket_only_abandoned_prefixes_are_removed(server: S3Server, place: str) -> None:
    other_keys = [
        f"{place}/{OTHER}/c/0", f"{place}/{TOKEN[:-1]}/c/0", f"{place}/{TOKEN[:-1]}.attempt", f"{place}.b/{TOKEN}/c/0",
        f"{place}.b/{TOKEN}.attempt", f"{TOKEN}/c/0", f"{TOKEN}.attempt", f"{place}/sub/{TOKEN}/c/0", f"{place}.lease",
    ]  # fmt: skip
    put(server, *other_keys, f"{place}/{TOKEN}/c/0", f"{place}/{TOKEN}/zarr.json", f"{place}/{TOKEN}.attempt")
    store = store_at(f"s3://private/{place}")
    assert store.clean() == ()  # too young, by the clock of the store
    assert store.clean(0) == (f"s3://private/{place}/{TOKEN}",)
    remaining = set(server.keys("private"))
    assert set(other_keys) <= remaining
    assert not any(key.startswith(f"{place}/{TOKEN}") for key in remaining)


def pointer(described: dict[str, str]) -> bytes:
    return json.dumps({"attributes": {"dpdist": described}}).encode()


@pytest.mark.parametrize(
    ("attempt", "root"),
    [
        (b"dpdist-attempt/1 building", pointer({"format": "dpdist-pointer/1", "prefix": TOKEN})),
        (b"dpdist-attempt/1 building", pointer({"format": "dpdist-pointer/2", "prefix": TOKEN})),
        (b"dpdist-attempt/1 publishing", None),
        (b"dpdist-attempt/2 building", None),
    ],
)
def test_published_prefixes_and_unknown_states_stay(
    server: S3Server, place: str, attempt: bytes, root: bytes | None
) -> None:
    put(server, f"{place}/{TOKEN}/c/0")
    put(server, f"{place}/{TOKEN}.attempt", content=attempt)
    if root is not None:
        put(server, f"{place}/zarr.json", content=root)
    assert store_at(f"s3://private/{place}").clean(0) == ()
    assert f"{place}/{TOKEN}/c/0" in server.keys("private")


@pytest.mark.usefixtures("place")
def test_a_whole_bucket_is_neither_cleaned_nor_deleted(server: S3Server) -> None:
    put(server, f"{TOKEN}/c/0", f"{TOKEN}.attempt", "zarr.json")
    for use in (lambda: store_at("s3://private").clean(0), store_at("s3://private").delete):
        with pytest.raises(UsageError, match="whole bucket"):
            use()
    assert {f"{TOKEN}/c/0", "zarr.json"} <= set(server.keys("private"))
    server.client.delete_object(Bucket="private", Key="zarr.json")
