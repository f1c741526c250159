"""Whether the first sum on a machine begins by compiling: looked up in files, as numba takes time to import.

It decides what a progress bar says, and nothing else. Machine code is kept by :mod:`dpdist._util.machine_code`.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from dpdist import rows
from dpdist.moment.total import worth_compiling
from dpdist.rows.table import Sizes

_MODULE = "dither_kernel"
"""What takes longest to compile of all that sums a large table."""


def compiles_first(table: Sizes) -> bool:
    """Say whether code is compiled before a table is summed on this machine: it is large, and none is kept here."""
    if not worth_compiling(table) or find_spec("numba") is None:
        return False
    source = Path(rows.__file__).with_name(f"{_MODULE}.py")
    named = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(named)] if named else [source.parent / "__pycache__", Path.home() / ".cache" / "numba"]
    try:
        since = source.stat().st_mtime
        kept = (file for place in places for file in place.rglob(f"{_MODULE}.*.nbi"))
        return not any(file.stat().st_mtime >= since for file in kept)
    except (OSError, RuntimeError):  # a folder that cannot be read, or nobody's home
        return False
