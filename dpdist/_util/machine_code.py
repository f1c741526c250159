"""Compiled functions, and where their machine code is kept."""

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
"""Bytes of a line of the cache, and of the longest vector."""


def compiled(function: Callable[..., Any], signature: str | None = None, **options: Any) -> Any:
    """Compile a function, and keep the machine code on disk for later processes if there is a folder for it.

    What is kept is for one kind of processor: of two that share a folder, neither finds what the other compiled.
    """
    try:
        found = njit(cache=True, **options)(function)
    except (RuntimeError, OSError):  # no folder that machine code can be kept in, or one that takes none
        found = njit(**options)(function)
    kept = getattr(found, "_cache", None)
    if isinstance(kept, Cache):
        _harmless(kept)
    if signature is not None and not config.DISABLE_JIT:
        with register_dispatcher(found):  # as njit does with a signature
            found.compile(signature)
        found.disable_compile()
    return found


def _harmless(kept: Any) -> None:
    """Let nothing that stands, or does not stand, in the folder of machine code end a process."""
    place, impl = kept.cache_path, kept._impl  # noqa: SLF001 - numba offers no other way
    # numba numbers the files of a function by what its index holds: two processes that compile at the same time, for
    # two processors, may give the code of one of them to the other, which ends by an illegal instruction
    name = f"{impl.filename_base}.{_processor()}"
    kept._cache_file = IndexDataCacheFile(place, name, impl.locator.get_source_stamp())  # noqa: SLF001
    kept.load_overload = partial(_loaded, kept.load_overload, kept.flush)
    kept.save_overload = partial(_saved, kept.save_overload)


def _processor() -> str:
    """Return a name for what machine code is compiled for."""
    return hashlib.sha256(repr(cpu_target.target_context.codegen().magic_tuple()).encode()).hexdigest()[:16]


def _loaded(load: Callable[..., Any], flush: Callable[[], None], *arguments: Any) -> Any:
    """Return what was kept; None, and begin anew, where it is damaged: a machine may have gone down over it."""
    try:
        return load(*arguments)
    except Exception:  # noqa: BLE001 - bytes that are no pickle raise whatever they happen to ask for
        with suppress(OSError):
            flush()
        return None


def _saved(save: Callable[..., None], *arguments: Any) -> None:
    with suppress(Exception):  # a disk may be full when a type is first met, in the middle of a pass
        save(*arguments)


def features() -> set[str]:
    """Return what machine code is compiled for: features of this processor, or those that numba was told."""
    if config.DISABLE_JIT:
        return set()
    _, _, found = cpu_target.target_context.codegen().magic_tuple()
    return {each[1:] for each in found.split(",") if each.startswith("+")}


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Return zeros whose first byte begins a line of the cache: vectors that straddle two lines take twice as long."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + LINE, dtype=np.uint8)
    begin = -memory.ctypes.data % LINE
    found: npt.NDArray[Any] = memory[begin : begin + size].view(dtype).reshape(shape)
    return found
