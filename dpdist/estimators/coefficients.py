"""Fitted covariances, regressions and classifiers as text and as pictures: functions of their releases only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdist.answers.bias import clipped_rows
from dpdist.answers.block import source_units
from dpdist.answers.components import about_mean
from dpdist.answers.correlation import references_of
from dpdist.core.errors import UsageError
from dpdist.core.release.advice import blindly_scaled_message
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted, listed, wrapped
from dpdist.estimators.views import new_axes
from dpdist.report import answers
from dpdist.report.correlations import variables_of
from dpdist.report.text import EACH_INTERVAL, aligned

if TYPE_CHECKING:
    from dpdist.estimators.base import Matrix
    from dpdist.estimators.covariance import PrivateCovariance
    from dpdist.estimators.linear_classifier import LinearClassifier
    from dpdist.estimators.ridge import PrivateRidge

_SHOWN = 25
"""Largest number of rows in a table, and of bars in a picture."""
_DRAWN = 40
"""Largest number of columns in a picture of correlations."""
_LETTERS = 24


def headed(release: Release, lines: Sequence[str]) -> str:
    """Return lines below the guarantee of a release, and what happened to its rows."""
    first = wrapped(f"{release.mechanism}, {release.guarantee_words()}. {clipped_rows(release).alarm()}".rstrip())
    unseen = blindly_scaled_message(release)
    return "\n".join([first, *filter(None, lines), *([wrapped(unseen)] if unseen else [])])


def covariance_summary(model: PrivateCovariance) -> str:
    """Return means, deviations and the strongest correlations of a covariance."""
    release, below = model.release_, set(model.below_noise_)
    names = release.names
    rows = [("", "mean", "standard deviation", "between")]
    for j in range(min(len(names), _SHOWN)):
        value, ends = "below the noise", "-"
        if j not in below and np.isfinite(model.covariance_[j, j]):
            value = f"{math.sqrt(max(0.0, model.covariance_[j, j])):.4g}"
            ends = "-" if model.covariance_intervals_ is None else _roots(model.covariance_intervals_[j, j])
        rows.append((_short(names[j]), f"{model.location_[j]:.4g}", value, ends))
    more = [f"{counted(len(names) - _SHOWN, 'column')} more."] if len(names) > _SHOWN else []
    lengths = clipped_rows(release)
    about = f"Mean and covariance of {counted(len(names), 'column')} {lengths.describe()}. "
    about += lengths.caveat("means, variances and correlations")
    return headed(release, [wrapped(about), *aligned(rows), *more, wrapped(_correlations(model))])


def _roots(ends: Matrix) -> str:
    return answers.between((math.sqrt(max(0.0, ends[0])), math.sqrt(max(0.0, ends[1]))))


def _correlations(model: PrivateCovariance) -> str:
    """Return a sentence about the strongest correlations whose intervals leave out 0."""
    ends, names, variables = model.correlation_intervals_, model.release_.names, variables_of(model.release_)
    first = set(references_of(model.release_))
    if ends is None:
        return "The correlations have no intervals, as the mechanism states no variance."
    sure = np.tril((np.floor(100 * ends[..., 0]) > 0) | (np.ceil(100 * ends[..., 1]) < 0), -1)  # as they are written
    pairs = [
        (i, j)
        for i, j in np.argwhere(sure).tolist()
        if variables[i] != variables[j] and names[i] not in first and names[j] not in first
    ]
    pairs.sort(key=lambda pair: -min(map(abs, ends[pair])))
    if not pairs:
        return "No correlation has an interval without 0."
    shown = [
        f"{names[j]} and {names[i]} {math.floor(100 * ends[i, j, 0]) / 100:+.2f} .. "
        f"{math.ceil(100 * ends[i, j, 1]) / 100:+.2f}"
        for i, j in pairs[:_SHOWN]
    ]
    rest = f"; {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
    return f"Correlations whose interval leaves out 0, the strongest first: {'; '.join(shown)}{rest}."


def covariance_plot(model: PrivateCovariance, axes: Any) -> Any:
    """Draw the correlations of the columns above the noise as a heat map; crossed out: the interval contains 0."""
    below, names = set(model.below_noise_), model.release_.names
    below |= {names.index(name) for name in references_of(model.release_)}
    drawn_columns = [j for j in range(len(names)) if j not in below and np.isfinite(model.correlation_[j, j])][:_DRAWN]
    if not drawn_columns:
        raise UsageError("The variances of all columns are below the noise, so no correlation can be drawn.")
    values, axes = model.correlation_[np.ix_(drawn_columns, drawn_columns)], new_axes(axes)
    drawn = axes.imshow(values, vmin=-1, vmax=1, cmap="RdBu_r")
    axes.figure.colorbar(drawn, ax=axes, label="correlation of clipped rows")
    if model.correlation_intervals_ is not None:
        ends = model.correlation_intervals_[np.ix_(drawn_columns, drawn_columns)]
        unsure = np.argwhere((ends[..., 0] <= 0) & (ends[..., 1] >= 0))
        axes.plot(unsure[:, 1], unsure[:, 0], "x", color="tab:gray", ms=3, label="may be 0")
    labels = [_short(names[j]) for j in drawn_columns]
    axes.set_xticks(range(len(drawn_columns)), labels, rotation=90, fontsize=8)
    axes.set_yticks(range(len(drawn_columns)), labels, fontsize=8)
    left = len(names) - len(drawn_columns)
    axes.set_title(
        "Correlations; x: may be 0" + (f"; {counted(left, 'column')} not shown" if left else ""), fontsize=10
    )
    return axes


def ridge_summary(model: PrivateRidge) -> str:
    """Return the coefficients of each target with intervals, and R²."""
    release, results = model.release_, model._results  # noqa: SLF001 - of this package
    texts = [answers.regression(result, release) for result in results]
    return headed(release, [*texts, wrapped(answers.about_intervals(release, results))])


def ridge_plot(model: PrivateRidge, target: str | None, axes: Any) -> Any:
    """Draw the coefficients of a target in standard deviations, with intervals."""
    results = {result.target: result for result in model._results}  # noqa: SLF001 - of this package
    name = _chosen(target, list(results), "target")
    release, result = model.release_, results[name]
    deviations = _deviations(release, release.bound.input_units[1])
    own = deviations[release.names.index(name)]
    factors = [deviations[release.names.index(column)] / own if own else math.nan for column in result.names]
    rows = [
        (column, factor * each.value, factor * each.interval[0], factor * each.interval[1])
        for column, factor, each in zip(result.names, factors, result.coefficients, strict=True)
    ]
    label = f"standard deviations of {_short(name)} per standard deviation of the column"
    low, high = result.r2_interval
    share = f"R² {max(0, math.floor(100 * low)) / 100:.2f} to {math.ceil(100 * high) / 100:.2f}"
    return _forest(rows, axes, f"Regression of {_short(name)}, {share}", label)


def classifier_summary(model: LinearClassifier) -> str:
    """Return the coefficients of each class, with intervals if there are some."""
    release, ends = model.release_, getattr(model, "coef_intervals_", None)
    kind_of_model = "Logistic regression" if ends is not None else "Linear discriminant analysis"
    about = f"{kind_of_model} of {len(model.classes_)} classes on {counted(len(model._features), 'column')}"  # noqa: SLF001
    lengths = clipped_rows(release)
    lines = [wrapped(f"{about} {lengths.describe()}. {lengths.caveat('coefficients')}".rstrip())]
    for place, label in enumerate(_classes(model)):
        order, head = _clearest(model, place)[:_SHOWN], _class_name(model, label)
        rows: list[tuple[str, ...]] = [
            (head, "coefficient", "between", "odds ratio") if ends is not None else (head, "coefficient")
        ]
        for j in order:
            value = model.coef_[place, j]
            cells = [_short(model._features[j]), f"{value:.4g}"]  # noqa: SLF001 - of this package
            if ends is not None:
                cells += [answers.between(tuple(ends[place, j])), f"{math.exp(min(value, 700.0)):.3g}"]
            rows.append(tuple(cells))
        lines += aligned(rows) if order else [f"{head}: no coefficient is known."]
        if len(order) < model.coef_.shape[1]:
            others = model.coef_.shape[1] - len(order)
            lines.append(f"{counted(others, 'column')} more: weaker, unknown or the first of their variable.")
    note = "No intervals are known."
    if ends is not None:
        note = f"{EACH_INTERVAL[:-1]}, for the model with the ridge that the noise needs, if any."
    return headed(release, [*lines, wrapped(f"Coefficients are per unit of a column. {note}")])


def classifier_plot(model: LinearClassifier, target: object, axes: Any) -> Any:
    """Draw the coefficients of a class per standard deviation of each column, with intervals if there are some."""
    labels, ends = _classes(model), getattr(model, "coef_intervals_", None)
    label = _chosen(None if target is None else str(target), labels, "target")
    place = labels.index(label)
    # coefficients are per unit of the source, as the deviations
    deviations = _deviations(model.release_, source_units(model.release_)[1])
    factors = [deviations[model.release_.names.index(name)] for name in model._features]  # noqa: SLF001
    rows = []
    for j in _clearest(model, place):
        value = model.coef_[place, j]
        low, high = (value, value) if ends is None else ends[place, j]
        rows.append((model._features[j], factors[j] * value, factors[j] * low, factors[j] * high))  # noqa: SLF001
    unit = "log odds" if ends is not None else "discriminant (no intervals are known)"
    title = f"Coefficients of {_short(_class_name(model, label))}"
    return _forest(rows, axes, title, f"{unit} per standard deviation of the column")


def _classes(model: LinearClassifier) -> list[str]:
    """Return the class of each row of coefficients: the second of two, or all."""
    return list(map(str, model.classes_[1:] if len(model.coef_) == 1 else model.classes_))


def _class_name(model: LinearClassifier, label: str) -> str:
    """Return the name of a class: of a variable of the schema, as its column has it."""
    target = model._target  # noqa: SLF001 - of this package
    flag = {"True": "yes", "False": "no"}.get(label, label)
    return label if target is None else f"{target}={flag}"


def _clearest(model: LinearClassifier, place: int) -> list[int]:
    """Return the columns whose coefficients are known, the clearest or, without intervals, the largest first."""
    ends, values = getattr(model, "coef_intervals_", None), model.coef_[place]
    if ends is None:
        deviations = _deviations(model.release_, source_units(model.release_)[1])
        places = [model.release_.names.index(name) for name in model._features]  # noqa: SLF001 - of this package
        order: list[int] = np.argsort(-np.abs(values * deviations[places]), kind="stable").tolist()
        return order
    reach = (ends[place, :, 1] - ends[place, :, 0]) / 2
    bounded = [j for j in range(len(values)) if math.isfinite(reach[j]) and reach[j]]  # references have none
    return sorted(bounded, key=lambda j: -abs(values[j]) / reach[j])


def _deviations(release: Release, units: Matrix) -> Matrix:
    """Return the standard deviation of each column in some units, as released; 0 for a negative variance."""
    variances = np.diag(about_mean(release).matrix(release.second_moment))
    deviations: Matrix = units * np.sqrt(np.maximum(variances, 0))
    return deviations


def _chosen(name: str | None, names: Sequence[str], parameter: str) -> str:
    """Return the name of a target, the first one for None; refuse an unknown one."""
    if name is None:
        return names[0]
    if name not in names:
        raise UsageError(f"{parameter} must be one of {listed(map(repr, names))}, not {name!r}.")
    return name


def _forest(rows: Sequence[tuple[str, float, float, float]], axes: Any, title: str, label: str) -> Any:
    """Draw estimates, (name, value, low, high), with their intervals over 0: those that are known, the largest."""
    bounded = [row for row in rows if np.isfinite(row[1:]).all()]
    bounded = sorted(bounded, key=lambda row: -abs(row[1]))[:_SHOWN][::-1]
    if not bounded:
        raise UsageError("No coefficient is above the noise, so none can be drawn.")
    axes, places = new_axes(axes), np.arange(len(bounded))
    values, low, high = (np.array([row[part] for row in bounded]) for part in (1, 2, 3))
    # without an interval no sign is bounded
    colours = ["tab:blue" if a < b and (a > 0 or b < 0) else "tab:gray" for a, b in zip(low, high, strict=True)]
    axes.hlines(places, low, high, color=colours, lw=2, alpha=0.6)
    axes.scatter(values, places, color=colours, s=16, zorder=3)
    axes.axvline(0, color="black", lw=0.6)
    axes.set_yticks(places, [_short(row[0]) for row in bounded], fontsize=8)
    left = len(rows) - len(bounded)
    axes.set_title(f"{title}{f'; {left} columns not shown' if left else ''}", fontsize=10)
    axes.set_xlabel(label)
    return axes


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 3]}..."
