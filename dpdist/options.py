"""Every option, once: name, type, default, and the sentence that says what it is for.

Options of commands (:mod:`dpdist.cli.options`), keys of a job file, its checks and its schema
(:mod:`dpdist.jobs.sections`) and the pages about both are made of these classes; a request is made of
:class:`RequestOptions` by every face. ``--budget-epsilon`` is ``budget_epsilon`` in a job file and in Python; what is
called otherwise somewhere stands in :mod:`dpdist.naming`.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from dpdist.errors import UsageError
from dpdist.mechanisms.registry import MECHANISMS, RECOMMENDED
from dpdist.naming import parameter
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.rows.units import Keep

ROWS_AT_MOST = 10**7
"""Rows that a table of a private number of rows is taken to have at most, where nobody says another number."""
Word = Literal["private", "auto"]
Header = Literal["yes", "no"]


class Amount(str):
    """A number as it is written, with every digit."""

    __slots__ = ()


class Clip(str):
    """A number as it is written, ``private`` or ``auto``."""

    __slots__ = ()


class Components(str):
    """A whole number, a share below 1, or ``auto``."""

    __slots__ = ()

    @property
    def number(self) -> float | None:
        """A number, an int, or a share, a float; None for ``auto``."""
        if self == "auto":
            return None
        return int(self) if self.isdecimal() else float(self)


PRIVACY, CLIP, READING, WHERE, EXPERT = (
    "Privacy", "Clip and scale", "Reading the source", "Where to compute", "Expert",
)  # fmt: skip
FILE, WORD, FLAG, WHOLE = "a path in quotes", "text in quotes", "true or false", "a whole number"
AMOUNT = "a number, such as 2, 0.5 or 1e-6"


def option(description: str, expected: str, group: str = "", metavar: str | None = None, **constraints: Any) -> Meta:
    """Say what an option is for, what it takes in a job file, and where a command's help lists it."""
    return Meta(
        description=description, extra={"expected": expected, "group": group, "metavar": metavar}, **constraints
    )


def meta_of(kind: Any) -> Any:
    """Return what is said of an option, by its type; None of a field that is none."""
    return next((meta for meta in getattr(kind, "__metadata__", ()) if meta.extra), None)


