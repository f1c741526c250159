"""The commands session create, key, share and combine."""

from __future__ import annotations

import shlex
from functools import partial

import click
import msgspec

from dpdist.answers.bias import described
from dpdist.answers.prospect import prospect
from dpdist.cli import Suggesting
from dpdist.cli.options import (
    STORE,
    GroupedCommand,
    Option,
    cluster_options,
    json_option,
    ledger_option,
    options,
)
from dpdist.cli.output import answer, say
from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.options import Clip, IngestOptions, RequestOptions
from dpdist.core.privacy.checks import cautions, cautions_message
from dpdist.core.release.parse import columns_from, request_from
from dpdist.core.release.plan import Plan
from dpdist.core.release.share import key_location, key_name, stored_key
from dpdist.core.rows.schema import Schema
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage.store import AnyStore, store_at
from dpdist.core.text import listed
from dpdist.sites import combine, steps
from dpdist.sites.folder import Session

_BOUNDING = {
    "epsilon", "delta", "clip", "neighbours", "centre", "scale", "grid_bits", "rows_at_most",
}  # fmt: skip
_CHANGED: dict[str, dict[str, object]] = {
    "delta": {
        "help": "Privacy loss delta, such as 1e-6: far below one over the number of rows of all sites.",
        "required": True, "group": "Required",
    },
    "clip": {
        "help": "Public clip norm C. auto, with a public scale: 1.75 sqrt(d). schema: the norm that no row of the "
        "schema exceeds [default: schema, if its ranges give one; auto, with a public scale].",
        "metavar": "[C|auto|schema]", "group": "",
    },
    "neighbours": {"group": ""},
    "scale": {"help": "A file (.npz, .npy, .json) with a public scale of each column.", "metavar": "FILE"},
    "centre": {
        "help": "none; private: release the mean as well, at no cost; schema; or a file (.npz, .npy, .json) with a "
        "public centre and scale of each column, or the release.zarr of a pilot, whose centre and scale are reused "
        "[default: schema, for rows with categories or booleans in a schema; otherwise none].",
        "group": "",
    },
    "privacy_unit": {"help": "Column of the privacy unit that all sites ingest with; a schema names it itself."},
    "max_rows": {"help": "Maximum number of rows that a site keeps of each unit [default: all]."},
}  # fmt: skip


@click.group(cls=Suggesting)
def session() -> None:
    """Release the rows of several sites together, with no place that sees their sum without noise.

    The order is: create, once; key, at each site; compare the fingerprint; share, at each site; combine, anywhere.
    SESSION is a folder of public files, to be carried in any way. dpdist inspect SESSION shows what is missing.
    """


@session.command("create", cls=GroupedCommand)
@click.argument("session", type=STORE)
@click.option(
    "--sites", cls=Option, group="Required", required=True, metavar="NAME=ROWS,...",
    help="The sites with their numbers of rows; under add-remove, their names only.",
)  # fmt: skip
@click.option(
    "--colluding", type=int, metavar="T",
    help="Sites that may collude against another one [default: 1; with two sites, 0 must be stated].",
)  # fmt: skip
@click.option("--columns", metavar="NAMES", help="Comma-separated names of the columns, for rows without a schema.")
@options(IngestOptions, "table_options", names={"schema", "privacy_unit", "max_rows"}, changed=_CHANGED)
@options(RequestOptions, "request_options", names=_BOUNDING, changed=_CHANGED)
@click.option("--anyway", is_flag=True, help="Create it even if no table of this many rows could show anything.")
@json_option
def create_command(
    session: AnyStore, sites: str, colluding: int | None, columns: str | None, table_options: IngestOptions,
    request_options: RequestOptions, anyway: bool, as_json: bool,
) -> None:  # fmt: skip
    """Create SESSION with its terms: sites, columns or schema, bound, loss and noise. Nothing is charged."""
    store_at(session).require_new("session")
    schema = None if table_options.schema is None else Schema.read(table_options.schema)
    vectors = {request_options.centre or "none", request_options.scale or "none"} - {"none", "private", "schema"}
    if request_options.clip is None and not vectors and schema is not None and schema.norm is not None:
        request_options = msgspec.structs.replace(request_options, clip=Clip("schema"))
    if request_options.clip == "auto" and not vectors:
        raise UsageError("--clip auto is for columns divided by a public scale: add --centre FILE, or give a number.")

    def review(plan: Plan) -> None:
        expected = prospect(plan)
        if expected.impossible and not anyway:
            raise RefusedError(f"{expected.impossible} To create it all the same, add --anyway.")
        if line := expected.describe():
            say(line)

    created = steps.create_session(
        session, _sites(sites), request_from(request_options),
        columns=None if columns is None else columns_from(columns), schema=schema, colluding=colluding,
        privacy_unit=table_options.privacy_unit, max_rows=table_options.max_rows, review=review,
    )  # fmt: skip
    guarantee = created.terms.share.guarantee
    weak = _cautions(created)
    message = (
        f"{session}: a session of {listed(created.terms.names)}. Each site is charged {guarantee.loss} under "
        f"{guarantee.neighbours}, which protects its rows if {created.terms.condition}. If a site drops out, the "
        "others need a new session, which charges each again. Next, at each site: dpdist session key "
        f"{shlex.quote(str(session))} ROWS --site NAME{weak}"
    )
    answer(as_json, _json(session, created), message)


