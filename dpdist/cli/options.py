"""Argument types and option groups that commands share."""

from __future__ import annotations

import enum
import functools
import os
import re
import shlex
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
import msgspec

from dpdist.cli.output import BARS, TYPED, VERBOSITY
from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest.remote import location_of
from dpdist.core.ledger.address import LedgerAddress, address_of
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.naming import COMMAND_LINE, SPELLINGS, naming
from dpdist.core.options import (
    ARRAYS,
    CLIP,
    EXPERT,
    PRIVACY,
    READING,
    WHERE,
    ClusterOptions,
    Components,
    IngestOptions,
    Options,
    ReleaseOptions,
    fields_of,
    kinds_of,
    meta_of,
)
from dpdist.core.paths import is_address
from dpdist.core.pipeline.budget import ledger_place
from dpdist.core.pipeline.said import Reading
from dpdist.core.release.parse import columns_from, options_from
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.draft import SchemaNeededError
from dpdist.core.rows.units import Owner
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.runtime.tls import Certificates
from dpdist.core.storage.store import AnyStore, store_at

Command = TypeVar("Command", bound=Callable[..., Any])


class PathOrAddress(click.Path):
    """A path that has a name, or an address if ``read`` returns one."""

    def __init__(self, read: Callable[[str], Any]) -> None:
        super().__init__()
        self._read = read

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path or an address."""
        path = self._read(str(value))
        if isinstance(path, Path):
            path = Path(str(super().convert(str(path), param, ctx)))  # refuses unreadable paths
            path = path if path.name else path.absolute()
            if not str(value) or not path.name:  # empty: an unset shell variable, not the current folder
                self.fail("The path is empty, or the root folder. Name a file or folder.", param, ctx)
        return path


def _local(text: str) -> Path:
    if is_address(text):
        raise click.BadParameter("Give a file or folder on this machine, not an address.")
    return Path(text)


SOURCE = PathOrAddress(location_of)
STORE = PathOrAddress(lambda text: store_at(text) if is_address(text) else Path(text))
LOCAL = PathOrAddress(_local)
LEDGER = PathOrAddress(lambda text: address_of(text, Path()))
_TYPES = {"ledger": LEDGER, "schema": STORE, "tls_ca": LOCAL, "tls_cert": LOCAL, "tls_key": LOCAL}
_FLAGS = {"options": "--option"}
"""Options whose name differs from that of their field."""
_REQUIRED = "Required"
_GROUPS = (_REQUIRED, PRIVACY, READING, "", CLIP, ARRAYS, WHERE, EXPERT)
_RARE = {CLIP, ARRAYS, WHERE, EXPERT}
"""Groups that only ``--help-all`` shows."""
_EVERY = "dpdist.every_option"


def json_option(command: Command) -> Command:
    """Add ``--json``, passed as ``as_json``, and ``-q`` and ``-v``, which :data:`dpdist.cli.output.VERBOSITY` holds."""
    for flag, name, words in (
        ("-v", "verbose", "Print times and details, too."), ("-q", "quiet", "Print results and errors only."),
    ):  # fmt: skip
        command = click.option(
            flag, f"--{name}", is_flag=True, expose_value=False, help=words, callback=partial(_set_verbosity, name)
        )(command)
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")(command)


def reading_options(command: Callable[..., None], *, planned: bool = False) -> Callable[..., None]:
    """Add the options that say what a file is, passed as ``said``, a :class:`dpdist.core.pipeline.said.Reading`.

    ``planned``: ``--max-rows`` is an option of the command itself, for tables that are not there.
    """
    names = {"schema", "header", "privacy_unit"} | (set() if planned else {"max_rows"})

    @options(IngestOptions, "table_options", names=names)
    @functools.wraps(command)
    def collected(table_options: IngestOptions, each_row_is_a_person: bool, **arguments: Any) -> None:
        unit = table_options.privacy_unit
        most = arguments["max_rows"] if planned and unit is not None else table_options.max_rows
        chosen = (arguments.pop("columns"), arguments.pop("ignore"))
        if any(text is not None and not text.strip() for text in chosen):  # an unset shell variable
            raise UsageError("--columns or --ignore names no column. Name one, or leave it out.")
        kept, ignored = (() if text is None else tuple(columns_from(text)) for text in chosen)
        said = Reading(
            table_options.schema, table_options.header, Owner(unit, most, each_row_is_a_person), kept, ignored
        )
        try:
            command(said=said, **arguments)
        except SchemaNeededError as error:
            if error.path is None:
                raise
            raise DataError(f"{error} Then run: {again('--schema', str(error.path))}") from None

    for name, words in (("ignore", "leave out"), ("columns", "keep, in this order")):
        collected = click.option(
            f"--{name}", cls=Option, group=READING, metavar="NAMES",
            help=f"Of a file: comma-separated names of the columns to {words}.",
        )(collected)  # fmt: skip
    return click.option(
        "--each-row-is-a-person", cls=Option, group=PRIVACY, is_flag=True, help="State that no person has two rows."
    )(collected)


def again(*more: str) -> str:
    """Return the command that was typed, with more options."""
    typed = list(click.get_current_context().find_root().meta[TYPED])
    end = typed.index("--") if "--" in typed else len(typed)
    return shlex.join(["dpdist", *typed[:end], *more, *typed[end:]])


def feasible_option(command: Command) -> Command:
    """Add ``--feasible``."""
    return click.option(
        "--feasible",
        is_flag=True,
        help="Of a release with categories: start from the nearest moment that rows can have, where no table has a "
        "negative count.",
    )(command)


def _set_verbosity(name: str, _context: click.Context, _option: click.Parameter, value: object) -> None:
    setattr(VERBOSITY, name, bool(value))


class Option(click.Option):
    """An option that belongs to a group of the help page."""

    def __init__(self, *declarations: Any, group: str = "", **attributes: Any) -> None:
        super().__init__(*declarations, **attributes)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help page groups the options, and leaves rare ones to ``--help-all``."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with ``--help-all`` last."""
        words = "Show all options: where to compute, and those for experts."
        every = click.Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_help_all, help=words
        )
        parameters = super().get_params(ctx)
        return [*parameters, every] if any(_group(parameter) in _RARE for parameter in parameters) else parameters

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section per group."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in _GROUPS}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                name, words = record
                group = _group(parameter)
                groups[group].append((name, words.removesuffix("  [required]") if group == _REQUIRED else words))
        for name, rows in groups.items():
            if rows and (name not in _RARE or _EVERY in ctx.meta):
                with formatter.section(name or "Options"):
                    formatter.write_dl(rows)


