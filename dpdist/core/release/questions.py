"""Questions that a release answers by itself: methods whose answers are post-processing, found when they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from dpdist.core.storage.store import AnyStore

if TYPE_CHECKING:
    import pandas as pd

_FRAMES, _PAGE = "dpdist.answers.frames", "dpdist.report.html"
"""Named and not imported: the core does not depend on answers and reports."""


class Questions:
    """Tables, means by group and associations of a release as DataFrames, and all as a page, free of charge."""

    def relate(self, first: str | None = None, second: str | None = None) -> pd.DataFrame:
        """Return how strongly variables are associated, with a test where its law holds.

        Parameters
        ----------
        first, second : str, default None
            Names of variables. Both: this pair. One: this variable with each other one. None: all pairs.

        Returns
        -------
        pandas.DataFrame
            One row per pair, the strongest first, with ``measure`` (Cramér's V, eta or r), ``strength`` with the ends
            ``low`` and ``high`` of its 95 % interval, ``p_value`` and ``adjusted_p_value`` (Holm, for the tests of this
            frame), NaN without a test. ``attrs`` has the reasons (``no_test``), the number of ``rows``, and what they
            are (``about``).

        Raises
        ------
        UsageError
            If there is no such variable, or pandas is not installed.

        See Also
        --------
        crosstab, group_means : The tables and means behind it.

        References
        ----------
        The laws are in :mod:`dpdist.answers.association`.
        """
        return self._frame("relate", first, second)

    def counts(self, name: str) -> pd.DataFrame:
        """Return how many rows have each category of a variable.

        Parameters
        ----------
        name : str
            A variable with categories, or a boolean.

        Returns
        -------
        pandas.DataFrame
            One row per category, with ``count`` (unbiased, may be negative), ``low``, ``high``, and ``share`` with
            ``share_low`` and ``share_high``: ends of 95 % intervals, with respect to the noise.
        """
        return self._frame("counts", name)

    def crosstab(self, rows: str, columns: str, percent: str | None = None) -> pd.DataFrame:
        """Return the table of two variables with categories.

        Parameters
        ----------
        rows, columns : str
            The variables.
        percent : {"rows", "columns", "all"}, default None
            Percent of each row, of each column, or of all. None: counts.

        Returns
        -------
        pandas.DataFrame
            One row per category of `rows`; for each category of `columns` the columns ``value``, ``low`` and ``high``:
            unbiased, with the ends of its 95 % interval. Of counts also ``shrunk``, which is closer in general.

        See Also
        --------
        relate : Strength and test of the association.
        """
        return self._frame("crosstab", rows, columns, percent)

    def group_means(self, number: str, by: str) -> pd.DataFrame:
        """Return the means of a number by the categories of a variable.

        Parameters
        ----------
        number : str
            The number.
        by : str
            A variable with categories.

        Returns
        -------
        pandas.DataFrame
            One row per category, with ``count``, ``mean`` in units of the source, and ``low`` and ``high``, the ends of
            its 95 % interval (Fieller). They are NaN and infinite where the count is within the noise.
        """
        return self._frame("group_means", number, by)

    def report(
        self,
        path: AnyStore,
        *,
        components: int | None = None,
        image: tuple[int, int] | None = None,
        targets: Sequence[str] = (),
        on: Sequence[str] | None = None,
        title: str = "",
        author: str = "",
    ) -> None:
        """Write a page about the release: findings in words, associations, components, guarantee and noise.

        The page is one HTML file that loads nothing and runs nothing. It may be published like the release.

        Parameters
        ----------
        path : str or path-like
            The page. A page written by dpdist is replaced, any other file is refused.
        components : int, default None
            Number of components. None: those that can be distinguished from noise.
        image : (int, int), default None
            Height and width of an image, if the columns are its pixels; components are then drawn as images.
        targets : sequence of str, default ()
            Columns that are explained by others, by a regression.
        on : sequence of str, default None
            The columns that explain them. None: all others.
        title, author : str, default ""
            Heading and second line. Without a title, the name of the page is the heading.

        Raises
        ------
        UsageError
            If there are no such columns, or the image does not have as many pixels as there are columns.
        DataError
            If the file exists and was not written by dpdist.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> from sklearn.datasets import load_iris
        >>> from dpdist import PrivateCovariance
        >>> release = PrivateCovariance(epsilon=1, delta=1e-6, clip=10).fit(load_iris().data).release_
        >>> page = Path(tempfile.mkdtemp()) / "flowers.html"
        >>> release.report(page)
        >>> "<h1><bdi>flowers</bdi></h1>" in page.read_text()
        True
        """
        write = import_module(_PAGE).write
        write(self, path, count=components, image=image, targets=targets, on=on, title=title, author=author)

    def _frame(self, name: str, *arguments: object) -> pd.DataFrame:
        answer: pd.DataFrame = getattr(import_module(_FRAMES), name)(self, *arguments)
        return answer
