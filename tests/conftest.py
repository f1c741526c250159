"""What several test files need: a PostgreSQL server, started once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import postgres_server
import pytest
from postgres_server import PASSWORD, Server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Run a server; without Debian's package `postgresql` skip, or fail where DPDIST_TEST_POSTGRES is ``required``."""
    programs = postgres_server.programs()
    if programs is None:
        if os.environ.get("DPDIST_TEST_POSTGRES") == "required":
            pytest.fail("PostgreSQL's initdb and postgres are not there: apt-get install postgresql")
        pytest.skip("no PostgreSQL here (Debian: apt-get install postgresql)")
    with pytest.MonkeyPatch.context() as patch, postgres_server.running(programs) as server:
        patch.setenv("PGPASSWORD", PASSWORD)  # also of the processes that the tests start
        yield server
