"""What :func:`dpdist.inspect_path` says of a model."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from dpdist.answers.model import open_model
from dpdist.core.errors import DataError
from dpdist.core.naming import step
from dpdist.core.pipeline.facts import Facts, columns_line, schema_line
from dpdist.core.storage.arrays import Text, attributes_of
from dpdist.core.storage.store import Store


class _Head(Struct):
    mechanism: Text
    status: Text


def facts(store: Store) -> Facts:
    """Describe a model."""
    opened = open_model(store)
    try:
        head = msgspec.convert(attributes_of(store), _Head)
    except ValueError:
        raise DataError(f"{store} is a damaged model.zarr. Write it again with {step('pca')}.") from None
    k, eigenvalues = len(opened.components.components), opened.components.eigenvalues is not None
    optional = {"schema": opened.schema, "correlation": opened.correlation}
    values = {
        "release_id": opened.release_id, "mechanism": head.mechanism, "status": head.status, "k": k,
        "columns": opened.names, "eigenvalues": eigenvalues,
        **{name: value for name, value in optional.items() if value},
    }  # fmt: skip
    of = ", of the correlation matrix" if opened.correlation else ""
    lines = [
        ("release", f"{opened.release_id}, {head.mechanism}, {head.status}"),
        ("components", f"{k}, {'with' if eigenvalues else 'without'} eigenvalues{of}"),
        ("columns", columns_line(opened.names)),
        ("schema", schema_line(opened.schema)),
    ]
    title, private = "principal components of a release", head.status != "private"
    return Facts("model", title, str(store), values, lines, private, head.status, ())
