"""Parsing of options, as typed, into requests."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from msgspec.structs import replace

from dpdist.core.errors import DataError, UsageError
from dpdist.core.mechanisms.info import Kind, MechanismInfo
from dpdist.core.mechanisms.quantile import require_quantile
from dpdist.core.mechanisms.registry import mechanism_named, recommended
from dpdist.core.moment.histograms import NormGrid
from dpdist.core.naming import parameter
from dpdist.core.options import Clip, ReleaseOptions, RequestOptions, Word
from dpdist.core.paths import AnyPath, local, read_plain
from dpdist.core.privacy.guarantee import PrivacyLoss, neighbours_of
from dpdist.core.release.bounds import Dimensions, bound_of
from dpdist.core.release.norm_histogram import NormsRequest
from dpdist.core.release.opening import open_release
from dpdist.core.release.request import Centring, ReleaseRequest, exact_fraction, share_from
from dpdist.core.rows.bounding import RowBound

LARGEST_FILE = 64 << 20
"""Size limit in bytes of a job file, or a file of public numbers."""


def request_from(
    options: RequestOptions, folder: Path | None = None, *, vectors: Mapping[str, tuple[float, ...]] | None = None
) -> ReleaseRequest:
    """Make a request from options as typed; file names are relative to the folder, ``vectors`` were read before."""
    folder = folder or Path()
    loss = PrivacyLoss.parse(options.epsilon, options.delta or "0")
    if options.delta is not None and not loss.delta_atto:
        raise DataError("Delta must be between 0 and 1, both excluded; for pure privacy leave it out.")
    shift = public_numbers(options.centre or Centring.NONE, options.scale or "none", folder, vectors)
    centre, scale = options.centre, options.scale
    if options.clip is None and scale == "none" and shift.get("scale") is None:
        raise UsageError(
            f"{parameter('scale', 'none')} needs a public clip norm in the units of the rows "
            f"({parameter('clip', 'C')}), and a file without a schema must be ingested first. Without both options, a "
            "scale is chosen privately."
        )
    if options.clip is None:  # the release chooses what was not given
        scale = "private" if scale is None and shift.get("scale") is None else scale
        centre = "private" if centre is None and shift.get("centre") is None else centre
        options = replace(options, clip=Clip("auto"))
    chosen = options.mechanism or recommended(loss.delta_atto)
    request = ReleaseRequest(
        mechanism=chosen,
        loss=loss,
        clip_norm=clip_from(options.clip),
        neighbours=neighbours_of(options.neighbours),
        centring=Centring(centre) if centre in set(Centring) else None,
        grid_bits=options.grid_bits,
        period=options.period,
        name=options.id,
        options=_typed_options(mechanism_named(chosen).info, options.options, folder),
        for_reproduction=options.for_reproduction,
        accept_large_delta=options.accept_large_delta,
        rows_at_most=options.rows_at_most,
        centre=shift.get("centre"),
        scale="private" if scale == "private" else shift.get("scale"),
        scale_share=None if options.scale_share is None else share_from(options.scale_share),
        clip_components=options.clip_components,
        targets=options.targets,
    )
    columns = len(next((v for v in shift.values() if v), (0.0, 0.0)))
    # checks the range of clip norm and grid bits; default bits follow from the table, which is not known here
    bound_of(request, Dimensions(columns), request.grid_bits or RowBound.grid_bits)
    return request


def public_numbers(
    centre: str, scale: str, folder: Path, vectors: Mapping[str, tuple[float, ...]] | None = None
) -> dict[str, tuple[float, ...] | None]:
    """Read the files of public numbers for centre and scale, if any, and add them to ``vectors``."""
    shift = {**({} if centre in set(Centring) else read_public_centre(folder / centre)), **(vectors or {})}
    if scale == "none":
        return shift
    if shift.get("scale") is not None:
        raise UsageError(
            f"{parameter('centre')} contains a public scale, and {parameter('scale')} specifies another: leave one out."
        )
    if scale == "private":
        return shift
    numbers = read_public_centre(folder / scale, word="scale")
    if numbers["centre"] is not None and centre == Centring.NONE:
        raise UsageError(
            f"{scale} contains a centre as well as a scale: pass it as {parameter('centre')}, which uses both, or "
            "write the scale to a separate file."
        )
    return {**shift, "scale": numbers["scale"]}


def clip_from(text: str | None) -> float | Word:
    """Parse a clip norm, or the word for how to choose it; auto if it was not given."""
    if text is None:
        return "auto"
    if text in get_args(Word):
        return cast("Word", str(text))  # which may be of a type for options
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{parameter('clip')} must be a number, private, auto or schema, not {text!r}.") from None


def norms_request_from(options: ReleaseOptions, grid: str) -> NormsRequest:
    """Make a request for a histogram of norms from options as typed."""
    if options.centre == Centring.PRIVATE:
        raise UsageError(
            f"With {parameter('centre', 'private')} rows are clipped about zero, before their mean is known: choose "
            f"the clip norm with {parameter('centre', 'none')}."
        )
    if options.scale == "private":
        raise UsageError(
            f"{parameter('scale', 'private')} is chosen by the release, and the clip norm is in scaled units: release "
            f"with {parameter('clip', 'auto')}, or pass a public scale."
        )
    shift = public_numbers(options.centre or Centring.NONE, options.scale or "none", Path())
    return NormsRequest(
        PrivacyLoss.parse(options.epsilon, options.delta or "0"),
        NormGrid.parse(grid),
        neighbours_of(options.neighbours),
        shift.get("centre"),
        shift.get("scale"),
        options.accept_large_delta,
    )


def quantile_from(text: str) -> Fraction:
    """Parse a quantile exactly."""
    quantile = exact_fraction(text)
    require_quantile(quantile)
    return quantile


def options_from(texts: Sequence[str]) -> dict[str, str]:
    """Split ``NAME=VALUE`` texts."""
    options: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals) or name in options:
            raise UsageError(f"Each option must be given once, as NAME=VALUE, not {text!r}.", parameter="options")
        options[name] = value
    return options


def columns_from(text: str) -> list[str]:
    """Parse names separated by commas; double quotes enclose a name with a comma."""
    try:
        return [name.strip() for name in next(csv.reader([text], skipinitialspace=True, strict=True), [""])]
    except csv.Error:
        raise UsageError(f"{parameter('columns')} has an unclosed double quote. Close it.") from None


def numbers_from(text: str, option: str) -> tuple[float, ...]:
    """Parse numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} must be numbers separated by commas, such as 4,2,0.5.") from None


