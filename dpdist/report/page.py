"""A page about a release: one self-contained HTML file, which replaces only a page of dpdist."""

from __future__ import annotations

from datetime import UTC, datetime

from dpdist.core._version import __version__
from dpdist.core.html import render
from dpdist.core.release.artefact import Release
from dpdist.core.storage.store import AnyStore, replace_own, store_at
from dpdist.report.promise import meaning_of


def write_page(release: Release, path: AnyStore, template: str, **values: object) -> None:
    """Write the page of a template of this package; it is private unless the release is private as claimed."""
    page = render(
        "dpdist.report", template, version=__version__, today=datetime.now(UTC).date().isoformat(), release=release,
        meaning=meaning_of(release), **values,
    )  # fmt: skip
    replace_own(
        store_at(path), page.encode(errors="replace"), "report", private=not release.private_as_claimed,
        own=lambda content: b"dpdist" in content[:4096],
    )  # fmt: skip
