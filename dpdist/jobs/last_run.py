"""How the last run of a job ended, and when one succeeded: what a monitor asks, in the state folder of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256

from msgspec import Struct

from dpdist.core.errors import DpdistError, ResumableError
from dpdist.core.ledger.state_folder import StateFile, state_home
from dpdist.core.storage.store import AnyStore, store_at


class LastRun(Struct, frozen=True):
    """The end of the last run."""

    exit_code: int
    ended: int  # Unix time, in seconds
    succeeded: int | None  # of the last run with exit code 0

    def described(self) -> str:
        """Return it as text."""
        success = "none succeeded" if self.succeeded is None else f"the last success was at {_time(self.succeeded)}"
        return f"exit code {self.exit_code} at {_time(self.ended)}; {success}"


def _time(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def last_run(rows: AnyStore) -> LastRun | None:
    """Return the end of the last run of a job with these rows; None if none is on record, or the record is unusable."""
    with suppress(DpdistError):
        return _file(rows).read()
    return None


@contextmanager
def noted(rows: AnyStore) -> Iterator[None]:
    """Note how a block ends. A run that is killed leaves no note, nor does one without space or a state folder."""
    code = 1
    try:
        yield
        code = 0
    except DpdistError as error:
        code = error.exit_code
        raise
    except KeyboardInterrupt:
        code = ResumableError.exit_code
        raise
    finally:
        with suppress(DpdistError):
            file, now = _file(rows), int(time.time())
            with file.locked():
                before = last_run(rows)
                success = None if before is None else before.succeeded
                file.write(LastRun(code, now, success if code else now))


def _file(rows: AnyStore) -> StateFile[LastRun]:
    name = sha256(str(store_at(rows).absolute()).encode()).hexdigest()[:32]
    return StateFile(state_home() / "runs" / f"{name}.json", "record of runs", "dpdist-runs/1", LastRun, "Remove it.")
