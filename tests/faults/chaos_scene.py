"""One release that something happens to: how it is run, what can be seen of it, and what must hold in the end.

The five invariants of every fault:

1. at most one noisy matrix of an id can ever be observed, and one stage where it chooses something first;
2. the ledger charges it exactly once, and never less than what was observed;
3. it is the exact sum plus one draw: no row lost or counted twice (:func:`sentinel.law_broken`);
4. no un-noised value is in a file, a log or a message, or in the memory of a client beside a trusted worker;
5. every command ends, with a result or with an error that says what to do.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dpdist.core.errors import DpdistError
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.journal import ORIGIN
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.pipeline import budget
from dpdist.core.privacy import accounting
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.opening import open_release
from dpdist.core.text import random_token
from faults import sentinel
from faults.chaos_cluster import SETTINGS, Cluster
from faults.forks import Child, Forks
from faults.waiting import until

BUDGET = PrivacyLoss.parse("1000000", "1e-6")
LOSS = ("--epsilon", "100000", "--delta", "1e-6")
"""No privacy to speak of, but noise far below the weight of a single row: one that is lost or doubled is seen."""
ENDING = 100.0
"""Seconds within which a command must end; nobody's patience is longer than :data:`chaos_cluster.SETTINGS` say."""
LANDING = 100.0
"""Seconds within which a fault must land."""


class MissedError(AssertionError):
    """The fault did not land, so nothing was proved."""


class OverError(MissedError):
    """The command was over before the process came to its point: others were quicker, which is chance."""


class ViolationError(AssertionError):
    """An invariant does not hold."""


