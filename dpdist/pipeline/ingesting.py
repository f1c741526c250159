"""Who computes the steps of an ingest (:mod:`dpdist.ingest.steps`): threads of this process, or workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dpdist._util.progress import Progress
from dpdist.ingest.steps import SOURCES, WORK, Run, Step, do_unit
from dpdist.runtime.cluster import Cluster, chosen
from dpdist.runtime.local import Work


@dataclass(frozen=True)
class Workers:
    """Threads of this process, or workers of a cluster, which is connected to when it is needed.

    Parameters
    ----------
    cluster
        The cluster; None: threads of this process.
    progress
        Told how far they are, where the cluster tells nobody.
    """

    cluster: Cluster | None
    progress: Progress | None

    @property
    def named(self) -> bool:
        """Whether somebody asked for them."""
        return self.cluster is not None and self.cluster.named

    @contextmanager
    def connected(self) -> Iterator[Run]:
        """Give what computes units on them."""
        where = chosen(self.cluster)
        with replace(where, progress=where.progress or self.progress).connected() as engine:

            def run(step: Step, units: Sequence[int]) -> None:
                engine.require_visible(step.aside, f"{WORK}/{SOURCES}")
                engine.map(Work(f"ingest-{step.name}", do_unit, step, units), step.label)

            yield run
