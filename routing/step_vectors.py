"""A step's view as one vector: an embedding per text, then the numbers.

Hosts: routing.training, coordinator.learned_router."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

import numpy as np

from routing.step_view import NUMBERS, TEXTS, StepView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from routing.embedders import Embedder

    Array = NDArray[np.float64]


def vector_width(dimension: int) -> int:
    return len(TEXTS) * dimension + len(NUMBERS)


def step_vector(view: StepView, embedder: Embedder) -> Array:
    """Raises EmbedderFailed."""
    texts: tuple[tuple[str, ...], ...] = astuple(view.texts)
    pieces = [piece for text in texts for piece in text]
    vectors = embedder.embed(pieces)
    parts, at = [], 0
    for text in texts:
        parts.append(_pooled(text, vectors[at : at + len(text)]))
        at += len(text)
    return np.concatenate([*parts, np.array(astuple(view.numbers))])


def _pooled(pieces: Sequence[str], vectors: NDArray[np.float32]) -> Array:
    """The mean of the pieces by their length, as a unit vector; zeros where there is no text."""
    lengths = np.array([len(piece) for piece in pieces], np.float64)
    total = lengths @ vectors
    size = np.linalg.norm(total)
    return np.asarray(total / size if size > 0 else total, np.float64)
