"""Differentially private second-moment matrices and PCA of large tables, on Dask and Zarr.

The names in ``__all__`` are public: the steps of a job as functions, their parameters and results, the estimators, and
the errors. Everything else may change with any version. The formats of releases, models, scores and ledgers stay
readable.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dpdist._version import __version__

if TYPE_CHECKING:  # the double names export them to type checkers
    from dpdist.errors import BelowNoiseWarning as BelowNoiseWarning
    from dpdist.errors import ClippedRowsWarning as ClippedRowsWarning
    from dpdist.errors import DataError as DataError
    from dpdist.errors import DpdistError as DpdistError
    from dpdist.errors import PrivacyLeakWarning as PrivacyLeakWarning
    from dpdist.errors import RefusedError as RefusedError
    from dpdist.errors import ResumableError as ResumableError
    from dpdist.errors import UsageError as UsageError
    from dpdist.errors import WeakGuaranteeWarning as WeakGuaranteeWarning
    from dpdist.estimators import PrivateCovariance as PrivateCovariance
    from dpdist.estimators import PrivatePCA as PrivatePCA
    from dpdist.estimators import PrivateRidge as PrivateRidge
    from dpdist.estimators.one_call import private_pca as private_pca
    from dpdist.ingest.labelled import area_scale as area_scale
    from dpdist.ingest.registered import open_rows as open_rows
    from dpdist.ledger.in_memory import Budget as Budget
    from dpdist.ledger.ledger import Ledger as Ledger
    from dpdist.mechanisms.registry import list_mechanisms as list_mechanisms
    from dpdist.moment.histograms import NormGrid as NormGrid
    from dpdist.pca.components import Components as Components
    from dpdist.pca.forecast import forecast_release as forecast_release
    from dpdist.pca.model import open_model as open_model
    from dpdist.pipeline.audit import audit_mechanism as audit_mechanism
    from dpdist.pipeline.budget import create_ledger as create_ledger
    from dpdist.pipeline.budget import ingest_rows as ingest_rows
    from dpdist.pipeline.clip_norm import choose_clip_norm as choose_clip_norm
    from dpdist.pipeline.components import fit_components as fit_components
    from dpdist.pipeline.components import project_rows as project_rows
    from dpdist.pipeline.inspect import inspect_path as inspect_path
    from dpdist.pipeline.matrix import release_matrix as release_matrix
    from dpdist.pipeline.release import combine_releases as combine_releases
    from dpdist.pipeline.release import release_rows as release_rows
    from dpdist.pipeline.sources import draft_schema as draft_schema
    from dpdist.pipeline.sources import register_rows as register_rows
    from dpdist.privacy.guarantee import Guarantee as Guarantee
    from dpdist.privacy.guarantee import Neighbours as Neighbours
    from dpdist.privacy.guarantee import PrivacyLoss as PrivacyLoss
    from dpdist.release.artefact import Release as Release
    from dpdist.release.artefact import open_release as open_release
    from dpdist.release.matrix import MatrixRelease as MatrixRelease
    from dpdist.release.matrix import open_matrix as open_matrix
    from dpdist.release.norm_histogram import NormsRequest as NormsRequest
    from dpdist.release.request import Centring as Centring
    from dpdist.release.request import ReleaseRequest as ReleaseRequest
    from dpdist.rows.bounding import RowBound as RowBound
    from dpdist.rows.columns import Column as Column
    from dpdist.rows.schema import Schema as Schema
    from dpdist.runtime.cluster import Cluster as Cluster
    from dpdist.runtime.tls import Certificates as Certificates

_NAMES = {
    "errors": (
        "BelowNoiseWarning", "ClippedRowsWarning", "DataError", "DpdistError", "PrivacyLeakWarning",
        "RefusedError", "ResumableError", "UsageError", "WeakGuaranteeWarning",
    ),
    "estimators": ("PrivateCovariance", "PrivatePCA", "PrivateRidge"),
    "estimators.one_call": ("private_pca",),
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
    "pipeline.matrix": ("release_matrix",),
    "pipeline.release": ("combine_releases", "release_rows"),
    "pipeline.sources": ("draft_schema", "register_rows"),
    "privacy.guarantee": ("Guarantee", "Neighbours", "PrivacyLoss"),
    "release.artefact": ("Release", "open_release"),
    "release.matrix": ("MatrixRelease", "open_matrix"),
    "release.norm_histogram": ("NormsRequest",),
    "release.request": ("Centring", "ReleaseRequest"),
    "rows.bounding": ("RowBound",),
    "rows.columns": ("Column",),
    "rows.schema": ("Schema",),
    "runtime.cluster": ("Cluster",),
    "runtime.tls": ("Certificates",),
}  # fmt: skip
_HOMES = {name: f"dpdist.{module}" for module, names in _NAMES.items() for name in names}
__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604 - the names above, which are strings


def __getattr__(name: str) -> object:
    """Import a name on first use, so that scikit-learn, for example, is imported for estimators only."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
