"""What :func:`dpdist.inspect_path` says of a model."""

from __future__ import annotations

import msgspec

from dpdist.answers.model import ModelAttributes, open_model
from dpdist.core.errors import DataError
from dpdist.core.naming import step
from dpdist.core.pipeline.facts import Facts, columns_line, schema_line
from dpdist.core.privacy.guarantee import Guarantee
from dpdist.core.release.artefact import guarantee_words
from dpdist.core.storage.arrays import attributes_of
from dpdist.core.storage.store import Store


def facts(store: Store) -> Facts:
    """Describe a model."""
    opened = open_model(store)
    head = msgspec.convert(attributes_of(store), ModelAttributes)
    try:
        guarantee = None if head.guarantee is None else Guarantee.from_json(head.guarantee)
    except (ValueError, ArithmeticError):
        raise DataError(f"{store} is a damaged model.zarr. Write it again with {step('pca')}.") from None
    k, eigenvalues = len(opened.components.components), opened.components.eigenvalues is not None
    unit = None if head.unit is None else head.unit.unit
    optional = {
        "unit": unit, "condition": head.condition, "session": head.session, "schema": opened.schema,
        "correlation": opened.correlation,
    }  # fmt: skip
    values = {
        "release_id": opened.release_id, "mechanism": head.mechanism, "status": head.status,
        "guarantee": guarantee, "k": k,
        "columns": opened.names, "eigenvalues": eigenvalues,
        **{name: value for name, value in optional.items() if value},
    }  # fmt: skip
    of = ", of the correlation matrix" if opened.correlation else ""
    lines = [
        ("release", f"{opened.release_id}, {head.mechanism}, {head.status}"),
        ("proved", "" if guarantee is None else guarantee_words(guarantee, guarantee.neighbours, unit, head.condition)),
        ("components", f"{k}, {'with' if eigenvalues else 'without'} eigenvalues{of}"),
        ("columns", columns_line(opened.names)),
        ("schema", schema_line(opened.schema)),
    ]
    title, private = "principal components of a release", head.status != "private"
    return Facts("model", title, str(store), values, lines, private, head.status, ())