def _group(parameter: click.Parameter) -> str:
    return parameter.group if isinstance(parameter, Option) else ""


def _help_all(context: click.Context, _option: click.Parameter, value: object) -> None:
    if value and not context.resilient_parsing:
        context.meta[_EVERY] = True
        click.echo(context.get_help())
        context.exit()


grouped = functools.partial(click.command, cls=GroupedCommand)


def _type(kind: Any, examples: list[Any] | None) -> Any:
    """Return the click type of a value that is neither a flag nor a table."""
    choices = examples or (get_args(kind) if get_origin(kind) is Literal else ())
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        choices = tuple(kind)
    return click.Choice([str(choice) for choice in choices]) if choices else int if kind is int else str


def _click_option(
    name: str, field: msgspec.structs.FieldInfo, changed: Mapping[str, Any]
) -> Callable[[Command], Command]:
    """Return the click option for a field."""
    meta = meta_of(field.type)
    kind = next(member for member in kinds_of(field.type) if member is not type(None))
    attributes: dict[str, Any] = {
        "help": meta.description,
        "metavar": meta.extra["metavar"],
        "group": meta.extra["group"],
    }
    if kind is bool and field.default is not False:
        flag = f"--{name.replace('_', '-')}"
        return click.option(f"{flag}/--no-{flag[2:]}", name, cls=Option, default=field.default, **attributes, **changed)
    if kind is bool:
        attributes |= {"is_flag": True}
    elif get_origin(kind) is dict:
        attributes |= {"multiple": True, "metavar": "NAME=VALUE"}
    else:
        attributes["type"] = _TYPES.get(name) or _type(kind, meta.examples)
        if field.required:
            attributes |= {"required": True, "group": _REQUIRED}
        elif field.default is not None and get_origin(kind) is not tuple:
            attributes |= {"default": field.default if kind is int else str(field.default), "show_default": True}
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    spellings = [f"--{spelling}" for spelling, standard in SPELLINGS.items() if standard == name]
    return click.option(flag, *spellings, name, cls=Option, **{**attributes, **changed})


