"""Machine code of the kernels: cached for later processes, recompiled if damaged, never shared by processors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

machine_code = pytest.importorskip("dpdist._util.machine_code")


def twice(numbers: Any) -> float:
    total = 0.0
    for i in range(numbers.shape[0]):
        total += 2 * numbers[i]
    return total


def test_machine_code_that_cannot_be_kept_is_used_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may be full at the first use of a type, in the middle of a pass."""
    caching = pytest.importorskip("numba.core.caching")

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "not here")

    for place, name, value in (
        (caching.CacheImpl, "_locator_classes", []),
        (caching.tempfile, "TemporaryFile", refused),
        (caching.IndexDataCacheFile, "save", refused),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            doubled = machine_code.compiled(twice, nogil=True)
            assert [doubled(np.ones(3)), doubled(np.ones(3, np.float32))] == [6.0, 6.0]


def test_machine_code_that_is_damaged_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code.config, "CACHE_DIR", str(tmp_path))

    def hits(signature: str | None) -> int:
        doubled = machine_code.compiled(twice, signature)
        assert doubled(np.ones(3)) == 6.0
        return sum(doubled.stats.cache_hits.values())

    for kind, damage, signature in (
        ("nbi", b"", None), ("nbc", b"\x80", "float64(float64[::1])"), ("nbc", b"no machine code", None),
    ):  # fmt: skip
        assert [hits(signature), hits(signature)] == [0, 1]
        for kept in tmp_path.rglob(f"*.{kind}"):
            kept.write_bytes(damage)
        assert [hits(signature), hits(signature)] == [0, 1]
        for kept in tmp_path.rglob("*.nb?"):
            kept.unlink()


SHARED = """
from dpdist._util.machine_code import compiled

def doubled(number):
    return 2 * number

if __name__ == "__main__":
    import shared  # of a module: a script is kept under another name
    assert shared.found(3) == 6
else:
    found = compiled(doubled, "int64(int64)")
"""


def test_two_processors_that_share_a_folder_keep_their_machine_code_apart(tmp_path: Path) -> None:
    """Code of the other processor would end the process with an illegal instruction."""
    script, folder = tmp_path / "shared.py", tmp_path / "kept"
    script.write_text(SHARED)

    def kept(**processor: str) -> dict[str, bytes]:
        env = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": str(tmp_path), **processor}
        subprocess.run([sys.executable, str(script)], check=True, env=env)
        return {path.name: path.read_bytes() for path in folder.rglob("*.nb?")}

    first = kept(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    both = kept()
    assert len(first) == 2
    assert len(both) == 4
    assert first.items() <= both.items()
