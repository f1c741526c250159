"""Programs of Debian's packages: a test that needs one is skipped without it, or fails where it must run."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
"""Where Debian keeps daemons too."""


def _asked_for() -> set[str]:
    """Return the packages whose tests must run: the words of DPDIST_TEST_PACKAGES, or ``all``."""
    return set(os.environ.get("DPDIST_TEST_PACKAGES", "").split())


def missing(package: str, cure: str) -> NoReturn:
    """Skip a test, or fail where its package was asked for."""
    words = f"no {package} here ({cure})"
    if _asked_for() & {package, "all"}:
        pytest.fail(words)
    pytest.skip(words)  # who works on something else need not install it; .ci/run asks for what must run


def need(package: str, *programs: str) -> None:
    """Skip a test without these programs of a package, or fail where the package was asked for."""
    if any(shutil.which(name, path=PATH) is None for name in programs):
        missing(package, f"Debian: apt-get install {package}")


def need_time(package: str) -> None:
    """Skip a test that takes a minute or more, unless its package was asked for."""
    if not _asked_for() & {package, "all"}:
        # real timeouts of Slurm, sshd and Dask pass in these, and the suite has a quarter of an hour
        pytest.skip(f"takes minutes: set DPDIST_TEST_PACKAGES={package}, or all")
