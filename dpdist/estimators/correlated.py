"""What PrivatePCA refuses of components of the correlation matrix, before anything is paid for."""

from __future__ import annotations

import numpy as np

from dpdist.errors import UsageError
from dpdist.estimators.fit import releases_subspace
from dpdist.pca.correlation import require_correlated
from dpdist.release.request import Centring, ReleaseRequest


def require_kind(correlation: object, whiten: object) -> None:
    """Refuse what does not go with components of the correlation matrix, before anything is paid for."""
    if not isinstance(correlation, bool | np.bool_):
        raise UsageError("correlation is True or False.")
    if correlation and whiten:
        raise UsageError("Scores of standardised columns are not whitened: leave whiten or correlation out.")


def require_release(request: ReleaseRequest) -> None:
    """Refuse a release that will have no correlations."""
    require_correlated(
        subspace=releases_subspace(request),
        mechanism=request.mechanism,
        centred=request.centring is Centring.PRIVATE or request.centre is not None or request.scale == "private",
    )
