"""Kinds of folders that the annexes write, by format: modules of dpdist, imported when such a folder is met."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

MODEL = "dpdist-model/1"
SESSION = "dpdist-session/1"
KINDS = {
    MODEL: "dpdist.answers.facts", "dpdist-matrix/1": "dpdist.literature.facts", SESSION: "dpdist.sites.facts",
}  # fmt: skip
"""Each has ``facts(store)``, which :func:`dpdist.inspect_path` returns; the first ``open_model(path)``."""


def module_of(kind: str) -> ModuleType:
    """Return the module that reads folders of a format."""
    return import_module(KINDS[kind])
