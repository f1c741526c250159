"""Write the JSON schemas of what is published: they are made of the types by which it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpdist.pca import model
from dpdist.release import artefact, attributes
from dpdist.report import promise

HERE = Path(__file__).parent


def schemas() -> dict[str, dict[str, Any]]:
    """Return each schema by the name of its file."""
    return {
        "release.schema.json": attributes.schema(artefact.FORMAT),
        "model.schema.json": model.schema(),
        "card.schema.json": promise.card_schema(),
    }


if __name__ == "__main__":
    for name, schema in schemas().items():
        (HERE / name).write_text(json.dumps(schema, indent=2) + "\n")
