"""Ledgers in a database: unreachable, full, unsafe or shared servers, and passwords."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from faults import postgres_server
from faults.postgres_server import PASSWORD, Server
from support.ledgers import committed, reserve
from support.releases import content_of

from dpdist.core.errors import DpdistError, RefusedError, ResumableError, UsageError
from dpdist.core.ledger.address import Address
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.postgresql import PostgresStorage
from dpdist.core.ledger.state import State
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.text import random_token

MODULE = "dpdist.core.ledger.postgresql"


def created(address: Address) -> Ledger:
    return Ledger.create(address, dataset_id=random_token(), budget=PrivacyLoss.parse("3"))


@pytest.fixture
def address(postgres: Server) -> Address:
    return Address(postgres.address(f"books-{random_token()[:12]}"))


@pytest.fixture
def ledger(address: Address) -> Ledger:
    return created(address)


def failure_of(error: type[DpdistError], use: Any) -> str:
    """Return the message, which is one paragraph without the password."""
    with pytest.raises(error) as failure:
        use()
    message = str(failure.value)
    assert "\n" not in message
    assert PASSWORD not in message
    assert failure.value.__cause__ is None
    # no traceback contains the error of the driver
    assert failure.value.__context__ is None or failure.value.__suppress_context__
    return message


def test_ledgers_of_one_database_know_nothing_of_one_another_and_long_releases_are_kept_in_parts(
    ledger: Ledger, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}._PART", 10)
    long, other = os.urandom(95), created(Address(postgres.address(f"b-{random_token()[:12]}")))
    first, second = committed(ledger, "r", long), committed(other, "r", b"b")
    assert (content_of(first, "r"), content_of(second, "r")) == (long, b"b")
    assert first.ledger_id != second.ledger_id
    first.verify()
    assert not first.remembers("r", second.head)


def test_a_draw_that_was_fenced_out_never_reaches_the_server(
    ledger: Ledger, address: Address, postgres: Server
) -> None:
    reserve(ledger, "r")
    assert (ledger.begin("r"), ledger.begin("r")) == (1, 2)
    with postgres.connect() as connection:
        size = "SELECT pg_total_relation_size('dpdist_blobs')"
        before = connection.execute(size).fetchone()
        assert not ledger.commit("r", 1, [b"draw" * 5000])
        after = connection.execute(size).fetchone()
        blobs = connection.execute("SELECT 1 FROM dpdist_blobs WHERE ledger = %s", (address.ledger,)).fetchall()
    assert before == after  # not even as a dead row
    assert blobs == []
    assert ledger.commit("r", 2, [b"draw"])


def test_the_password_may_stand_in_a_file_and_is_never_repeated(
    ledger: Ledger, address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(ledger, "r")
    monkeypatch.setenv("PGPASSWORD", "wrong horse")
    message = failure_of(RefusedError, lambda: Ledger(address))
    assert all(part in message for part in ("PGPASSFILE", str(address)))
    # running the same command again would not help, so the message does not suggest it
    assert not any(part in message for part in ("wrong horse", "same command"))
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    failure_of(RefusedError, lambda: Ledger(address))
    (tmp_path / "pgpass").write_text(f"*:*:*:*:{PASSWORD}\n")
    (tmp_path / "pgpass").chmod(0o600)
    assert Ledger(address).record("r") is not None


ADDRESS = "postgresql+psycopg://me@{}/db?ledger=books{}"


def test_an_address_on_the_network_insists_on_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libpq would fall back to plain text if an attacker claims that the server has no TLS."""
    for host in ("db.example", "10.0.0.7", "[2001:db8::1]", "127.0.0.1.evil.example", "localhost.evil"):
        address = Address(ADDRESS.format(host, ""))
        for use in (Ledger, created, Ledger.stands_at):
            assert "sslmode=verify-full" in failure_of(RefusedError, lambda: use(address))  # noqa: B023
    several = [("", "&host=127.0.0.1,db.example")]
    weak = [("db.example", f"&sslmode={mode}") for mode in ("disable", "allow", "prefer")]
    strong = [("db.example", f"&sslmode={mode}") for mode in ("require", "verify-ca", "verify-full")]
    local = [(host, "") for host in ("localhost", "127.0.0.1", "127.8.9.1", "[::1]", "")]
    for parts in several + weak:
        failure_of(RefusedError, lambda: PostgresStorage(Address(ADDRESS.format(*parts))))  # noqa: B023
    for parts in [*strong, *local, ("", "&host=/run/postgresql")]:
        PostgresStorage(Address(ADDRESS.format(*parts)))
    # a variable of libpq may name another server
    for name, value in (("PGHOST", "db.example"), ("PGHOSTADDR", "10.0.0.7"), ("PGSERVICE", "books")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            for host in ("", "127.0.0.1")[: 1 if name == "PGHOST" else 2]:
                failure_of(RefusedError, lambda: PostgresStorage(Address(ADDRESS.format(host, ""))))  # noqa: B023
            PostgresStorage(Address(ADDRESS.format("127.0.0.1", "&sslmode=verify-full")))


def test_a_server_that_is_away_is_waited_for_and_one_that_does_not_flush_refused(postgres: Server) -> None:
    with postgres_server.running(postgres.programs) as server:
        address, careless = Address(server.address("books")), Address(server.address("careless"))
        ledger = created(address)
        reserve(ledger, "r")
        server.stop()
        for use in (lambda: Ledger(address), lambda: reserve(ledger, "s"), lambda: ledger.begin("r"), ledger.verify):
            assert "cannot be reached" in failure_of(ResumableError, use)
        server.start("fsync=off")
        assert "fsync" in failure_of(RefusedError, lambda: created(careless))
        server.stop()
        server.start("synchronous_commit=off")
        assert not Ledger.stands_at(careless)
        assert reserve(ledger, "r") is State.RESERVED
        assert reserve(ledger, "s") is State.RESERVED
        ledger.verify()
        with ledger._locked() as (_, transaction):
            connection: Any = transaction._connection  # type: ignore[attr-defined]
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_a_connection_lost_in_the_commit_charges_nothing_that_was_not_recorded(
    ledger: Ledger, address: Address, postgres: Server
) -> None:
    reserve(ledger, "r")
    assert ledger.begin("r") == 1

    def commit() -> None:
        with ledger._locked() as (view, transaction):
            transaction.append({"event": "aborted", "id": "r"}, view.after, view.head)
            with postgres.connect() as connection:
                ended = connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'dpdist' AND state = 'idle in transaction'"
                ).fetchall()
            assert ended == [(True,)]

    failure_of(ResumableError, commit)
    assert ledger.commit("r", 1, [b"draw"])
    assert content_of(Ledger(address), "r") == b"draw"


def test_who_holds_a_ledger_for_too_long_makes_others_give_up_for_now(
    ledger: Ledger, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Ledger(address)
    with ledger._locked():
        monkeypatch.setattr(f"{MODULE}.WAIT_SECONDS", 1)
        assert "lock timeout" in failure_of(ResumableError, lambda: reserve(other, "r"))
    assert reserve(other, "r") is State.RESERVED


def test_without_its_libraries_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    with pytest.raises(UsageError, match=r"\.\[postgres\]"):
        Ledger(Address("postgresql+psycopg://host/db?ledger=books"))
