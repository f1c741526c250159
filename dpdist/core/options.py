"""All options: name, type, default and help text.

Command-line options (:mod:`dpdist.cli.options`), the keys, checks and schema of job files (:mod:`dpdist.jobs.sections`)
and the reference pages derive from these classes. All interfaces create requests from :class:`RequestOptions`.
``--budget-epsilon`` is ``budget_epsilon`` in job files and in Python; :mod:`dpdist.core.naming` lists the exceptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.registry import MECHANISMS, RECOMMENDED
from dpdist.core.naming import parameter
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.rows.units import Keep

ROWS_AT_MOST = 10**7
"""Default upper bound on a private number of rows."""
Word = Literal["private", "auto", "schema"]
Header = Literal["yes", "no"]


class Amount(str):
    """A number as written, with all digits."""

    __slots__ = ()


class Clip(str):
    """A number as written, ``private``, ``auto`` or ``schema``."""

    __slots__ = ()


class Components(str):
    """A whole number, a share below 1, or ``auto``."""

    __slots__ = ()

    @property
    def number(self) -> float | None:
        """The number as an int, or the share as a float; None for ``auto``."""
        if self == "auto":
            return None
        return int(self) if self.isdecimal() else float(self)


PRIVACY, CLIP, READING, ARRAYS, WHERE, EXPERT = (
    "Privacy", "Clip and scale", "Reading the source", "Arrays and genotypes", "Where to compute", "Expert",
)  # fmt: skip
FILE, WORD, FLAG, WHOLE = "a path in quotes", "text in quotes", "true or false", "a whole number"
AMOUNT = "a number, such as 2, 0.5 or 1e-6"


def option(description: str, expected: str, group: str = "", metavar: str | None = None, **constraints: Any) -> Meta:
    """Return the description of an option, its job-file value and its group in help pages."""
    return Meta(
        description=description, extra={"expected": expected, "group": group, "metavar": metavar}, **constraints
    )


def meta_of(kind: Any) -> Any:
    """Return the metadata of an option from its type; None if the field is not an option."""
    return next((meta for meta in getattr(kind, "__metadata__", ()) if meta.extra), None)


def kinds_of(kind: Any) -> Iterator[Any]:
    """Yield the members of a union."""
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
    """The budget for all releases of the rows."""

    budget_epsilon: Annotated[
        Amount | None,
        option("Largest total epsilon of all releases; declared when rows are ingested.", AMOUNT, PRIVACY),
    ] = None
    budget_delta: Annotated[Amount | None, option("Largest total delta of all releases.", AMOUNT, PRIVACY)] = None
    budget_pure: Annotated[
        Amount | None,
        option("Part of epsilon reserved for releases that are not Gaussian.", AMOUNT, EXPERT),
    ] = None
    budget_delta_reserve: Annotated[
        Amount | None, option("Part of delta for releases that have a delta and are not Gaussian.", AMOUNT, EXPERT)
    ] = None

    @property
    def budget(self) -> PrivacyLoss | None:
        """The budget, or None."""
        parts = {name: getattr(self, name) for name in ("budget_delta", "budget_pure", "budget_delta_reserve")}
        if self.budget_epsilon is not None:
            return PrivacyLoss.declared(self.budget_epsilon, *(part or "0" for part in parts.values()))
        if lone := [name for name, part in parts.items() if part is not None]:
            raise UsageError(f"{parameter(lone[0])} needs {parameter('budget_epsilon')}.")
        return None


class IngestOptions(BudgetOptions, frozen=True, kw_only=True):
    """Ingestion of rows from a source."""

    columns: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1)] | None,
        option("Names of the columns to keep, in this order.", "a list of at least one column name", READING),
    ] = None
    variable: Annotated[
        str | None, option("The array of rows, if a .nc, .zarr, .npz or .h5ad contains several.", WORD, ARRAYS)
    ] = None
    rows_dimension: Annotated[
        str | None,
        option("The dimension of an array along its rows [default: the first].", WORD, ARRAYS, "NAME"),
    ] = None
    missing: Annotated[
        int | None, option("Allele count for a missing genotype: 0, 1 or 2 [default: refuse].", WHOLE, ARRAYS)
    ] = None
    genotypes: Annotated[
        dict[str, str],
        option(
            "Rules for genotypes: multiallelic=skip or split; haploid=single or double; field=DS; frequencies=FILE: "
            "public allele frequencies; a missing genotype becomes twice its frequency; standardise=yes: "
            "standardise by these frequencies.",
            'a table, such as {multiallelic = "skip"}',
            ARRAYS,
        ),
    ] = {}
    header: Annotated[
        Header | None,
        option(
            "Whether the first line of a text file names the columns [default: refuse if unclear].",
            '"yes" or "no"',
            READING,
        ),
    ] = None
    schema: Annotated[
        str | None,
        option(
            "The meaning of the columns: a TOML file (drafted by dpdist schema), or rows, a release or a model made "
            "with one.",
            FILE,
            READING,
        ),
    ] = None
    privacy_unit: Annotated[
        str | None,
        option(
            "Column that identifies the person or other unit of each row; it is not stored. Whole numbers, or text "
            "(ingest and jobs: by a schema); obs/NAME of AnnData; sample of VCF Zarr.",
            "a column's name in quotes",
            PRIVACY,
        ),
    ] = None
    max_rows: Annotated[
        int | None,
        option(
            "Maximum number of rows to keep for each privacy unit; with periods, in each [default: all, and their "
            "moment is bounded].",
            WHOLE,
            PRIVACY,
        ),
    ] = None
    keep: Annotated[Keep | None, option("Which rows to keep [default: first].", '"first" or "random"', EXPERT)] = None

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of :func:`dpdist.ingest_rows` except the budget."""
        return {name: getattr(self, name) for name in fields_of(type(self)) if not name.startswith("budget")}


