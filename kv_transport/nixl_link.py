"""Memory that NIXL knows, and the transfers of blocks between two of them.

The only file that calls NIXL. Hosts: bench.bandwidth, tests; in production vLLM's connector moves
the bytes, with the same calls."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kv_transport.errors import PeerGone
from kv_transport.link import EndedTransfer
from kv_transport.nixl_progress import sleeping_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kv_transport.link import BlockCopy

ENGINE_THREADS = 4
"""UCX workers of one agent, as many as vLLM's connector asks for (`num_threads`)."""
_OURS = "NIXL_INIT_AGENT"


class Operation(StrEnum):
    READ = "READ"
    """A pull: this end takes from the other one."""
    WRITE = "WRITE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One stretch of memory; whoever made it keeps it alive."""

    kind: Literal["DRAM", "VRAM"]
    address: int
    size_bytes: int
    device: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What one end has to know of the other; plain data that may cross processes."""

    metadata: bytes
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """NIXL's own figures of one transfer that is done."""

    post_s: float
    transfer_s: float
    """From the post to the look that found it done."""
    size_bytes: int
    descriptors: int
    """After NIXL has merged neighbours."""


class NixlEnd:
    """An agent with one registered memory."""

    def __init__(self, name: str, memory: Memory, *, threads: int = ENGINE_THREADS) -> None:
        # UCX would otherwise keep registrations for ever; vLLM sets the same before it loads NIXL.
        os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
        from nixl._api import nixl_agent, nixl_agent_config

        self.memory = memory
        config = nixl_agent_config(num_threads=threads, capture_telemetry=True)
        # As in engine.nixl.
        with sleeping_progress(nixl_agent) if memory.kind == "DRAM" else nullcontext():
            self._agent = nixl_agent(name, config)
        place = (memory.address, memory.size_bytes, memory.device, "")
        self._registered = self._agent.register_memory([place], memory.kind)

    def invitation(self) -> Invitation:
        return Invitation(metadata=self._agent.get_agent_metadata(), memory=self.memory)

    def route_to(self, peer: Invitation, block_bytes: int) -> NixlRoute:
        return NixlRoute(self._agent, self.memory, peer, block_bytes)

    def close(self) -> None:
        self._agent.deregister_memory(self._registered)


class NixlRoute:
    """The blocks of both ends, as NIXL has prepared them."""

    def __init__(self, agent: Any, local: Memory, peer: Invitation, block_bytes: int) -> None:
        from nixl import _bindings

        self.block_bytes = block_bytes
        self._agent = agent
        self._lost = (
            _bindings.nixlRemoteDisconnectError,
            _bindings.nixlNotFoundError,
            _bindings.nixlBackendError,
        )
        name = agent.add_remote_agent(peer.metadata)
        self._local = self._descriptors(_OURS, local)
        self._remote = self._descriptors(name, peer.memory)

    def prepare(
        self, operation: Operation, local: Sequence[int], remote: Sequence[int]
    ) -> NixlTransfer:
        """Raises PeerGone."""
        assert len(local) == len(remote) > 0, (len(local), len(remote))
        handle = self.called(
            self._agent.make_prepped_xfer,
            operation.value,
            self._local,
            np.asarray(local, np.int32),
            self._remote,
            np.asarray(remote, np.int32),
        )
        return NixlTransfer(self, self._agent, handle)

    def called(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A call into NIXL; raises PeerGone."""
        try:
            return function(*arguments)
        except self._lost as error:
            raise PeerGone(
                f"NIXL: {type(error).__name__} {error}: the other end is gone; place the request "
                "again"
            ) from error

    def close(self) -> None:
        self._agent.release_dlist_handle(self._local)
        self._agent.release_dlist_handle(self._remote)

    def _descriptors(self, name: str, memory: Memory) -> Any:
        blocks = memory.size_bytes // self.block_bytes
        table = np.empty((blocks, 3), np.uint64)
        table[:, 0] = memory.address + np.arange(blocks, dtype=np.uint64) * self.block_bytes
        table[:, 1] = self.block_bytes
        table[:, 2] = memory.device
        return self._agent.prep_xfer_dlist(name, self._agent.get_xfer_descs(table, memory.kind))


class NixlTransfer:
    """Prepared; moves nothing before `post`."""

    def __init__(self, route: NixlRoute, agent: Any, handle: Any) -> None:
        self._route = route
        self._agent = agent
        self._handle = handle

    def post(self) -> bool:
        """Whether it is done already, as it is where the post itself copies; raises PeerGone."""
        return self._is_done(self._route.called(self._agent.transfer, self._handle))

    def is_done(self) -> bool:
        """Raises PeerGone."""
        return self._is_done(self._route.called(self._agent.check_xfer_state, self._handle))

    def telemetry(self) -> Telemetry:
        told = self._agent.get_xfer_telemetry(self._handle)
        return Telemetry(
            post_s=told.postDuration / 1e6,
            transfer_s=told.xferDuration / 1e6,
            size_bytes=told.totalBytes,
            descriptors=told.descCount,
        )

    def close(self) -> None:
        self._agent.release_xfer_handle(self._handle)

    @staticmethod
    def _is_done(state: str) -> bool:
        if state not in ("DONE", "PROC"):
            raise PeerGone(
                f"a NIXL transfer ended as {state}: the other end is gone; place the request again"
            )
        return state == "DONE"


@dataclass(slots=True)
class _InFlight:
    transfer: NixlTransfer
    size_bytes: int
    posted_s: float


class NixlLink:
    """A `kv_transport.link.Link` over one route, in one direction."""

    def __init__(
        self,
        route: NixlRoute,
        operation: Operation,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._route = route
        self._operation = operation
        self._clock = clock
        self._in_flight: dict[str, _InFlight] = {}

    def post(self, transfer_id: str, copies: Sequence[BlockCopy]) -> None:
        assert transfer_id not in self._in_flight, transfer_id
        sources, targets = zip(*copies, strict=True)
        ours, theirs = sources, targets
        if self._operation is Operation.READ:
            ours, theirs = targets, sources
        transfer = self._route.prepare(self._operation, ours, theirs)
        posted_s = self._clock()
        try:
            transfer.post()
        except PeerGone:
            transfer.close()
            raise
        size_bytes = len(copies) * self._route.block_bytes
        self._in_flight[transfer_id] = _InFlight(transfer, size_bytes, posted_s)

    def ended(self) -> list[EndedTransfer]:
        looked = [(name, self._look(name, one)) for name, one in self._in_flight.items()]
        ended = [found for _, found in looked if found is not None]
        for one in ended:
            self._in_flight.pop(one.transfer_id).transfer.close()
        return ended

    def close(self) -> None:
        for one in self._in_flight.values():
            one.transfer.close()
        self._in_flight.clear()

    def _look(self, transfer_id: str, one: _InFlight) -> EndedTransfer | None:
        error: PeerGone | None = None
        try:
            if not one.transfer.is_done():
                return None
        except PeerGone as gone:
            error = gone
        return EndedTransfer(
            transfer_id=transfer_id,
            size_bytes=one.size_bytes,
            duration_s=self._clock() - one.posted_s,
            error=error,
        )
