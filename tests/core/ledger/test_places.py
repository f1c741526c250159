"""Locations of ledgers: addresses without secrets, and folders on local file systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.ledger import sqlite
from dpdist.core.ledger.address import Address, address_of
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.sqlite import network_file_system
from dpdist.core.privacy.guarantee import PrivacyLoss

SECRET = "hunter2"  # noqa: S105 - nobody's
GOOD = {
    "postgresql+psycopg://db.example/budgets?ledger=visits": {"host": "db.example", "dbname": "budgets"},
    "postgresql+psycopg://me@[::1]:5433/budgets?ledger=visits": {
        "user": "me", "host": "::1", "port": "5433", "dbname": "budgets",
    },
    "postgresql+psycopg://a%40b@/my%20db?ledger=visits&host=%2Fvar%2Frun&sslmode=verify-full": {
        "user": "a@b", "dbname": "my db", "host": "/var/run", "sslmode": "verify-full",
    },
}  # fmt: skip
PASSWORDS = (
    f"postgresql+psycopg://me:{SECRET}@host/db?ledger=a",
    f"postgresql+psycopg://me:x@{SECRET}@host/db?ledger=a",
    f"mysql://me:{SECRET}@host/db",
    f"postgresql+psycopg://me@host/db?PASSWORD={SECRET}&ledger=a",
    f"postgresql+psycopg://me@host/db?ledger=a&sslpassword={SECRET}",
    f"postgresql+psycopg://me@host/db?ledger=a&oauth_client_secret={SECRET}",
)
OTHERS = (
    # passwords with separators of addresses
    f"postgresql+psycopg://me:12/{SECRET}@host/db?ledger=a",
    f"postgresql+psycopg:/me:{SECRET}/db?ledger=a",
    f"postgresql+psycopg://host/db?ledger=a&{SECRET}=1",
    f"postgresql+psycopg://host/db?ledger=a&host={SECRET}&host=b",
    f"postgresql+psycopg://host/db?ledger=a/{SECRET}",
    f"postgresql+psycopg://host/{SECRET}?ledger=",
    f"sqlite:///{SECRET}",
)


@pytest.mark.parametrize(("text", "connection"), GOOD.items(), ids=GOOD.keys())
def test_an_address_names_server_database_and_ledger(text: str, connection: dict[str, str]) -> None:
    address = Address(text)
    assert (dict(address.connection), address.ledger, str(address)) == (connection, "visits", text)
    assert address_of(text, Path("/somewhere")) == address


@pytest.mark.parametrize("text", PASSWORDS + OTHERS)
def test_any_other_address_is_refused_and_a_password_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        address_of(text, Path())
    assert SECRET not in str(refusal.value)
    assert ("contains a password" if text in PASSWORDS else "ledger=NAME") in str(refusal.value)


def test_everything_else_is_a_folder() -> None:
    for text in ("rows.ledger", "some:thing/rows.ledger", "./postgres", "/srv/rows.ledger"):
        assert address_of(text, Path("/job")) == Path("/job") / text


LINES = r"""
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:40 / /home rw,relatime shared:7 - nfs4 server:/home rw,vers=4.2
41 40 0:41 / /home/local rw,relatime shared:8 master:3 - xfs /dev/vdb rw
42 27 0:42 / /with\040space rw - fuse.sshfs me@host:/ rw
43 27 0:43 / /hidden rw - tmpfs tmpfs rw
44 27 0:44 / /hidden rw - cifs //server/share rw
45 27 0:45 / /hidden rw - lustre mgs@tcp:/scratch rw
"""


@pytest.fixture
def mount_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a file to read instead of the mount table of the kernel."""
    table = tmp_path / "mountinfo"
    table.write_text(LINES.strip())
    monkeypatch.setattr(sqlite, "MOUNTS", table)
    return table


def test_the_last_mount_nearest_to_a_path_is_the_one_it_stands_on(mount_table: Path) -> None:
    kinds = {
        "/home/me/rows.ledger": "nfs4",
        "/home": "nfs4",
        "/home/local/rows.ledger": None,
        "/homework/rows.ledger": None,
        "/with space/rows.ledger": "fuse.sshfs",
        "/hidden/rows.ledger": "lustre",
    }
    assert {path: network_file_system(Path(path)) for path in kinds} == kinds
    link = mount_table.with_name("link")
    link.symlink_to("/home/me")
    assert network_file_system(link / "rows.ledger") == "nfs4"
    mount_table.unlink()  # without a mount table, nothing is refused
    assert network_file_system(Path("/home/me")) is None


def test_a_ledger_on_a_network_file_system_is_neither_created_nor_used(mount_table: Path) -> None:
    path = mount_table.parent.resolve() / "here" / "rows.ledger"
    path.parent.mkdir()
    budget, local = PrivacyLoss.parse("1"), mount_table.read_text()
    remote = f"{local}\n50 27 0:50 / {path.parent} rw - nfs server:/here rw\n"
    mount_table.write_text(remote)
    with pytest.raises(RefusedError, match=r"network file system \(nfs\)"):
        Ledger.create(path, dataset_id="0" * 32, budget=budget)
    assert not list(path.parent.iterdir())
    mount_table.write_text(local)
    Ledger.create(path, dataset_id="0" * 32, budget=budget)
    mount_table.write_text(remote)
    with pytest.raises(RefusedError, match="PostgreSQL") as refusal:
        Ledger(path).balance()
    assert refusal.value.exit_code == 3