class ReleaseOptions(Options, frozen=True, kw_only=True):
    """A release of rows."""

    epsilon: Annotated[Amount, option("Privacy loss epsilon, such as 1 or 0.5.", AMOUNT, PRIVACY, "NUMBER")]
    clip: Annotated[
        Clip | None,
        option(
            "Public clip norm C, from public knowledge or dpdist bound, never from the data. private: first choose "
            "it from a private histogram of row norms (after scaling, with a private scale). auto, with a scale: "
            "1.75 sqrt(d), where d leaves out columns with nearly all values in one bin; as private, where all rows of "
            "a privacy unit are kept: C is then the norm of their moment. schema, without scale and "
            "centre of your own: the norm that no row of the schema exceeds [default: auto].",
            'a number, such as 8.5, "private", "auto" or "schema"',
            CLIP,
        ),
    ] = None
    delta: Annotated[
        Amount | None,
        option(
            "Privacy loss delta. Omit it for pure differential privacy.", "a number, such as 1e-6", PRIVACY, "NUMBER"
        ),
    ] = None
    mechanism: Annotated[
        str | None,
        option(
            f"Mechanism [default: {RECOMMENDED[0]} with a delta, {RECOMMENDED[1]} without; dpdist mechanisms --all "
            "lists the others].",
            WORD,
            EXPERT,
            "NAME",
            examples=list(MECHANISMS),
        ),
    ] = None
    neighbours: Annotated[
        Neighbours,
        option(
            "Neighbouring tables. replace-one: they differ in the values of one row. add-remove: one has an extra row, "
            "so the number of rows is private.",
            " or ".join(f'"{relation}"' for relation in Neighbours),
            EXPERT,
        ),
    ] = Neighbours.REPLACE_ONE
    centre: Annotated[
        str | None,
        option(
            "private: release the mean as well, at no cost. schema: the same, with categories and booleans about "
            "public middles. none; or a file (.npz, .npy, .json) with a public centre and scale of each column, or a "
            "release.zarr, whose centre and scale are reused [default: private, if no clip norm is given; schema, for "
            "rows with categories or booleans in a schema; otherwise none].",
            '"none", "private", "schema" or a path',
            CLIP,
            "[none|private|schema|FILE]",
        ),
    ] = None
    scale: Annotated[
        str | None,
        option(
            "private: first choose a scale for each column, and a centre unless one is given, from private histograms; "
            "with periods, of the first period. Or a file (.npz, .npy, .json) with a public scale [default: private, "
            "if no clip norm and no scale is given; otherwise none].",
            '"none", "private" or a path',
            CLIP,
            "[none|private|FILE]",
        ),
    ] = None
    scale_share: Annotated[
        Amount | None,
        option(
            "With a private scale: the share of the release's mu² (or epsilon) spent on its choice [default: .01 to "
            ".25, by n, epsilon and d].",
            "a number, such as 0.1",
            EXPERT,
            "SHARE",
        ),
    ] = None
    grid_bits: Annotated[
        int | None,
        option(
            "The clip norm is 2^B grid steps [default: enough for rounding below 5 % of the noise].",
            WHOLE,
            EXPERT,
            "B",
        ),
    ] = None
    rows_at_most: Annotated[
        Annotated[int, Meta(ge=1, le=2**63 - 1)],
        option(
            "Public upper bound on the number of rows, for use if that number is private or the rows have periods. It "
            "determines the grid bits.",
            "a number of rows, at least 1",
            EXPERT,
            "N",
        ),
    ] = ROWS_AT_MOST
    options: Annotated[
        dict[str, Any],
        option("Parameters of the mechanism, by their names.", "a table, such as {components = 10}", EXPERT),
    ] = {}
    id: Annotated[str | None, option("Release id [default: from data set and parameters].", WORD, EXPERT)] = None
    accept_large_delta: Annotated[
        bool, option("Allow a delta of 1/n or more, which would permit publishing a random row.", FLAG, EXPERT)
    ] = False
    ledger: Annotated[
        str | None,
        option(
            "Folder of the ledger, or the address of a PostgreSQL database without a password [default: path of the "
            "rows with the suffix .ledger].",
            "a path or an address in quotes",
            EXPERT,
        ),
    ] = None


