"""A ledger on a network file system that the kernel names is refused; a local one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdist.errors import RefusedError
from dpdist.ledger import sqlite
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.sqlite import network_file_system
from dpdist.privacy.guarantee import PrivacyLoss

LINES = r"""
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:40 / /home rw,relatime shared:7 - nfs4 server:/home rw,vers=4.2
41 40 0:41 / /home/local rw,relatime shared:8 master:3 - xfs /dev/vdb rw
42 27 0:42 / /with\040space rw - fuse.sshfs me@host:/ rw
43 27 0:43 / /hidden rw - cifs //server/share rw
44 27 0:44 / /hidden rw - tmpfs tmpfs rw
45 27 0:45 / /covered rw - tmpfs tmpfs rw
46 27 0:46 / /covered rw - lustre mgs@tcp:/scratch rw
"""
BUDGET = PrivacyLoss.parse("1")


@pytest.fixture
def mount_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a file that is read in place of the kernel's."""
    table = tmp_path / "mountinfo"
    table.write_text(LINES.strip())
    monkeypatch.setattr(sqlite, "MOUNTS", table)
    return table


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/rows.ledger", "nfs4"),
        ("/home", "nfs4"),
        ("/home/local/rows.ledger", None),
        ("/homework/rows.ledger", None),
        ("/with space/rows.ledger", "fuse.sshfs"),
        ("/hidden/rows.ledger", None),
        ("/covered/rows.ledger", "lustre"),
        ("/var/lib/rows.ledger", None),
        ("/", None),
    ],
)
@pytest.mark.usefixtures("mount_table")
def test_the_last_mount_nearest_to_a_path_is_the_one_it_stands_on(path: str, kind: str | None) -> None:
    assert network_file_system(Path(path)) == kind


def test_a_link_is_followed(mount_table: Path) -> None:
    link = mount_table.with_name("link")
    link.symlink_to("/home/me")
    assert network_file_system(link / "rows.ledger") == "nfs4"


def test_where_the_kernel_does_not_tell_nothing_is_refused(mount_table: Path) -> None:
    mount_table.unlink()
    assert network_file_system(Path("/home/me")) is None


def test_a_ledger_on_a_network_file_system_is_neither_created_nor_used(mount_table: Path) -> None:
    place = mount_table.parent.resolve() / "here" / "rows.ledger"
    place.parent.mkdir()
    with mount_table.open("a") as file:
        file.write(f"\n50 27 0:50 / {place.parent} rw - nfs server:/here rw\n")
    with pytest.raises(RefusedError, match=r"network file system \(nfs\)"):
        Ledger.create(place, dataset_id="0" * 32, budget=BUDGET)
    assert not list(place.parent.iterdir())
    mount_table.write_text(LINES.strip())
    Ledger.create(place, dataset_id="0" * 32, budget=BUDGET)
    with mount_table.open("a") as file:
        file.write(f"\n50 27 0:50 / {place.parent} rw - nfs server:/here rw\n")
    with pytest.raises(RefusedError, match="PostgreSQL") as refusal:
        Ledger(place).balance()
    assert refusal.value.exit_code == 3
