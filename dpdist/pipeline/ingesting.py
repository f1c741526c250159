"""The workers of an ingest: steps of :mod:`dpdist.ingest.steps` as passes of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpdist._util.progress import Progress
from dpdist.ingest.steps import SOURCES, WORK, Run, Step, do_unit

if TYPE_CHECKING:
    from dpdist.runtime.cluster import Cluster


@dataclass(frozen=True)
class Workers:
    """Workers of a cluster, which is connected to when it is needed; Dask is not imported before.

    Parameters
    ----------
    cluster
        The cluster; None: one worker process per core of this machine.
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
        from dpdist.runtime.cluster import chosen  # noqa: PLC0415 - a small table is ingested without Dask
        from dpdist.runtime.work import Work  # noqa: PLC0415 - as above

        where = chosen(self.cluster)
        with replace(where, progress=where.progress or self.progress).connected() as engine:

            def run(step: Step, units: Sequence[int]) -> None:
                engine.require_visible(step.aside, f"{WORK}/{SOURCES}")
                engine.map(Work(f"ingest-{step.name}", do_unit, step, units, threads=engine.threads), step.label)

            yield run
