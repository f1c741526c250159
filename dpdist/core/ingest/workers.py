"""The tasks of an ingest in threads of this process, or on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from dpdist.core.ingest.readers.base import Choices
from dpdist.core.ingest.sources import Opener
from dpdist.core.ingest.survey import Job, Run
from dpdist.core.ingest.write import writing
from dpdist.core.progress import Progress
from dpdist.core.runtime.cluster import AnyCluster, chosen
from dpdist.core.runtime.local import Executor
from dpdist.core.storage.store import Store


@dataclass(frozen=True)
class Workers:
    """Threads of this process, or workers of a cluster that is connected to when needed."""

    cluster: AnyCluster | None
    progress: Progress | None
    connection: Executor | None = None  # to workers that are used already

    @property
    def named(self) -> bool:
        """Whether a cluster was given."""
        return self.connection is not None or chosen(self.cluster).named

    @contextmanager
    def connected(self, location: Store, choices: Choices) -> Iterator[Run]:
        """Yield a function that runs tasks of a job; all processes see a location, and read files with some choices."""
        with self._executor() as executor:

            def run(job: Job, tasks: Sequence[Any]) -> list[Any]:
                executor.require_visible(location)
                shared = job, location, choices
                results = dict(executor.results(run_job_task, tasks, shared, job.label, f"ingest-{job.name}"))
                return [results[number] for number in range(len(tasks))]

            yield run

    def _executor(self) -> AbstractContextManager[Executor]:
        if self.connection is not None:
            return nullcontext(self.connection)
        cluster = chosen(self.cluster)
        return replace(cluster, progress=cluster.progress or self.progress).connected()


def run_job_task(task: Any, shared: tuple[Job, Store, Choices]) -> Any:
    """Run a task of a job."""
    job, location, choices = shared
    with writing(), closing(Opener(location.scratch_folder, choices)) as opener:
        return job(opener, task, bool)
