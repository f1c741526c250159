"""model.zarr: the components of one release, as public as the release itself.

If the distribution of the noise is known, the attributes contain the alignment of the components
(:class:`dpdist.answers.alignment.Alignment`). Like its release, a model that is not private as claimed is readable by
its owner only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
import zarr
from msgspec import Meta, Struct
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from dpdist.answers.alignment import alignment
from dpdist.answers.components import Components
from dpdist.answers.correlation import Correlation
from dpdist.core.errors import DataError, ResumableError, UsageError, quiet
from dpdist.core.html import short, table
from dpdist.core.naming import step
from dpdist.core.privacy.guarantee import GuaranteeJson
from dpdist.core.release.artefact import Release
from dpdist.core.release.attributes import SessionFacts
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import UnitAttributes
from dpdist.core.storage.arrays import Text, digest_of_objects, put_array, read_arrays, require_format
from dpdist.core.storage.store import AnyStore, store_at
from dpdist.core.text import can_be_published, schema_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray

FORMAT = "dpdist-model/1"
_OF_GUARANTEE = ("unit", "condition", "session")
"""Attributes of a release without which its guarantee promises more than was proved."""


@dataclass(frozen=True)
class Model:
    """Components and their source."""

    release_id: str
    names: tuple[str, ...]  # of the columns, length d
    components: Components
    schema: Schema | None = None  # converts the columns of a source to rows; None: numbers
    correlation: bool = False  # whether of the correlation matrix (:mod:`dpdist.answers.correlation`)
    feasible: bool = False  # whether of the nearest moment that rows can have (:mod:`dpdist.answers.feasible`)

    def __repr__(self) -> str:
        k, d = self.components.components.shape
        return f"Model(k={k}, d={d}, of {short(self.release_id)})"

    def to_frame(self) -> pd.DataFrame:
        """Return the loadings as a pandas DataFrame with column names."""
        try:
            import pandas as pd  # noqa: PLC0415 - optional dependency
        except ImportError:
            raise UsageError("A DataFrame needs pandas, which is not installed: pip install pandas") from None
        numbers = pd.RangeIndex(1, len(self.components.components) + 1, name="component")
        return pd.DataFrame(self.components.components, index=numbers, columns=list(self.names))

    def to_xarray(self, like: object) -> xarray.Dataset:
        """Return the components in the layout of the input columns, for example (component, lat, lon)."""
        model = self.components
        vectors = {"components": model.components, "mean": model.mean, "scale": model.scale}
        # named and not imported: formats stand beside answers, and xarray is an extra
        relabelled = import_module("dpdist.formats.labelled").relabelled
        return relabelled(like, vectors, list(range(1, len(model.components) + 1)), {"eigenvalues": model.eigenvalues})

    def _repr_html_(self) -> str:
        return table("Model", {"release": self.release_id}) + self.components._repr_html_()


class ModelAttributes(Struct, frozen=True):
    """The stored attributes of a model that are read back."""

    release_id: Text
    mechanism: Text
    status: Literal["private", "not private as claimed"]
    guarantee: GuaranteeJson | None
    k: Annotated[int, Meta(ge=1)]
    columns: tuple[Text, ...]
    eigenvalues: bool
    eigenvalues_per_row: bool
    unit: UnitAttributes | None = None  # these as in the release
    condition: Text | None = None
    session: SessionFacts | None = None
    schema: dict[str, Any] | None = None
    correlation: bool = False
    feasible: bool = False


def save(model: Model, release: Release, target: AnyStore, correlation: Correlation | None = None) -> None:
    """Write model.zarr atomically; ``correlation`` adds the attributes of a correlation matrix."""
    components, of_release = model.components, release.attributes()
    attributes: dict[str, object] = {
        "format": FORMAT,
        "release_id": model.release_id,
        "mechanism": release.mechanism,
        "status": of_release["status"],
        "guarantee": of_release["guarantee"],
        **{name: of_release[name] for name in _OF_GUARANTEE if of_release.get(name) is not None},
        "columns": list(model.names),
        "k": components.components.shape[0],
        "eigenvalues": components.eigenvalues is not None,
        "eigenvalues_per_row": components.per_row,
    }
    if model.feasible:
        attributes["feasible"] = True
    if model.schema is not None:
        attributes["schema"] = model.schema.to_json()
    quality = correlation or (None if components.eigenvalues is None else alignment(release, components))
    if quality is not None:
        attributes |= quality.to_json()
    arrays = {"components": components.components, "mean": components.mean, "scale": components.scale}
    if components.eigenvalues is not None:
        arrays["eigenvalues"] = components.eigenvalues
    objects: dict[str, Buffer] = {}
    group = zarr.create_group(store=MemoryStore(objects), zarr_format=3, attributes={"dpdist": attributes})
    for name, values in arrays.items():
        put_array(group, name, values)
    private, identity = not release.private_as_claimed, partial(digest_of_objects, objects)
    # another machine may compute other last bits or signs, and two results must not be mixed
    with store_at(target).staged("model", private=private, identity=identity, keys=objects.keys) as staging:
        for key, content in objects.items():
            staging.put(key, content.to_bytes())


@quiet()
def open_model(path: AnyStore) -> Model:
    """Read and verify a model.zarr.

    Parameters
    ----------
    path : str or path-like
        Folder or address of the model (``s3://``, ``gs://``, ``az://``).

    Returns
    -------
    Model
        ``components`` (a :class:`dpdist.Components`), ``names`` (column names, length d) and ``release_id``.

    Raises
    ------
    UsageError
        If the address names an unknown kind of store or contains a password.
    DataError
        If the model is missing or damaged.

    See Also
    --------
    fit_components : Writes a model.
    project_rows : Uses a model.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> release, model = f"{here.name}/release.zarr", f"{here.name}/model.zarr"
    >>> rows = np.random.default_rng(1).normal(size=(1000, 5))
    >>> fitted = dpdist.PrivateCovariance(epsilon=1, delta=1e-6, clip=4, release=release).fit(rows)
    >>> fitted = dpdist.fit_components(release, model, 2)
    >>> dpdist.open_model(model).components
    Components(k=2, d=5, with eigenvalues)
    >>> here.cleanup()
    """
    store = store_at(path)
    absent = f"There is no model at {store}. Write one with: {step('pca', 'RELEASE', store, components='K')}"
    info = require_format(store, FORMAT, absent)
    try:
        attributes = msgspec.convert(info, ModelAttributes)
        arrays = read_arrays(
            store, {"components", "mean", "scale"} | ({"eigenvalues"} if attributes.eigenvalues else set())
        )
        components = Components(
            components=arrays["components"],
            eigenvalues=arrays.get("eigenvalues"),
            per_row=attributes.eigenvalues_per_row,
            mean=arrays["mean"],
            scale=arrays["scale"],
        )
        k, d = components.components.shape
        shapes = components.mean.shape == components.scale.shape == (len(attributes.columns),) == (d,)
        values = components.eigenvalues is None or components.eigenvalues.shape == (k,)
        sound = shapes and values and np.allclose(components.components @ components.components.T, np.eye(k))
        sound = (
            sound and k == attributes.k and bool(np.isfinite(components.mean).all() and (components.scale > 0).all())
        )
        if components.eigenvalues is not None:
            falling = np.diff(components.eigenvalues) <= 0
            sound = sound and bool(np.isfinite(components.eigenvalues).all() and falling.all())
        sound = sound and can_be_published(attributes.columns)
        schema = None if attributes.schema is None else Schema.from_json(attributes.schema)
        model = Model(
            attributes.release_id, attributes.columns, components, schema, attributes.correlation, attributes.feasible
        )
    except ResumableError:  # the store did not answer
        raise
    except Exception:  # noqa: BLE001 - libraries raise many kinds of error for a damaged folder
        sound = False
    if not sound:
        raise DataError(f"{store} is a damaged model.zarr. Move it away, and write it again with {step('pca')}.")
    return model


def schema() -> dict[str, Any]:
    """Return the JSON schema of the attributes of a model."""
    return schema_of(ModelAttributes, "Attributes of a dpdist model.zarr", FORMAT)
