"""Compiled functions and the cache of their machine code.

Cached machine code is loaded by pickle and executed, so its folder is one that only this user can write:
``NUMBA_CACHE_DIR`` if it is set, otherwise ``dpdist`` in ``XDG_CACHE_HOME`` or ``~/.cache``. It is not next to the
package, where it would outlive an uninstallation: a folder that is left there hides an installation elsewhere.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
import numpy.typing as npt
from numba import config, njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.sigutils import normalize_signature
from numba.core.typeinfer import register_dispatcher

LINE = 64
"""Bytes of a cache line, and of the longest vector."""


def compiled(function: Callable[..., Any], signature: str | None = None, **options: Any) -> Any:
    """Compile a function and cache the machine code on disk, by kind of processor, if a folder can hold it."""
    dispatcher = njit(**options)(function)
    if config.DISABLE_JIT:
        return dispatcher
    with suppress(RuntimeError, OSError):  # no home folder, or one that cannot be written
        dispatcher._cache = _Cache(function)  # noqa: SLF001 - numba offers no other way to choose the folder
    if signature is not None:
        with register_dispatcher(dispatcher):  # as njit does with a signature
            dispatcher.compile(signature)
        dispatcher.disable_compile()
    return dispatcher


class _Location:
    """The folder and names of the cached code of a function, as numba asks for them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._py_file = inspect.getfile(function)
        self.folder = _private(_cache_home() / _key(Path(self._py_file)))

    def get_cache_path(self) -> str:
        return str(self.folder)

    def get_source_stamp(self) -> str:
        return self.folder.name

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder was created with the cache."""


class _CachedFunction(CompileResultCacheImpl):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:  # numba's own would choose among its folders
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Location(function)
        self._filename_base = f"{function.__module__}.{function.__qualname__.replace('<locals>', '')}-{self._lineno}"


class _Cache(FunctionCache):  # type: ignore[misc]
    """A cache whose contents cannot end the process, and on which nothing depends."""

    _impl_class = _CachedFunction

    def load_overload(self, *arguments: Any) -> Any:
        """Load cached code; if it is damaged, for example by a crash, empty the cache and return None."""
        try:
            # numba would first import all that it could compile, half a second; its compiler does so when it compiles
            rtsys.initialize(arguments[1])
            found = self._load_overload(*arguments)
        except Exception:  # noqa: BLE001 - unpickling damaged bytes can raise anything
            with suppress(OSError):
                self.flush()
            return None
        # two processes that compile different types at the same time write them under one name
        return found if found and found.signature.args == normalize_signature(arguments[0])[0] else None

    def save_overload(self, *arguments: Any) -> None:
        """Save code if the disk can hold it: it may be full when a new type is compiled during a pass."""
        with suppress(Exception):
            super().save_overload(*arguments)


def _cache_home() -> Path:
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR)
    common = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (common if common.is_absolute() else Path.home() / ".cache") / "dpdist"


def _key(source: Path) -> str:
    """Return a name for the code that these sources, versions and kind of processor give."""
    # numba numbers the files of a function by its index: of two processes that compile for different processors, or
    # with another numba, at the same time, one may load the code of the other and die of an illegal instruction
    processor = cpu_target.target_context.codegen().magic_tuple()
    key = hashlib.sha256(repr((sys.version, numba.__version__, llvmlite.__version__, processor)).encode())
    for path in sorted({*source.parent.glob("*.py"), *Path(__file__).parent.glob("*.py")}):  # constants are compiled in
        key.update(path.read_bytes())
    return f"dpdist-{key.hexdigest()[:32]}"


def _private(folder: Path) -> Path:
    """Create a folder that only this user can read or write, or raise OSError."""
    for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        path.mkdir(mode=0o700, exist_ok=True)
    folder, user = folder.resolve(), os.geteuid()
    status = folder.stat()
    if status.st_uid != user or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not private")
    for parent in folder.parents:  # who may rename a folder can put another in its place
        status = parent.stat()
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in {0, user} or shared:
            raise PermissionError(f"{parent} belongs to others")
    return folder


def features() -> set[str]:
    """Return the processor features that numba compiles for."""
    if config.DISABLE_JIT:
        return set()
    _, _, names = cpu_target.target_context.codegen().magic_tuple()
    return {name[1:] for name in names.split(",") if name.startswith("+")}


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Return zeros aligned to a cache line: vectors that straddle two lines take twice as long."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + LINE, dtype=np.uint8)
    begin = -memory.ctypes.data % LINE
    zeros: npt.NDArray[Any] = memory[begin : begin + size].view(dtype).reshape(shape)
    return zeros
