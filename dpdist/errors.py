"""Errors a user can meet, each with the exit code the command line promises.

Hierarchy::

    DpdistError            exit 1   a defect in dpdist
    ├── UsageError         exit 2   the command or combination of options makes no sense
    ├── RefusedError       exit 3   budget, guarantee or an unsafe option
    ├── DataError          exit 4   rows, files, cluster, or the value of a number cannot be used
    │   └── BelowNoiseError         the requested part of a release is below its noise
    └── ResumableError     exit 5   stopped half-way; the same command resumes

Beside them :class:`PrivacyLeakWarning`, for what goes on although it gives private data away,
:class:`WeakGuaranteeWarning`, for what is proved and promises little, and :class:`ClippedRowsWarning`, for what is
private and tells little of the rows.

A message says what happened, where, and how to mend it, in one paragraph. It never carries a value computed
from private rows, because messages travel: to logs, dashboards and other people's terminals.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from dpdist.naming import parameter as named


class DpdistError(Exception):
    """Base of every error this package raises on purpose.

    Parameters
    ----------
    message : str, default ""
        One paragraph.
    parameter : str, default None
        The parameter whose value is at fault, as of :func:`dpdist.naming.parameter`; it is named at the end. None: none
        is.

    See Also
    --------
    UsageError, RefusedError, DataError, ResumableError : The kinds that a user meets.

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
    """The request makes no sense whatever the data are: an unknown name, a missing option, a bad combination.

    See Also
    --------
    DataError : A number or a file that cannot be used.

    Examples
    --------
    >>> import dpdist
    >>> dpdist.PrivacyLoss.parse("one")
    Traceback (most recent call last):
    dpdist.errors.UsageError: Epsilon must be a number, not 'one'.
    """

    exit_code = 2


class RefusedError(DpdistError):
    """The request is understood and refused: over budget, a false guarantee, an unsafe option.

    See Also
    --------
    Ledger, Budget : What may still be asked for.

    Examples
    --------
    >>> import dpdist
    >>> request = dpdist.ReleaseRequest("sn", dpdist.PrivacyLoss.parse(1), clip_norm=1)
    >>> dpdist.forecast_release(request, columns=4, rows=1000)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    dpdist.errors.RefusedError: sn was published as epsilon 1, delta 0; the proved loss is ...
    """

    exit_code = 3


class DataError(DpdistError):
    """The rows, a file, a folder, the cluster, or the value of a number cannot be used as they are.

    See Also
    --------
    UsageError : What makes no sense whatever the data are.

    Examples
    --------
    >>> import dpdist
    >>> dpdist.PrivacyLoss.parse(-1)
    Traceback (most recent call last):
    dpdist.errors.DataError: Epsilon must be a non-negative number of reasonable size, not -1.
    """

    exit_code = 4


class BelowNoiseError(DataError):
    """The requested part of a release is below its noise: a target, components, all columns to regress on."""


class PrivacyLeakWarning(UserWarning):
    """A parameter was computed from the rows without spending budget: on private data its value is a leak.

    It names the parameter. Published experiments that are repeated on public data warn, and estimators that see that a
    parameter can only come from their rows. So does every ``score`` of an estimator: parameters that are chosen by
    scores come from the rows. No command takes a parameter from the rows.

    See Also
    --------
    PrivatePCA, PrivateCovariance, PrivateRidge : Give it, of a clip norm or a mean that was taken from X.

    Examples
    --------
    >>> import warnings
    >>> import dpdist
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", dpdist.PrivacyLeakWarning)  # in this block
    """


class WeakGuaranteeWarning(UserWarning):
    """A guarantee was asked for that is proved and hardly protects anybody: a large epsilon, or a large delta.

    The command line says the same in its own words.

    See Also
    --------
    release_rows, choose_clip_norm, PrivatePCA, PrivateCovariance, PrivateRidge : Give it.
    """


class ClippedRowsWarning(UserWarning):
    """Nearly every row was clipped to the clip norm: the values of the release are those of clipped rows.

    Also available as ``ShortenedRowsWarning``, its name in earlier versions.

    See Also
    --------
    PrivatePCA, PrivateCovariance, PrivateRidge : Give it.
    choose_clip_norm : Chooses a clip norm that most rows are within.
    """


class NoWitnessWarning(UserWarning):
    """A ledger was used before witnesses were kept: it says once that copies used until then cannot be seen.

    See Also
    --------
    Ledger : Gives it.
    """


class BelowNoiseWarning(UserWarning):
    """Part of an answer may be noise: components below the noise edge, targets that the columns may not explain.

    Also available as ``DrownedWarning``, its name in earlier versions.

    See Also
    --------
    PrivatePCA, PrivateRidge, PrivateCovariance : Give it.
    forecast_release : Says beforehand which components will be told from noise.
    """


ShortenedRowsWarning, DrownedWarning = ClippedRowsWarning, BelowNoiseWarning


class ResumableError(DpdistError):
    """Work stopped half-way; nothing is lost, and the same command or call resumes it.

    See Also
    --------
    DpdistError : The base of all errors.

    Examples
    --------
    Whoever runs a job unattended asks again:

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
    """Let libraries print nothing about a file that may be damaged: what is wrong with it is told in one sentence.

    Warnings are dropped. So is what Python reports when a half-made object of a library fails once more as it is
    collected. Both may quote what stands in the file.
    """
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = before
