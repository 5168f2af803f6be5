"""An embedder that needs no model, and steps with a planted pattern."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from routing.embedders import EmbedderSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

DIMENSION = 8
PAIR = ("small", "large")


class WordEmbedder:
    """The mean of a random vector per word, the same in every process."""

    spec = EmbedderSpec("minilm", dimension=DIMENSION)

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        rows = [np.mean([_word(word) for word in text.split()], axis=0) for text in texts]
        return np.array(rows, np.float32).reshape(len(texts), DIMENSION)


def _word(word: str) -> NDArray[np.float64]:
    seed = int.from_bytes(sha256(word.encode()).digest()[:4])
    return np.random.default_rng(seed).normal(size=DIMENSION)


def a_row(task: str, call: int, word: str, small: float, large: float) -> dict[str, Any]:
    return {
        "task": task,
        "session_id": f"session-{task}",
        "call": call,
        "prompt": [{"role": "user", "content": f"please {word} this"}],
        "scores": {"small": small, "large": large},
    }


def planted_rows(tasks: int = 12, calls: int = 10) -> list[dict[str, Any]]:
    """The small model reads, and cannot prove."""
    chance = np.random.default_rng(0)
    rows = []
    for task in range(tasks):
        for call in range(1, calls + 1):
            hard = bool(chance.integers(0, 2))
            score = float((chance.random() < 0.1) == hard)
            rows.append(a_row(f"t{task}", call, "prove" if hard else "read", score, 1.0))
    return rows


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