def _typed_options(info: MechanismInfo, options: Mapping[str, object], folder: Path) -> dict[str, object]:
    """Convert text to the types of the options; a list of numbers or a matrix may be a public file."""
    kinds = {option.name: option.kind for option in info.options}
    typed = dict(options)
    for name, value in options.items():
        if isinstance(value, str):
            released = name == "directions" and (folder / value / "zarr.json").is_file()
            kind = kinds.get(name, Kind.WORD)
            typed[name] = _directions_of(folder / value) if released else _option_value(kind, value, folder)
    return typed


_CONVERTED: dict[Kind, Callable[[str], object]] = {
    Kind.INTEGER: int,
    Kind.NUMBER: float,
    Kind.NUMBERS: lambda text: [float(part) for part in text.split(",")],
}


def _option_value(kind: Kind, text: str, folder: Path) -> object:
    if text.endswith(".npy") and kind in {Kind.NUMBERS, Kind.MATRIX}:
        try:
            return _arrays(folder / text)["centre"].astype(np.float64).tolist()
        except (OSError, ValueError, TypeError, EOFError, SyntaxError, MemoryError):
            raise DataError(f"{text} is not a .npy file of numbers. Pass one.", parameter="options") from None
    try:
        return _CONVERTED.get(kind, str)(text)
    except ValueError:
        return text  # the option reports the expected type


def _directions_of(path: Path) -> list[list[float]]:
    """Return the eigenvectors of a released moment as rows, the largest eigenvalue first, rounded for a stable id."""
    release = open_release(path)
    release.require_moment()
    if not release.private_as_claimed or not release.in_memory:
        raise DataError(
            f"The release {path} cannot provide directions: it is not private as claimed, or too large for memory. Use "
            "one that was charged to a budget, of a smaller table.",
            parameter="options.directions",
        )
    vectors = np.linalg.eigh(release.lattice.astype(np.float64))[1].T[::-1]
    signs = np.sign(vectors[np.arange(len(vectors)), np.abs(vectors).argmax(axis=1)])
    rounded: list[list[float]] = (np.rint(vectors * signs[:, None] * 2**30) / 2**30).tolist()
    return rounded


def _arrays(path: Path, word: str = "centre") -> dict[str, Any]:
    """Return the arrays of a .npz file, or that of a .npy file under the name ``word``."""
    content = read_plain(path, LARGEST_FILE)
    if path.suffix == ".npz":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(info.file_size for info in archive.infolist()) > LARGEST_FILE:
                raise ValueError
    loaded: Any = np.load(io.BytesIO(content), allow_pickle=False)
    return {word: loaded} if path.suffix == ".npy" else dict(loaded)


def _of_release(path: Path, word: str) -> dict[str, tuple[float, ...] | None]:
    """Return centre and scale of a release."""
    release = open_release(path)
    vectors = {"centre": release.bound.centre, "scale": release.bound.scale}
    if not release.private_as_claimed or not any(vectors.values()) or (word == "scale" and vectors["scale"] is None):
        raise DataError(
            f"The release {path} has no usable {'centre or scale' if word == 'centre' else 'scale'}: it was made "
            f"without one, or is not private as claimed. Use a release with {parameter('scale', 'private')}.",
            parameter=word,
        )
    return vectors


def read_public_centre(
    path: AnyPath, word: Literal["centre", "scale"] = "centre"
) -> dict[str, tuple[float, ...] | None]:
    """Read a public centre, a public scale or both from a .npy, .npz or .json file, or from a release.zarr."""
    path = local(path)
    if (path / "zarr.json").is_file():
        return _of_release(path, word)
    vectors: dict[str, tuple[float, ...]] = {}
    try:
        if path.suffix == ".json":
            content: Mapping[str, object] = json.loads(read_plain(path, LARGEST_FILE))
        elif path.suffix in {".npy", ".npz"}:
            content = _arrays(path, word)
        else:
            content = {}
        for key, value in content.items():
            vector = np.asarray(value)
            if key not in {"centre", "scale"} or vector.ndim != 1 or vector.dtype.kind not in "iuf":
                raise ValueError  # noqa: TRY301 - one message for all faults
            vectors[key] = tuple(float(v) for v in vector)
    except Exception:  # noqa: BLE001 - every format fails differently on a damaged file
        vectors = {}
    if not vectors or (word == "scale" and word not in vectors):
        holds = "`centre` and `scale`" if word == "centre" else "`scale`"
        raise DataError(
            f"{path} contains no public {word}: pass `none`, `private`, a .npy file with one number per column, a .npz "
            f"or .json file with {holds}, or a release.zarr of such rows.",
            parameter=word,
        )
    return {"centre": vectors.get("centre"), "scale": vectors.get("scale")}
