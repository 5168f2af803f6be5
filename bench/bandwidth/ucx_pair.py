"""Raw UCX: another process sends its blocks as tagged messages, this one receives them.

ucxx is the successor of the archived ucx-py. It brings a UCX of its own beside the one inside NIXL;
the settings are the same. Its endpoints handle no errors: with that it would have only TCP here."""

from __future__ import annotations

import importlib.util
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.bandwidth.memory import Dram
from bench.bandwidth.peer import STOP, Peer
from bench.bandwidth.rows import Timing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from bench.bandwidth.shapes import Shape

_BLOCK_TAG, _GO_TAG = 0, 1


def missing_ucxx(kind: str) -> str:
    """Why there is no such measurement; empty if there is."""
    if importlib.util.find_spec("ucxx") is None:
        return "ucxx is not installed (pip install ucxx-cu12==0.52.0)"
    return "" if kind == "DRAM" else "only written for DRAM"


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxPair:
    buffer: Dram
    worker: Any
    endpoint: Any
    peer: Peer

    def receive(self, shape: Shape) -> Timing:
        self.peer.tell(shape)
        self.peer.answer()
        began_s = time.perf_counter()
        waiting = [
            self.endpoint.tag_recv(block, tag=_tag(_BLOCK_TAG))
            for block in _blocks(self.buffer, shape)
        ]
        waiting.append(self.endpoint.tag_send(_message(), tag=_tag(_GO_TAG)))
        posted_s = time.perf_counter()
        _finish(self.worker, waiting)
        return Timing(post_s=posted_s - began_s, tx_s=time.perf_counter() - posted_s)


@contextmanager
def ucx_pair(size_bytes: int) -> Iterator[UcxPair]:
    with Peer(_serve, size_bytes) as peer:
        import ucxx._lib.libucxx as ucx

        buffer = Dram(size_bytes)
        buffer.fill(0)
        worker = _worker()
        endpoint = ucx.UCXEndpoint.create(
            worker, "127.0.0.1", peer.answer(), endpoint_error_handling=False
        )
        _finish(worker, [endpoint.tag_send(_message(), tag=_tag(_GO_TAG))])
        yield UcxPair(buffer=buffer, worker=worker, endpoint=endpoint, peer=peer)


def _serve(connection: Connection, size_bytes: int) -> None:
    """The other process."""
    import ucxx._lib.libucxx as ucx

    buffer = Dram(size_bytes)
    buffer.fill(1)
    worker = _worker()
    endpoints: list[Any] = []
    listener: Any = ucx.UCXListener.create(
        worker=worker,
        port=0,
        cb_func=lambda request: endpoints.append(
            listener.create_endpoint_from_conn_request(request, endpoint_error_handling=False)
        ),
    )
    connection.send(listener.port)
    while not endpoints:
        worker.progress()
    _wait_for_go(worker, endpoints[0])
    # Between transfers it sleeps: one that polls takes a core from what else is measured.
    while (asked := connection.recv()) != STOP:
        blocks = _blocks(buffer, asked)
        connection.send("ready")
        _wait_for_go(worker, endpoints[0])
        sent = [endpoints[0].tag_send(block, tag=_tag(_BLOCK_TAG)) for block in blocks]
        _finish(worker, sent)


def _wait_for_go(worker: Any, endpoint: Any) -> None:
    go = _message()  # kept until the request is done: UCX writes into it
    _finish(worker, [endpoint.tag_recv(go, tag=_tag(_GO_TAG))])


def _worker() -> Any:
    import ucxx._lib.libucxx as ucx

    return ucx.UCXWorker(ucx.UCXContext(feature_flags=(ucx.Feature.TAG,)))


def _tag(number: int) -> Any:
    import ucxx._lib.libucxx as ucx

    return ucx.UCXXTag(number)


def _blocks(buffer: Dram, shape: Shape) -> list[Any]:
    from ucxx._lib.arr import Array

    size = shape.block_size
    return [Array(buffer.array[at * size : (at + 1) * size]) for at in shape.order()]


def _message() -> Any:
    from ucxx._lib.arr import Array

    return Array(np.ones(1, np.uint8))


def _finish(worker: Any, requests: Sequence[Any]) -> None:
    for request in requests:
        while not request.completed:
            worker.progress()
        request.check_error()
