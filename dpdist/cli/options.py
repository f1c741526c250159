"""What commands share: kinds of arguments, and groups of options."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from dpdist._util.paths import is_address
from dpdist._util.text import AMOUNTS, listed
from dpdist.cli.output import BARS
from dpdist.errors import UsageError
from dpdist.ingest.remote import location_of
from dpdist.ledger.address import LedgerAddress, address_of
from dpdist.ledger.ledger import Ledger
from dpdist.mechanisms.registry import MECHANISMS, RECOMMENDED
from dpdist.pipeline.budget import ledger_place
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release.parse import options_from
from dpdist.release.request import ROWS_AT_MOST
from dpdist.rows.dataset import RowsTable
from dpdist.runtime.cluster import Cluster
from dpdist.runtime.tls import Certificates
from dpdist.storage.store import AnyStore, store_at

Command = TypeVar("Command", bound=Callable[..., Any])


class Folder(click.Path):
    """A path with a last name; an empty one is an unset shell variable, not the current folder."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, with a name."""
        path = Path(str(super().convert(value, param, ctx)))
        if not path.name:
            path = path.absolute()
        if not value or not path.name:
            self.fail("The path is empty, or the root folder. Name a file or folder.", param, ctx)
        return path


class Account(Folder):
    """A folder, or the address of a ledger in a database."""

    name = "place"

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path, or an address."""
        place = address_of(str(value), Path())
        return super().convert(value, param, ctx) if isinstance(place, Path) else place


class SourceFrom(Folder):
    """A file or folder, or the address of one in a store."""

    name = "source"

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path, or an address."""
        place = location_of(str(value))
        return super().convert(str(place), param, ctx) if isinstance(place, Path) else place


class Anywhere(Folder):
    """A folder, or the address of a place in an object store."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path, or a store."""
        return store_at(str(value)) if is_address(str(value)) else super().convert(value, param, ctx)


class LocalPath(Folder):
    """A path of this machine, and no address."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        if is_address(str(value)):
            self.fail("This is a file or folder of this machine, and no address.", param, ctx)
        return super().convert(value, param, ctx)


SOURCE = SourceFrom(path_type=Path)
PLACE = Anywhere(path_type=Path)
LOCAL = LocalPath(path_type=Path)
LEDGER = Account(path_type=Path)


def json_option(command: Command) -> Command:
    """Add ``--json``; the command gets ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")(command)


def tls_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options about TLS; the command gets ``certificates`` and ``insecure``."""

    @click.option("--tls-ca", type=LOCAL, help="Certificate of the cluster's CA, for a tls:// scheduler.")
    @click.option("--tls-cert", type=LOCAL, help="Your certificate, of that CA.")
    @click.option("--tls-key", type=LOCAL, help="The certificate's key.")
    @click.option("--insecure", is_flag=True, help="Allow an unencrypted scheduler on the network.")
    @functools.wraps(command)
    def collected(tls_ca: Path | None, tls_cert: Path | None, tls_key: Path | None, **others: object) -> None:
        command(certificates=Certificates.of(tls_ca, tls_cert, tls_key), **others)

    return collected


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options about where to compute; the command gets a ``cluster``."""

    @click.option("--scheduler", help="Address of an existing Dask scheduler.")
    @click.option("--workers", type=int, help="Local worker processes [default: none, but threads of this process].")
    @tls_options
    @functools.wraps(command)
    def collected(
        scheduler: str | None,
        workers: int | None,
        certificates: Certificates | None,
        *,
        insecure: bool,
        **others: object,
    ) -> None:
        where = Cluster(scheduler, workers, certificates=certificates, insecure=insecure, progress=BARS)
        command(cluster=where, **others)

    return collected


def trusted_option(command: Command) -> Command:
    """Add who is trusted; the command gets ``trusted``, a word."""
    return click.option(
        "--trusted",
        type=click.Choice(["driver", "worker"]),
        default="driver",
        show_default=True,
        help="Where ledger and noise live: here, or on the worker started with --resources trusted=1.",
    )(command)


def ledger_option(command: Command) -> Command:
    """Add the place of the budget; the command gets ``ledger``."""
    return click.option(
        "--ledger",
        type=LEDGER,
        help="The budget's folder, or postgresql+psycopg://USER@HOST/DATABASE?ledger=NAME "
        "[default: ROWS with the suffix .ledger].",
    )(command)


def kept_in(rows: AnyStore, table: RowsTable, ledger: LedgerAddress | None) -> LedgerAddress | None:
    """Return where the budget of rows is kept, if they have one, as the rows were typed."""
    return ledger_place(replace(table, store=store_at(rows)), ledger) if table.budget else None


def budget_words(table: RowsTable, place: LedgerAddress | None) -> str:
    """Say which budget rows have, and where it is kept."""
    if not table.budget:
        return "No budget declared yet."
    kept = f" in {place}" if place is not None and Ledger.stands_at(place) else ""
    return f"Budget {table.budget}{kept}."


def neighbours_option(command: Command) -> Command:
    """Add the neighbouring relation; the command gets ``neighbours``, a word."""
    return click.option(
        "--neighbours",
        type=click.Choice([n.value for n in Neighbours]),
        default=Neighbours.REPLACE_ONE.value,
        show_default=True,
    )(command)


