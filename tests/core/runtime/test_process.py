"""What a process leaves behind when it dies, read from the kernel, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEFORE = """
import ctypes, resource
from pathlib import Path
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]  # who runs the tests may have forbidden core dumps already
start = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
resource.setrlimit(resource.RLIMIT_CORE, (start // 2, start))
def state():
    limits = Path("/proc/self/limits").read_text().splitlines()
    return [line.split()[4:6] for line in limits if line.startswith("Max core")], ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
assert state() == ([[str(start // 2), str(start)]], 1), state()
"""
FORBIDDEN = '([["0", "0"]], 0)'
CONNECTING = """
from dpdist.core.errors import DataError
from dpdist.core.runtime.cluster import Cluster
try:
    with Cluster("tcp://127.0.0.1:port").connected():
        pass
except DataError:
    pass
"""
TASK = """
from dpdist.core.runtime.checks import ClientInfo, guarded
guarded(ClientInfo.current(), int)
"""
PROBE = """
from pathlib import Path
from dpdist.core.runtime import checks
from dpdist.core.storage.store import FolderStore
checks._traits(FolderStore(Path.cwd()), "")
"""


WHEN = {"before it talks to anyone": CONNECTING, "before a task": TASK, "at the first question": PROBE}


@pytest.mark.parametrize("script", WHEN.values(), ids=WHEN)
def test_core_dumps_are_off_and_stay_off(script: str) -> None:
    run = f"{BEFORE}{script}assert state() == {FORBIDDEN}, state()"
    subprocess.run([sys.executable, "-c", run], check=True, timeout=600)
