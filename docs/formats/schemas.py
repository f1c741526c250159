"""Write the JSON schemas of releases and models: they are made of the types by which these are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpdist.answers import model
from dpdist.core.release import artefact, attributes

HERE = Path(__file__).parent


def schemas() -> dict[str, dict[str, Any]]:
    """Return each schema by the name of its file."""
    return {
        "release.schema.json": attributes.schema(artefact.FORMAT),
        "model.schema.json": model.schema(),
    }


if __name__ == "__main__":
    for name, schema in schemas().items():
        (HERE / name).write_text(json.dumps(schema, indent=2) + "\n")
