"""What this process may leave behind: no image of its memory in a file, and no process that works for it.

A process that sums private rows holds un-noised sums. A core dump would write them to a disk, or hand them to the
system's crash reporter, which keeps them where others read.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_GROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.high",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.soft_limit_in_bytes",
)  # fmt: skip
"""Where the kernel says how much memory this process's group may use, in its newer and its older format."""


def forbid_core_dumps() -> None:
    """Turn core dumps of this process off, for good; child processes inherit the limit. Cheap, and idempotent.

    A limit of zero bytes stops core files. It does not stop a crash reporter to which the kernel pipes an image
    (``core_pattern`` with a ``|``). So on Linux the process is marked as not dumpable too: then other processes of the
    same user can no longer attach to it or read its memory. A program that it starts begins without that mark.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def memory_here() -> int:
    """Return the bytes of memory of this machine, or of the part of it that this process may use."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), resource.getrlimit(resource.RLIMIT_RSS)[1]]
    for path in _GROUP_LIMITS:
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            limits.append(int(Path(path).read_text(encoding="ascii")))
    return min(limit for limit in limits if limit > 0)


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends, by whatever; at once if it has already.

    Parameters
    ----------
    parent
        The id of the process that started this one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