def kinds_of(kind: Any) -> Iterator[Any]:
    """Yield the types that a type is a union of."""
    if get_origin(kind) is Annotated:
        yield from kinds_of(get_args(kind)[0])
    elif get_origin(kind) in {Union, UnionType}:
        for member in get_args(kind):
            yield from kinds_of(member)
    else:
        yield kind


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options that belong together."""


class BudgetOptions(Options, frozen=True, kw_only=True):
    """What all releases of the rows together may cost."""

    budget_epsilon: Annotated[
        Amount | None,
        option("Largest total epsilon of all releases together; declared when rows are ingested.", AMOUNT, PRIVACY),
    ] = None
    budget_delta: Annotated[Amount | None, option("Largest total delta of all releases.", AMOUNT, PRIVACY)] = None
    budget_pure: Annotated[
        Amount | None,
        option("Part of epsilon for releases that are not Gaussian, beside Gaussian ones.", AMOUNT, PRIVACY),
    ] = None
    budget_delta_reserve: Annotated[
        Amount | None, option("Part of delta for releases with a delta that are not Gaussian.", AMOUNT, PRIVACY)
    ] = None

    @property
    def budget(self) -> PrivacyLoss | None:
        """The budget; None where none is declared."""
        parts = {name: getattr(self, name) for name in ("budget_delta", "budget_pure", "budget_delta_reserve")}
        if self.budget_epsilon is not None:
            return PrivacyLoss.declared(self.budget_epsilon, *(part or "0" for part in parts.values()))
        if lone := [name for name, part in parts.items() if part is not None]:
            raise UsageError(f"{parameter(lone[0])} needs {parameter('budget_epsilon')}.")
        return None


class IngestOptions(BudgetOptions, frozen=True, kw_only=True):
    """How rows are made from a source."""

    columns: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1)] | None,
        option("Names of the columns to keep, in this order.", "a list of at least one column name", READING),
    ] = None
    variable: Annotated[
        str | None, option("The array of rows, where .nc, .zarr, .npz or .h5ad hold several.", WORD, READING)
    ] = None
    rows_dimension: Annotated[
        str | None,
        option("The dimension of an array along which the rows are [default: the first].", WORD, READING, "NAME"),
    ] = None
    missing: Annotated[
        int | None, option("Alleles to put where a genotype is missing: 0, 1 or 2 [default: refused].", WHOLE, READING)
    ] = None
    genotypes: Annotated[
        dict[str, str],
        option(
            "Rules for genotypes: multiallelic=skip or split; haploid=single or double; field=DS; frequencies=FILE, a "
            "public one, twice which replaces what is missing; standardise=yes, by these.",
            'a table, such as {multiallelic = "skip"}',
            READING,
        ),
    ] = {}
    header: Annotated[
        Header | None,
        option(
            "Whether the first line of text names the columns, or is a row [default: refused where that is in doubt].",
            '"yes" or "no"',
            READING,
        ),
    ] = None
    schema: Annotated[
        str | None,
        option(
            "What the columns mean: a TOML file (dpdist schema drafts one), or rows, a release or a model made with "
            "it.",
            FILE,
            READING,
        ),
    ] = None
    privacy_unit: Annotated[
        str | None,
        option(
            "What says whose row it is, and is not stored: a column of whole numbers, obs/NAME of AnnData, or FID or "
            "FID,IID of a .fam.",
            "a column's name in quotes",
            PRIVACY,
        ),
    ] = None
    max_rows: Annotated[
        int | None, option("Rows kept of each privacy unit at most; with periods, of each period.", WHOLE, PRIVACY)
    ] = None
    keep: Annotated[Keep | None, option("Which of them [default: first].", '"first" or "random"', PRIVACY)] = None

    @property
    def parameters(self) -> dict[str, Any]:
        """What :func:`dpdist.ingest_rows` takes besides the budget."""
        return {name: getattr(self, name) for name in fields_of(type(self)) if not name.startswith("budget")}


class ReleaseOptions(Options, frozen=True, kw_only=True):
    """What is released of rows."""

    epsilon: Annotated[Amount, option("Privacy loss epsilon, in steps of a millionth.", AMOUNT, PRIVACY)]
    clip: Annotated[
        Clip,
        option(
            "Public clip norm C, from public knowledge or dpdist bound; never from the data. private: the release "
            "chooses it first, from a private histogram of the norms (of scaled rows, with a private scale). auto: "
            "1.75 sqrt(d), for columns that are divided by a scale, or of those that a private one saw.",
            'a number, such as 8.5, "private" or "auto"',
            CLIP,
        ),
    ]
    delta: Annotated[
        Amount | None,
        option("Privacy loss delta. Leave it out for pure differential privacy.", "a number, such as 1e-6", PRIVACY),
    ] = None
    mechanism: Annotated[
        str | None,
        option(
            f"Recommended are {RECOMMENDED[0]}, the default with a delta, and {RECOMMENDED[1]}, the default without; "
            "dpdist mechanisms --all lists the others.",
            WORD,
            PRIVACY,
            "NAME",
            examples=list(MECHANISMS),
        ),
    ] = None
    neighbours: Annotated[
        Neighbours,
        option(
            "Which two tables cannot be told apart: with one row exchanged, or with one row more, where their number "
            "is private.",
            " or ".join(f'"{relation}"' for relation in Neighbours),
            PRIVACY,
        ),
    ] = Neighbours.REPLACE_ONE
    centre: Annotated[
        str,
        option(
            "none, private, or a file (.npz, .npy, .json) with a public centre and scale per column, or a release.zarr "
            "whose rows had them.",
            '"none", "private" or a path',
            CLIP,
            "[none|private|FILE]",
        ),
    ] = "none"
    scale: Annotated[
        str,
        option(
            "private: the release chooses a scale of each column first, from private histograms, and shifts by a "
            "centre from the same, unless a public one is named; with periods, that of the first does so for all. Or a "
            "file (.npz, .npy, .json) with a public one.",
            '"none", "private" or a path',
            CLIP,
            "[none|private|FILE]",
        ),
    ] = "none"
    scale_share: Annotated[
        Amount | None,
        option(
            "With a private scale: the share of the release's mu² (or epsilon) that its choice takes [default: .01 to "
            ".25, by n, epsilon and d].",
            "a number, such as 0.1",
            EXPERT,
            "SHARE",
        ),
    ] = None
    grid_bits: Annotated[
        int | None,
        option(
            "The clip norm is 2^B grid steps [default: so many that rounding is below 5 % of the noise].",
            WHOLE,
            EXPERT,
            "B",
        ),
    ] = None
    rows_at_most: Annotated[
        Annotated[int, Meta(ge=1, le=2**63 - 1)],
        option(
            "Public: rows of the table at most, where their number is private or they come in periods. Grid bits "
            "follow from it.",
            "a number of rows, at least 1",
            EXPERT,
            "N",
        ),
    ] = ROWS_AT_MOST
    options: Annotated[
        dict[str, Any],
        option("Parameters of the mechanism, by their names.", "a table, such as {components = 10}", EXPERT),
    ] = {}
    id: Annotated[str | None, option("Release id [default: follows from data set and parameters].", WORD, PRIVACY)] = (
        None
    )
    accept_large_delta: Annotated[
        bool, option("Allow a delta that is not below 1/n: it lets a random row be published as it is.", FLAG, PRIVACY)
    ] = False
    ledger: Annotated[
        str | None,
        option(
            "The budget's folder, or postgresql+psycopg://USER@HOST/DATABASE?ledger=NAME without a password "
            "[default: that of the rows with the suffix .ledger].",
            "a path or an address in quotes",
            PRIVACY,
        ),
    ] = None


class RequestOptions(ReleaseOptions, frozen=True, kw_only=True):
    """With what a job file says elsewhere, or not at all."""

    components: Annotated[
        int | None,
        option(
            "With a private clip norm: choose the norm that suits K components. Without it, the 0.95-quantile.",
            WHOLE,
            CLIP,
            "K",
        ),
    ] = None
    targets: Annotated[
        tuple[str, ...],
        option(
            "With a private scale: comma-separated columns that regress will explain. Noise hides less of them.",
            "a list of names",
            CLIP,
            "NAMES",
        ),
    ] = ()
    for_reproduction: Annotated[
        bool,
        option(
            "Allow a mechanism that is not private as claimed: no ledger, and only of rows that never had a budget.",
            FLAG,
            EXPERT,
        ),
    ] = False
    period: str = ""


class ComponentsOptions(Options, frozen=True, kw_only=True):
    """How many principal components are taken of a release, and which."""

    components: Annotated[
        Components,
        option(
            "Number of principal components; the share of the variance that they hold for sure, such as 0.9; or auto: "
            "those that can be told from noise.",
            'a whole number of at least 1, a share of the variance such as 0.9, or "auto": those that can be told from '
            "noise",
            metavar="K|SHARE|auto",
        ),
    ]
    correlation: Annotated[
        bool,
        option(
            "Components of the correlation matrix: of columns standardised by what was released, without drowned ones.",
            FLAG,
        ),
    ] = False


class ClusterOptions(Options, frozen=True, kw_only=True):
    """Where to compute."""

    scheduler: Annotated[
        str | None,
        option("Address of an existing Dask scheduler, such as tls://10.0.0.1:8786.", "an address in quotes", WHERE),
    ] = None
    workers: Annotated[
        int | None, option("Local worker processes [default: none, but threads of this process].", WHOLE, WHERE)
    ] = None
    trusted: Annotated[
        Literal["driver", "worker"],
        option(
            "Where ledger and noise live: here, or on the worker started with --resources trusted=1.",
            "driver or worker, in quotes",
            WHERE,
        ),
    ] = "driver"
    tls_ca: Annotated[str | None, option("Certificate of the cluster's CA, for a tls:// scheduler.", FILE, WHERE)] = (
        None
    )
    tls_cert: Annotated[str | None, option("Your certificate, of that CA.", FILE, WHERE)] = None
    tls_key: Annotated[str | None, option("The certificate's key.", FILE, WHERE)] = None
    insecure: Annotated[bool, option("Allow an unencrypted scheduler on the network.", FLAG, WHERE)] = False


def fields_of(kind: type[Options]) -> dict[str, msgspec.structs.FieldInfo]:
    """Return the options of a class by their names, its own before those that it inherits."""
    fields = {field.name: field for field in msgspec.structs.fields(kind) if meta_of(field.type) is not None}
    declared = [name for name in fields if name in kind.__annotations__]
    return {name: fields[name] for name in (*declared, *(name for name in fields if name not in declared))}
