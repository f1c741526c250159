"""What the columns of a source mean, said in public: which rows of numbers are made of them.

A schema says of each column of what kind it is, its public range or its public categories, and what becomes of a value
that is missing. It is written from public knowledge, before any value is looked at. It is published with every release
of the rows, names of columns that are left out included.

**Theorem.** Let f map each row of a source to a row of numbers by a schema. Then tables that are neighbours are mapped
to tables that are equal or neighbours, by the same relation: replace-one, add-remove, or the rows of one privacy unit.

*Proof.* What f makes of a row depends on that row and on the schema, which is public. It makes one row of each row,
also of one that is to be dropped: that becomes a row of NaN. So a table of n rows is mapped to one of n rows. If two
tables differ in some rows, their images differ in at most the images of these, at the same places. ∎

So the guarantee of a release of mapped rows holds for the rows of the source. A missing value leaves n as it is:

* ``refuse``: the source is refused as a whole, before there are rows.
* ``fill`` and ``indicator``: the row stays, with a public constant in place of the value.
* ``drop``: the row is a row of NaN, which a release takes for the centre of the others (a release without one is
  refused), and no histogram counts. It still counts in n: left out, two tables that differ in one row could differ in
  n, which are no neighbours under replace-one. Up to version 0.1.0 such a row was one of zeros.

With ``scale = "range"`` a public range [a, b] is mapped to [-1, 1], times the weight. Zero is then the middle of the
range, and no row is longer than :attr:`Schema.norm`, a clip norm that follows from the schema alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from dpdist._util.text import listed, repeated
from dpdist.errors import UsageError
from dpdist.rows.columns import Column
from dpdist.rows.schema_mistakes import FORMAT, OWN, Parts, all_of, mistakes, parts_of, said_of
from dpdist.rows.units import Keep, Unit


class Affine(NamedTuple):
    """What becomes of a number x: ``(min(max(x, low), high) - shift) * factor``."""

    low: float
    high: float
    shift: float
    factor: float


@dataclass(frozen=True)
class _Said:
    """What a schema says, frozen. The class that inherits it lets scikit-learn note on a step what runs it."""

    columns: Sequence[Column]
    scale: str = "none"
    others: str = "refuse"
    max_rows: int | None = None
    keep: Keep = "first"
    missing_values: Sequence[str | float] | None = None
    file: str | None = field(default=None, init=False, compare=False, repr=False)
    lines: tuple[int, ...] = field(default=(), init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        columns = list(self.columns)
        for place, each in enumerate(columns):
            if self.missing_values and each.missing_values is None and each.kind != "ignored":
                columns[place] = replace(each, missing_values=self.missing_values)
        object.__setattr__(self, "columns", tuple(columns))
        parts = Parts(self.columns, self.scale, self.others, self.max_rows, self.keep, self.missing_values, self.lines)
        if wrong := [said_of(each, self.columns) for each in mistakes(parts)]:
            raise UsageError(all_of("The schema", wrong))


class Schema(_Said):
    """What the columns of a source mean, from public knowledge: which rows of numbers are made of them.

    It maps each row by itself, so the guarantee of a release holds for the rows of the source. All of it is public, and
    is published with every release of the rows. The columns of the rows are in its order.

    Parameters
    ----------
    columns : sequence of Column
        The columns of the source.
    scale : str, default "none"
        ``"none"``: numbers stay as they are, but for their weights. ``"range"``: each range becomes -1 to 1, so that no
        column counts more for its unit; every number, integer and date needs a range then.
    others : str, default "refuse"
        What becomes of columns of a source that are not named here: ``"refuse"``, or ``"ignored"``.
    max_rows : int, default None
        With a privacy unit: how many rows of each are kept at most.
    keep : {"first", "random"}, default "first"
        Which of these: the first ones, or a random sample.
    missing_values : sequence of str or number, default None
        Those of every column that names none of its own: see :class:`Column`.

    Attributes
    ----------
    features : tuple of str
        Names of the columns of the rows: the column's own, ``NAME=CATEGORY``, ``NAME=other`` and ``NAME=missing``.
    norm : float or None
        No row is longer, but for the last digits of float64, if every column has a range: a clip norm that shortens no
        row. None: there is no such bound.

    Raises
    ------
    UsageError
        If something is wrong; all that is, is told at once.

    See Also
    --------
    Column : One of the columns.
    draft_schema : Drafts one from names and stored types.
    ingest_rows : Takes one.

    Examples
    --------
    >>> import dpdist
    >>> schema = dpdist.Schema(
    ...     [
    ...         dpdist.Column("species", "category", categories=["Adelie", "Gentoo"], other="column"),
    ...         dpdist.Column("mass", "number", range=(2000, 7000), missing="fill", fill=4000),
    ...     ],
    ...     scale="range",
    ... )
    >>> schema.features
    ('species=Adelie', 'species=Gentoo', 'species=other', 'mass')
    >>> round(schema.norm, 3)
    1.414
    """

    @classmethod
    def read(cls, path: Any) -> Schema:
        """Read a schema from a TOML file, or take that of rows, a release or a model.

        Parameters
        ----------
        path : str or path-like
            The file or folder.

        Raises
        ------
        UsageError
            If something is wrong in the file; all that is, is told at once, with its line.
        DataError
            If it cannot be read.
        """
        from dpdist.rows.schema_file import read_schema  # noqa: PLC0415 - it makes one

        return read_schema(path)

    def read_from(self, file: str | None, lines: Sequence[int]) -> Schema:
        """Note in which file it is written, and in which lines its columns are, for messages; and return it."""
        object.__setattr__(self, "file", file)
        object.__setattr__(self, "lines", tuple(lines))
        return self

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Schema:
        """Make a schema of the values that :meth:`to_json` returned; UsageError if they are not such values."""
        wrong, columns = parts_of(content)
        if wrong:
            raise UsageError(all_of("The schema", [said_of(each, columns) for each in wrong]))
        return cls(tuple(columns), **{key: content[key] for key in OWN if key in content})

    def to_json(self) -> dict[str, object]:
        """Return JSON values: what is stored and published."""
        own = {key: getattr(self, key) for key in OWN if key != "missing_values"}  # these stand in the columns
        said = {key: value for key, value in own.items() if value != OWN[key]}
        return {"format": FORMAT, **said, "columns": [each.to_json() for each in self.columns]}

    @property
    def dropping(self) -> tuple[str, ...]:
        """Names of the columns of which a missing value drops the row."""
        return tuple(each.name for each in self.columns if each.stored and each.missing == "drop")

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of the rows."""
        return tuple(name for column in self.columns for name in column.features)

    def get_feature_names_out(self, input_features: object = None) -> Any:  # noqa: ARG002 - as scikit-learn has it
        """Return the names of the columns of the rows as an array of objects, as scikit-learn's transformers do."""
        import numpy as np  # noqa: PLC0415 - only here

        return np.array(self.features, dtype=object)

    def fit(self, X: object, y: object = None) -> Schema:  # noqa: ARG002, N803 - as scikit-learn has it
        """Return itself: nothing is learned of rows."""
        return self

    def transform(self, X: Any) -> Any:  # noqa: N803 - as scikit-learn has it
        """Return a pandas DataFrame, float64, with columns :attr:`features`, of one of pandas, polars or Arrow.

        Raises
        ------
        UsageError
            If the frame has other columns than the schema says; or if this has a privacy unit, which numbers do not
            tell: whoever fits them would protect each row by itself.
        DataError
            If a value cannot be used. The message names its row and column.
        """
        from dpdist.rows.encoding import transformed  # noqa: PLC0415 - Arrow

        return transformed(self, X)

    @property
    def unit_columns(self) -> tuple[str, ...]:
        """The columns that say together whose row it is."""
        return tuple(column.name for column in self.columns if column.kind == "privacy unit")

    @property
    def unit(self) -> Unit | None:
        """The privacy unit, or None."""
        if not self.unit_columns or self.max_rows is None:
            return None
        return Unit(" and ".join(self.unit_columns), self.max_rows, self.keep)

    def affine(self, column: Column) -> Affine:
        """Return what becomes of the numbers of a column; of a category one-hot, of its zeros and ones."""
        weight, ends = float(column.weight or 1), column.ends
        if ends is None:
            return Affine(-math.inf, math.inf, 0.0, weight)
        low, high = ends
        if self.scale == "none" or column.one_hot or low == high:
            return Affine(low, high, 0.0, weight)
        return Affine(low, high, low + (high - low) / 2, weight / ((high - low) / 2))

    def filled(self, column: Column) -> float:
        """Return the number that stands for a missing one, before it is scaled; of a category one-hot, its place."""
        if column.fill is not None:
            return column.number_of(column.fill)
        if column.one_hot:
            return -1.0
        ends = column.ends
        return 0.0 if ends is None else ends[0] + (ends[1] - ends[0]) / 2

    @cached_property
    def ranges(self) -> tuple[tuple[float, float] | None, ...]:
        """Public range of each column of the rows, in the units of the rows; None where none is said."""
        found: list[tuple[float, float] | None] = []
        for column in self.columns:
            if not column.stored:
                continue
            low, high, shift, factor = self.affine(column)
            ends = None if math.isinf(low) else ((low - shift) * factor, (high - shift) * factor)
            found += [(0.0, factor) if column.one_hot else ends] * (column.width - column.indicated)
            found += [(0.0, float(column.weight or 1))] * column.indicated
        return tuple(found)

    @cached_property
    def norm(self) -> float | None:
        """No row is longer, but for the last digits of float64; None: a column has no range."""
        lengths = []
        for column in self.columns:
            if not column.stored:
                continue
            low, high, shift, factor = self.affine(column)
            if math.isinf(low):
                return None
            most = max(abs(low - shift), abs(high - shift)) * factor
            stands = self.filled(column)  # where one is missing; a category one-hot without a constant is zeros there
            lacking = factor * ((stands >= 0) if column.one_hot else abs(stands - shift))
            lengths.append(max(most, math.hypot(lacking, float(column.weight or 1) if column.indicated else 0.0)))
        return math.hypot(*lengths)

    def where(self, place: int) -> str:
        """Return how messages name one of the columns, with its line where there is a file."""
        name = f"column {self.columns[place].name!r}"
        return f"{self.file}, line {self.lines[place]}, {name}" if self.file and self.lines else name

    def places(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return where a source has the columns that are read, in the order of the schema; UsageError names others."""
        have = {name: place for place, name in enumerate(names)}
        twice = repeated(names) if len(have) < len(names) else []
        wrong = [f"several columns are called {listed(map(repr, twice))}"] if twice else []
        wrong += [
            f"{self.where(at)}: there is no such column"
            for at, each in enumerate(self.columns)
            if each.name not in have
        ]
        if self.others == "refuse":
            known = {each.name for each in self.columns}
            if unknown := [name for name in names if name not in known]:
                wrong.append(
                    f"the schema does not say what these columns are: {listed(map(repr, unknown))} (say it, or "
                    'others = "ignored" for all columns that it does not name)'
                )
        if wrong:
            raise UsageError(
                f"{all_of('The schema', wrong, 'does not fit the source')} The source has: {listed(names)}."
            )
        return tuple(have[each.name] for each in self.columns if each.stored or each.kind == "privacy unit")
