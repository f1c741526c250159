"""How long a ledger takes for the next release, after 10 to 10^4 of them, in a folder and in PostgreSQL.

The histories are written entry by entry, as the ledger writes them, in one transaction. ``plain``: so many Gaussian
releases of one table. ``periods``: so many nights, each closed, with the nodes of a tree of periods that end with it
(``continual``): nearly two releases a night. Then are taken, each the least of a few times,

``open``
    a new process's view: open the ledger and ask for its balance; what a process keeps of checkpoint and witness is
    dropped before;
``again``
    the same in a process that has opened it before, as a night does a dozen times;
``night``
    what a new process does with one more release: open, (close,) reserve, begin, commit, read, record the publication;
``next``
    the same again with the ledger that is open.

    python -m benchmarks.ledger_times --output benchmarks/results/ledger_times
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

from faults.postgres_server import PASSWORD, Server, programs, running

from dpdist import PrivacyLoss
from dpdist.ledger import checkpoint, witness
from dpdist.ledger.address import Address, LedgerAddress
from dpdist.ledger.journal import Begun, Capped, Closed, Committed, CommitWitnessed, Event, Published, Reserved
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.witness import FolderWitness, Testimony
from dpdist.mechanisms.gaussian import Gaussian
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.privacy.accounting import caps_for, share
from dpdist.privacy.guarantee import Guarantee, Neighbours
from dpdist.release.series import ended, levels_for

BUDGET = PrivacyLoss.parse("1", "1e-6")
SIZES = (10, 100, 1000, 10000)
CONTENT = b"committed bytes"
PARAMETERS = {
    "clip_norm": 20.0,
    "columns": [f"column_{i}" for i in range(16)],
    "grid_bits": 14,
    "mechanism": "gaussian",
}


@cache
def guarantee() -> Guarantee:
    """Return what each release promises: little enough for all of them together."""
    query = LatticeQuery(4, 4**16, Neighbours.REPLACE_ONE)
    return Gaussian().calibrate(query, share(BUDGET, 10100, gaussian=True)).guarantee


def day(number: int) -> str:
    """Return the name of a period."""
    return f"night-{number:06d}"


def history(size: int, *, periodic: bool) -> Iterator[Event]:
    """Yield what a ledger has written after so many releases or nights, but for its creation."""
    one = guarantee().to_json()
    yield Capped(tuple(caps.to_json() for caps in caps_for(BUDGET)))
    for number in range(size):
        charges: list[tuple[str, tuple[str, ...]]] = [(f"r{number}", ())]
        if periodic:
            yield Closed(day(number), sha256(day(number).encode()).hexdigest())
            nodes = ended(number + 1, levels_for(size))
            charges = [(f"r{n.start}-{n.stop}", tuple(map(day, range(n.start, n.stop)))) for n in nodes]
        for release_id, periods in charges:
            yield Reserved(release_id, PARAMETERS, one, periods)
            yield Begun(release_id, "0" * 32)
            yield Committed(release_id, f"{release_id}.1.0", sha256(CONTENT).hexdigest())
            yield CommitWitnessed(release_id)
            yield Published(release_id)


def made(place: LedgerAddress, size: int, *, periodic: bool) -> int:
    """Make a ledger with such a history and its witness, and return the number of entries."""
    ledger = Ledger.create(place, dataset_id=os.urandom(16).hex(), budget=BUDGET, periodic=periodic)
    with ledger._locked() as (view, transaction):  # noqa: SLF001 - the history is written, and not lived through
        ledger._append(view, transaction, *history(size, periodic=periodic))  # noqa: SLF001
    if isinstance(place, Path):
        for record in ledger.records:
            (place / "blobs" / str(record.blob)).write_bytes(CONTENT)
    with FolderWitness().held(ledger.ledger_id) as held, ledger._locked() as (view, _):  # noqa: SLF001
        held.write(Testimony.of(view))
        return view.after


def night(ledger: Ledger, number: int, *, periodic: bool) -> None:
    """Do what is done of one more release."""
    periods = {day(number): sha256(day(number).encode()).hexdigest()} if periodic else {}
    for name, digest in periods.items():
        ledger.close_period(name, digest)
    release_id = f"next-{number}"
    ledger.reserve(
        release_id, dataset_id=ledger.dataset_id, parameters=PARAMETERS, guarantee=guarantee(), periods=periods
    )
    fence = ledger.begin(release_id)
    if fence is None or not ledger.commit(release_id, fence, [CONTENT]):
        raise AssertionError("nobody else draws it")
    with ledger.opened(release_id) as file:
        file.read()
    ledger.published(release_id)


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call took."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def forget() -> None:
    """Drop what this process keeps of ledgers, so that the next step is as in a new one."""
    checkpoint._decoded.cache_clear()  # noqa: SLF001 - a new process for each step would measure its start
    witness._file_at.cache_clear()  # noqa: SLF001


def times(place: LedgerAddress, size: int, *, periodic: bool) -> dict[str, float]:
    """Return the times of one ledger."""
    entries = made(place, size, periodic=periodic)
    night(Ledger(place), size, periodic=periodic)  # it leaves a checkpoint where one is due
    taken: dict[str, list[float]] = {"open": [], "again": [], "night": [], "next": []}
    for number in range(size + 1, size + 7, 2):
        forget()
        for name in ("open", "again"):
            taken[name].append(seconds(Ledger(place).balance))
        forget()
        ledger = Ledger(place)
        for name, one in (("night", number), ("next", number + 1)):
            taken[name].append(seconds(partial(night, ledger, one, periodic=periodic)))
    return {"entries": entries, **{name: round(min(each), 4) for name, each in taken.items()}}


@contextmanager
def places(kind: str, server: Server | None) -> Iterator[LedgerAddress]:
    """Give a place for a ledger, and a state folder."""
    with tempfile.TemporaryDirectory(prefix="dpdist-ledger-times-") as root:
        os.environ["DPDIST_STATE_HOME"] = f"{root}/state"
        yield Path(root) / "books" if server is None else Address(server.address(f"books-{kind}"))


def main() -> None:
    """Measure, and write one file of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--label", default="now", help="under which these times are kept beside those there are")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    path = options.output.with_suffix(".json")
    every = json.loads(path.read_text()) if path.exists() else {}
    found = every.setdefault(options.label, {})
    found_programs = programs()
    if found_programs is None:
        raise SystemExit("install Debian's postgresql")
    os.environ["PGPASSWORD"] = PASSWORD
    with running(found_programs) as server:
        for size in options.sizes:
            for periodic in (False, True):
                for storage in ("folder", "postgresql"):
                    name = f"{storage} {'periods' if periodic else 'plain'} {size}"
                    with places(name.replace(" ", "-"), server if storage == "postgresql" else None) as place:
                        found[name] = times(place, size, periodic=periodic)
                    print(name, found[name], flush=True)
                    path.write_text(json.dumps(every, indent=1) + "\n")


if __name__ == "__main__":
    main()
