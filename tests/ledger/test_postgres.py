"""What only a ledger in a database can meet: servers that are away, full, careless or shared, and passwords."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from faults import postgres_server
from faults.postgres_server import PASSWORD, Server
from support.ledgers import losses
from support.releases import content_of

from dpdist._util.text import random_token
from dpdist.cli import cli
from dpdist.errors import DataError, DpdistError, RefusedError, ResumableError, UsageError
from dpdist.ledger.address import Address
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.postgresql import PostgresStorage
from dpdist.ledger.state import State
from dpdist.privacy.guarantee import MICRO, Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.runtime.cluster import Cluster

MODULE = "dpdist.ledger.postgresql"
COST = Guarantee(Neighbours.REPLACE_ONE, PrivacyLoss(MICRO), None, Arithmetic.IDEAL_REAL, "none")


def reserve(ledger: Ledger, release_id: str) -> State:
    return ledger.reserve(release_id, dataset_id=ledger.dataset_id, parameters={}, guarantee=COST)


def created(address: Address) -> Ledger:
    return Ledger.create(address, dataset_id=random_token(), budget=PrivacyLoss.parse("3"))


@pytest.fixture
def address(postgres: Server) -> Address:
    return Address(postgres.address(f"books-{random_token()[:12]}"))


@pytest.fixture
def ledger(address: Address) -> Ledger:
    return created(address)


@pytest.fixture
def own_server(postgres: Server) -> Iterator[Server]:
    """Run a server that a test may stop."""
    with postgres_server.running(postgres.programs) as server:
        yield server


def failure_of(error: type[DpdistError], use: Any) -> str:
    """Return what is said, in one paragraph and without the password."""
    with pytest.raises(error) as failure:
        use()
    said = str(failure.value)
    assert "\n" not in said
    assert PASSWORD not in said
    assert failure.value.__cause__ is None
    # what the driver said is in no traceback
    assert failure.value.__context__ is None or failure.value.__suppress_context__
    return said


def test_ledgers_of_one_database_know_nothing_of_one_another(postgres: Server) -> None:
    first, second = (created(Address(postgres.address(f"{name}-{random_token()[:12]}"))) for name in "ab")
    for ledger, content in ((first, b"one"), (second, b"two")):
        reserve(ledger, "r")
        assert ledger.begin("r") == 1
        assert ledger.commit("r", 1, [content])
    assert (content_of(first, "r"), content_of(second, "r")) == (b"one", b"two")
    assert first.ledger_id != second.ledger_id
    first.verify()
    assert not first.remembers("r", second.head)


def test_a_long_release_is_kept_in_parts(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}._PART", 10)
    content = os.urandom(95)
    reserve(ledger, "r")
    assert ledger.begin("r") == 1
    assert ledger.commit("r", 1, [content])
    assert content_of(ledger, "r") == content


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
        found = connection.execute("SELECT 1 FROM dpdist_blobs WHERE ledger = %s", (address.ledger,)).fetchall()
    assert before == after  # not even as a dead row
    assert found == []
    assert ledger.commit("r", 2, [b"draw"])


def test_the_password_may_stand_in_a_file(
    ledger: Ledger, address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(ledger, "r")
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    failure_of(RefusedError, lambda: Ledger(address))
    (tmp_path / "pgpass").write_text(f"*:*:*:*:{PASSWORD}\n")
    (tmp_path / "pgpass").chmod(0o600)
    assert Ledger(address).record("r") is not None


def test_a_wrong_password_is_refused_and_never_repeated(
    address: Address, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong horse")
    said = failure_of(RefusedError, lambda: Ledger(address))
    assert "PGPASSFILE" in said
    assert str(address) in said
    assert "wrong horse" not in said
    # running the same command again would not help, so it is not told to
    assert "same command" not in said
    done = subprocess.run(
        [sys.executable, "-m", "dpdist", "ledger", "show", str(address)],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "wrong horse" not in done.stdout + done.stderr


ADDRESS = "postgresql+psycopg://me@{}/db?ledger=books{}"


def test_an_address_on_the_network_insists_on_encryption() -> None:
    """Libpq would fall back to plain text as soon as somebody on the way says that the server speaks no TLS."""
    for host in ("db.example", "10.0.0.7", "[2001:db8::1]", "127.0.0.1.evil.example", "localhost.evil"):
        address = Address(ADDRESS.format(host, ""))
        for use in (lambda: Ledger(address), lambda: created(address), lambda: Ledger.stands_at(address)):  # noqa: B023
            assert "sslmode=verify-full" in failure_of(RefusedError, use)
    for mode in ("disable", "allow", "prefer"):
        weak = Address(ADDRESS.format("db.example", f"&sslmode={mode}"))
        failure_of(RefusedError, lambda: PostgresStorage(weak))  # noqa: B023
    for mode in ("require", "verify-ca", "verify-full"):
        PostgresStorage(Address(ADDRESS.format("db.example", f"&sslmode={mode}")))
    for host in ("localhost", "127.0.0.1", "127.8.9.1", "[::1]"):  # this machine needs none
        PostgresStorage(Address(ADDRESS.format(host, "")))
    PostgresStorage(Address(ADDRESS.format("", "&host=/run/postgresql")))


def test_one_host_of_several_or_a_variable_of_libpq_may_lead_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    several = Address(ADDRESS.format("", "&host=127.0.0.1,db.example"))
    failure_of(RefusedError, lambda: PostgresStorage(several))
    nowhere, here = Address(ADDRESS.format("", "")), Address(ADDRESS.format("127.0.0.1", ""))
    PostgresStorage(nowhere)
    for name, value in (("PGHOST", "db.example"), ("PGHOSTADDR", "10.0.0.7"), ("PGSERVICE", "books")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            failure_of(RefusedError, lambda: PostgresStorage(nowhere))
            if name != "PGHOST":
                failure_of(RefusedError, lambda: PostgresStorage(here))
            PostgresStorage(Address(ADDRESS.format("127.0.0.1", "&sslmode=verify-full")))


def test_a_server_that_is_away_is_waited_for_by_running_again(own_server: Server) -> None:
    address = Address(own_server.address("books"))
    ledger = created(address)
    reserve(ledger, "r")
    own_server.stop()
    for use in (lambda: Ledger(address), lambda: reserve(ledger, "s"), lambda: ledger.begin("r"), ledger.verify):
        assert "cannot be reached" in failure_of(ResumableError, use)
    own_server.start()
    assert reserve(ledger, "r") is State.RESERVED
    assert reserve(ledger, "s") is State.RESERVED
    ledger.verify()


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


def test_the_journal_cannot_fork_even_without_the_lock(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    end = ledger._snapshot().after, ledger.head
    reserve(ledger, "r")
    monkeypatch.setattr(f"{MODULE}.PostgresStorage._lock", lambda *_: None)

    def append() -> None:
        with ledger._storage.transaction() as transaction:
            transaction.append({"event": "begun", "id": "r"}, *end)

    failure_of(ResumableError, append)
    ledger.verify()


def test_a_server_that_does_not_flush_is_refused(own_server: Server) -> None:
    address = Address(own_server.address("books"))
    own_server.stop()
    own_server.start("fsync=off")
    assert "fsync" in failure_of(RefusedError, lambda: created(address))
    assert not Ledger.stands_at(address)
    own_server.stop()
    own_server.start("synchronous_commit=off")
    ledger = created(address)
    with ledger._locked() as (_, transaction):
        connection: Any = transaction._connection  # type: ignore[attr-defined]
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


@pytest.mark.parametrize("missing", ["role", "database"])
def test_an_unknown_role_or_database_is_told(postgres: Server, missing: str) -> None:
    text = postgres.address("books")
    text = text.replace("dpdist@", "nobody-here@") if missing == "role" else text.replace("@/postgres?", "@/nowhere?")
    # a server tells a stranger nothing of its roles: an unknown one is a wrong password
    error = RefusedError if missing == "role" else ResumableError
    said = failure_of(error, lambda: Ledger(Address(text)))
    assert ("nobody-here" if missing == "role" else "nowhere") in said


def test_a_role_that_may_not_write_is_told(ledger: Ledger, address: Address, postgres: Server) -> None:
    name = f"reader_{random_token()[:12]}"
    with postgres.connect() as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
        connection.execute(f"GRANT SELECT ON dpdist_journal, dpdist_blobs TO {name}")
    try:
        reader = Ledger(Address(str(address).replace("dpdist@", f"{name}@")))
        assert reader.budget == PrivacyLoss.parse("3")
        assert "INSERT" in failure_of(DataError, lambda: reserve(reader, "r"))
        assert reserve(ledger, "r") is State.RESERVED
    finally:
        with postgres.connect() as connection:
            connection.execute(f"DROP OWNED BY {name}")
            connection.execute(f"DROP ROLE {name}")


def test_without_its_libraries_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    with pytest.raises(UsageError, match=r"dpdist\[postgres\]"):
        Ledger(Address("postgresql+psycopg://host/db?ledger=books"))


JOB = """
[rows]
path = "rows.zarr"
source = "table.csv"
budget_epsilon = 2

