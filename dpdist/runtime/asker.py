"""Whoever submits a task: how messages name things to him, and the version that he runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from dpdist._version import __version__
from dpdist.errors import DataError
from dpdist.naming import Face, current_face


@dataclass(frozen=True)
class Asker:
    """Whoever submits a task: how messages name things to him, and the version that he runs."""

    face: Face
    version: str

    @classmethod
    def here(cls) -> Asker:
        """Return the one that is this process."""
        return cls(current_face(), __version__)


def require_version(asked: str) -> None:
    """Check, in a task, that this process runs the version of whoever submitted it.

    Raises
    ------
    DataError
        If it does not. Other code could sum other bits, without a word.
    """
    if asked != __version__:
        raise DataError(other_version(_own_address(), __version__, asked))


def other_version(address: str, found: str, asked: str) -> str:
    """Say that a worker runs another version than it is asked for."""
    return f"The worker {address} runs dpdist {found}, not {asked}: install the same."


def _own_address() -> str:
    if "distributed" not in sys.modules:  # this is no worker
        return "of this process"
    from distributed import get_worker  # noqa: PLC0415 - a process that is no worker does without it

    try:
        return str(get_worker().address)
    except ValueError:
        return "of this process"
