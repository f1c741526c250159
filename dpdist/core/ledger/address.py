"""Locations of ledgers: folders, and addresses of PostgreSQL databases without a password."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from dpdist.core.errors import UsageError
from dpdist.core.naming import parameter
from dpdist.core.paths import AnyPath, text_of

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
"""Options of libpq that an address may contain; none is a secret."""
_SECRET = re.compile(r"://[^/?#]*:[^/?#]*@|://.*@.*@|[?&][^=]*(?:password|secret)[^=]*=", re.IGNORECASE)
_CURE = (
    "Put the password in ~/.pgpass, in the file that PGPASSFILE names, or in the variable PGPASSWORD of the trusted "
    "process."
)


@dataclass(frozen=True)
class Address:
    """The address of a ledger in a PostgreSQL database, which may hold several named ledgers."""

    text: str
    connection: tuple[tuple[str, str], ...] = field(init=False, compare=False, repr=False)  # keywords of libpq
    ledger: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if _SECRET.search(self.text):
            raise UsageError(
                "The address of the ledger contains a password. Process lists, logs and the shell history show it, so "
                f"change the password. {_CURE}"
            )
        match = _ADDRESS.fullmatch(self.text)
        if match is None:
            raise UsageError(f"A ledger is a folder or an address of the form {_FORM} ({parameter('ledger')}). {_CURE}")
        pairs = parse_qsl(match["query"], keep_blank_values=True)
        options = dict(pairs)
        name = options.pop("ledger", "")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            raise UsageError(
                "The address of a ledger ends in ?ledger=NAME, where NAME has 1 to 64 letters, digits, hyphens, "
                "underscores or dots. One database may hold several ledgers."
            )
        if len(options) + 1 != len(pairs) or not set(options) <= set(_OPTIONS):
            raise UsageError(f"Besides ledger=NAME, an address takes only {', '.join(_OPTIONS)}, each once. {_CURE}")
        parts = {"user": match["user"], "host": match["host"].strip("[]"), "port": match["port"]}
        server = {key: unquote(value) for key, value in parts.items() if value}
        connection = {**server, "dbname": unquote(match["database"]), **options}
        object.__setattr__(self, "connection", tuple(connection.items()))
        object.__setattr__(self, "ledger", name)

    def __str__(self) -> str:
        return self.text


LedgerAddress = Path | Address
AnyLedgerAddress = Address | AnyPath
"""A location as callers pass it."""


def parse_address(location: AnyLedgerAddress) -> LedgerAddress:
    """Parse a location as callers pass it."""
    return location if isinstance(location, Address) else address_of(text_of(location), Path())


def absolute(address: LedgerAddress) -> LedgerAddress:
    """Return a location that does not depend on the working directory."""
    return address.absolute() if isinstance(address, Path) else address


def address_of(text: str, folder: Path) -> LedgerAddress:
    """Parse a location; a path is relative to a folder."""
    return Address(text) if "://" in text or (text.startswith("postgres") and ":" in text) else folder / text
