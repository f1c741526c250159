"""Differentially private second-moment matrices and PCA of large tables, on Dask and Zarr."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpdist._version import __version__

if TYPE_CHECKING:
    from dpdist.estimators import PrivateCovariance, PrivatePCA
    from dpdist.ledger.budget import Budget

__all__ = ["Budget", "PrivateCovariance", "PrivatePCA", "__version__"]
_HOMES = {
    "Budget": "dpdist.ledger.budget",
    "PrivateCovariance": "dpdist.estimators",
    "PrivatePCA": "dpdist.estimators",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: the command line does without the estimators and scikit-learn."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
