"""Write the JSON schemas of the formats that others read: they are made of the types by which these are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpdist.answers import model
from dpdist.core.release import artefact, attributes, session, share
from dpdist.core.text import schema_of
from dpdist.literature import matrix
from dpdist.sites import folder

HERE = Path(__file__).parent


def schemas() -> dict[str, dict[str, Any]]:
    """Return each schema by the name of its file."""
    return {
        "release.schema.json": attributes.schema(artefact.FORMAT),
        "model.schema.json": model.schema(),
        "matrix.schema.json": schema_of(matrix.Attributes, "Attributes of a released matrix of dpdist", matrix.FORMAT),
        "session.schema.json": schema_of(session.Terms, "session.json of a dpdist session", session.FORMAT),
        "key.schema.json": schema_of(folder.PublicKey, "NAME.key.json of a dpdist session", folder.KEY_FORMAT),
        "share.schema.json": schema_of(share.ShareHead, "The first line of a dpdist share", share.FORMAT),
    }


if __name__ == "__main__":
    for name, schema in schemas().items():
        (HERE / name).write_text(json.dumps(schema, indent=2) + "\n")
