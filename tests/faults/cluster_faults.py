"""What can happen to a nightly job on real machines, each told as it was observed.

Each function makes one thing happen to one job, proves that it did, and leaves one release behind. The tests run them
with short timeouts, ``benchmarks/cluster_faults.py`` with those that Slurm and Dask have when nobody changes them.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path

from faults import hosts, nightly, slurm_site
from faults.hosts import USER, Hosts
from faults.nightly import Job
from faults.slurm_site import Site
from faults.waiting import PATIENCE, until

RESUMABLE = 5


class Story:
    """What was observed, each line with the seconds since the beginning."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._began = time.monotonic()

    def tell(self, what: str) -> None:
        self.lines.append(f"{time.monotonic() - self._began:6.1f} s  {what}")
        sys.stderr.write(f"{self.lines[-1]}\n")


def requeued(site: Site, folder: Path, *points: str) -> Story:
    """Submit a job; at each point requeue it, or at the last of several cancel it; at the end submit it again."""
    story, job = Story(), nightly.make(folder)
    number = slurm_site.submit(site, job, *points)
    for attempt, point in enumerate(points):
        until(functools.partial(job.lingers, point), words=site.words)
        story.tell(f"job {number}, attempt {attempt + 1}: stopped at `{point}`, ledger {job.states()[0]}")
        if point == points[-1] and attempt:
            site.ask("scancel", number)
            story.tell("cancelled")
            site.wait_for(number, "CANCELLED")
            number = slurm_site.submit(site, job, *points)
            story.tell(f"submitted again as job {number}")
        else:
            site.ask("scontrol", "requeue", number)
            story.tell("requeued")
    site.wait_for(number, "COMPLETED")
    first = job.published()
    restarts = site.job(number)["Restarts"]
    story.tell(f"job {number} completed after {restarts} restarts; attempts begun {job.attempts()}; {job.spent()}")
    if len(points) == 1:
        assert restarts == "1"
    again = slurm_site.submit(site, job)
    site.wait_for(again, "COMPLETED")
    assert "the same bytes, nothing spent" in site.log(again)
    assert job.published() == first
    assert not list(job.folder.glob(".dpdist-*")), "keys were left behind"
    story.tell(f"submitted again as job {again}: the same bytes; {job.spent()}")
    return story


def worker_cut(folder: Path, *, silence: int, first: Callable[[Hosts], None] = lambda _: None) -> Story:
    """Cut the machine of a worker that reads rows; mend it when the release is out. Before, do something ``first``."""
    story, job = Story(), nightly.make(folder / "job")
    with hosts.running(folder / "hosts", job, silence=silence, points=("reading",)) as machines:
        first(machines)
        victim = _stopped(machines, "reading", story)
        machines.network.set_cable(victim, up=False)
        story.tell(f"machine {victim} cut off")
        assert machines.code() == 0, machines.words()
        assert machines.processes[victim].poll() is None
        release = job.published()
        story.tell(f"released by the other machine, exit code 0; the one cut off is alive; {job.spent()}")
        machines.network.set_cable(victim, up=True)
        job.go_on("reading")
        machines.processes[victim].wait(PATIENCE)
        story.tell("cable mended, the stopped worker let go on: its process ended")
        assert machines.restart_workers() == [victim]
        _again(machines, job, release, story)
    return story


def driver_cut(folder: Path, *, silence: int) -> Story:
    return _cut_then_again(folder, USER, silence)


def scheduler_cut(folder: Path, *, silence: int) -> Story:
    return _cut_then_again(folder, "scheduler", silence)


def _cut_then_again(folder: Path, machine: str, silence: int) -> Story:
    story, job = Story(), nightly.make(folder / "job")
    with hosts.running(folder / "hosts", job, silence=silence, points=("reading",)) as machines:
        _stopped(machines, "reading", story)
        machines.network.set_cable(machine, up=False)
        story.tell(f"machine {machine} cut off")
        code = machines.code()
        assert code == RESUMABLE, machines.words()
        assert job.states() == ["reserved"]
        story.tell(f"the job ended with exit code {code}, ledger reserved; nothing is published")
        assert not (job.folder / "release.zarr").exists()
        machines.network.set_cable(machine, up=True)
        job.go_on("reading")
        story.tell("cable mended")
        if ended := machines.restart_workers():
            story.tell(f"workers that had lost their scheduler had ended, and were started again: {ended}")
        machines.run()
        assert machines.code() == 0, machines.words()
        first = job.published()
        story.tell(f"run again: released, exit code 0; {job.spent()}")
        _again(machines, job, first, story)
    return story


def _stopped(machines: Hosts, point: str, story: Story) -> str:
    job = machines.job
    machines.run()
    until(lambda: job.lingers(point), words=machines.words)
    place = job.lingers(point)
    (machine,) = (name for name in machines.network.machines if machines.network.holds(name, place))
    assert machines.processes[USER].poll() is None
    story.tell(f"machine {machine} is stopped at `{point}`, ledger {job.states()[0]}")
    return machine


def _again(machines: Hosts, job: Job, first: dict[str, bytes], story: Story) -> None:
    machines.run()
    assert machines.code() == 0, machines.words()
    assert job.published() == first
    story.tell(f"run again: the same bytes; {job.spent()}")
