"""Text to vectors: MiniLM here, any OpenAI embeddings API over HTTP, or nothing at all.

Blocking, for a thread of its own. Hosts: routing.cli, coordinator.learned_router."""

from __future__ import annotations

import http.client
import json
import ssl
from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from urllib.parse import urlsplit

import msgspec
import numpy as np

from routing.minilm import DIMENSION, EmbedderUnavailable, MiniLm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float32]

BATCH_TEXTS: Final = 64
KEPT_VECTORS: Final = 16_384
"""Of 384 numbers: 25 MB."""
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024


class EmbedderSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a router file needs: vectors of another embedder would mean nothing to it."""

    kind: Literal["none", "minilm", "http"]
    model: str = ""
    """At the API; empty for the others."""
    dimension: int = 0


class EmbedderFailed(Exception):
    """No vectors this time."""


class Embedder(Protocol):
    @property
    def spec(self) -> EmbedderSpec: ...

    def embed(self, texts: Sequence[str]) -> Array:
        """One row per text. Raises EmbedderFailed."""


class NoEmbedder:
    """Numbers of the step alone."""

    spec = EmbedderSpec("none")

    def embed(self, texts: Sequence[str]) -> Array:
        return np.empty((len(texts), 0), np.float32)


class MiniLmEmbedder:
    """Raises EmbedderUnavailable."""

    spec = EmbedderSpec("minilm", dimension=DIMENSION)

    def __init__(self) -> None:
        self._model = MiniLm()

    def embed(self, texts: Sequence[str]) -> Array:
        return self._model.embed(texts)


class HttpEmbedder:
    """`POST {url}/embeddings`, as OpenAI's. `dimension` 0: whatever the first answer has."""

    def __init__(
        self, url: str, model: str, *, dimension: int, api_key: str | None, timeout_s: float
    ) -> None:
        self.spec = EmbedderSpec("http", model, dimension)
        self._parts = urlsplit(url)
        self._url = url
        self._timeout_s = timeout_s
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"

    def embed(self, texts: Sequence[str]) -> Array:
        parts = [
            self._batch(texts[at : at + BATCH_TEXTS]) for at in range(0, len(texts), BATCH_TEXTS)
        ]
        return np.concatenate(parts) if parts else np.empty((0, self.spec.dimension), np.float32)

    def _batch(self, texts: Sequence[str]) -> Array:
        question = {"model": self.spec.model, "input": list(texts), "encoding_format": "float"}
        answer = self._post(json.dumps(question).encode())
        try:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            vectors = np.array([row["embedding"] for row in rows], np.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise EmbedderFailed(f"{self._url} answered no embeddings: {error!r}") from None
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise EmbedderFailed(
                f"{self._url} answered an array of {vectors.shape} for {len(texts)} texts"
            )
        wanted = self.spec.dimension or vectors.shape[1]
        if vectors.shape[1] != wanted:
            raise EmbedderFailed(
                f"{self._url} answered {vectors.shape[1]} numbers per text, not {wanted}"
            )
        self.spec = EmbedderSpec("http", self.spec.model, wanted)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.where(lengths > 0, lengths, 1))

    def _post(self, body: bytes) -> Any:
        connection = self._connection()
        try:
            connection.request("POST", f"{self._parts.path}/embeddings", body, self._headers)
            reply = connection.getresponse()
            data = reply.read(MAX_ANSWER_BYTES)
            if reply.status != 200:
                raise EmbedderFailed(f"{self._url} answered {reply.status}")
            return json.loads(data)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EmbedderFailed(f"{self._url}: {error or type(error).__name__}") from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host, port = str(self._parts.hostname), self._parts.port
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)


class RememberingEmbedder:
    """Most texts of a call were in the call before it."""

    def __init__(self, inner: Embedder, kept: int = KEPT_VECTORS) -> None:
        self._inner = inner
        self._kept = kept
        self._vectors: OrderedDict[bytes, Array] = OrderedDict()

    @property
    def spec(self) -> EmbedderSpec:
        return self._inner.spec

    def embed(self, texts: Sequence[str]) -> Array:
        keys = [blake2b(text.encode(errors="replace"), digest_size=16).digest() for text in texts]
        known = {key: self._vectors[key] for key in keys if key in self._vectors}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            fresh = self._inner.embed(list(missing.values()))
            known.update(zip(missing, fresh, strict=True))
        for key in dict.fromkeys(keys):
            self._vectors[key] = known[key]
            self._vectors.move_to_end(key)
        while len(self._vectors) > self._kept:
            self._vectors.popitem(last=False)
        if not keys:
            return np.empty((0, self.spec.dimension), np.float32)
        return np.stack([known[key] for key in keys])


def open_embedder(
    spec: EmbedderSpec, url: str | None, api_key: str | None, timeout_s: float
) -> Embedder:
    """Raises EmbedderUnavailable."""
    match spec.kind:
        case "none":
            return NoEmbedder()
        case "minilm":
            return RememberingEmbedder(MiniLmEmbedder())
        case "http":
            if url is None:
                raise EmbedderUnavailable(
                    f"the router was trained with {spec.model!r} of an embeddings API, whose URL "
                    "is not given"
                )
            return RememberingEmbedder(
                HttpEmbedder(
                    url,
                    spec.model,
                    dimension=spec.dimension,
                    api_key=api_key,
                    timeout_s=timeout_s,
                )
            )