[release]
path = "release.zarr"
epsilon = 1
clip = 4.0
ledger = "{address}"
"""


def test_a_job_is_charged_to_a_database_once(address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    (tmp_path / "table.csv").write_text("a,b\n" + "1,2\n3,0\n" * 50)
    (tmp_path / "job.toml").write_text(JOB.format(address=address))
    for fresh in (True, False, False):
        shutil.rmtree(tmp_path / "release.zarr", ignore_errors=fresh)
        done = CliRunner().invoke(cli, ["run", str(tmp_path / "job.toml"), "--json"])
        assert done.exit_code == 0, done.exception
        assert json.loads(done.stdout)["release"]["fresh"] is fresh
    assert not (tmp_path / "rows.ledger").exists()
    assert losses(Ledger(address)) == [PrivacyLoss.parse("1")]
    release = tmp_path / "release.zarr"
    verify = ["ledger", "verify", str(address), "--release", str(release), "--json"]
    sound = CliRunner().invoke(cli, verify)
    assert sound.exit_code == 0, sound.exception
    assert json.loads(sound.stdout) == {
        "ledger": str(address), "intact": True, "head": Ledger(address).head, "releases": 1,
        "guarantee": Ledger(address).balance().promise,
    }  # fmt: skip
    shown = CliRunner().invoke(cli, ["ledger", "show", str(address), "--json"])
    assert json.loads(shown.stdout)["releases"][0]["state"] == "published"


def test_a_database_restored_from_an_older_copy_pays_for_no_second_draw(
    address: Address, tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    (tmp_path / "table.csv").write_text("a,b\n" + "1,2\n3,0\n" * 50)
    (tmp_path / "job.toml").write_text(JOB.format(address=address))
    assert CliRunner().invoke(cli, ["run", str(tmp_path / "job.toml")]).exit_code == 0
    with postgres.connect() as database:  # as it was before the commit
        gone = database.execute("DELETE FROM dpdist_journal WHERE ledger = %s AND sequence > 4", (address.ledger,))
        assert gone.rowcount == 3
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "another machine"))  # no witness: the release itself tells
    Ledger(address).verify()  # a chain cut short is sound by itself
    for arguments in (
        ["run", str(tmp_path / "job.toml")],
        ["ledger", "verify", str(address), "--release", str(tmp_path / "release.zarr")],
    ):
        refused = CliRunner().invoke(cli, arguments)
        assert isinstance(refused.exception, RefusedError)
        assert "older copy" in str(refused.exception)
    record = Ledger(address).record(Ledger(address).records[0].release_id)
    assert record is not None
    assert record.state is State.RESERVED
    assert record.fence == 1  # no second attempt began


def test_a_password_on_the_command_line_is_refused(tmp_path: Path) -> None:
    secret = "hunter2"  # noqa: S105 - nobody's
    address = f"postgresql+psycopg://me:{secret}@host/db?ledger=books"
    done = subprocess.run(
        [Path(sys.executable).with_name("dpdist"), "ledger", "show", address],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert "PGPASSFILE" in done.stderr
    assert secret not in done.stdout + done.stderr
