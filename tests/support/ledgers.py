"""Ledgers of releases that cost little, in a folder and in a PostgreSQL database, and a way behind their backs."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from faults.postgres_server import Server

from dpdist.core.ledger.address import Address, LedgerAddress
from dpdist.core.ledger.ledger import Account, Ledger
from dpdist.core.ledger.memory import MemoryStorage
from dpdist.core.ledger.state import Part, State
from dpdist.core.mechanisms.gaussian import Gaussian
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.pipeline import budget
from dpdist.core.privacy.guarantee import MICRO, Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.core.text import random_token

DATASET = "0123456789abcdef" * 2
Alteration = Callable[[LedgerAddress], object]


class DiedError(BaseException):
    """Nothing catches it: the process is gone."""


def dies(*_: Any, **__: Any) -> None:
    raise DiedError


def pure(epsilon: int = 1, neighbours: Neighbours = Neighbours.REPLACE_ONE) -> Guarantee:
    return Guarantee(neighbours, PrivacyLoss(epsilon * MICRO), None, Arithmetic.IDEAL_REAL, "none")


def gaussian(epsilon: str, delta: str) -> Guarantee:
    query = LatticeQuery(4, 4**16, Neighbours.REPLACE_ONE)
    return Gaussian().calibrate(query, PrivacyLoss.parse(epsilon, delta)).guarantee


def reserve(ledger: Ledger, release_id: str, epsilon: int = 1, **parameters: Any) -> State:
    parameters = {"epsilon": epsilon, **parameters}
    return ledger.reserve(release_id, dataset_id=ledger.dataset_id, parameters=parameters, guarantee=pure(epsilon))


def begun(ledger: Ledger, release_id: str) -> int:
    reserve(ledger, release_id)
    fence = ledger.begin(release_id)
    assert fence is not None
    return fence


def committed(ledger: Ledger, release_id: str, content: bytes) -> Ledger:
    fence = begun(ledger, release_id)
    assert ledger.commit(release_id, fence, [content])
    return ledger


def losses(ledger: Ledger) -> list[PrivacyLoss]:
    return [charge.guarantee.loss for charge in ledger.charges]


def epsilon_spent(ledger: Ledger) -> float:
    return sum(loss.epsilon for loss in losses(ledger))


def blobs(place: Account) -> set[str]:
    if isinstance(place, MemoryStorage):
        return set(place._blobs)
    if isinstance(place, Path):
        return {path.name for path in (place / "blobs").iterdir()}
    assert isinstance(place, Address)
    with behind(place) as execute:
        return {name for (name,) in execute("SELECT DISTINCT name FROM blobs").fetchall()}


def copy_of(place: LedgerAddress, name: str = "copy") -> LedgerAddress:
    """Copy a ledger as ``cp -r`` or ``pg_dump`` would."""
    if isinstance(place, Path):
        return Path(shutil.copytree(place, place.with_name(name)))
    with behind(place) as execute:
        names = (name, place.ledger)
        execute("INSERT INTO journal SELECT ?, sequence, entry, digest FROM journal WHERE ledger = ?", names)
        execute("INSERT INTO blobs SELECT ?, name, part, content FROM blobs WHERE ledger = ?", names)
    return Address(place.text.replace("ledger=books", f"ledger={name}"))


@contextmanager
def behind(place: LedgerAddress) -> Iterator[Callable[..., Any]]:
    """Give a function that changes the books behind the ledger's back; the tables are named as in SQLite."""
    if isinstance(place, Path):
        with closing(sqlite3.connect(place / "ledger.sqlite")) as connection:
            yield connection.execute
            connection.commit()
        return
    import psycopg

    def execute(statement: str, values: tuple[Any, ...] = ()) -> Any:
        return database.execute(re.sub(r"\b(journal|blobs)\b", r"dpdist_\1", statement).replace("?", "%s"), values)

    keywords: dict[str, Any] = dict(place.connection)
    with psycopg.connect(**keywords) as database:
        yield execute


def sql(*statements: str) -> Alteration:
    """Change the journal behind the ledger's back; the change must take."""

    def alteration(place: LedgerAddress) -> None:
        with behind(place) as execute:
            for statement in statements:
                assert execute(statement).rowcount  # -1 where the database does not count

    return alteration


@contextmanager
def new_address(server: Server) -> Iterator[Address]:
    schema = f"test_{random_token()[:12]}"
    with server.connect() as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    try:
        yield Address(server.address("books", schema))
    finally:
        with server.connect() as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE")


def ledger_of_rows(rows: Path) -> Ledger:
    return Ledger(budget.default_ledger(rows))


def stage_of(rows: Path) -> bytes:
    ledger = ledger_of_rows(rows)
    (record,) = ledger.records
    with ledger.opened(record.release_id, Part.STAGE) as file:
        return file.read()
