"""The address of a ledger in a database carries no secret, and one that does is refused without being repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdist.errors import UsageError
from dpdist.ledger.address import Address, address_of

SECRET = "hunter2"  # noqa: S105 - nobody's
GOOD = {
    "postgresql+psycopg://db.example/budgets?ledger=visits": {"host": "db.example", "dbname": "budgets"},
    "postgresql+psycopg://me@db:5433/budgets?ledger=visits": {
        "user": "me", "host": "db", "port": "5433", "dbname": "budgets",
    },
    "postgresql+psycopg://me@[::1]:5433/budgets?ledger=visits": {
        "user": "me", "host": "::1", "port": "5433", "dbname": "budgets",
    },
    "postgresql+psycopg://a%40b@/my%20db?ledger=visits&host=%2Fvar%2Frun&sslmode=verify-full": {
        "user": "a@b", "dbname": "my db", "host": "/var/run", "sslmode": "verify-full",
    },
}  # fmt: skip


@pytest.mark.parametrize(("text", "connection"), GOOD.items(), ids=GOOD.keys())
def test_an_address_names_server_database_and_ledger(text: str, connection: dict[str, str]) -> None:
    address = Address(text)
    assert dict(address.connection) == connection
    assert address.ledger == "visits"
    assert str(address) == text
    assert address_of(text, Path("/somewhere")) == address


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql+psycopg://me:{SECRET}@host/db?ledger=a",
        f"postgresql+psycopg://me:{SECRET}@/db?ledger=a&host=/run",
        f"postgresql+psycopg://:{SECRET}@host/db?ledger=a",
        f"postgresql+psycopg://me:x@{SECRET}@host/db?ledger=a",
        f"postgresql://me:{SECRET}@host/db",
        f"mysql://me:{SECRET}@host/db",
        f"postgresql+psycopg://me@host/db?ledger=a&password={SECRET}",
        f"postgresql+psycopg://me@host/db?password={SECRET}&ledger=a",
        f"postgresql+psycopg://me@host/db?ledger=a&sslpassword={SECRET}",
        f"postgresql+psycopg://me@host/db?ledger=a&PASSWORD={SECRET}",
        f"postgresql+psycopg://me@host/db?ledger=a&oauth_client_secret={SECRET}",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError, match=r"carries a password.*PGPASSFILE") as refusal:
        address_of(text, Path())
    assert SECRET not in str(refusal.value)
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    "text",
    [
        # passwords with characters that end the part of an address in which they stand
        f"postgresql+psycopg://me:12/{SECRET}@host/db?ledger=a",
        f"postgresql+psycopg://me:12#{SECRET}@host/db?ledger=a",
        f"postgresql+psycopg://me:12?{SECRET}@host/db?ledger=a",
        f"postgresql+psycopg://me:12/x?{SECRET}=@host/db",
        f"postgresql+psycopg://me:{SECRET}/db?ledger=a",
        f"postgresql+psycopg:/me:{SECRET}/db?ledger=a",
        f"postgresql+psycopg://host/db?ledger=a&{SECRET}=1",
        f"postgresql+psycopg://host/db?ledger=a&host={SECRET}&host=b",
        f"postgresql+psycopg://host/db?ledger=a/{SECRET}",
        f"postgresql+psycopg://host/{SECRET}",
        f"postgresql+psycopg://host/{SECRET}?sslmode=require",
        f"postgresql+psycopg://host/{SECRET}?ledger=",
        f"sqlite:///{SECRET}",
        f"https://{SECRET}/rows.ledger",
    ],
)
def test_any_other_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        address_of(text, Path())
    assert SECRET not in str(refusal.value)
    assert "ledger=NAME" in str(refusal.value)


@pytest.mark.parametrize("text", ["rows.ledger", "some:thing/rows.ledger", "./postgres", "/srv/rows.ledger"])
def test_everything_else_is_a_folder(text: str) -> None:
    assert address_of(text, Path("/job")) == Path("/job") / text
