"""Errors and warnings, with the exit codes of the command line.

Hierarchy::

    DpdistError            exit 1   a defect in dpdist
    ├── UsageError         exit 2   an invalid command or combination of options
    ├── RefusedError       exit 3   budget, guarantee or an unsafe option
    ├── DataError          exit 4   rows, files, cluster, or the value of a number cannot be used
    │   └── BelowNoiseError         the requested part of a release is below its noise
    └── ResumableError     exit 5   interrupted; the same command resumes

A message is one paragraph: what happened, where, and what to do. It contains no value computed from private rows,
because messages end up in logs, dashboards and other people's terminals.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import currentframe

from dpdist.core.naming import parameter as named


class DpdistError(Exception):
    """Base class of the errors of this package.

    Parameters
    ----------
    message : str, default ""
        One paragraph.
    parameter : str, default None
        The parameter with the invalid value, if any; the message ends with its name
        (:func:`dpdist.core.naming.parameter`).

    See Also
    --------
    UsageError, RefusedError, DataError, ResumableError : The subclasses.

    Examples
    --------
    >>> print(UsageError("At least one worker is needed.", parameter="workers"))
    At least one worker is needed (workers).
    """

    exit_code = 1

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        if parameter is not None:
            message = f"{message.removesuffix('.')} ({named(parameter)})."
        super().__init__(message)
        self.parameter = parameter


class UsageError(DpdistError):
    """The request is invalid for any data: an unknown name, a missing option, an impossible combination.

    See Also
    --------
    DataError : A number or a file that cannot be used.

    Examples
    --------
    >>> import dpdist
    >>> dpdist.PrivacyLoss.parse("one")
    Traceback (most recent call last):
    dpdist.core.errors.UsageError: Epsilon must be a number, not 'one'.
    """

    exit_code = 2


class RefusedError(DpdistError):
    """The request is understood and refused: over budget, a false guarantee, an unsafe option.

    See Also
    --------
    Ledger, Budget : The remaining budget.

    Examples
    --------
    >>> import dpdist
    >>> request = dpdist.ReleaseRequest("sn", dpdist.PrivacyLoss.parse(1), clip_norm=1)
    >>> dpdist.forecast_release(request, columns=4, rows=1000)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    dpdist.core.errors.RefusedError: sn was published as epsilon 1, delta 0; the proved loss is ...
    """

    exit_code = 3


class DataError(DpdistError):
    """The rows, a file, a folder, the cluster, or the value of a number cannot be used.

    See Also
    --------
    UsageError : A request that is invalid for any data.

    Examples
    --------
    >>> import dpdist
    >>> dpdist.PrivacyLoss.parse(-1)
    Traceback (most recent call last):
    dpdist.core.errors.DataError: Epsilon must be a non-negative number of reasonable size, not -1.
    """

    exit_code = 4


class BelowNoiseError(DataError):
    """The requested part of a release is below its noise: a target, components, all columns to regress on."""


class PrivacyLeakWarning(UserWarning):
    """A parameter was computed from the rows without spending budget: on private data, its value is a leak.

    The message names the parameter. Reproductions of published experiments on public data raise this warning, and
    estimators whose parameter can only come from their rows. So does every ``score`` of an estimator, as parameters
    chosen by scores come from the rows. No command computes a parameter from the rows.

    See Also
    --------
    PrivatePCA, PrivateCovariance, PrivateRidge : Warn about a clip norm or a mean computed from X.

    Examples
    --------
    >>> import warnings
    >>> import dpdist
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", dpdist.PrivacyLeakWarning)  # in this block
    """


class WeakGuaranteeWarning(UserWarning):
    """The requested guarantee is proved but weak: a large epsilon or delta, or rows that may be several of a person.

    Commands print the same as a caution, or refuse.

    See Also
    --------
    release_rows, choose_clip_norm, PrivatePCA, PrivateCovariance, PrivateRidge : Raise this warning.
    """


class ClippedRowsWarning(UserWarning):
    """Nearly every row was clipped to the clip norm, so the release describes clipped rows.

    See Also
    --------
    PrivatePCA, PrivateCovariance, PrivateRidge : Raise this warning.
    choose_clip_norm : Chooses a clip norm above the norms of most rows.
    """


class BelowNoiseWarning(UserWarning):
    """Part of an answer may be noise: components below the noise edge, targets that the columns may not explain.

    See Also
    --------
    PrivatePCA, PrivateRidge, PrivateCovariance : Raise this warning.
    forecast_release : Predicts the components above the noise.
    """


class ResumableError(DpdistError):
    """Work was interrupted; nothing is lost, and the same command or call resumes it.

    See Also
    --------
    DpdistError : The base of all errors.

    Examples
    --------
    An unattended job repeats the call:

    >>> import dpdist
    >>> def released(rows, release, request):
    ...     while True:
    ...         try:
    ...             return dpdist.release_rows(rows, release, request)
    ...         except dpdist.ResumableError:
    ...             print("interrupted; going on")
    """

    exit_code = 5


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and unraisable errors of libraries, which may quote the contents of a damaged file."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = before


_PASSED_OVER = {"contextlib", "dpdist", "functools", "joblib", "sklearn"}


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the line of the user's program that called this package, perhaps through scikit-learn."""
    level, frame = 1, currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
