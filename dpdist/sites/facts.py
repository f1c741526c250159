"""Describes the folder of a session for :func:`dpdist.inspect_path`."""

from __future__ import annotations

from msgspec import to_builtins

from dpdist.core.pipeline.facts import Facts
from dpdist.core.storage.store import Store
from dpdist.sites.folder import opened


def facts(store: Store) -> Facts:
    """Return what is known of a session."""
    session = opened(store)
    values = {
        "terms": to_builtins(session.terms), "session": session.terms.digest, "fingerprint": session.fingerprint,
        "missing_keys": session.missing_keys, "missing_shares": session.missing_shares, "unusable": session.unusable,
        "guarantee": session.terms.share.guarantee, "condition": session.terms.condition,
    }  # fmt: skip
    return Facts("session", "a session of several sites", str(store), values, session.lines(), private=False)
