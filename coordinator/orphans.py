"""Legs whose client has left, until nothing stays pinned for them.

P keeps the blocks of a finished prompt until a D has read them, or else until their lease ends. So
a call that ends between P's answer and D's pull may not simply be dropped:

* A P leg is aborted by its id, and its answer is read all the same: P may have been done already.
* A D leg that carries a hand-off is closed once D has begun with it: from then on D tells P itself.
  Before that, D's front end would lose request and hand-off together.
* A hand-off that no D was sent is given back through one: D's front end refuses the request, and
  then vLLM's connector tells P. One that was sent is never given back: its D may be reading, and P
  would hand the blocks to somebody else under its eyes.

What fails here is left to the lease. Host: coordinator.legs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from coordinator.node_client import handoff_in
from coordinator.wire import WireError
from kv_transport.errors import KvParamsInvalid

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from coordinator.connection import Connection
    from coordinator.instances import Instance
    from coordinator.metrics import Metrics
    from coordinator.wire import Wire
    from kv_transport.kv_params import RemoteKv

logger = logging.getLogger(__name__)

LET_GO_S: Final = 5.0
"""For an engine to end what it was asked to end."""

BEGIN_S: Final = 1.0
"""For D to begin with a request that it was sent."""

NO_MODEL: Final = "-"
"""Served by nobody, so that D's front end refuses the request."""


class Orphans:
    """One per application."""

    def __init__(self, wire: Wire, metrics: Metrics) -> None:
        self._wire = wire
        self._metrics = metrics
        self._ending: set[asyncio.Task[None]] = set()

    def end_prefill(
        self, prefill: Instance, decode: Instance, engine_id: str, connection: Connection
    ) -> None:
        """`engine_id`: of the request, as P knows it."""
        self._start(self._end_prefill(prefill, decode, engine_id, connection))

    def end_decode(self, connection: Connection) -> None:
        self._start(_end_decode(connection))

    def give_back(self, decode: Instance, remote_kv: RemoteKv) -> None:
        """Of a hand-off that no D was sent."""
        self._start(self._give_back(decode, remote_kv))

    async def stop(self) -> None:
        for task in self._ending:
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _start(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_prefill(
        self, prefill: Instance, decode: Instance, engine_id: str, connection: Connection
    ) -> None:
        try:
            await self._post(prefill, "/inference/v1/abort_requests", {"request_ids": [engine_id]})
            handoff = handoff_in(await connection.read_all(LET_GO_S))
        except (msgspec.DecodeError, KvParamsInvalid):
            return  # it was aborted in time: nothing is pinned
        except (WireError, TimeoutError) as error:
            logger.info("%s: the leg of a client that left: %s", prefill.name, error)
            return
        finally:
            connection.release()
        await self._give_back(decode, handoff.remote_kv)

    async def _give_back(self, decode: Instance, remote_kv: RemoteKv) -> None:
        request = {
            "model": NO_MODEL,
            "prompt": [0],
            "max_tokens": 1,
            "kv_transfer_params": remote_kv.take(),
        }
        try:
            status = await self._post(decode, "/v1/completions", request)
        except (WireError, TimeoutError) as error:
            logger.info("%s: a hand-off could not be given back: %s", decode.name, error)
            return
        assert status != 200, f"{decode.name} serves a model {NO_MODEL!r}"
        self._metrics.handoffs_returned.inc()

    async def _post(self, instance: Instance, path: str, body: dict[str, Any]) -> int:
        """The status; raises WireError, TimeoutError."""
        connection = await self._wire.send(
            "POST", instance.url, path, msgspec.json.encode(body), LET_GO_S
        )
        try:
            await connection.read_all(LET_GO_S)
        finally:
            connection.release()
        return connection.status


async def _end_decode(connection: Connection) -> None:
    try:
        await connection.begun(BEGIN_S)
    except (WireError, TimeoutError):
        pass
    finally:
        connection.release()
