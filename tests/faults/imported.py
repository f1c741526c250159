"""What commands import when they need it, imported at once: then processes that are forked begin at once."""

from __future__ import annotations

from importlib import import_module

_MODULES = (
    *(f"dpdist.cli.{commands}" for commands in ("components", "inspect", "jobs", "ledger", "pipeline")),
    "dpdist.core.ingest.write", "dpdist.core.runtime.cluster", "threadpoolctl", "scipy.optimize", "scipy.sparse.linalg",
)  # fmt: skip


def everything() -> None:
    for module in _MODULES:
        import_module(module)
