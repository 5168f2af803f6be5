"""A trained router as one .npz file: a JSON header and arrays, never a pickle.

What is read back was checked: format, version, limits, shapes, finite numbers. A router that was
trained for another view of a step, or another embedder, is refused and not run on nonsense.
Hosts: routing.cli, coordinator.learned_router."""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from routing import bilinear, step_view
from routing.bilinear import Factors, Fitted
from routing.embedders import EmbedderSpec  # noqa: TC001  msgspec resolves it when it decodes
from routing.step_vectors import vector_width

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

FORMAT: Final = "shadowprefill-router"
VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024 * 1024
_ARRAYS: Final = ("mean", "scale", *bilinear.NAMES)
"""Each with a row per fold."""
_ENTRIES: Final = ("header", *_ARRAYS)


class RouterFileInvalid(ValueError):
    """The text names the file and what is wrong."""


class Drift(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The next call's logit, given this one's: start + share * logit, give or take spread."""

    start: float
    share: float
    spread: float


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a prompt was looked at (routing.step_view)."""

    texts: tuple[str, ...] = step_view.TEXTS
    numbers: tuple[str, ...] = step_view.NUMBERS
    piece_chars: int = step_view.PIECE_CHARS
    tail_pieces: int = step_view.TAIL_PIECES


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: str = FORMAT
    version: int = VERSION
    models: tuple[str, str]
    """Small, large."""
    embedder: EmbedderSpec
    drift: Drift
    samples: int
    tasks: int
    seed: int
    auc: float | None
    """Of predictions for tasks that were held out; None: one of the labels never occurred."""
    view: View = View()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRouter:
    header: Header
    folds: tuple[Fitted, ...]
    """One per fold that was held out; they vote by their mean logit."""

    def logit(self, vector: Array) -> float:
        """That the small model does as well as the large one."""
        return float(np.mean([fitted.logits(vector) for fitted in self.folds]))


def write_router(path: Path, router: TrainedRouter) -> None:
    """Whole or not at all."""
    header = np.frombuffer(msgspec.json.encode(router.header), np.uint8)
    stacked = {name: np.stack([_array(one, name) for one in router.folds]) for name in _ARRAYS}
    data = io.BytesIO()
    np.savez(data, header=header, **stacked)  # type: ignore[arg-type]  # typed as if for allow_pickle
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_bytes(data.getvalue())
    unfinished.replace(path)


def read_router(path: Path) -> TrainedRouter:
    """Raises RouterFileInvalid."""
    try:
        arrays = _arrays(path.read_bytes() if path.stat().st_size <= MAX_BYTES else b"")
        header = _header(arrays["header"])
        router = _checked(header, arrays)
    except OSError as error:
        raise RouterFileInvalid(f"{path}: cannot be read: {error.strerror}") from error
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, RuntimeError) as error:
        raise RouterFileInvalid(f"{path}: is no router file: {error}") from error
    return router


def _arrays(data: bytes) -> dict[str, NDArray[np.generic]]:
    if not data:
        raise ValueError(f"it must be of 1 to {MAX_BYTES} bytes")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_BYTES:
            raise ValueError(f"it unpacks to {size} bytes, at most {MAX_BYTES} are allowed")
        damaged = archive.testzip()  # numpy does not always read to where the checksum is looked at
        if damaged is not None:
            raise ValueError(f"its part {damaged} is damaged")
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        if sorted(archive.files) != sorted(_ENTRIES):
            raise ValueError(f"it holds {sorted(archive.files)}, not {sorted(_ENTRIES)}")
        return {name: archive[name] for name in _ENTRIES}


class _Kind(msgspec.Struct):
    format: str
    version: int


def _header(raw: NDArray[np.generic]) -> Header:
    text = raw.tobytes()
    kind = msgspec.json.decode(text, type=_Kind)
    if (kind.format, kind.version) != (FORMAT, VERSION):
        raise ValueError(
            f"it is {kind.format} version {kind.version}, this program reads {FORMAT} version "
            f"{VERSION}; train it again"
        )
    header = msgspec.json.decode(text, type=Header)
    if header.view != View():
        raise ValueError(f"it looks at prompts as {header.view}, this program as {View()}")
    if header.models[0] == header.models[1]:
        raise ValueError(f"its two models are both {header.models[0]!r}")
    if not header.drift.spread > 0:
        raise ValueError(f"drift.spread must be > 0, got {header.drift.spread}")
    return header


def _checked(header: Header, arrays: dict[str, NDArray[np.generic]]) -> TrainedRouter:
    width = vector_width(header.embedder.dimension)
    folds, rank = arrays["weights"].shape if arrays["weights"].ndim == 2 else (0, 0)
    shapes = {
        "mean": (folds, width),
        "scale": (folds, width),
        "models": (folds, 2, rank),
        "projection": (folds, rank, width),
        "weights": (folds, rank),
        "bias": (folds, 1),
    }
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape or 0 in shape:
            raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
        if array.dtype != np.float64 or not np.isfinite(array).all():
            raise ValueError(f"{name} must hold finite float64 numbers")
    numbers = {name: np.asarray(arrays[name], np.float64) for name in shapes}
    if not (numbers["scale"] > 0).all() or not numbers["models"].any(axis=2).all():
        raise ValueError("scale must be > 0, and no model's factors all 0")
    fitted = [
        Fitted(
            mean=numbers["mean"][fold],
            scale=numbers["scale"][fold],
            factors=Factors(**{name: numbers[name][fold] for name in bilinear.NAMES}),
        )
        for fold in range(folds)
    ]
    return TrainedRouter(header=header, folds=tuple(fitted))


def _array(fitted: Fitted, name: str) -> Array:
    holder = fitted.factors if name in bilinear.NAMES else fitted
    return np.asarray(getattr(holder, name))
