"""Schemas: public descriptions of the columns of a source that map its rows to rows of numbers.

A schema states the kind of each column, its public range or categories, and the treatment of missing values. It is
written from public knowledge, without looking at values. It is published with every release of the rows, including the
names of ignored columns.

**Theorem.** Let f map each row of a source to a row of numbers by a schema. Then f maps neighbouring tables to tables
that are equal or neighbours under the same relation: replace-one, add-remove, or the rows of one privacy unit.

*Proof.* The image of a row depends only on that row and on the public schema. Each row has one image; that of a dropped
row is a row of NaN. So a table of n rows is mapped to a table of n rows. If two tables differ in some rows, their
images differ at most in the images of these rows, at the same positions. ∎

So the guarantee of a release of mapped rows holds for the rows of the source. A missing value does not change n:

* ``refuse``: the entire source is refused before any row is stored.
* ``fill`` and ``indicator``: a public constant replaces the value.
* ``centre`` and ``pairwise``: the cell is NaN in the stored rows, for ``pairwise`` beside an indicator. A release
  replaces it by the centre of its column, which is public or was released before (without a centre it is refused), so
  the image of a row still depends on this row only. Histograms of columns skip the cell.
* ``drop``: the row becomes a row of NaN, which a release counts as the centre of the others (without a centre it is
  refused), and histograms skip. It still counts in n: if it were removed, two tables that differ in one row could
  differ in n, and would not be neighbours under replace-one. Up to version 0.1.0 it became a row of zeros.

With ``scale = "range"``, a public range [a, b] is mapped to [-1, 1], times the weight. Zero is then the middle of the
range, and :attr:`Schema.norm` bounds the norm of all rows, so that a clip norm follows from the schema alone.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from dpdist.core.errors import UsageError
from dpdist.core.rows.columns import Binned, Column, Whole
from dpdist.core.rows.contrasts import constant_bits_of, contrasts_of
from dpdist.core.rows.schema_mistakes import FORMAT, OWN, Parts, all_of, in_sentence, mistakes, parts_of
from dpdist.core.rows.units import Keep, Unit
from dpdist.core.text import canonical, listed, repeated

if TYPE_CHECKING:
    from dpdist.core.rows.bounding import RowBound

PANDAS_INDEX = re.compile(r"__index_level_\d+__")
"""pandas stores its index as such a column if a row was left out: no schema describes it."""


_FAR, _STEPS = 40, 10
"""Largest expected logarithm of a number, and bins for each unit of it."""


class Affine(NamedTuple):
    """The map of a number x: ``(min(max(x, low), high) - shift) * factor``."""

    low: float
    high: float
    shift: float
    factor: float


@dataclass(frozen=True)
class _SchemaFields:
    """The frozen fields of a schema; the subclass permits attributes that scikit-learn sets on a step."""

    columns: Sequence[Column]
    scale: str = "none"
    others: str = "refuse"
    max_rows: int | None = None
    keep: Keep = "first"
    # not compared, as not stored: the first two are part of the columns, and the third is about the rows of one table
    missing_values: Sequence[str | float] | None = field(default=None, compare=False)
    missing: str | None = field(default=None, compare=False)
    each_row_is_a_person: bool = field(default=False, compare=False)
    file: str | None = field(default=None, init=False, compare=False, repr=False)
    lines: tuple[int, ...] = field(default=(), init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        columns = [column for column in self.columns if not isinstance(column, Binned)]
        for index, column in enumerate(columns):
            values = self.missing_values if column.kind != "ignored" else None
            missing = self.missing if column.stored else None
            if missing is not None and column.whole:
                missing = "indicator"
            columns[index] = replace(
                column, missing_values=column.missing_values or values, missing=column.missing or missing
            )
        object.__setattr__(self, "each_row_is_a_person", self.each_row_is_a_person or False)  # a blank beside a unit
        self._keep(columns)
        if any(column.bins is not None for column in columns):
            self._keep([*columns, *(Binned.of(column) for column in columns if column.bins is not None)])

    def _keep(self, columns: Sequence[Column]) -> None:
        object.__setattr__(self, "columns", tuple(columns))
        settings = {key: getattr(self, key) for key in OWN}
        parts = Parts(self.columns, **settings, lines=self.lines)
        if wrong := [in_sentence(mistake, self.columns) for mistake in mistakes(parts)]:
            raise UsageError(all_of("The schema", wrong))


class Schema(_SchemaFields):
    """Public description of the columns of a source, which maps its rows to rows of numbers.

    Each row is mapped independently, so the guarantee of a release holds for the rows of the source. The entire schema
    is public, and is published with every release of the rows. It determines the order of their columns.

    Parameters
    ----------
    columns : sequence of Column
        The columns of the source.
    scale : str, default "none"
        ``"none"``: numbers are only multiplied by their weights. ``"range"``: each range is mapped to [-1, 1], so that
        units do not matter; every number, integer and date then needs a range.
    others : str, default "refuse"
        Treatment of columns of a source that the schema does not name: ``"refuse"`` or ``"ignored"``.
    max_rows : int, default None
        With a privacy unit: the largest number of rows kept of each. None: all of them.
    keep : {"first", "random"}, default "first"
        The rows kept of a privacy unit: the first ones, or a random sample.
    missing_values : sequence of str or number, default None
        Missing values of every column without a list of its own: see :class:`Column`.
    missing : {"centre", "fill", "pairwise"}, default None
        Treatment of missing values in every column without one of its own: of numbers and dates as given, of categories
        and booleans ``"indicator"``. None: refuse.
    each_row_is_a_person : bool, default False
        State that no person has two rows, if a column is named like an identifier of persons. It is about one table, so
        it is not stored or published.

    Attributes
    ----------
    features : tuple of str
        Names of the columns of the rows: ``NAME``, ``NAME=CATEGORY``, ``NAME=other`` and ``NAME=missing``.
    norm : float or None
        Bound on the norm of all rows, up to float64 rounding, if every column has a range; ``clip="schema"`` is the
        slightly larger clip norm that clips no row. None: there is no bound.

    Raises
    ------
    UsageError
        If the schema has mistakes. The message reports all of them.

    See Also
    --------
    Column : Describes one column.
    draft_schema : Drafts a schema from names.
    ingest_rows : Ingests a source by a schema.

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
        """Read a schema from a TOML file, or from rows, a release or a model.

        Parameters
        ----------
        path : str or path-like
            The file or folder.

        Raises
        ------
        UsageError
            If the file has mistakes. The message reports all of them with their lines.
        DataError
            If it cannot be read.
        """
        from dpdist.core.rows.schema_file import read_schema  # noqa: PLC0415 - rarely used

        return read_schema(Schema, path)

    def read_from(self, file: str | None, lines: Sequence[int]) -> Schema:
        """Set the file and the lines of its columns, for messages, and return the schema."""
        object.__setattr__(self, "file", file)
        object.__setattr__(self, "lines", tuple(lines))
        return self

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Schema:
        """Create a schema from the result of :meth:`to_json`; UsageError if it is not valid."""
        wrong, columns = parts_of(content)
        if wrong:
            raise UsageError(all_of("The schema", [in_sentence(mistake, columns) for mistake in wrong]))
        return cls(tuple(columns), **{key: content[key] for key in OWN if key in content})

    def to_json(self) -> dict[str, object]:
        """Return JSON values, as stored and published."""
        unstored = {"missing_values", "missing", "each_row_is_a_person"}
        settings = {key: getattr(self, key) for key in OWN if key not in unstored}
        changed = {key: value for key, value in settings.items() if value != OWN[key]}
        return {"format": FORMAT, **changed, "columns": [column.to_json() for column in self.sources]}

    @property
    def digest(self) -> str:
        """SHA-256 of its JSON values, 64 hexadecimal digits."""
        return hashlib.sha256(canonical(self.to_json()).encode()).hexdigest()

    @property
    def sources(self) -> tuple[Column, ...]:
        """The columns of the source: all but the bins of numbers."""
        return tuple(column for column in self.columns if not isinstance(column, Binned))

    @property
    def dropping(self) -> tuple[str, ...]:
        """Names of the columns whose missing values drop a row."""
        return tuple(column.name for column in self.columns if column.stored and column.missing == "drop")

    @property
    def centring(self) -> tuple[str, ...]:
        """Names of the columns whose missing values count as their centre."""
        words = {"centre", "pairwise"}
        return tuple(column.name for column in self.columns if column.stored and column.missing in words)

    @property
    def pairwise(self) -> dict[str, str]:
        """The columns of numbers whose missing values are indicated beside them, with their indicators."""
        return {
            column.value_name: column.features[-1]
            for column in self.columns
            if column.stored and column.missing == "pairwise"
        }

    @property
    def uncentred(self) -> tuple[str, ...]:
        """Names of the columns whose missing values need a centre that does not follow from the schema."""
        # zero is the middle of a scaled range, and where it counts does not matter if missing values are counted
        counted = [
            column.name
            for column in self.columns
            if column.missing == "pairwise" and (self.scale == "range" or column.whole)
        ]
        names = tuple(name for name in self.centring if name not in counted)
        return names + (self.dropping if self.numbers else ())

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of the rows."""
        return tuple(name for column in self.columns for name in column.features)

    def get_feature_names_out(self, input_features: object = None) -> Any:  # noqa: ARG002 - as scikit-learn has it
        """Return :attr:`features` as an array of objects, as scikit-learn's transformers do."""
        import numpy as np  # noqa: PLC0415 - only here

        return np.array(self.features, dtype=object)

    def fit(self, X: object, y: object = None) -> Schema:  # noqa: ARG002, N803 - as scikit-learn has it
        """Return the schema itself: it learns nothing from rows."""
        return self

    def transform(self, X: Any) -> Any:  # noqa: N803 - as scikit-learn has it
        """Map a pandas or polars DataFrame or an Arrow table to a float64 pandas DataFrame, columns :attr:`features`.

        Raises
        ------
        UsageError
            If the columns of the frame do not match the schema, or the schema has a privacy unit, which would be lost.
        DataError
            If a value cannot be used. The message names its row and column.
        """
        from dpdist.core.rows.encoding import transformed  # noqa: PLC0415 - imports Arrow

        return transformed(self, X)

    @property
    def unit_columns(self) -> tuple[str, ...]:
        """The columns that together identify the privacy unit."""
        return tuple(column.name for column in self.columns if column.kind == "privacy unit")

    @property
    def unit(self) -> Unit | None:
        """The privacy unit, or None."""
        if not self.unit_columns:
            return None
        return Unit(" and ".join(self.unit_columns), self.max_rows, self.keep)

    def affine(self, column: Column) -> Affine:
        """Return the map of the numbers of a column, or of the zeros and ones of a one-hot category."""
        weight, ends = float(column.weight or 1), column.ends
        if ends is None:
            return Affine(-math.inf, math.inf, 0.0, weight)
        low, high = ends
        if self.scale == "none" or column.one_hot or low == high:
            return Affine(low, high, 0.0, weight)
        return Affine(low, high, low + (high - low) / 2, weight / ((high - low) / 2))

    def filled(self, column: Column) -> float:
        """Return the unscaled number of a missing value; the index of a one-hot category."""
        if column.fill is not None:
            return column.value_of(column.fill)
        if column.one_hot:
            return -1.0
        ends = column.ends
        return 0.0 if ends is None else ends[0] + (ends[1] - ends[0]) / 2

    @cached_property
    def ranges(self) -> tuple[tuple[float, float] | None, ...]:
        """Public range of each column of the rows, in the units of the rows; None without a range."""
        ranges: list[tuple[float, float] | None] = []
        for column in self.columns:
            if not column.stored:
                continue
            low, high, shift, factor = self.affine(column)
            ends = None if math.isinf(low) else ((low - shift) * factor, (high - shift) * factor)
            ranges += [(0.0, factor) if column.one_hot else ends] * (column.width - column.indicated)
            ranges += [(0.0, float(column.weight or 1))] * column.indicated
        return tuple(ranges)

    @cached_property
    def spans(self) -> tuple[tuple[float, float] | tuple[float, float, int] | None, ...]:
        """Where a histogram looks for each column of the rows: its range, or most values of a transform, with steps."""
        spans = list[tuple[float, float] | tuple[float, float, int] | None](self.ranges)
        place = 0
        for column in self.columns:
            if column.transform is not None and spans[place] is None:
                factor = self.affine(column).factor
                low = 0 if column.transform == "log" else -_FAR
                spans[place] = low * factor, _FAR * factor, (_FAR - low) * _STEPS
            place += column.width
        return tuple(spans)

    @cached_property
    def norm(self) -> float | None:
        """Bound on the norm of all rows, up to float64 rounding; None: a column has no range."""
        numbers, whole = self.numbers_norm, self.whole()
        return None if numbers is None else max(math.hypot(numbers, whole.norm), whole.longest)

    @cached_property
    def numbers_norm(self) -> float | None:
        """Bound on the norm of the numbers of a row, with the indicators of those missing; None: one has no range."""
        lengths = []
        for column in self.columns:
            if not column.stored or column.whole:
                continue
            low, high, shift, factor = self.affine(column)
            if math.isinf(low):
                return None
            lacking = abs(self.filled(column) - shift) * factor
            indicated = float(column.weight or 1) if column.indicated else 0.0
            lengths.append(max(abs(low - shift) * factor, abs(high - shift) * factor, math.hypot(lacking, indicated)))
        return math.hypot(*lengths)

    @property
    def clip_norm(self) -> float | None:
        """The least clip norm that clips no row, before rounding; None: a number has no range."""
        return None if self.numbers_norm is None else self.numbers_norm or self.whole().norm

    def whole(self, centre: Sequence[float] | None = None, scale: Sequence[float] | None = None) -> Whole:
        """Return the columns of the rows that are never shortened, with their norm when shifted and scaled."""
        places: list[int] = []
        squares, first = [0.0, 0.0], 0  # of categories and booleans; and of indicators of missing numbers
        for column in self.columns:
            if not column.stored:
                continue
            count = column.width if column.whole else int(column.indicated)
            here = range(first + column.width - count, first + column.width)
            shifts = [0.0 if centre is None else centre[place] for place in here]
            units = [1.0 if scale is None else scale[place] for place in here]
            rest = math.fsum((shift / unit) ** 2 for shift, unit in zip(shifts, units, strict=True))
            longest = max(
                rest + math.fsum(
                    ((value - shifts[i]) / units[i]) ** 2 - (shifts[i] / units[i]) ** 2 for i, value in cells.items()
                )
                for cells in self._cells(column)
            ) if count else 0.0  # fmt: skip
            squares[not column.whole] += longest
            places += here
            first += column.width
        return Whole(tuple(places), math.sqrt(squares[0]), math.sqrt(sum(squares)))

    def contrasts(self, *, scaled: bool = False) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Public centre and scale of the columns of the rows, which change no number (the module ``contrasts``)."""
        return contrasts_of(self, scaled=scaled)

    def centres(self, bound: RowBound) -> bool:
        """Whether a bound has categories and booleans about their middles, and changes no number."""
        return bool(bound.whole) and (bound.centre, bound.scale) == self.contrasts()

    @cached_property
    def constant_bits(self) -> int:
        """The constant of private centring is the norm C of a row over two to this power: C/2, or C/4."""
        if self.numbers:
            return 1
        whole = [column for column in self.columns if column.stored and column.whole]
        return constant_bits_of([(float(c.weight or 1), c.width if c.one_hot else 2) for c in whole])

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The columns of the rows that are clipped."""
        return tuple(sorted({*range(len(self.features))} - {*self.whole().columns}))

    @property
    def transformed(self) -> dict[str, Column]:
        """The columns with a transform, by the name of their numbers in the rows."""
        return {column.value_name: column for column in self.columns if column.transform is not None}

    def clipped(self, bound: RowBound, clip_norm: float) -> RowBound:
        """Return a bound whose numbers are clipped to a norm, and whose categories and booleans never are."""
        whole, (shift, unit) = self.whole(bound.centre, bound.scale), bound.input_units
        if not whole.columns:
            return replace(bound, clip_norm=clip_norm)
        moved = any(shift[place] != 0 or unit[place] != 1 for place in self.numbers)
        unclipped = not moved and self.clip_norm is not None and clip_norm >= self.clip_norm
        # the room of missing numbers is that of their indicators, where no number needs more
        norm = whole.norm if unclipped else whole.longest
        return replace(bound, clip_norm=clip_norm, whole=whole.columns, whole_norm=norm)

    def _cells(self, column: Column) -> list[dict[int, float]]:
        """Return what the columns of a category or boolean, or of the indicator of a number, can contain but zeros."""
        low, high, shift, factor = self.affine(column)
        weight, filled = float(column.weight or 1), self.filled(column)
        last = column.width - 1
        if not column.whole:
            return [{}, {0: weight}]
        if not column.one_hot:
            cells = [{0: (value - shift) * factor} for value in (low, high)]
            return [*cells, {0: (filled - shift) * factor, last: weight}] if column.indicated else cells
        cells = [{place: weight} for place in range(column.width - column.indicated)]
        lacking = {int(filled): weight} if filled >= 0 else {}
        return [*cells, {**lacking, last: weight}] if column.indicated else cells

    def where(self, place: int) -> str:
        """Return the name of a column for messages, with its line if the schema is a file."""
        name = f"column {self.columns[place].name!r}"
        return f"{self.file}, line {self.lines[place]}, {name}" if self.file and place < len(self.lines) else name

    def places(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the positions of the columns to read, in the order of the schema; UsageError if they do not match."""
        positions = {name: index for index, name in enumerate(names)}
        twice = repeated(names) if len(positions) < len(names) else []
        wrong = [f"several columns have the name {listed(map(repr, twice))}"] if twice else []
        wrong += [
            f"{self.where(number)}: the source has no such column"
            for number, column in enumerate(self.sources)
            if column.name not in positions and column.kind != "ignored"
        ]
        if self.others == "refuse":
            described = {column.name for column in self.sources}
            unknown = [name for name in names if name not in described and not PANDAS_INDEX.fullmatch(name)]
            if unknown:
                wrong.append(
                    f"the schema does not describe these columns: {listed(map(repr, unknown))} (describe them, or set "
                    'others = "ignored" for all columns that it does not name)'
                )
        if wrong:
            raise UsageError(
                f"{all_of('The schema', wrong, 'does not fit the source')} The source has: {listed(names)}."
            )
        return tuple(
            positions[column.name] for column in self.sources if column.stored or column.kind == "privacy unit"
        )
