"""Compiled functions, and where their machine code is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import config, njit
from numba.core.registry import cpu_target


def compiled(function: Callable[..., Any], *signature: str, **options: Any) -> Any:
    """Compile a function, and keep the machine code on disk for later processes if there is a folder for it.

    Parameters
    ----------
    function
        Of a module, and no closure: the machine code is found again by its place in the file.
    signature
        The one it is compiled for, at once. None: it is compiled when it first meets a type.
    options
        Of ``numba.njit``.
    """
    try:
        return njit(*signature, cache=True, **options)(function)
    except (RuntimeError, OSError):  # no folder that machine code can be kept in, or one that takes none
        return njit(*signature, **options)(function)


def features() -> set[str]:
    """Return what machine code is compiled for: features of this processor, or those that numba was told."""
    if config.DISABLE_JIT:
        return set()
    _, _, found = cpu_target.target_context.codegen().magic_tuple()
    return {each[1:] for each in found.split(",") if each.startswith("+")}
