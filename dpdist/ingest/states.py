"""In which state a source is, and that it stays so while it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dpdist.ingest.readers.base import changed
from dpdist.ingest.sources import Remote, Source, SourceLocation, attempt, files_of


def state_of(place: SourceLocation) -> object:
    """Return size and times of all files of a source, or what a store says of it: a write changes that."""

    def found() -> object:
        if isinstance(place, Remote):
            return place.version()
        stats = [path.stat() for path in files_of(place)]
        return [(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats]

    return attempt(place, found)


def digest_of(state: object) -> str:
    """Return a digest of a state, or of other JSON values, hexadecimal."""
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def watching(source: Source, known: str | None, part: tuple[int, int] | None) -> Callable[[], None]:
    """Return what raises when a source is not any more what it was.

    Parameters
    ----------
    source
        The source.
    known
        Digest of the state in which it was found at first; None: that in which it is now.
    part
        The rows that are read, where it is a folder of which other parts do not matter; None: all of it.
    """
    look: Callable[[], object] = partial(state_of, source.path)
    if part is not None and not (isinstance(source.path, Path) and source.path.is_file()):
        look, known = partial(source.state, *part), None
        before: object = look()
    else:
        look = lambda: digest_of(state_of(source.path))  # noqa: E731
        before = look() if known is None else known

    def require_same() -> None:
        if look() != before:
            raise changed(source.path)

    return require_same
