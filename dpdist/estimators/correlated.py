"""What PrivatePCA refuses of components of the correlation matrix, before anything is paid for."""

from __future__ import annotations

import numpy as np

from dpdist.errors import UsageError
from dpdist.estimators.fit import releases_subspace
from dpdist.pca.correlation import require_correlated
from dpdist.release.request import Centring, ReleaseRequest


def require_kind(correlation: object, whiten: object, count: float | None) -> None:
    """Refuse what does not go with components of the correlation matrix, before anything is paid for.

    Raises
    ------
    UsageError
        If it is no boolean, the number of components is left to the noise, or the scores shall be whitened.
    """
    if not isinstance(correlation, bool | np.bool_):
        raise UsageError("correlation is True or False.")
    if correlation and whiten:
        raise UsageError("Scores of standardised columns are not whitened: leave whiten or correlation out.")
    if correlation and count is None:
        raise _numberless()


def known(count: float | None) -> float:
    """Return the number or share of components that was asked for, or refuse."""
    if count is None:
        raise _numberless()
    return count


def _numberless() -> UsageError:
    return UsageError(
        "correlation=True needs a number of components, or the share of the variance that they hold: which of them "
        "stand above the noise is said of the second moment alone (n_components)."
    )


def require_release(request: ReleaseRequest) -> None:
    """Refuse a release that will have no correlations.

    Raises
    ------
    UsageError
        If its mechanism, or what rows are shifted by, allows none.
    """
    require_correlated(
        subspace=releases_subspace(request),
        mechanism=request.mechanism,
        centred=request.centring is Centring.PRIVATE or request.centre is not None or request.scale == "private",
    )
