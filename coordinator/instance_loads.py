"""How busy the engines are, asked when somebody wants to know and at most once in FRESH_S.

However many pages look, each engine is read once; while nobody looks, none is.
Host: coordinator.cluster_api."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from coordinator.connection import Disconnected
from coordinator.engine_series import load_in
from coordinator.load_shapes import InstanceLoad, LoadAnswer
from coordinator.wire import CannotConnect

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.live_config import LiveConfig
    from coordinator.node_state import Cluster
    from coordinator.wire import Wire

FRESH_S: Final = 1.5
TIMEOUT_S: Final = 2.0
"""An engine's own answer comes from a thread beside its scheduler: a long iteration delays it."""


class InstanceLoads:
    def __init__(
        self, live: LiveConfig, cluster: Cluster, wire: Wire, clock: Callable[[], float]
    ) -> None:
        self._live = live
        self._cluster = cluster
        self._wire = wire
        self._clock = clock
        self._asking = asyncio.Lock()
        self._rows: list[InstanceLoad] = []
        self._asked_s: float | None = None

    async def answer(self) -> LoadAnswer:
        # Who comes while others wait for the engines gets what they get.
        async with self._asking:
            if self._asked_s is None or self._clock() - self._asked_s >= FRESH_S:
                names = list(self._cluster.instances)
                self._rows = await asyncio.gather(*map(self._load, names))
                self._asked_s = self._clock()
            return LoadAnswer(data=self._rows, age_s=self._clock() - self._asked_s)

    async def _load(self, name: str) -> InstanceLoad:
        load = await self._said(name)
        instance = self._cluster.instances.get(name)
        if instance is None:  # removed meanwhile
            return load
        return load.model_copy(update={"cut_off_from": self._cluster.cut_off_from(instance)})

    async def _said(self, name: str) -> InstanceLoad:
        configured = self._live.current.instances.get(name)
        url = None if configured is None else configured.metrics_url
        if url is None:
            return InstanceLoad(name=name, why_not="no metrics_port is configured")
        try:
            return load_in(name, await self._read(url))
        except TimeoutError:
            why = f"{url} did not answer within {TIMEOUT_S:g} s"
        except (CannotConnect, Disconnected, ValueError) as error:
            why = f"{url}: {error}"
        return InstanceLoad(name=name, why_not=why)

    async def _read(self, url: str) -> str:
        """Raises TimeoutError, CannotConnect, Disconnected, ValueError."""
        async with asyncio.timeout(TIMEOUT_S):
            connection = await self._wire.send("GET", url, "", b"", TIMEOUT_S, fresh=True)
            try:
                answer = await connection.read_all(TIMEOUT_S)
            finally:
                connection.release()
        if connection.status != 200:
            raise ValueError(f"answered {connection.status}")
        return answer.decode()
