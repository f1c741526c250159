"""Which file system a path stands on, as far as Linux tells."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = {
    "9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
    "fuse.ceph", "fuse.cephfs", "fuse.davfs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs",
    "fuse.mount.s3", "fuse.mountpoint-s3", "fuse.rclone", "fuse.s3fs", "fuse.seaweedfs", "fuse.smbnetfs", "fuse.sshfs",
}  # fmt: skip


def network_file_system(path: Path) -> str | None:
    """Return the type of the network file system a path stands, or would stand, on."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    resolved = path.resolve()
    above = [resolved, *resolved.parents]
    best, found = len(above), None
    for line in lines:
        mount, _, filesystem = line.partition(" - ")
        point = Path(_unescaped(mount.split()[4]))
        if point in above and above.index(point) <= best:  # of two mounts on one point the later hides the earlier
            best, found = above.index(point), filesystem.split()[0]
    return found if found in _NETWORK else None


def _unescaped(text: str) -> str:
    """Undo the kernel's octal escapes of space, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