def _sites(text: str) -> dict[str, int] | list[str]:
    """Return the sites given as NAME=ROWS,... or NAME,..."""
    pairs = [tuple(part.strip() for part in name.partition("=")) for name in text.split(",")]
    if not any(equals for _, equals, _ in pairs):
        return [name for name, _, _ in pairs]
    for name, _, rows in pairs:
        if not (rows.isdecimal() and int(rows)):
            raise UsageError(
                f"--sites takes NAME=ROWS for each site, such as boston=1200,lyon=800,oslo=950, and {name!r} has no "
                "number of rows."
            )
    by_name = {name: int(rows) for name, _, rows in pairs}
    if len(by_name) < len(pairs):
        raise UsageError("--sites names a site twice. Name each once.")
    return by_name


def _cautions(session: Session) -> str:
    guarantee = session.terms.share.guarantee
    return cautions_message(cautions(guarantee.loss, guarantee.neighbours, session.terms.rows))


def _json(path: AnyStore, session: Session) -> dict[str, object]:
    return {
        "session": str(path), "id": session.terms.digest, "sites": list(session.terms.names),
        "fingerprint": session.fingerprint, "missing_keys": session.missing_keys,
        "missing_shares": session.missing_shares, "unusable": session.unusable,
    }  # fmt: skip


_site = click.option("--site", required=True, metavar="NAME", help="The name of this site.")


@session.command("key", cls=GroupedCommand)
@click.argument("session", type=STORE)
@click.argument("rows", type=STORE)
@_site
@ledger_option
@json_option
def key_command(session: AnyStore, rows: AnyStore, site: str, ledger: LedgerAddress | None, as_json: bool) -> None:
    """Check that ROWS can make the share of this site, and write the public key of the site to SESSION.

    Nothing is charged: columns, schema, number of rows and budget are checked before anybody pays. Repeating the
    command changes nothing.
    """
    with_key = steps.add_session_key(session, rows, site, ledger=ledger)
    key = stored_key(with_key.terms, site)
    message = f"{session}: the public key of {site} is in {key_name(site)}. "
    if key is None or key.secret is None:
        message += "The secret key was used for a share, and destroyed. "
    else:
        message += f"The secret key stays in {key_location(with_key.terms, site)}. "
    if with_key.fingerprint is None:
        message += f"Keys are missing: of {listed(with_key.missing_keys)}."
    else:
        message += f"All keys are there. The fingerprint is {with_key.fingerprint}."
    if with_key.fingerprint is not None and key is not None and key.secret is not None:
        message += (
            " Compare it with every other site by telephone, not by the way that the files took. Then: dpdist session "
            f"share {shlex.quote(str(session))} {shlex.quote(str(rows))} --site {site} --fingerprint FINGERPRINT"
        )
    answer(as_json, _json(session, with_key), message)


@session.command("share", cls=GroupedCommand)
@click.argument("session", type=STORE)
@click.argument("rows", type=STORE)
@_site
@click.option(
    "--fingerprint", required=True, metavar="XXXX-...",
    help="The fingerprint of SESSION, once it was compared with every other site.",
)  # fmt: skip
@ledger_option
@partial(cluster_options, trusted=False)
@json_option
def share_command(
    session: AnyStore, rows: AnyStore, site: str, fingerprint: str, ledger: LedgerAddress | None, cluster: Cluster,
    as_json: bool,
) -> None:  # fmt: skip
    """Write the share of this site to SESSION: the sum of ROWS, with noise and masks. The ledger is charged once.

    Repeating the command writes the same bytes at no cost. The secret key is destroyed before the share is written, so
    that no share of other rows can be made.
    """
    share = steps.release_share(session, rows, site, fingerprint, ledger=ledger, cluster=cluster)
    joined = steps.open_session(session)
    status = "released now" if share.fresh else "released before: the same bytes, nothing spent"
    message = (
        f"{share.path}: the share of {site} ({status}; {share.guarantee.loss}, if {joined.terms.condition})."
        f"{_cautions(joined)} It may be sent to anybody: alone it is as good as random bits. Next, once all shares are "
        f"there: dpdist session combine {shlex.quote(str(session))} RELEASE"
    )
    answer(as_json, share.to_json(), message)


@session.command("combine")
@click.argument("session", type=STORE)
@click.argument("release", type=STORE)
@json_option
def combine_command(session: AnyStore, release: AnyStore, as_json: bool) -> None:
    """Add up the shares of all sites in SESSION, and write the sum as RELEASE. Free, for anybody."""
    outcome = combine.combine_shares(session, release)
    answer(as_json, outcome.to_json(), described(outcome))
