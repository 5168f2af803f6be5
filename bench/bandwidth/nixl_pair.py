"""Raw NIXL: this process reads from and writes to the memory of another one."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.bandwidth.memory import allocate
from bench.bandwidth.peer import STOP, Peer
from bench.bandwidth.rows import Timing
from kv_transport.nixl_link import NixlEnd, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from bench.bandwidth.memory import Buffer, SegmentType
    from bench.bandwidth.shapes import Shape
    from kv_transport.nixl_link import Invitation, NixlRoute

_SEEDS = {Operation.READ: 1, Operation.WRITE: 2}


class WrongBytes(Exception):
    """What arrived is not what was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlPair:
    local: Buffer
    end: NixlEnd
    peer: Peer
    invitation: Invitation

    def route(self, shape: Shape) -> NixlRoute:
        return self.end.route_to(self.invitation, shape.block_size)

    def check(self, shape: Shape) -> None:
        """Whole buffers, both ways; raises WrongBytes."""
        for operation, seed in _SEEDS.items():
            if operation is Operation.READ:
                sent = self.peer.ask(seed)
            else:
                self.local.fill(seed)
                sent = self.local.digest()
            transfer(self.route(shape), operation, shape)
            here, there = self.local.digest(), self.peer.ask("digest")
            if not here == there == sent:
                raise WrongBytes(
                    f"a NIXL {operation.value} of {shape.batch_size} x {shape.block_size} B left "
                    "other bytes than it took; no figure of this link means anything"
                )


@contextmanager
def nixl_pair(kind: SegmentType, size_bytes: int) -> Iterator[NixlPair]:
    with Peer(_serve, kind, size_bytes) as peer:
        local = allocate(kind, size_bytes)
        local.fill(0)
        end = NixlEnd("bandwidth-initiator", local.memory)
        yield NixlPair(local=local, end=end, peer=peer, invitation=peer.answer())
        end.close()


def transfer(route: NixlRoute, operation: Operation, shape: Shape) -> tuple[Timing, int]:
    """From this thread, which looks for the end without a pause; and its descriptors."""
    order = shape.order()
    began_s = time.perf_counter()
    prepared = route.prepare(operation, order, order)
    prepared_s = time.perf_counter()
    is_done = prepared.post()
    posted_s = time.perf_counter()
    while not is_done:
        is_done = prepared.is_done()
    done_s = time.perf_counter()
    descriptors = prepared.telemetry().descriptors
    prepared.close()
    timing = Timing(
        prep_s=prepared_s - began_s, post_s=posted_s - prepared_s, tx_s=done_s - posted_s
    )
    return timing, descriptors


def _serve(connection: Connection, kind: SegmentType, size_bytes: int) -> None:
    """The other process."""
    buffer = allocate(kind, size_bytes)
    buffer.fill(0)
    end = NixlEnd("bandwidth-target", buffer.memory)
    connection.send(end.invitation())
    while (asked := connection.recv()) != STOP:
        if asked != "digest":
            buffer.fill(asked)
        connection.send(buffer.digest())
    end.close()
