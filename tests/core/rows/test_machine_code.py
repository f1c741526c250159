"""Machine code of the kernels: cached for later processes, recompiled if damaged, never shared by processors."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.folders import ROOT

machine_code = pytest.importorskip("dpdist.core.machine_code")


def twice(numbers: Any) -> float:
    total = 0.0
    for i in range(numbers.shape[0]):
        total += 2 * numbers[i]
    return total


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine_code.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dpdist"


def used() -> int:
    """Compile a function for two types, and return how many of them the cache had."""
    doubled = machine_code.compiled(twice, nogil=True)
    assert [doubled(np.ones(3)), doubled(np.ones(3, np.float32))] == [6.0, 6.0]
    return sum(doubled.stats.cache_hits.values())


def test_machine_code_is_kept_in_a_private_cache_folder_of_the_user_or_where_numba_is_told_to(
    homes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    umask = os.umask(0)
    try:
        assert [used(), used()] == [0, 2]
    finally:
        os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in (homes.parent, homes, *homes.iterdir())} == {0o700}
    monkeypatch.setattr(machine_code.config, "CACHE_DIR", str(tmp_path / "numba"))
    assert [used(), used()] == [0, 2]
    monkeypatch.setattr(machine_code.config, "CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert [used(), used()] == [0, 2]
    assert list((tmp_path / "home" / ".cache" / "dpdist").rglob("*.nbc"))


def test_machine_code_is_not_read_from_a_folder_that_others_can_write(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine code that somebody else has put there would be executed."""
    assert used() == 0
    (folder,) = homes.iterdir()
    for place, mode in ((folder, 0o750), (folder, 0o702), (homes, 0o777), (homes, 0o2775)):
        before = place.stat().st_mode
        place.chmod(mode)
        assert used() == 0, (place, mode)
        place.chmod(before)
    homes.chmod(0o1777)  # like /tmp: others cannot rename what is in it
    assert used() == 2
    with monkeypatch.context() as patch:
        patch.setattr(machine_code.os, "geteuid", lambda: os.getuid() + 1)
        assert used() == 0


def test_machine_code_that_cannot_be_kept_is_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no home, or a read-only one, and the disk may be full at the first use of a type, during a pass."""
    caching = pytest.importorskip("numba.core.caching")

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "not here")

    for place, name in ((Path, "mkdir"), (caching.IndexDataCacheFile, "save")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, refused)
            assert [used(), used()] == [0, 0]
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [used(), used()] == [0, 0]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert [used(), used()] == [0, 0]


def no_home() -> None:
    raise RuntimeError("Could not determine home directory.")


def test_machine_code_of_another_type_is_made_anew(homes: Path) -> None:
    """Two processes that compile for different types at the same time write to the same file."""
    assert used() == 0
    first, second = homes.rglob("*.nbc")
    first.write_bytes(second.read_bytes())
    assert used() == 1


def test_machine_code_that_is_damaged_is_made_anew(homes: Path) -> None:
    def hits(signature: str | None) -> int:
        doubled = machine_code.compiled(twice, signature)
        assert doubled(np.ones(3)) == 6.0
        return sum(doubled.stats.cache_hits.values())

    for kind, damage, signature in (
        ("nbi", b"", None), ("nbc", b"\x80", "float64(float64[::1])"), ("nbc", b"no machine code", None),
    ):  # fmt: skip
        assert [hits(signature), hits(signature)] == [0, 1]
        for kept in homes.rglob(f"*.{kind}"):
            kept.write_bytes(damage)
        assert [hits(signature), hits(signature)] == [0, 1]
        for kept in homes.rglob("*.nb?"):
            kept.unlink()


USED = """
import numpy as np
import dpdist
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dither import DitherKey, Dithers
RowBound(3, 1.0, 12).apply(np.ones((9, 3)), np.empty((9, 3)), Dithers(DitherKey(bytes(32)), 0))
print(dpdist.__file__)
"""


def test_installing_anew_after_use_installs_the_package(homes: Path, tmp_path: Path) -> None:
    """A file that use leaves beside the package keeps its folder, which then hides an editable installation."""
    source, environment = tmp_path / "source", tmp_path / "environment"
    shutil.copytree(ROOT / "dpdist", source / "dpdist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    venv.create(environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    for options in ([], ["--editable"]):
        subprocess.run([*pip, "--no-build-isolation", *options, str(source)], check=True, cwd=tmp_path)
        found = subprocess.run([python, "-c", USED], check=True, cwd=tmp_path, capture_output=True, text=True).stdout
        assert found.startswith(str(source if options else packages))
    assert list(homes.rglob("*.nbc"))


SHARED = """
from dpdist.core.machine_code import compiled

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

    def kept(**processor: str) -> dict[Path, bytes]:
        env = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": str(tmp_path), **processor}
        subprocess.run([sys.executable, str(script)], check=True, env=env)
        return {path: path.read_bytes() for path in folder.rglob("*.nb?")}

    first = kept(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    both = kept()
    assert len(first) == 2
    assert len(both) == 4
    assert first.items() <= both.items()


LOADED = """
import sys
import numpy as np
from dpdist.core.rows import dither_kernel
from dpdist.core.rows.dither import DitherKey, Dithering, Dithers
kinds = [np.dtype(kind) for kind in sys.argv[1:]]
for kind in kinds:
    out = np.empty((64, 5))
    rule, rows = Dithering(5, 10), np.arange(320).reshape(64, 5).astype(kind)
    dither_kernel.round_rows(rule, rows, dither_kernel.Affine(None, None, 99.0), Dithers(DitherKey(bytes(32)), 0), out)
    print(out.sum(), sum(dither_kernel._round.stats.cache_hits.values()))
print(len({"numba.np.arraymath", "numba.typed.typedlist"} & set(sys.modules)))
"""


def test_cached_code_is_loaded_without_what_a_compiler_needs_and_another_type_is_compiled(homes: Path) -> None:
    def run(*kinds: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", LOADED, *kinds], capture_output=True, text=True, check=True, timeout=300, cwd=ROOT
        )
        return done.stdout.split()

    total, hits, imported = run("f4")
    assert (hits, imported) == ("0", "2")  # it was compiled
    assert run("f4") == [total, "1", "0"]  # half a second sooner
    again = run("f4", "u1")  # of which the second is not in the cache
    assert (again[0], again[1], again[-1]) == (total, "1", "2")
    assert homes.exists()
