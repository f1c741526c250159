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

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """Turn core dumps of this process off, for good; child processes inherit the limit. Cheap, and idempotent.

    A limit of zero bytes stops core files. It does not stop a crash reporter to which the kernel pipes an image
    (``core_pattern`` with a ``|``). So on Linux the process is marked as not dumpable too: then other processes of the
    same user can no longer attach to it or read its memory. A program that it starts begins without that mark.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


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