def _parsed(field: msgspec.structs.FieldInfo, value: Any) -> Any:
    """Return a typed value as the value of its field."""
    kinds = {get_origin(kind) for kind in kinds_of(field.type)}
    if tuple in kinds:
        return field.default if value is None else tuple(columns_from(value))
    return options_from(value) if dict in kinds else value


def options(
    kind: type[Options], into: str, *, names: Container[str] | None = None, without: Container[str] = (),
    changed: Mapping[str, Mapping[str, Any]] = MappingProxyType({}), **fixed: object,
) -> Callable[[Callable[..., None]], Callable[..., None]]:  # fmt: skip
    """Add the options of a class, or those in ``names``, and pass them to the command as an instance ``into``."""
    fields = {
        name: field
        for name, field in fields_of(kind).items()
        if (names is None or name in names) and name not in without
    }

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def collected(arithmetic: str | None = None, **arguments: Any) -> None:
            if arithmetic:
                arguments["options"] = (*arguments["options"], f"arithmetic={arithmetic}")
            values = {name: _parsed(field, arguments.pop(name)) for name, field in fields.items()}
            command(**{into: kind(**values, **fixed)}, **arguments)

        if "options" in fields:
            shorthand = "Short for --option arithmetic=..., for mechanisms that offer a choice."
            collected = click.option("--arithmetic", cls=Option, group=EXPERT, help=shorthand)(collected)
        for name, field in reversed(fields.items()):
            collected = _click_option(name, field, changed.get(name, {}))(collected)
        return collected

    return add


def cluster_options(command: Callable[..., None], *, trusted: bool = False) -> Callable[..., None]:
    """Add the options for where to compute, and pass a ``cluster`` to the command."""

    @options(ClusterOptions, "settings", without=() if trusted else {"trusted"})
    @functools.wraps(command)
    def collected(settings: ClusterOptions, **arguments: object) -> None:
        cluster = Cluster(
            settings.scheduler, settings.workers, trusted_worker=settings.trusted == "worker",
            certificates=certificates_of(settings), insecure=settings.insecure, progress=BARS,
        )  # fmt: skip
        command(cluster=cluster, **arguments)

    return collected


def certificates_of(settings: ClusterOptions) -> Certificates | None:
    """Return the TLS certificates, or None."""
    with naming(COMMAND_LINE):  # also for run, whose messages name job-file keys
        return Certificates.of(settings.tls_ca, settings.tls_cert, settings.tls_key)


def ledger_option(command: Command) -> Command:
    """Add ``--ledger``, passed as ``ledger``."""
    return _click_option("ledger", fields_of(ReleaseOptions)["ledger"], {})(command)


def budget_location(rows: AnyStore, table: RowsTable, ledger: LedgerAddress | None) -> LedgerAddress | None:
    """Return the ledger of rows, relative if the rows were; None without a budget."""
    return ledger_place(replace(table, store=store_at(rows)), ledger) if table.budget else None


def budget_message(table: RowsTable, ledger: LedgerAddress | None) -> str:
    """Describe the budget of rows and its ledger."""
    if not table.budget:
        return "No budget declared yet."
    location = f" in {ledger}" if ledger is not None and Ledger.stands_at(ledger) else ""
    return f"Budget {table.budget}{location}."


def count_of(components: str) -> int | None:
    """Parse a number of components; None for auto."""
    if components == "auto":
        return None
    if not components.isdecimal():
        raise UsageError(f"--components takes a number or auto, not {components!r}.")
    return int(components)


def share_of(components: str) -> float | None:
    """Parse a number of components, or a share of the variance below 1; None for auto."""
    if components != "auto" and not re.fullmatch(r"0?\.[0-9]{1,15}", components) and not components.isdecimal():
        raise UsageError(f"--components takes a number, a share of the variance or auto, not {components!r}.")
    return Components(components).number
