"""A shadow flow over fake engines, driven by hand as pd_flow would drive it."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from bench.fake_engine import FakeEngine, create_app, running
from configs.schema import (
    ClusterConfig,
    InstanceConfig,
    ModelConfig,
    ShadowConfig,
    SloConfig,
)
from coordinator.calls import CallContext, CallKind
from coordinator.node_state import Cluster
from coordinator.sessions import CallRecord, Session
from coordinator.shadow_flow import ShadowFlow
from coordinator.shadow_quota import ShadowQuota
from coordinator.usage import Usage
from policy.vocabulary import RequestClass, Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from coordinator.shadow_job import ShadowJob

BLOCK = 32
SEGMENT = 256
Messages = list[dict[str, Any]]


def shadow_config(**changes: Any) -> ShadowConfig:
    defaults: dict[str, Any] = {
        "beta": 0.5,
        "delta": 0.025,
        "margin": 0.1,
        "n_min_tokens": 32,
        "iteration_cap_s": 0.5,
        "segment_tokens": SEGMENT,
        "resubmit_tokens": 64,
        "max_chunk_tokens": 64,
        "kv_cap_share": 0.25,
        "idle_age_s": 5,
        "top_k": 4,
        "min_switch_probability": 0,
        "timeout_s": 60,
    }
    return ShadowConfig(**defaults | changes)


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def some_words(count: int, seed: str = "w") -> str:
    return " ".join(f"{seed}{index}" for index in range(count))


def sse(**delta: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        # Engines and flow signal nothing to a test: poll, with the deadline above.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@dataclass
class Rig:
    config: ClusterConfig
    flow: ShadowFlow
    cluster: Cluster
    engines: dict[str, FakeEngine]
    """By instance: `small`, or `small-p` and `small-d`."""
    calls: int = field(default=0)

    def session(self, name: str = "s1", tenant: str = "tenant-0001") -> Session:
        return Session(id=name, tenant=tenant, kind=CallKind.CHAT, identified=True)

    def call(self, session: Session, model: str, **fields: object) -> CallContext:
        """A call that has just been placed; give `messages` or `prompt`."""
        self.calls += 1
        raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}
        call = CallContext(
            kind=CallKind.TEXT if "prompt" in fields else CallKind.CHAT,
            number=self.calls,
            model=model,
            previous_model=session.current_model,
            request_class=RequestClass.ROUTED,
            stream=True,
            body_fields=raw,
            started_s=0.0,
        )
        call.record = CallRecord(call=self.calls, model=model, is_switch=call.is_switch)
        session.current_model = model
        self.flow.call_started(session, call)
        return call

    def answer(self, session: Session, call: CallContext, text: str) -> None:
        """The whole answer and the end of the call."""
        self.flow.output_bytes(session, call, sse(content=text) + b"data: [DONE]\n\n")
        self.flow.call_ended(session, call, ok=True)

    def job(self, session: Session, model: str) -> ShadowJob:
        return self.flow._sessions[session.key].jobs[model]

    async def idle(self) -> None:
        """Until nothing is left to do."""
        await until(lambda: not self.flow._changed and not self.flow._wake.is_set())
        await until(lambda: not self.flow._worker._tasks)
        for shadows in self.flow._sessions.values():
            for job in shadows.jobs.values():
                job.check()

    def prompt_ids(self, instance: str, messages: Messages, **fields: object) -> list[int]:
        """What a call with these messages would be to that engine."""
        body = {"messages": messages, **fields}
        return self.engines[instance].prompt_ids("/v1/chat/completions", body)

    def cached(self, session: Session, instance: str, messages: Messages, **fields: object) -> int:
        ids = self.prompt_ids(instance, messages, **fields)
        return self.engines[instance].cache.hit_tokens(session.cache_salt, ids)

    def segments(self, instance: str) -> list[int]:
        """Lengths of the segments that the instance was asked for."""
        return [len(record.body["prompt"]) for record in self.engines[instance].generating()]


@asynccontextmanager
async def a_rig(
    *,
    models: tuple[str, ...] = ("small", "large"),
    disaggregated: bool = False,
    prefills: int = 1,
    max_model_len: int = 8192,
    **shadow: Any,
) -> AsyncIterator[Rig]:
    """Every model but the first tokenises by bytes; the first by words."""
    roles = {"": Role.COLOCATED}
    if disaggregated:
        roles = {"p": Role.PREFILL, "d": Role.DECODE}
        roles |= {f"p{number}": Role.PREFILL for number in range(2, prefills + 1)}
    instances: dict[str, InstanceConfig] = {}
    engines: dict[str, FakeEngine] = {}
    async with AsyncExitStack() as stack:
        for model in models:
            for suffix, role in roles.items():
                name = f"{model}-{suffix}".rstrip("-")
                app = create_app(
                    model=model,
                    role=role,
                    block_size=BLOCK,
                    max_model_len=max_model_len,
                    vocabulary="words" if model == models[0] else "bytes",
                )
                url = await stack.enter_async_context(running(app))
                engines[name] = app.state.engine
                instances[name] = InstanceConfig(
                    model=model, role=role, port=1, kv_port=5600, attach_url=url
                )
        slo = SloConfig(ttft_s=1, tpot_s=1)
        config = ClusterConfig(
            profile="cpu",
            models={
                name: ModelConfig(path=name, max_model_len=max_model_len, block_size=BLOCK, slo=slo)
                for name in models
            },
            instances=instances,
            shadow=shadow_config(**shadow),
        )
        cluster = Cluster(config, lambda: 0.0)
        for instance in cluster.instances.values():
            instance.healthy = True
        quota = ShadowQuota(None, {}, lambda: 0.0)
        flow = ShadowFlow(config, cluster, quota, Usage(config.models))
        await flow.start()
        stack.push_async_callback(flow.stop)
        yield Rig(config, flow, cluster, engines)
