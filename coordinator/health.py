"""Which instances are alive, and whether each model has answered a real call through P and D.

Two loops: /health of every instance, and one probe per model until it has passed. The probe is a
call like any other (P leg, D leg, one token) with a salt of its own, so that it hits and warms
nobody's cache."""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.call_body import ClientBody, read_body
from coordinator.calls import CallKind
from coordinator.errors import CallError, EngineFailed, NoInstance
from coordinator.leg_bodies import engine_body, prefill_body
from coordinator.sessions import Session
from coordinator.sse import read_answer
from engine.marks import Marks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from configs.schema import ClusterConfig, ModelConfig
    from coordinator.instances import Instance, Pair
    from coordinator.node_client import NodeClient
    from coordinator.node_state import Cluster

_log = logging.getLogger(__name__)

SILENT_PROBES = 3
"""Unanswered probes in a row that take an instance out: one is what a busy machine looks like, and
the only P or D of a model must not be lost to it. A refused connection counts at once."""


@dataclass(slots=True)
class ModelProbe:
    """How far a model has come."""

    passed: bool = False
    why_not: str = "not probed yet"
    attempts: int = 0


@dataclass(slots=True, kw_only=True)
class Health:
    """Hosts the two loops; what they find is in the instances and in `probes`."""

    config: ClusterConfig
    cluster: Cluster
    client: NodeClient
    probes: dict[str, ModelProbe] = field(init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.probes = {model: ModelProbe() for model in self.config.models}

    async def start(self) -> None:
        """Returns when every instance was asked once: the first call finds who is there."""
        await self.check_instances()
        self._tasks.append(asyncio.create_task(self._watch_instances()))
        for model in self.config.models:
            self._tasks.append(asyncio.create_task(self._probe_until_passed(model)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def not_ready(self) -> dict[str, str]:
        """Models that cannot serve a call now, and why."""
        reasons: dict[str, str] = {}
        for model, probe in self.probes.items():
            role = self.cluster.missing_role(model)
            if role is not None:
                errors = [
                    f"{one.name}: {one.last_error or 'not probed yet'}"
                    for one in self.cluster.of_model(model, role)
                ]
                reasons[model] = f"no healthy {role.value} instance ({'; '.join(errors)})"
            elif not probe.passed:
                reasons[model] = probe.why_not
        return reasons

    async def check_instances(self) -> None:
        await asyncio.gather(*map(self.check, self.cluster.instances.values()))

    async def _watch_instances(self) -> None:
        while True:
            await asyncio.sleep(self.config.coordinator.probe_interval_s)
            await self.check_instances()

    async def check(self, instance: Instance) -> None:
        """Asks one instance how it is."""
        limit_s = max(self.config.coordinator.probe_interval_s, 1.0)
        try:
            error = await self.client.healthy(instance, limit_s)
            if not error and not instance.verified:
                error = await self.client.serves(instance, limit_s)
                instance.verified = not error
        except TimeoutError:
            instance.silent_probes += 1
            if instance.healthy and instance.silent_probes < SILENT_PROBES:
                return
            error = f"/health did not answer {instance.silent_probes} times within {limit_s:g} s"
        else:
            instance.silent_probes = 0
        if instance.healthy != (not error):
            _log.info("instance %s is %s", instance.name, error or "healthy")
        instance.healthy = not error
        if error:
            instance.last_error = error

    async def _probe_until_passed(self, model: str) -> None:
        probe = self.probes[model]
        while not probe.passed:
            await self.probe(model)
            if not probe.passed:
                await asyncio.sleep(self.config.coordinator.probe_interval_s)

    async def probe(self, model: str) -> None:
        """One attempt."""
        probe = self.probes[model]
        probe.attempts += 1
        session = Session(id="", tenant="", kind=CallKind.TEXT, identified=False)
        try:
            pair = self.cluster.placement.place(session, model, 0)
            await self._call(model, self.config.models[model], pair)
        except NoInstance as error:
            probe.why_not = str(error)
        except CallError as error:
            probe.why_not = f"probe {probe.attempts} failed: {error}"
            _log.warning("model %s: %s", model, probe.why_not)
        else:
            probe.passed, probe.why_not = True, ""

    async def _call(self, model: str, config: ModelConfig, pair: Pair) -> None:
        if pair.colocated and self.cluster.is_disaggregated(model):
            raise EngineFailed(pair.decode.name, "is healthy, but no prefill instance is")
        path, salt, body = CallKind.TEXT.path, uuid.uuid4().hex, _probe_body(model, config)
        xargs = Marks().to_xargs(self.config.coordinator.engine_secret)
        kv: Mapping[str, object] | None = None
        if not pair.colocated:
            leg = prefill_body(body, model, salt, xargs, request_id=salt)
            kv = (await self.client.prefill(pair.prefill, path, leg)).remote_kv.take()
        leg = engine_body(body, model, salt, xargs, kv)
        answer = await self.client.one_token(pair.decode, path, leg)
        answer.release()
        parsed = read_answer(answer.first)
        if parsed is None or parsed.usage is None or parsed.usage.completion_tokens < 1:
            raise EngineFailed(pair.decode.name, "did not generate a token")


def _probe_body(model: str, config: ModelConfig) -> ClientBody:
    """More than one block, so that KV really moves; never longer than the context."""
    words = min(config.block_size + 8, config.max_model_len // 4)
    text = f'{{"model":"{model}","prompt":"{" a" * words}","max_tokens":1,"temperature":0}}'
    return read_body(CallKind.TEXT, text.encode())
