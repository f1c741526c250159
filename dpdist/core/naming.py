"""Names of parameters and steps in messages, for each interface.

The library's messages are read by users of the command line, of job files and of Python. A message names a parameter
with :func:`parameter` and a step with :func:`step`, which write it for the current :class:`Interface`: Python, unless
:func:`naming` sets another. Tasks on workers take the interface along.
"""

from __future__ import annotations

import csv
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

SPELLINGS = {"center": "centre", "person": "privacy_unit", "synthesize": "synthesise"}
"""Other spellings of options, job-file keys and commands."""


class Interface(Protocol):
    """An interface: the command line, a job file, or Python."""

    def parameter(self, name: str, value: str | None) -> str:
        """Write a parameter, with its value if given."""
        ...

    def step(self, name: str, operands: list[str], parameters: dict[str, str]) -> str:
        """Write a step."""
        ...


_PARTS = {"budget_delta": "delta", "budget_pure": "pure", "budget_delta_reserve": "reserve"}
_CERTIFICATES = {"tls_ca": "authority", "tls_cert": "certificate", "tls_key": "key"}
_FUNCTIONS = {
    **_PARTS, **_CERTIFICATES, "budget_epsilon": "budget", "clip": "clip_norm", "id": "name", "n": "rows",
    "d": "columns", "insecure": "insecure to dpdist.Cluster",
}  # fmt: skip
_ESTIMATORS = {
    **_PARTS, **_CERTIFICATES, "budget_delta": "budget_delta", "components": "n_components",
    "clip_components": "n_components", "id": "name",
    "for_reproduction": "for_reproduction to dpdist.ReleaseRequest", "insecure": "insecure to dpdist.Cluster",
}  # fmt: skip
_BUDGET = {**_PARTS, "budget_delta_reserve": "delta_reserve"}
_KEYWORDS = {
    ("centre", "none"): ("centring", "'none'"),
    ("centre", "private"): ("centring", "'private'"),
    ("centre", "schema"): ("centring", "'schema'"),
    ("trusted", "worker"): ("trusted_worker", "True"),
}
"""Names of parameters in Python that differ from those of options, for functions, estimators and Budget."""
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
    "session create": "create_session",
    "session key": "add_session_key",
    "session share": "release_share",
    "session combine": "combine_shares",
    "forecast": "forecast_release",
    "audit": "audit_mechanism",
    "inspect": "inspect_path",
    "mechanisms": "list_mechanisms",
}
"""Functions of the commands that have one."""


@dataclass(frozen=True)
class Python:
    """Writes parameters and calls for Python."""

    renamed: Mapping[str, str]
    keywords: Mapping[tuple[str, str], tuple[str, str]]

    def parameter(self, name: str, value: str | None) -> str:
        """Write ``name`` or ``name='value'``."""
        name, dot, rule = name.partition(".")
        if dot:  # of options, or of genotypes
            return f"{name}={{{rule!r}: {'...' if value is None else _written(value)}}}"
        if value is not None and (name, value) in self.keywords:
            return "=".join(self.keywords[name, value])
        name = self.renamed.get(name, name)
        return name if value is None else f"{name}={_written(value)}"

    def step(self, name: str, operands: list[str], parameters: dict[str, str]) -> str:
        """Write the call, or the command if there is no function."""
        if name not in _STEPS:
            return COMMAND_LINE.step(name, operands, parameters)
        if name == "schema":
            operands = operands[:1]  # the function returns the draft
        parameters = {
            key: str(next(csv.reader([value]))) if key == "columns" and not value.isupper() else _written(value)
            for key, value in parameters.items()
        }
        loss = [parameters.pop(part) for part in ("budget_epsilon", "budget_delta") if part in parameters]
        if loss:
            parameters["budget"] = f"dpdist.PrivacyLoss.parse({', '.join(loss)})"
        if name == "release" and parameters:
            parameters = {"request": "dpdist.ReleaseRequest(...)"}
        arguments = [*map(_written, operands), *(f"{key}={value}" for key, value in parameters.items())]
        return f"dpdist.{_STEPS[name]}" + (f"({', '.join(arguments)})" if arguments else "")


def _written(value: str) -> str:
    """Write a value as a Python literal; a placeholder, such as ROWS, unchanged."""
    if value.isupper():
        return value
    try:
        float(value)
    except ValueError:
        return repr(value)
    return value


class CommandLine:
    """Writes options and commands."""

    def parameter(self, name: str, value: str | None) -> str:
        """Write ``--name`` or ``--name value``."""
        name, dot, rule = name.partition(".")
        if dot:  # of options, or of genotypes
            return (
                f"--{name.removesuffix('s') if name == 'options' else name} {rule}={'...' if value is None else value}"
            )
        return f"--{name.replace('_', '-')}" + ("" if value is None else f" {shlex.quote(value)}")

    def step(self, name: str, operands: list[str], parameters: dict[str, str]) -> str:
        """Write the command."""
        arguments = [self.parameter(key, value or None) for key, value in parameters.items()]
        return " ".join(["dpdist", name, *map(shlex.quote, operands), *arguments])


PYTHON, ESTIMATORS, BUDGET = Python(_FUNCTIONS, _KEYWORDS), Python(_ESTIMATORS, {}), Python(_BUDGET, _KEYWORDS)
COMMAND_LINE = CommandLine()
_INTERFACE: ContextVar[Interface] = ContextVar("interface", default=PYTHON)


@contextmanager
def naming(interface: Interface) -> Iterator[None]:
    """Name parameters and steps in the messages of a block as ``interface`` does."""
    token = _INTERFACE.set(interface)
    try:
        yield
    finally:
        _INTERFACE.reset(token)


def current_interface() -> Interface:
    """Return the current interface, for use on a worker."""
    return _INTERFACE.get()


def parameter(name: str, value: object = None) -> str:
    """Return the name of a parameter in a message.

    >>> parameter("grid_bits"), parameter("mechanism", "gaussian")
    ('grid_bits', "mechanism='gaussian'")
    >>> with naming(COMMAND_LINE):
    ...     parameter("grid_bits"), parameter("mechanism", "gaussian")
    ('--grid-bits', '--mechanism gaussian')
    """
    return current_interface().parameter(name, None if value is None else str(value))


def step(name: str, *operands: object, **parameters: object) -> str:
    """Return a step, as written in a message.

    >>> step("ingest", "SOURCE", "rows.zarr", budget_epsilon="E")
    "dpdist.ingest_rows(SOURCE, 'rows.zarr', budget=dpdist.PrivacyLoss.parse(E))"
    >>> with naming(COMMAND_LINE):
    ...     step("ingest", "SOURCE", "rows.zarr", budget_epsilon="E")
    'dpdist ingest SOURCE rows.zarr --budget-epsilon E'
    """
    return current_interface().step(
        name, list(map(str, operands)), {key: str(value) for key, value in parameters.items()}
    )
