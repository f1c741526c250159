"""Where a ledger is: a folder, or a name in a PostgreSQL database, written as an address without a password."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from dpdist._util.paths import AnyPath
from dpdist.errors import UsageError
from dpdist.naming import parameter

SCHEME = "postgresql+psycopg://"
_FORM = f"{SCHEME}[USER@]HOST[:PORT]/DATABASE?ledger=NAME"
_ADDRESS = re.compile(
    re.escape(SCHEME)
    + r"(?:(?P<user>[^:@/?#\[\]]+)@)?(?P<host>[^:@/?#\[\]]*|\[[0-9a-fA-F:.]+\])(?::(?P<port>\d{1,5}))?"
    r"/(?P<database>[^:@/?#]+)\?(?P<query>[^#]+)"
)
_OPTIONS = (
    "host", "port", "connect_timeout", "options", "target_session_attrs", "application_name", "passfile",
    "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "channel_binding", "gssencmode", "krbsrvname",
)  # fmt: skip
"""What libpq takes besides; no secret is among them."""
_SECRET = re.compile(r"://[^/?#]*:[^/?#]*@|://.*@.*@|[?&][^=]*(?:password|secret)[^=]*=", re.IGNORECASE)
_CURE = (
    "Give the password in a file (~/.pgpass, or the one PGPASSFILE names) or in the variable PGPASSWORD of the trusted "
    "process."
)


@dataclass(frozen=True)
class Address:
    """A ledger in a PostgreSQL database. Several share a database, each under a name of its own."""

    text: str
    connection: tuple[tuple[str, str], ...] = field(init=False, compare=False, repr=False)  # keywords of libpq
    ledger: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if _SECRET.search(self.text):
            raise UsageError(
                "The address of the ledger carries a password: the list of processes, logs and the shell's history "
                f"show it, so consider it known and change it. {_CURE}"
            )
        found = _ADDRESS.fullmatch(self.text)
        if found is None:
            raise UsageError(
                f"The ledger is a folder or an address of the form {_FORM} ({parameter('ledger')}). {_CURE}"
            )
        pairs = parse_qsl(found["query"], keep_blank_values=True)
        options = dict(pairs)
        name = options.pop("ledger", "")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            raise UsageError(
                "An address of a ledger ends in ?ledger=NAME, 1 to 64 letters, digits, hyphens, underscores or dots: "
                "one database may hold several ledgers."
            )
        if len(options) + 1 != len(pairs) or not set(options) <= set(_OPTIONS):
            raise UsageError(f"Besides ledger=NAME, an address takes, once each, {', '.join(_OPTIONS)}. {_CURE}")
        parts = {"user": found["user"], "host": found["host"].strip("[]"), "port": found["port"]}
        given = {key: unquote(value) for key, value in parts.items() if value}
        connection = {**given, "dbname": unquote(found["database"]), **options}
        object.__setattr__(self, "connection", tuple(connection.items()))
        object.__setattr__(self, "ledger", name)

    def __str__(self) -> str:
        return self.text


LedgerAddress = Path | Address
LedgerAddressGiven = Address | AnyPath
"""A place as a caller may name it."""


def address_given(place: LedgerAddressGiven) -> LedgerAddress:
    """Read a place that a caller named."""
    return place if isinstance(place, Address) else address_of(os.fspath(place), Path())


def absolute(place: LedgerAddress) -> LedgerAddress:
    """Return a place by a name that does not depend on the process."""
    return place.absolute() if isinstance(place, Path) else place


def address_of(text: str, folder: Path) -> LedgerAddress:
    """Read a place; a path is relative to a folder."""
    return Address(text) if "://" in text or (text.startswith("postgres") and ":" in text) else folder / text
