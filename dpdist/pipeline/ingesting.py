"""Who computes the steps of an ingest (:mod:`dpdist.ingest.write`): threads of this process, or workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from dpdist._util.progress import Progress
from dpdist.ingest.readers.base import Choices
from dpdist.ingest.sources import Opener
from dpdist.ingest.survey import Job, Run
from dpdist.ingest.write import writing
from dpdist.runtime.cluster import Cluster, chosen
from dpdist.storage.store import Store


@dataclass(frozen=True)
class Workers:
    """Threads of this process, or workers of a cluster, which is connected to when it is needed."""

    cluster: Cluster | None
    progress: Progress | None

    @property
    def named(self) -> bool:
        """Whether somebody asked for them."""
        return self.cluster is not None and self.cluster.named

    @contextmanager
    def connected(self, place: Store, choices: Choices) -> Iterator[Run]:
        """Give what computes units on them; they see a place, and read files by choices."""
        where = chosen(self.cluster)
        with replace(where, progress=where.progress or self.progress).connected() as engine:

            def run(job: Job, units: Sequence[Any]) -> list[Any]:
                engine.require_visible(place)
                shared, step = (job, place, choices), f"ingest-{job.name}"
                found = dict(engine.results(computed, units, shared, job.label, step))
                return [found[number] for number in range(len(units))]

            yield run


def computed(unit: Any, shared: tuple[Job, Store, Choices]) -> Any:
    """Compute a unit of a job, on a worker."""
    job, place, choices = shared
    with writing(), closing(Opener(place.scratch_folder, choices)) as opener:
        return job(opener, unit, bool)
