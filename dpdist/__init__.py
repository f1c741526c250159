"""Differentially private second-moment matrices and PCA of large tables, on Dask and Zarr.

The names in ``__all__`` are public: the steps of a job as functions, their parameters and results, the estimators, and
the errors. Everything else may change with any version. The formats of releases, models, scores and ledgers stay
readable.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dpdist.core._version import __version__

if TYPE_CHECKING:  # the double names export them to type checkers
    from dpdist.answers.components import Components as Components
    from dpdist.answers.fitting import fit_components as fit_components
    from dpdist.answers.forecast import forecast_release as forecast_release
    from dpdist.answers.model import open_model as open_model
    from dpdist.core.errors import BelowNoiseWarning as BelowNoiseWarning
    from dpdist.core.errors import ClippedRowsWarning as ClippedRowsWarning
    from dpdist.core.errors import DataError as DataError
    from dpdist.core.errors import DpdistError as DpdistError
    from dpdist.core.errors import PrivacyLeakWarning as PrivacyLeakWarning
    from dpdist.core.errors import RefusedError as RefusedError
    from dpdist.core.errors import ResumableError as ResumableError
    from dpdist.core.errors import UsageError as UsageError
    from dpdist.core.errors import WeakGuaranteeWarning as WeakGuaranteeWarning
    from dpdist.core.ingest.registered import open_rows as open_rows
    from dpdist.core.ledger.ledger import Ledger as Ledger
    from dpdist.core.ledger.register import Budget as Budget
    from dpdist.core.mechanisms.registry import list_mechanisms as list_mechanisms
    from dpdist.core.moment.histograms import NormGrid as NormGrid
    from dpdist.core.pipeline.budget import create_ledger as create_ledger
    from dpdist.core.pipeline.clip_norm import choose_clip_norm as choose_clip_norm
    from dpdist.core.pipeline.inspect import inspect_path as inspect_path
    from dpdist.core.pipeline.release import combine_releases as combine_releases
    from dpdist.core.pipeline.release import release_rows as release_rows
    from dpdist.core.pipeline.scores import project_rows as project_rows
    from dpdist.core.pipeline.sources import draft_schema as draft_schema
    from dpdist.core.pipeline.sources import ingest_rows as ingest_rows
    from dpdist.core.pipeline.sources import register_rows as register_rows
    from dpdist.core.privacy.guarantee import Guarantee as Guarantee
    from dpdist.core.privacy.guarantee import Neighbours as Neighbours
    from dpdist.core.privacy.guarantee import PrivacyLoss as PrivacyLoss
    from dpdist.core.release.artefact import Release as Release
    from dpdist.core.release.norm_histogram import NormsRequest as NormsRequest
    from dpdist.core.release.opening import open_release as open_release
    from dpdist.core.release.request import Centring as Centring
    from dpdist.core.release.request import ReleaseRequest as ReleaseRequest
    from dpdist.core.rows.bounding import RowBound as RowBound
    from dpdist.core.rows.columns import Column as Column
    from dpdist.core.rows.schema import Schema as Schema
    from dpdist.core.runtime.cluster import Cluster as Cluster
    from dpdist.core.runtime.tls import Certificates as Certificates
    from dpdist.estimators import PrivateCovariance as PrivateCovariance
    from dpdist.estimators import PrivateLDA as PrivateLDA
    from dpdist.estimators import PrivateLogisticRegression as PrivateLogisticRegression
    from dpdist.estimators import PrivatePCA as PrivatePCA
    from dpdist.estimators import PrivateRidge as PrivateRidge
    from dpdist.estimators.one_call import private_pca as private_pca
    from dpdist.formats.labelled import area_scale as area_scale
    from dpdist.literature.audit import audit_mechanism as audit_mechanism
    from dpdist.literature.declared import release_matrix as release_matrix
    from dpdist.literature.matrix import MatrixRelease as MatrixRelease
    from dpdist.literature.matrix import open_matrix as open_matrix
    from dpdist.sites.combine import combine_shares as combine_shares
    from dpdist.sites.folder import Session as Session
    from dpdist.sites.steps import Share as Share
    from dpdist.sites.steps import add_session_key as add_session_key
    from dpdist.sites.steps import create_session as create_session
    from dpdist.sites.steps import open_session as open_session
    from dpdist.sites.steps import release_share as release_share

_NAMES = {
    "core.errors": (
        "BelowNoiseWarning", "ClippedRowsWarning", "DataError", "DpdistError", "PrivacyLeakWarning",
        "RefusedError", "ResumableError", "UsageError", "WeakGuaranteeWarning",
    ),
    "estimators": ("PrivateCovariance", "PrivateLDA", "PrivateLogisticRegression", "PrivatePCA", "PrivateRidge"),
    "estimators.one_call": ("private_pca",),
    "formats.labelled": ("area_scale",),
    "core.ingest.registered": ("open_rows",),
    "core.ledger.register": ("Budget",),
    "core.ledger.ledger": ("Ledger",),
    "core.mechanisms.registry": ("list_mechanisms",),
    "core.moment.histograms": ("NormGrid",),
    "answers.components": ("Components",),
    "answers.forecast": ("forecast_release",),
    "answers.model": ("open_model",),
    "literature.audit": ("audit_mechanism",),
    "core.pipeline.budget": ("create_ledger",),
    "core.pipeline.clip_norm": ("choose_clip_norm",),
    "answers.fitting": ("fit_components",),
    "core.pipeline.scores": ("project_rows",),
    "core.pipeline.inspect": ("inspect_path",),
    "literature.declared": ("release_matrix",),
    "core.pipeline.release": ("combine_releases", "release_rows"),
    "core.pipeline.sources": ("draft_schema", "ingest_rows", "register_rows"),
    "core.privacy.guarantee": ("Guarantee", "Neighbours", "PrivacyLoss"),
    "core.release.artefact": ("Release",),
    "core.release.opening": ("open_release",),
    "literature.matrix": ("MatrixRelease", "open_matrix"),
    "core.release.norm_histogram": ("NormsRequest",),
    "core.release.request": ("Centring", "ReleaseRequest"),
    "core.rows.bounding": ("RowBound",),
    "core.rows.columns": ("Column",),
    "core.rows.schema": ("Schema",),
    "core.runtime.cluster": ("Cluster",),
    "core.runtime.tls": ("Certificates",),
    "sites.folder": ("Session",),
    "sites.steps": ("Share", "add_session_key", "create_session", "open_session", "release_share"),
    "sites.combine": ("combine_shares",),
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
