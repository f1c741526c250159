"""model.zarr: the components of one release, as public as the release itself.

Where the law of the noise is known, the attributes hold what is told of the components
(:class:`dpdist.pca.alignment.Alignment`). A model of a release that is not private as
claimed can be read by its owner only, as that release.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import zarr
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from dpdist._util.html import short, table
from dpdist._util.text import schema_of
from dpdist.errors import DataError, ResumableError, UsageError, quiet
from dpdist.ingest.labelled import relabelled
from dpdist.naming import step
from dpdist.pca.alignment import alignment
from dpdist.pca.components import Components
from dpdist.pca.correlation import Correlation
from dpdist.release.artefact import Release
from dpdist.rows.schema import Schema
from dpdist.storage.arrays import Text, digest_of_objects, put_array, read_arrays, require_format
from dpdist.storage.store import AnyStore, store_at

if TYPE_CHECKING:
    import pandas as pd
    import xarray

FORMAT = "dpdist-model/1"


@dataclass(frozen=True)
class Model:
    """Components and where they come from."""

    release_id: str
    names: tuple[str, ...]  # of the columns, length d
    components: Components
    schema: Schema | None = None  # by what rows are made of the columns of a source; None: these are numbers
    correlation: bool = False  # whether they are of the correlation matrix (:mod:`dpdist.pca.correlation`)

    def __repr__(self) -> str:
        k, d = self.components.components.shape
        return f"Model(k={k}, d={d}, of {short(self.release_id)})"

    def to_frame(self) -> pd.DataFrame:
        """Return the loadings by name, as a pandas DataFrame."""
        try:
            import pandas as pd  # noqa: PLC0415 - a library that nothing else here needs
        except ImportError:
            raise UsageError("A DataFrame needs pandas, which is not installed: pip install pandas") from None
        numbers = pd.RangeIndex(1, len(self.components.components) + 1, name="component")
        return pd.DataFrame(self.components.components, index=numbers, columns=list(self.names))

    def to_xarray(self, like: object) -> xarray.Dataset:
        """Return the components laid out as the columns came in: (component, lat, lon), for example."""
        found = self.components
        vectors = {"components": found.components, "mean": found.mean, "scale": found.scale}
        return relabelled(like, vectors, list(range(1, len(found.components) + 1)), {"eigenvalues": found.eigenvalues})

    def _repr_html_(self) -> str:
        return table("Model", {"release": self.release_id}) + self.components._repr_html_()


class _Attributes(msgspec.Struct, frozen=True):
    """What a model says of itself, as far as it is read back."""

    release_id: Text
    columns: tuple[Text, ...]
    eigenvalues: bool
    eigenvalues_per_row: bool
    schema: dict[str, Any] | None = None
    correlation: bool = False


def save(model: Model, release: Release, target: AnyStore, found_by: Correlation | None = None) -> None:
    """Write model.zarr, with what is said of components of a correlation matrix; it appears complete or not at all."""
    found = model.components
    attributes: dict[str, object] = {
        "format": FORMAT,
        "release_id": model.release_id,
        "mechanism": release.mechanism,
        "status": release.attributes()["status"],
        "guarantee": None if release.guarantee is None else release.guarantee.to_json(),
        "columns": list(model.names),
        "k": found.components.shape[0],
        "eigenvalues": found.eigenvalues is not None,
        "eigenvalues_per_row": found.per_row,
    }
    if model.schema is not None:
        attributes["schema"] = model.schema.to_json()
    told = found_by or (None if found.eigenvalues is None else alignment(release, found))
    if told is not None:
        attributes |= told.to_json()
    arrays = {"components": found.components, "mean": found.mean, "scale": found.scale}
    if found.eigenvalues is not None:
        arrays["eigenvalues"] = found.eigenvalues
    objects: dict[str, Buffer] = {}
    group = zarr.create_group(store=MemoryStore(objects), zarr_format=3, attributes={"dpdist": attributes})
    for name, values in arrays.items():
        put_array(group, name, values)
    private, identity = not release.private_as_claimed, partial(digest_of_objects, objects)
    # another machine may find other last bits, or another sign: two of them must not be mixed
    with store_at(target).staged("model", private=private, identity=identity, keys=objects.keys) as aside:
        for key, content in objects.items():
            aside.put(key, content.to_bytes())


@quiet()
def open_model(path: AnyStore) -> Model:
    """Read and verify a model.zarr.

    Parameters
    ----------
    path : str or path-like
        Its folder, or its address (``s3://``, ``gs://``, ``az://``).

    Returns
    -------
    Model
        ``components`` (a :class:`dpdist.Components`), ``names`` (column names, length d) and ``release_id``.

    Raises
    ------
    UsageError
        If it is an address of no store that is known here, or one with a password.
    DataError
        If there is none or it is damaged.

    See Also
    --------
    fit_components : Makes it.
    project_rows : Uses it.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> release, model = f"{here.name}/release.zarr", f"{here.name}/model.zarr"
    >>> rows = np.random.default_rng(1).normal(size=(1000, 5))
    >>> fitted = dpdist.PrivateCovariance(epsilon=1, delta=1e-6, clip=4, release=release).fit(rows)
    >>> made = dpdist.fit_components(release, model, 2)
    >>> dpdist.open_model(model).components
    Components(k=2, d=5, with eigenvalues)
    >>> here.cleanup()
    """
    store = store_at(path)
    otherwise = f"There is no usable model at {store}. Make one with: {step('pca', 'RELEASE', store, components='K')}"
    info = require_format(store, FORMAT, otherwise)
    try:
        said = msgspec.convert(info, _Attributes)
        arrays = read_arrays(store, {"components", "mean", "scale"} | ({"eigenvalues"} if said.eigenvalues else set()))
        found = Components(
            components=arrays["components"],
            eigenvalues=arrays.get("eigenvalues"),
            per_row=said.eigenvalues_per_row,
            mean=arrays["mean"],
            scale=arrays["scale"],
        )
        k, d = found.components.shape
        shapes = found.mean.shape == found.scale.shape == (len(said.columns),) == (d,)
        values = found.eigenvalues is None or found.eigenvalues.shape == (k,)
        sound = shapes and values and np.allclose(found.components @ found.components.T, np.eye(k))
        schema = None if said.schema is None else Schema.from_json(said.schema)
        model = Model(said.release_id, said.columns, found, schema, said.correlation)
    except ResumableError:  # its store did not answer
        raise
    except Exception:  # noqa: BLE001 - a damaged folder fails in as many ways as there are libraries
        sound = False
    if not sound:
        raise DataError(otherwise)
    return model


def schema() -> dict[str, Any]:
    """Return the JSON schema of the attributes of a model."""
    return schema_of(_Attributes, "Attributes of a dpdist model.zarr", FORMAT)
