"""Tasks whose errors carry no value, because Dask copies exceptions into logs and dashboards."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dpdist.errors import DpdistError
from dpdist.naming import naming
from dpdist.runtime.asker import Asker, require_version
from dpdist.runtime.process import forbid_core_dumps

Result = TypeVar("Result")


def guarded(asker: Asker, function: Callable[..., Result], *arguments: Any) -> Result:
    """Run a task so that an error carries no value: our own errors pass, of others only type and place remain.

    They name things as a face does, that of whoever submitted the task. Whoever started this worker, and however often
    it was restarted, it leaves no core dump with sums in it; and whenever it came, it is of the version that asks.
    """
    forbid_core_dumps()
    try:
        with naming(asker.face):
            require_version(asker.version)
            return function(*arguments)
    except DpdistError as error:
        failure = type(error)(*error.args)
    except Exception as error:  # noqa: BLE001 - whatever it is, its text may quote data
        place = traceback.extract_tb(error.__traceback__)[-1]
        # of a script's function, which is sent by value, cloudpickle 3.1.3 and newer do not tell the file
        where = f"{Path(place.filename).name}:{place.lineno} in {place.name}"
        failure = DpdistError(
            f"A task failed with {type(error).__name__} at {where}: a defect in dpdist or its worker."
        )
    raise failure  # outside the handler: the original, and what it quotes, is not chained
