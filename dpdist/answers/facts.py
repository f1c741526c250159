"""What :func:`dpdist.inspect_path` says of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec
from msgspec import Struct

from dpdist.answers.model import open_model
from dpdist.core.errors import DataError
from dpdist.core.naming import step
from dpdist.core.pipeline.facts import Facts, Lines, columns_line, schema_lines
from dpdist.core.rows.schema import Schema
from dpdist.core.storage.arrays import Text, attributes_of
from dpdist.core.storage.store import Store


@dataclass(frozen=True, kw_only=True)
class ModelFacts(Facts):
    """Description of components."""

    kind: ClassVar[str] = "model"
    title: ClassVar[str] = "principal components of a release"
    release_id: str
    mechanism: str
    status: str
    k: int
    columns: tuple[str, ...]
    eigenvalues: bool  # whether the model has them
    schema: Schema | None = None
    correlation: bool = False

    def _warning(self) -> str:
        return f"{self.status.upper()}: do not publish it"

    def _lines(self) -> Lines:
        of = ", of the correlation matrix" if self.correlation else ""
        return [
            ("release", f"{self.release_id}, {self.mechanism}, {self.status}"),
            ("components", f"{self.k}, {'with' if self.eigenvalues else 'without'} eigenvalues{of}"),
            ("columns", columns_line(self.columns)),
            *schema_lines(self.schema),
        ]


class _ModelHead(Struct):
    mechanism: Text
    status: Text


def facts(store: Store) -> ModelFacts:
    """Describe a model."""
    opened = open_model(store)
    try:
        head = msgspec.convert(attributes_of(store), _ModelHead)
    except ValueError:
        raise DataError(f"{store} is a damaged model.zarr. Write it again with {step('pca')}.") from None
    return ModelFacts(
        path=str(store),
        private=head.status != "private",
        damaged=(),
        release_id=opened.release_id,
        mechanism=head.mechanism,
        status=head.status,
        k=len(opened.components.components),
        columns=opened.names,
        eigenvalues=opened.components.eigenvalues is not None,
        schema=opened.schema,
        correlation=opened.correlation,
    )
