"""Differentially private second-moment matrices and PCA of large tables, on Dask and Zarr.

Whatever is listed in ``__all__`` is public: the steps of a job as functions, what they take and give, the estimators,
and the errors. Everything else may change with any version. What a release, a model, scores and a ledger hold is a
format, and stays readable.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dpdist._version import __version__

if TYPE_CHECKING:
    from dpdist.errors import (
        DataError,
        DpdistError,
        DrownedWarning,
        NoWitnessWarning,
        PrivacyLeakWarning,
        RefusedError,
        ResumableError,
        ShortenedRowsWarning,
        UsageError,
        WeakGuaranteeWarning,
    )
    from dpdist.estimators import PrivateCovariance, PrivatePCA, PrivateRidge
    from dpdist.ingest.labelled import area_scale
    from dpdist.ingest.registered import open_rows
    from dpdist.ledger.in_memory import Budget
    from dpdist.ledger.ledger import Ledger
    from dpdist.mechanisms.registry import list_mechanisms
    from dpdist.moment.histograms import NormGrid
    from dpdist.pca.components import Components
    from dpdist.pca.forecast import forecast_release
    from dpdist.pca.model import open_model
    from dpdist.pipeline.audit import audit_mechanism
    from dpdist.pipeline.budget import create_ledger, ingest_rows
    from dpdist.pipeline.clip_norm import choose_clip_norm
    from dpdist.pipeline.components import fit_components, project_rows
    from dpdist.pipeline.inspect import inspect_path
    from dpdist.pipeline.release import combine_releases, release_rows
    from dpdist.pipeline.sources import draft_schema, register_rows
    from dpdist.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss
    from dpdist.release.artefact import Release, open_release
    from dpdist.release.norm_histogram import NormsRequest
    from dpdist.release.request import Centring, ReleaseRequest
    from dpdist.rows.bounding import RowBound
    from dpdist.rows.columns import Column
    from dpdist.rows.schema import Schema
    from dpdist.runtime.cluster import Cluster
    from dpdist.runtime.tls import Certificates

__all__ = [
    "Budget",
    "Centring",
    "Certificates",
    "Cluster",
    "Column",
    "Components",
    "DataError",
    "DpdistError",
    "DrownedWarning",
    "Guarantee",
    "Ledger",
    "Neighbours",
    "NoWitnessWarning",
    "NormGrid",
    "NormsRequest",
    "PrivacyLeakWarning",
    "PrivacyLoss",
    "PrivateCovariance",
    "PrivatePCA",
    "PrivateRidge",
    "RefusedError",
    "Release",
    "ReleaseRequest",
    "ResumableError",
    "RowBound",
    "Schema",
    "ShortenedRowsWarning",
    "UsageError",
    "WeakGuaranteeWarning",
    "__version__",
    "area_scale",
    "audit_mechanism",
    "choose_clip_norm",
    "combine_releases",
    "create_ledger",
    "draft_schema",
    "fit_components",
    "forecast_release",
    "ingest_rows",
    "inspect_path",
    "list_mechanisms",
    "open_model",
    "open_release",
    "open_rows",
    "project_rows",
    "register_rows",
    "release_rows",
]
_NAMES = {
    "errors": (
        "DataError", "DpdistError", "DrownedWarning", "NoWitnessWarning", "PrivacyLeakWarning", "RefusedError",
        "ResumableError", "ShortenedRowsWarning", "UsageError", "WeakGuaranteeWarning",
    ),
    "estimators": ("PrivateCovariance", "PrivatePCA", "PrivateRidge"),
    "ingest.labelled": ("area_scale",),
    "ingest.registered": ("open_rows",),
    "ledger.in_memory": ("Budget",),
    "ledger.ledger": ("Ledger",),
    "mechanisms.registry": ("list_mechanisms",),
    "moment.histograms": ("NormGrid",),
    "pca.components": ("Components",),
    "pca.forecast": ("forecast_release",),
    "pca.model": ("open_model",),
    "pipeline.audit": ("audit_mechanism",),
    "pipeline.budget": ("create_ledger", "ingest_rows"),
    "pipeline.clip_norm": ("choose_clip_norm",),
    "pipeline.components": ("fit_components", "project_rows"),
    "pipeline.inspect": ("inspect_path",),
    "pipeline.release": ("combine_releases", "release_rows"),
    "pipeline.sources": ("draft_schema", "register_rows"),
    "privacy.guarantee": ("Guarantee", "Neighbours", "PrivacyLoss"),
    "release.artefact": ("Release", "open_release"),
    "release.norm_histogram": ("NormsRequest",),
    "release.request": ("Centring", "ReleaseRequest"),
    "rows.bounding": ("RowBound",),
    "rows.columns": ("Column",),
    "rows.schema": ("Schema",),
    "runtime.cluster": ("Cluster",),
    "runtime.tls": ("Certificates",),
}  # fmt: skip
_HOMES = {name: f"dpdist.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is: whoever needs a request does without the estimators and scikit-learn."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
