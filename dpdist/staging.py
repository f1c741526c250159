"""Write a folder aside and rename it into place: a reader sees all of it or nothing, whatever dies on the way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpdist.errors import DataError
from dpdist.noise.entropy import random_token


def require_new(target: Path, what: str) -> None:
    """Refuse to write over something.

    Raises
    ------
    DataError
        If the target exists, or the folder it should stand in does not, or cannot be written.
    """
    if os.path.lexists(target):
        raise DataError(f"{target} exists already. Remove it or choose another place for the {what}.")
    parent = target.absolute().parent
    if not parent.is_dir():
        raise DataError(f"The folder {parent} does not exist. Create it first, then write the {what} there.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise DataError(f"The folder {parent} is not writable. Change its permissions or write the {what} elsewhere.")


def sync_tree(root: Path) -> None:
    """Flush every file and folder under root, and root itself, to the disk."""
    for folder, _, names in os.walk(root):
        for path in [Path(folder), *(Path(folder) / name for name in names)]:
            sync(path)


def sync(path: Path) -> None:
    """Flush one file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def staged(target: Path, what: str) -> Iterator[Path]:
    """Give a path beside target to build in; on success it is flushed and renamed to target, else removed.

    Parameters
    ----------
    target
        Where the folder shall appear. It must not exist.
    what
        What it is, for error messages.

    Raises
    ------
    DataError
        As :func:`require_new`, also when the target appears meanwhile or the disk is full.
    """
    require_new(target, what)
    aside = target.with_name(f".{target.name}.{random_token()[:8]}.partial")
    try:
        yield aside
        sync_tree(aside)
        require_new(target, what)
        aside.rename(target)
        sync(target.absolute().parent)
    except OSError as error:
        raise DataError(
            f"Writing the {what} {target} failed: {error.strerror}. Nothing was left behind; mend it and try again."
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
