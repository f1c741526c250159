"""Differentially private second-moment matrices and PCA of large tables, on Dask and Zarr."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpdist.estimators import PrivateCovariance, PrivatePCA

__version__ = "0.1.0"
__all__ = ["PrivateCovariance", "PrivatePCA", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the estimators when they are asked for: the command line does without them and scikit-learn."""
    if name in {"PrivateCovariance", "PrivatePCA"}:
        return getattr(import_module("dpdist.estimators"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
