"""How messages name what people can set: each face of the product in its own words.

A message is written once, in the library, and read by people who type options, who write job files and who call
functions. So it does not spell what they can set: it names a parameter by :func:`parameter` and a step by :func:`step`.
These write it as the :class:`Face` of the moment does: Python's, unless a block is within :func:`naming`. Tasks that
run elsewhere take the face along.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

_OPTION = "options."
SPELLINGS = {"center": "centre", "synthesize": "synthesise"}
"""Other spellings of options, job-file keys and commands."""


class Face(Protocol):
    """Where people meet the product: the command line, a job file, Python."""

    def parameter(self, name: str, value: str | None) -> str:
        """Write a parameter, and its value if one is given."""
        ...

    def step(self, name: str, operands: list[str], parameters: dict[str, str]) -> str:
        """Write a step to take."""
        ...


_PARTS = {"budget_delta": "delta", "budget_pure": "pure", "budget_delta_reserve": "reserve"}
_CERTIFICATES = {"tls_ca": "authority", "tls_cert": "certificate", "tls_key": "key"}
_FUNCTIONS = {
    **_PARTS, **_CERTIFICATES, "budget_epsilon": "budget", "clip": "clip_norm", "id": "name", "n": "rows",
    "d": "columns",
}  # fmt: skip
_ESTIMATORS = {
    **_PARTS, **_CERTIFICATES, "budget_delta": "budget_delta", "components": "n_components",
    "for_reproduction": "for_reproduction to dpdist.ReleaseRequest",
}  # fmt: skip
_BUDGET = {**_PARTS, "budget_delta_reserve": "delta_reserve"}
_KEYWORDS = {
    ("centre", "none"): ("centring", "'none'"),
    ("centre", "private"): ("centring", "'private'"),
    ("trusted", "worker"): ("trusted_worker", "True"),
}
"""What is not called in Python as it is on the command line and in job files: of functions, estimators and a Budget."""
_STEPS = {
    "ingest": "ingest_rows",
    "schema": "draft_schema",
    "register": "register_rows",
    "ledger create": "create_ledger",
    "bound": "choose_clip_norm",
    "release": "release_rows",
    "pca": "fit_components",
    "project": "project_rows",
    "combine": "combine_releases",
    "forecast": "forecast_release",
    "audit": "audit_mechanism",
    "inspect": "inspect_path",
    "mechanisms": "list_mechanisms",
}
"""Of the steps that have one; the others are commands only."""


@dataclass(frozen=True)
class Python:
    """Parameters and functions, as a script calls them; some are called otherwise."""

    renamed: Mapping[str, str]
    keywords: Mapping[tuple[str, str], tuple[str, str]]

    def parameter(self, name: str, value: str | None) -> str:
        """Write ``name`` or ``name='value'``."""
        if name.startswith(_OPTION):
            return f"options={{{name.removeprefix(_OPTION)!r}: {'...' if value is None else value}}}"
        if value is not None and (name, value) in self.keywords:
            return "=".join(self.keywords[name, value])
        name = self.renamed.get(name, name)
        return name if value is None else f"{name}={_written(value)}"

    def step(self, name: str, operands: list[str], parameters: dict[str, str]) -> str:
        """Write the function's call, or the command where there is no function."""
        if name not in _STEPS:
            return COMMAND_LINE.step(name, operands, parameters)
        parameters = {key: _written(value) for key, value in parameters.items()}
        loss = [parameters.pop(part) for part in ("budget_epsilon", "budget_delta") if part in parameters]
        if loss:
            parameters["budget"] = f"dpdist.PrivacyLoss.parse({', '.join(loss)})"
        if name == "release" and parameters:
            parameters = {"request": "dpdist.ReleaseRequest(...)"}
        arguments = [*map(_written, operands), *(f"{key}={value}" for key, value in parameters.items())]
        return f"dpdist.{_STEPS[name]}" + (f"({', '.join(arguments)})" if arguments else "")


def _written(value: str) -> str:
    """Write a value as Python does; what stands for one, such as ROWS, as it is."""
    if value.isupper():
        return value
    try:
        float(value)
    except ValueError:
        return repr(value)
    return value


class CommandLine:
    """Options and commands, as they are typed."""

    def parameter(self, name: str, value: str | None) -> str:
        """Write ``--name`` or ``--name value``."""
        if name.startswith(_OPTION):
            return f"--option {name.removeprefix(_OPTION)}={'...' if value is None else value}"
        return f"--{name.replace('_', '-')}" + ("" if value is None else f" {shlex.quote(value)}")

    def step(self, name: str, operands: list[str], parameters: dict[str, str]) -> str:
        """Write the command."""
        arguments = [self.parameter(key, value or None) for key, value in parameters.items()]
        return " ".join(["dpdist", name, *map(shlex.quote, operands), *arguments])


PYTHON, ESTIMATORS, BUDGET = Python(_FUNCTIONS, _KEYWORDS), Python(_ESTIMATORS, {}), Python(_BUDGET, _KEYWORDS)
COMMAND_LINE = CommandLine()
_INTERFACE: ContextVar[Face] = ContextVar("face", default=PYTHON)


@contextmanager
def naming(face: Face) -> Iterator[None]:
    """Let the messages of a block name parameters and steps as a face does."""
    token = _INTERFACE.set(face)
    try:
        yield
    finally:
        _INTERFACE.reset(token)


def current_face() -> Face:
    """Return who is spoken to, so that work elsewhere can speak to the same."""
    return _INTERFACE.get()


def parameter(name: str, value: object = None) -> str:
    """Return how a message names a parameter.

    Examples
    --------
    >>> parameter("grid_bits"), parameter("mechanism", "gaussian")
    ('grid_bits', "mechanism='gaussian'")
    >>> with naming(COMMAND_LINE):
    ...     parameter("grid_bits"), parameter("mechanism", "gaussian")
    ('--grid-bits', '--mechanism gaussian')
    """
    return current_face().parameter(name, None if value is None else str(value))


def step(name: str, *operands: object, **parameters: object) -> str:
    """Return how a message names a step to take.

    Examples
    --------
    >>> step("ingest", "SOURCE", "rows.zarr", budget_epsilon="E")
    "dpdist.ingest_rows(SOURCE, 'rows.zarr', budget=dpdist.PrivacyLoss.parse(E))"
    >>> with naming(COMMAND_LINE):
    ...     step("ingest", "SOURCE", "rows.zarr", budget_epsilon="E")
    'dpdist ingest SOURCE rows.zarr --budget-epsilon E'
    """
    return current_face().step(name, list(map(str, operands)), {key: str(value) for key, value in parameters.items()})