class RequestOptions(ReleaseOptions, frozen=True, kw_only=True):
    """A release, with the options that a job file has elsewhere or not at all."""

    clip_components: Annotated[
        int | None,
        option(
            "With --clip private: choose the norm best suited to K components [default: the 0.95-quantile].",
            WHOLE,
            CLIP,
            "K",
        ),
    ] = None
    targets: Annotated[
        tuple[str, ...],
        option(
            "With a private scale: comma-separated columns to explain with regress; noise affects them less.",
            "a list of names",
            CLIP,
            "NAMES",
        ),
    ] = ()
    for_reproduction: Annotated[
        bool,
        option(
            "Allow a mechanism that is not private as claimed. Only for rows that never had a budget; no ledger is "
            "charged.",
            FLAG,
            EXPERT,
        ),
    ] = False
    period: str = ""


class ComponentsOptions(Options, frozen=True, kw_only=True):
    """Principal components of a release."""

    components: Annotated[
        Components,
        option(
            "Number of principal components; or the share of the variance that they must be sure to explain, such as "
            "0.9; or auto: all components above the noise.",
            'a whole number of at least 1, a share of the variance such as 0.9, or "auto": all components above the '
            "noise",
            metavar="K|SHARE|auto",
        ),
    ]
    correlation: Annotated[
        bool | None,
        option(
            "Use the correlation matrix, computed from the released variances without columns below the noise, or the "
            "covariance or second moment in the units of the rows [default: correlation, if the release has a mean].",
            FLAG,
        ),
    ] = None
    drop_first: Annotated[
        bool,
        option(
            "Omit the first column of each categorical variable from the correlation matrix: the other columns "
            "determine it [default: omit it].",
            FLAG,
        ),
    ] = True


class ClusterOptions(Options, frozen=True, kw_only=True):
    """Where to compute."""

    scheduler: Annotated[
        str | None,
        option("Address of an existing Dask scheduler, such as tls://10.0.0.1:8786.", "an address in quotes", WHERE),
    ] = None
    workers: Annotated[
        int | None, option("Local worker processes [default: threads of this process].", WHOLE, WHERE)
    ] = None
    trusted: Annotated[
        Literal["driver", "worker"],
        option(
            "Where noise is drawn and the ledger kept: here, or on the worker started with --resources trusted=1.",
            "driver or worker, in quotes",
            WHERE,
        ),
    ] = "driver"
    tls_ca: Annotated[str | None, option("Certificate of the cluster's CA, for a tls:// scheduler.", FILE, WHERE)] = (
        None
    )
    tls_cert: Annotated[str | None, option("Your certificate, signed by that CA.", FILE, WHERE)] = None
    tls_key: Annotated[str | None, option("The key of the certificate.", FILE, WHERE)] = None
    insecure: Annotated[bool, option("Allow an unencrypted scheduler on the network.", FLAG, WHERE)] = False


def fields_of(kind: type[Options]) -> dict[str, msgspec.structs.FieldInfo]:
    """Return the options of a class by name, inherited ones last."""
    fields = {field.name: field for field in msgspec.structs.fields(kind) if meta_of(field.type) is not None}
    declared = [name for name in fields if name in kind.__annotations__]
    return {name: fields[name] for name in (*declared, *(name for name in fields if name not in declared))}
