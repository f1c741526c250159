"""What :func:`dpdist.inspect_path` says of a released matrix."""

from __future__ import annotations

from dpdist.core.pipeline.facts import Facts
from dpdist.core.storage.store import Store
from dpdist.literature.matrix import open_matrix


def facts(store: Store) -> Facts:
    """Describe a released matrix."""
    release = open_matrix(store)
    d, deviation = len(release.lattice), release.deviation
    values = {
        "release_id": release.release_id, "mechanism": release.mechanism, "d": d,
        "guarantee": release.guarantee_message, "declared_sensitivity": release.sensitivity_message,
        "noise_deviation": deviation,
    }  # fmt: skip
    lines = [
        ("release", f"{release.release_id}, {release.mechanism}"),
        ("guarantee", release.guarantee_message),
        ("sensitivity", release.sensitivity_message),
        ("matrix", f"{d} x {d}, noise off the diagonal of standard deviation {deviation:.3g}"),
    ]
    title = "private symmetric matrix, of declared sensitivity"
    return Facts("matrix", title, str(store), values, lines, private=False, damaged=())
