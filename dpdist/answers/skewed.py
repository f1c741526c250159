"""Columns that a private scale saw to be skewed, and the line of a schema that helps. Free post-processing.

The rule and what it finds are in :mod:`dpdist.core.mechanisms.skew`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdist.core.mechanisms.columns import Grid
from dpdist.core.mechanisms.skew import transform_of
from dpdist.core.release.artefact import Release
from dpdist.core.text import listed


def transforms(release: Release) -> dict[str, list[str]]:
    """Return the names of skewed columns by the transform that suits them; empty without a private scale."""
    found: dict[str, list[str]] = {"log": [], "asinh": []}
    for name, grid, counts in _histograms(release):
        if (word := transform_of(grid, counts)) is not None:
            found[word].append(name)
    return {word: names for word, names in found.items() if names}


def clipping(release: Release) -> list[str]:
    """Return the skewed columns whose numbers alone are beyond the clip norm in some rows, as their histograms show."""
    bound, index = release.bound, {name: place for place, name in enumerate(release.names)}
    skewed, reaching = {name for names in transforms(release).values() for name in names}, list[str]()
    for name, grid, counts in _histograms(release):
        centre, scale = ((ends or (default,) * bound.columns)[index[name]]
                         for ends, default in ((bound.centre, 0.0), (bound.scale, 1.0)))  # fmt: skip
        far = max((abs(grid.middle(index) - centre) for index, count in counts if count > 0), default=0.0)
        if name in skewed and far >= bound.clip_norm * scale:
            reaching.append(name)
    return reaching


def skewed_message(release: Release) -> str:
    """Return a sentence about skewed columns with the line to write; empty without any."""
    clipped = {*clipping(release)}
    sentences = [
        f"{listed(names)}: skewed, so a few rows determine means and slopes"
        f"{', and are clipped' * bool(clipped & {*names})}. "
        f'In a schema, transform = "{word}" '
        f"below {'its column' if len(names) == 1 else 'each of these columns'} takes the "
        f"{'logarithm' if word == 'log' else 'hyperbolic arcsine'} of each number."
        for word, names in transforms(release).items()
    ]
    charged = " That is another release, with a charge of its own." if sentences else ""
    return " ".join(sentences) + charged


def _histograms(release: Release) -> Iterator[tuple[str, Grid, Sequence[tuple[int, int]]]]:
    """Yield name, grid and counts of the columns of numbers that have no transform yet."""
    answer = {} if release.stage is None else release.stage.answer
    if not {"ranges", "counts"} <= answer.keys():
        return
    fixed: set[str] = set()
    if (schema := release.schema) is not None:
        fixed = {column.name for column in schema.columns if column.kind in {"date", "category"}}
        fixed |= schema.transformed.keys()
    for place, ends, counts in zip(release.bound.numbers, answer["ranges"], answer["counts"], strict=True):
        name = release.names[place]
        if name not in fixed:
            yield name, Grid.from_json(ends), [(int(index), int(count)) for index, count in counts]
