"""Counts what an engine submits."""

from __future__ import annotations

from typing import Any

import pytest

from dpdist.runtime.engine import Engine


def submissions(engine: Engine, patch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which the function of every task is added when it is submitted."""
    submitted: list[Any] = []
    submit = engine._client.submit

    def counting(*arguments: Any, **options: Any) -> Any:
        submitted.append(arguments[0])
        return submit(*arguments, **options)

    patch.setattr(engine._client, "submit", counting)
    return submitted