def large_delta_option(command: Command) -> Command:
    """Add that a large delta is meant; the command gets ``accept_large_delta``."""
    return click.option(
        "--accept-large-delta",
        is_flag=True,
        help="Allow a delta that is not below 1/n: it lets a random row be published as it is.",
    )(command)


def scale_options(command: Command) -> Command:
    """Add the scale; the command gets ``scale``, a word or a file, and ``scale_share``, a text or None."""
    command = click.option(
        "--scale-share",
        metavar="SHARE",
        help="With --scale private: the share of the release's mu² (or epsilon) that its choice takes [default: .01 to "
        ".25, by n, epsilon and d].",
    )(command)
    return click.option(
        "--scale",
        metavar="[none|private|FILE]",
        default="none",
        show_default=True,
        help="private: the release chooses a scale of each column first, from private histograms, and shifts by a "
        "centre from the same, unless --centre names a public one. Or a file (.npz, .npy, .json) with a public one.",
    )(command)


def mechanism_option(command: Command) -> Command:
    """Add the name of the mechanism; the command gets ``mechanism``, or None for the recommended one."""
    with_delta, pure = RECOMMENDED
    return click.option(
        "--mechanism",
        type=click.Choice(list(MECHANISMS)),
        metavar="NAME",
        help=f"Recommended are {with_delta}, the default with --delta, and {pure}, the default without; "
        "dpdist mechanisms --all lists the others.",
    )(command)


def mechanism_options(command: Command) -> Command:
    """Add a mechanism's own parameters; the command gets ``options`` and ``arithmetic``."""
    command = click.option("--arithmetic", help="Short for --option arithmetic=..., where there is a choice.")(command)
    return click.option(
        "--option", "options", multiple=True, metavar="NAME=VALUE", help="A parameter of the mechanism; repeatable."
    )(command)


def grid_options(command: Command) -> Command:
    """Add how finely rows are rounded; the command gets ``grid_bits`` and ``rows_at_most``."""
    command = click.option(
        "--rows-at-most", type=int, default=ROWS_AT_MOST, show_default=True, metavar="N",
        help="Public: rows of the table at most, where their number is private or they come in periods. Grid bits "
        "follow from it.",
    )(command)  # fmt: skip
    return click.option(
        "--grid-bits", type=int, metavar="B",
        help="The clip norm is 2^B grid steps [default: so many that rounding is below 5 % of the noise].",
    )(command)  # fmt: skip


def options_of(options: Sequence[str], arithmetic: str | None) -> dict[str, str]:
    """Return a mechanism's own parameters as typed."""
    return options_from([*options, *([f"arithmetic={arithmetic}"] if arithmetic else [])])


def budget_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the budget; the command gets ``budget``, a loss or None."""

    @click.option("--budget-epsilon", help="Largest total epsilon all releases together may cost.")
    @click.option("--budget-delta", help="Largest total delta all releases together may cost.")
    @click.option(
        "--budget-pure",
        metavar="E",
        help="Part of epsilon for releases that are not Gaussian, beside Gaussian ones [default: 0].",
    )
    @click.option(
        "--budget-delta-reserve",
        metavar="D",
        help="Part of delta for releases with a delta that are not Gaussian [default: 0].",
    )
    @functools.wraps(command)
    def collected(
        budget_epsilon: str | None,
        budget_delta: str | None,
        budget_pure: str | None,
        budget_delta_reserve: str | None,
        **others: object,
    ) -> None:
        given = {"--budget-delta": budget_delta, "--budget-pure": budget_pure,
                 "--budget-delta-reserve": budget_delta_reserve}  # fmt: skip
        if budget_epsilon is None:
            for name, value in given.items():
                if value is not None:
                    raise UsageError(f"{name} needs --budget-epsilon.")
            command(budget=None, **others)
            return
        parts = (budget_delta or "0", budget_pure or "0", budget_delta_reserve or "0")
        command(budget=PrivacyLoss.declared(budget_epsilon, *parts), **others)

    return collected


def count_of(components: str) -> int | None:
    """Return a number of components as typed; None for auto."""
    if components == "auto":
        return None
    if not components.isdecimal():
        raise UsageError(f"--components takes a number or auto, not {components!r}.")
    return int(components)


def share_of(components: str) -> float | None:
    """Return a number of components as typed, or below 1 the share of the variance that they hold; None for auto."""
    if re.fullmatch(r"0?\.[0-9]{1,15}", components):
        return float(components)
    if components != "auto" and not components.isdecimal():
        raise UsageError(f"--components takes a number, a share of the variance or auto, not {components!r}.")
    return count_of(components)


def bandwidth_of(text: str | None) -> float | None:
    """Return the bytes a second of a text such as 10GB; None for None."""
    if text is None:
        return None
    found = re.fullmatch(rf"([0-9]{{1,15}}(?:\.[0-9]{{1,15}})?) ?({'|'.join(AMOUNTS)})", text)
    number = float(found[1]) * 1000 ** AMOUNTS.index(found[2]) if found else 0.0
    if number <= 0:
        raise UsageError(f"--store-bandwidth takes a number above 0 with one of {listed(AMOUNTS)}, such as 10GB.")
    return number