@dataclass
class Scene:
    """A table of its own with its ledger, a cluster, and room for a release."""

    folder: Path
    ledger: LedgerAddress
    trusted: str
    forks: Forks
    cluster: Cluster
    table: sentinel.Table = field(default_factory=sentinel.planted_table)
    seen: set[str] = field(default_factory=set)
    codes: list[int] = field(default_factory=list)
    landed: list[str] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    namespace: str | None = None
    """Of the driver."""
    search_memory: bool = True
    choice: tuple[str, ...] = ()
    """Options for the first choices of the release, each in a draw of its own."""
    stages: set[str] = field(default_factory=set)
    _children: list[Child] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _watcher: threading.Thread | None = None

    @property
    def rows(self) -> Path:
        return self.folder / "rows.zarr"

    @property
    def target(self) -> Path:
        return self.folder / "public" / "release.zarr"

    @property
    def books(self) -> Ledger:
        return Ledger(self.ledger)

    def prepare(self, pristine: Path) -> None:
        shutil.copytree(pristine, self.rows)
        about = json.loads((self.rows / "zarr.json").read_text())
        about["attributes"]["dpdist"]["dataset_id"] = random_token()  # a table of its own, with a ledger of its own
        (self.rows / "zarr.json").write_text(json.dumps(about))
        self.target.parent.mkdir()
        if isinstance(self.ledger, Path):
            self.ledger.parent.mkdir(exist_ok=True)
        budget.create_ledger(self.ledger, self.rows, BUDGET)
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self._look_at_the_target()

    def close(self) -> None:
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
        for child in self._children:
            child.kill()

    def start(
        self, action: str = "note", point: str = "", marker: Path | None = None, more: tuple[str, ...] | None = None
    ) -> Child:
        where = ("--scheduler", self.cluster.address, "--trusted", self.trusted) if more is None else more
        network = ("--insecure",) if self.namespace else ()
        command = [
            "release", str(self.rows), str(self.target), *LOSS,
            *(() if "--clip" in self.choice else ("--clip", str(sentinel.CLIP))),
            "--grid-bits", str(sentinel.BITS), *self.choice,
            "--ledger", str(self.ledger), *where, *network,
        ]  # fmt: skip
        words = self.folder / f"driver-{len(self._children)}.words"
        arguments = [action, point, str(marker or self.marker("unused")), "processes", *command]
        child = self.forks.start(words, arguments, settings=SETTINGS, namespace=self.namespace)
        self._children.append(child)
        return child

    def ends(self, child: Child, *codes: int) -> int:
        """Wait for the end of a command, and check its code and that it said what to do."""
        try:
            code = child.wait(ENDING)
        except AssertionError:
            raise ViolationError(f"I5: it did not end: {child.words.read_text()}") from None
        self.codes.append(code)
        words = child.words.read_text()
        if code not in codes:
            raise ViolationError(f"I5: exit code {code}, not {codes}: {words}")
        if "Traceback" in words:
            raise ViolationError(f"I5: a traceback: {words}")
        cures = ("same command", "Restore", "Ingest", "ingest", "try again", "Pass")
        if code > 0 and not any(cure in words for cure in cures):
            raise ViolationError(f"I5: it does not say what to do: {words}")
        return code

    def marker(self, name: str) -> Path:
        return self.folder / f"mark-{name}"

    def arm(self, role: str, point: str, action: str) -> Path:
        """Arm a fault in a process of the cluster; return its marker."""
        marker = self.marker(f"{role}-{len(list(self.folder.glob('mark-*')))}")
        self.cluster.arm(role, point, action, marker)
        return marker

    def held(
        self, point: str, who: str = "", action: str = "linger", more: tuple[str, ...] | None = None
    ) -> tuple[Child, Path]:
        """Start the release, and act when a process, by default the trusted node, is at a point.

        Return the driver, and the marker to :meth:`go` on.
        """
        who = who or ("driver" if self.trusted == "driver" else "trusted")
        marker = self.marker(action) if who == "driver" else self.arm(who, point, action)
        child = self.start(action, point, marker, more) if who == "driver" else self.start()
        self.wait_for(marker, child)
        return child, marker

    def wait_for(self, marker: Path, child: Child | None = None) -> None:
        try:
            until(lambda: marker.exists() or (child is not None and child.ended.is_set()), LANDING)
        except AssertionError:
            raise MissedError(f"{marker.name} was not left") from None
        if not marker.exists():
            assert child is not None
            raise OverError(f"the command was over first: {child.words.read_text()}")

    def land(self, what: str, *, true: bool = True) -> None:
        if not true:
            raise MissedError(f"not observed: {what}")
        self.landed.append(what)

    @staticmethod
    def go(marker: Path) -> None:
        marker.with_name(f"{marker.name}.go").touch()

    def left(self) -> tuple[str | None, int, bool]:
        records = self.books.records
        if not records:
            return None, 0, self.target.exists()
        return str(records[0].state), records[0].fence, self.target.exists()

    def look(self) -> None:
        """Take note of every noisy matrix that can be seen now."""
        self._look_at_the_target()
        ledger = self.books
        for record in ledger.records:
            self.stages.update(str(stage) for stage in record.stages)
            if record.blob is not None:
                with ledger.opened(record.release_id) as content, tarfile.open(fileobj=content) as archive:
                    found = archive.extractfile("lattice/c/0/0")
                    assert found is not None
                    self.seen.add(hashlib.sha256(found.read()).hexdigest())

    def _look_at_the_target(self) -> None:
        try:
            content = (self.target / "lattice" / "c" / "0" / "0").read_bytes()
        except OSError:
            return
        self.seen.add(hashlib.sha256(content).hexdigest())

    def search(self, client: Child | None = None) -> None:
        """Search files for the sentinel; and, while a client holds what it held, the cluster's logs, and the client."""
        found = sentinel.files_with_it([self.folder, self.cluster.folder], [self.rows])
        if found:
            raise ViolationError(f"I4: the sentinel is in {found}")
        self.searched.append("files")
        if not self.cluster.alive("scheduler"):
            return
        if client is None:
            return
        if sentinel.holds(self.cluster.logs()):
            raise ViolationError("I4: the sentinel is in the logs of the cluster")
        self.searched.append("logs")
        if not self.search_memory:
            return
        # a driver that is itself the trusted node holds the sums, as it must
        if self.trusted == "worker" and sentinel.may_read_memory(client.pid):
            if sentinel.in_memory(client.pid):
                raise ViolationError(f"I4: the sentinel is in the memory of {client.words.stem}")
            self.searched.append(f"memory of {client.words.stem.split('-')[0]}")

    def finish(self) -> None:
        """Run the same command again, twice, and check that every invariant holds."""
        self.look()
        self.cluster.disarm()
        self.cluster.mend()
        held = self.marker("end")
        child = self.start("linger", "at the end", held)
        self.wait_for(held, child)
        self.search(child)
        self.go(held)
        self.ends(child, 0)
        self.look()
        self.ends(self.start(), 0)
        self.look()
        self._check()

    def _check(self) -> None:
        ledger = self.books
        try:
            budget.verify_ledger(self.ledger, [self.target])
        except DpdistError as error:
            raise ViolationError(f"I2: {error}") from None
        if len(self.seen) != 1:
            raise ViolationError(f"I1: {len(self.seen)} noisy matrices were seen")
        records, events = ledger.records, self.events()
        guarantee = records[0].guarantee
        balance, once = ledger.balance(), accounting.filter_for(BUDGET, [guarantee]).left()
        if len(records) != 1 or balance.charged != 1 or balance.left != once:
            raise ViolationError(f"I2: {len(records)} releases, {balance}; after one there is left {once}")
        charges = events["reserved"] - events["aborted"], events["committed"], events["published"]
        if charges != (1, 1, 1) or (events["staged"], len(self.stages)) != (len(self.choice) // 2,) * 2:
            raise ViolationError(f"I2: {dict(events)}")
        release = open_release(self.target)
        centre, scale = release.bound.input_units
        rows = (self.table - centre) / scale
        rows *= np.minimum(1, release.bound.shortened_norm / np.linalg.norm(rows, axis=1, keepdims=True))
        exact = sentinel.exact_moment(rows, release.bound.clip_norm)
        broken = sentinel.law_broken(release.lattice, exact, release.noise)
        if broken:
            raise ViolationError(f"I3: {broken}")
        litter = [path.name for path in self.target.parent.iterdir() if path != self.target]
        if litter:
            raise ViolationError(f"I1: {litter} lie beside the release")
        self.search()

    def events(self) -> Counter[str]:
        with self.books._storage.transaction() as transaction:
            entries, _, _ = transaction.read(0, ORIGIN)
        return Counter(entry["event"] for entry in entries)

    def damage(self, index: int, how: str) -> None:
        path = self.rows / "c" / str(index) / "0"
        content = bytearray(path.read_bytes())
        if how == "missing":
            path.unlink()
        elif how == "truncated":
            path.write_bytes(content[: len(content) // 2])
        elif how in {"bit-flipped", "altered to NaN"}:
            if how == "bit-flipped":
                content[len(content) // 2] ^= 1
            else:
                content[:8] = np.float64(np.nan).tobytes()
            path.write_bytes(content)
        else:
            first = index * sentinel.CHUNK_ROWS
            self.table[first, 5] = np.nan
            block = np.zeros((sentinel.CHUNK_ROWS, sentinel.COLUMNS))
            rows = self.table[first : first + sentinel.CHUNK_ROWS]
            block[: len(rows)] = rows
            sentinel.seal(path, block)

    def restore(self, pristine: Path) -> None:
        shutil.copytree(pristine / "c", self.rows / "c", dirs_exist_ok=True)
