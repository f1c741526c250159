"""The public data sets of the papers, from a folder or through scikit-learn, and the papers' own preprocessing.

Nothing that is computed here is private: centring by the exact mean and dividing by the largest norm of the data, as
the papers do, are functions of every row. A release bounds rows by a public clip norm instead.
Wherever a parameter is taken from the rows like that, :func:`leaks` names it.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import DataError, PrivacyLeakWarning

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """A public data set.

    Attributes
    ----------
    rows
        (n, d), as the source has them.
    labels
        (n,), int64.
    source
        Where it comes from, in words.
    """

    rows: npt.NDArray[Any]
    labels: Labels
    source: str

    def of_classes(self, classes: tuple[int, ...]) -> list[npt.NDArray[np.intp]]:
        """Return the positions of the rows of every class."""
        return [np.flatnonzero(self.labels == label) for label in classes]


def arrays(folder: Path | None, name: str) -> dict[str, npt.NDArray[Any]] | None:
    """Return the arrays of ``folder/name.npz``, or None where there is no such file.

    Raises
    ------
    DataError
        If there is one that cannot be read.
    """
    path = None if folder is None else folder / f"{name}.npz"
    if path is None or not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as held:
            return {key: held[key] for key in held.files}
    except (OSError, ValueError) as error:
        raise DataError(f"The data set {path} cannot be read: {error}. Fetch it again.") from None


def required(folder: Path | None, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a data set that is only ever in the folder.

    Raises
    ------
    DataError
        If it is not there.
    """
    found = arrays(folder, name)
    if found is None:
        raise DataError(f"There is no {name}.npz in {folder or 'the data folder, which was not named'} (--data).")
    return found


def mnist(folder: Path | None) -> Table:
    """Return MNIST, (70000, 784) grey levels and digits, the training set first.

    Raises
    ------
    DataError
        If it is neither in the folder nor to be had through scikit-learn.
    """
    return _table("mnist", "y", folder, "fetch_openml('mnist_784')")


def covertype(folder: Path | None) -> Table:
    """Return Covertype, (581012, 54), with cover types 1 to 7, or 0 where the folder's copy does not know it.

    Raises
    ------
    DataError
        If it is neither in the folder nor to be had through scikit-learn.
    """
    return _table("covertype", "y7", folder, "fetch_covtype()")


def _table(name: str, labels: str, folder: Path | None, fetcher: str) -> Table:
    found = arrays(folder, name)
    if found is not None:
        return Table(found["X"], found[labels].astype(np.int64), f"{name}.npz")
    return Table(*_fetched(name, folder), f"scikit-learn: {fetcher}")


def _fetched(name: str, folder: Path | None) -> tuple[npt.NDArray[Any], Labels]:
    from sklearn.datasets import fetch_covtype, fetch_openml  # noqa: PLC0415 - slow, and often not needed

    try:
        if name == "mnist":
            rows, labels = fetch_openml("mnist_784", version=1, as_frame=False, return_X_y=True)
        else:
            rows, labels = fetch_covtype(return_X_y=True)
    except (OSError, ValueError) as error:  # no network, or an answer that is not the data set
        place = f"There is no {name}.npz in {folder}" if folder else "No data folder was named (--data)"
        content = "X, (70000, 784), and y" if name == "mnist" else "X, (581012, 54), and y7"
        raise DataError(
            f"{place}, and scikit-learn could not fetch {name}: {type(error).__name__}. Put the file there, with the "
            f"arrays {content}, or run where the network can be reached; scikit-learn keeps what it fetched."
        ) from None
    return np.asarray(rows), np.asarray(labels).astype(np.int64)


def chosen(table: Table, count: int, seed: int) -> Floats:
    """Return so many rows at random, without repetition, as float64.

    Raises
    ------
    DataError
        If there are not so many.
    """
    if count > len(table.rows):
        raise DataError(f"{count} rows were asked for and {table.source} has {len(table.rows)}.")
    picked = np.random.default_rng(seed).choice(len(table.rows), count, replace=False)
    return table.rows[np.sort(picked)].astype(np.float64)


def leaks(parameter: str, instead: str, level: int = 1) -> None:
    """Warn that a parameter is taken from the rows.

    Parameters
    ----------
    parameter
        What it is.
    instead
        What to take where the rows are private.
    level
        Who does it: 1 the caller, 2 whoever called it.
    """
    warnings.warn(
        f"{parameter}: computed from the rows, at no cost to any budget. These rows are public; of private ones it "
        f"would be a leak. {instead}",
        PrivacyLeakWarning,
        stacklevel=1 + level,
    )


def in_unit_ball(rows: Floats) -> Floats:
    """Subtract the mean and divide by the largest norm: the papers' preprocessing, which is not private.

    Warns
    -----
    PrivacyLeakWarning
        Always.
    """
    leaks(
        "The mean and the largest norm that rows are centred and scaled by",
        "Choose a clip norm with dpdist bound, and release the mean with --centre private.",
        level=2,
    )
    centred = rows - rows.mean(axis=0)
    norms: Floats = np.linalg.norm(centred, axis=1)
    out: Floats = centred / norms.max()
    return out


SCALINGS = ("raw", "[0, 1]", "z-scored")


def column_scaled(rows: Floats, scaling: str) -> Floats:
    """Return rows with columns as they are, on [0, 1], or of variance 1: by their exact ranges, which is not private.

    A column without variance becomes 0.

    Parameters
    ----------
    rows
        (n, d).
    scaling
        One of ``SCALINGS``.

    Warns
    -----
    PrivacyLeakWarning
        Unless they stay as they are.

    Examples
    --------
    >>> import numpy as np, warnings
    >>> column_scaled(np.array([[1.0], [3.0]]), "raw").tolist()
    [[1.0], [3.0]]
    >>> with warnings.catch_warnings(action="ignore"):
    ...     column_scaled(np.array([[1.0, 5], [3.0, 5]]), "[0, 1]").tolist()
    [[0.0, 0.0], [1.0, 0.0]]
    """
    if scaling == "raw":
        return rows
    leaks("The ranges of the columns", "Find them privately: release --scale private.", level=2)
    centre, spread = {
        "[0, 1]": (rows.min(axis=0), np.ptp(rows, axis=0)),
        "z-scored": (rows.mean(axis=0), rows.std(axis=0)),
    }[scaling]
    out: Floats = (rows - centre) / np.where(spread > 0, spread, 1)
    return out


def decaying_covariance(size: int, strong: int, seed: int) -> Floats:
    """Return a square root of a covariance matrix with ``strong`` directions above a floor, (size, size).

    Eigenvalues fall linearly from 1 to 1/2 over the strong directions; all others share a tenth of the trace. The
    directions are uniformly random.
    """
    values = np.full(size, np.linspace(1, 0.5, strong).sum() / 9 / (size - strong))
    values[:strong] = np.linspace(1, 0.5, strong)
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    out: Floats = basis * np.sqrt(values)
    return out


def digest(rows: npt.NDArray[Any]) -> str:
    """Return a short fingerprint of public rows, with which results say what they are about."""
    return hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()[:16]
