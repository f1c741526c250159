"""Compiled functions and the cache of their machine code."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import config, njit
from numba.core.caching import Cache, IndexDataCacheFile
from numba.core.registry import cpu_target
from numba.core.typeinfer import register_dispatcher

LINE = 64
"""Bytes of a cache line, and of the longest vector."""


def compiled(function: Callable[..., Any], signature: str | None = None, **options: Any) -> Any:
    """Compile a function and cache the machine code on disk, by kind of processor, if a folder can hold it."""
    try:
        dispatcher = njit(cache=True, **options)(function)
    except (RuntimeError, OSError):  # no folder for the cache, or one that cannot be written
        dispatcher = njit(**options)(function)
    cache = getattr(dispatcher, "_cache", None)
    if isinstance(cache, Cache):
        _make_safe(cache)
    if signature is not None and not config.DISABLE_JIT:
        with register_dispatcher(dispatcher):  # as njit does with a signature
            dispatcher.compile(signature)
        dispatcher.disable_compile()
    return dispatcher


def _make_safe(cache: Any) -> None:
    """Make sure that no content of the cache folder can end the process."""
    folder, impl = cache.cache_path, cache._impl  # noqa: SLF001 - numba offers no other way
    # numba numbers the files of a function by its index: of two processes that compile for different processors at the
    # same time, one may load the code of the other and die of an illegal instruction
    name = f"{impl.filename_base}.{_processor()}"
    cache._cache_file = IndexDataCacheFile(folder, name, impl.locator.get_source_stamp())  # noqa: SLF001
    cache.load_overload = partial(_load, cache.load_overload, cache.flush)
    cache.save_overload = partial(_save, cache.save_overload)


def _processor() -> str:
    return hashlib.sha256(repr(cpu_target.target_context.codegen().magic_tuple()).encode()).hexdigest()[:16]


def _load(load: Callable[..., Any], flush: Callable[[], None], *arguments: Any) -> Any:
    """Load cached code; if it is damaged, for example by a crash, empty the cache and return None."""
    try:
        return load(*arguments)
    except Exception:  # noqa: BLE001 - unpickling damaged bytes can raise anything
        with suppress(OSError):
            flush()
        return None


def _save(save: Callable[..., None], *arguments: Any) -> None:
    with suppress(Exception):  # the disk may be full when a new type is compiled during a pass
        save(*arguments)


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
