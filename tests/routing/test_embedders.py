"""Vectors over HTTP, and what is remembered of them."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from routing.embedders import (
    BATCH_TEXTS,
    EmbedderFailed,
    EmbedderSpec,
    HttpEmbedder,
    RememberingEmbedder,
    open_embedder,
)
from routing.minilm import EmbedderUnavailable
from tests.routing.routing_rig import WordEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def an_api(answer: bytes | None = None, status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """OpenAI's embeddings: a text of n letters is the vector (3, 4n)."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append((self.path, self.headers.get("authorization"), body))
            rows = [
                {"index": at, "embedding": [3.0, 4.0 * len(text)]}
                for at, text in enumerate(body["input"])
            ]
            data = answer or json.dumps({"data": rows[::-1]}).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *given: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
        server.shutdown()
        thread.join()


def embedder_at(url: str, dimension: int = 0) -> HttpEmbedder:
    return HttpEmbedder(url, "m", dimension=dimension, api_key="k", timeout_s=5)


def test_texts_are_asked_in_batches_and_answers_put_in_order() -> None:
    with an_api() as (url, asked):
        vectors = embedder_at(url).embed(["a"] + ["b" * 1000] * BATCH_TEXTS)
    assert [len(body["input"]) for _, _, body in asked] == [BATCH_TEXTS, 1]
    assert asked[0][:2] == ("/v1/embeddings", "Bearer k")
    assert vectors[0] == pytest.approx([0.6, 0.8])
    assert vectors[1] == pytest.approx([0.00075, 1.0], abs=1e-5)


def test_the_first_answer_says_how_many_numbers_there_are() -> None:
    with an_api() as (url, _):
        embedder = embedder_at(url)
        embedder.embed(["a"])
    assert embedder.spec == EmbedderSpec("http", "m", 2)


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (None, 500, "answered 500"),
        (b"oops", 200, "Expecting value"),
        (b"{}", 200, "answered no embeddings"),
        (b'{"data": []}', 200, "answered an array of"),
        (b'{"data": [{"index": 0, "embedding": [1, 2, 3]}]}', 200, "3 numbers per text, not 2"),
        (b'{"data": [{"index": 0, "embedding": [1, NaN]}]}', 200, "answered an array of"),
        (b'{"data": [{"index": 0, "embedding": ["x", 1]}]}', 200, "answered no embeddings"),
    ],
)
def test_a_wrong_answer_is_a_failure(answer: bytes | None, status: int, message: str) -> None:
    with an_api(answer, status) as (url, _), pytest.raises(EmbedderFailed, match=message):
        embedder_at(url, dimension=2).embed(["a"])


def test_nobody_at_the_address_is_a_failure() -> None:
    with an_api() as (url, _):
        pass
    with pytest.raises(EmbedderFailed, match="refused"):
        embedder_at(url).embed(["a"])


def test_a_text_is_embedded_once_while_it_is_remembered() -> None:
    inner = WordEmbedder()
    embedder = RememberingEmbedder(inner, kept=2)
    first = embedder.embed(["one", "two", "one"])
    assert np.array_equal(first[0], first[2])
    assert np.array_equal(embedder.embed(["two"])[0], first[1])
    assert inner.asked == ["one", "two"]
    embedder.embed(["three"])
    embedder.embed(["two", "one"])
    assert inner.asked == ["one", "two", "three", "one"]
    assert embedder.embed([]).shape == (0, 8)


def test_a_router_of_an_api_needs_its_address() -> None:
    with pytest.raises(EmbedderUnavailable, match="whose URL is not given"):
        open_embedder(EmbedderSpec("http", "m", 2), None, None, 1.0)
