"""Starts what bench.coordinator_overhead compares: our coordinator and vllm-router.

Every router runs alone on the router core; the fast fake engines live in the load client's process.
Host: bench.coordinator_overhead."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import aiohttp

from bench.fake_engine.wire import Listening, listening
from bench.load_client import Leg, http_request
from kv_transport.kv_params import PREFILL_LEG_KV_PARAMS
from policy.vocabulary import Role

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Sequence

Mode = Literal["plain", "pd"]
Body = dict[str, Any]

MODEL = "small"
OTHER_MODEL = "large"
CHAT = "/v1/chat/completions"
START_TIMEOUT_S = 60.0
# Binds itself before it becomes the router, so that every thread of the router inherits the core.
_PINNED = (
    "import os,sys; os.sched_setaffinity(0,{int(sys.argv[1])}); os.execvp(sys.argv[2],sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class Engines:
    """The fake engines of one mode: per model prefill and decode (colocated: the same twice)."""

    mode: Mode
    sides: dict[str, tuple[Listening, Listening]]


@dataclass(frozen=True, slots=True)
class System:
    """What one column of the result measures."""

    name: str
    url: str
    pid: int | None
    """None: nothing stands between client and engines."""

    def legs(self, engines: Engines, calls: Sequence[tuple[Body, dict[str, str]]]) -> list[Leg]:
        """The calls as this system's client sends them; `direct` does P and D by itself."""
        if self.pid is not None:
            return [Leg(self.url, [http_request(CHAT, body, head) for body, head in calls])]
        prefill, decode = engines.sides[MODEL]
        legs = [Leg(decode.url, [http_request(CHAT, body, head) for body, head in calls])]
        if engines.mode == "pd":
            asks = [_prefill_leg(body) for body, _ in calls]
            legs.insert(0, Leg(prefill.url, [http_request(CHAT, body) for body in asks]))
        return legs


@contextlib.asynccontextmanager
async def fake_engines(mode: Mode, output_tokens: int) -> AsyncIterator[Engines]:
    sides: dict[str, tuple[Listening, Listening]] = {}
    async with contextlib.AsyncExitStack() as stack:
        for model in (MODEL, OTHER_MODEL):
            listened = [
                await stack.enter_async_context(listening(model, role, output_tokens))
                for role in _ROLES[mode]
            ]
            sides[model] = (listened[0], listened[-1])
        yield Engines(mode, sides)


@contextlib.asynccontextmanager
async def systems(engines: Engines, core: int, directory: Path) -> AsyncIterator[list[System]]:
    """All systems of one mode, answering. They idle while another one is measured."""
    async with contextlib.AsyncExitStack() as stack:
        started = [System("direct", "", None)]
        for name, command, port in [
            _vllm_router(engines),
            _coordinator(engines, directory, with_shadow=False),
            _coordinator(engines, directory, with_shadow=True),
        ]:
            log = directory / f"{name}-{engines.mode}.log"
            process = await stack.enter_async_context(_process(command, core, log))
            system = System(name, f"http://127.0.0.1:{port}", process.pid)
            await _until_it_answers(system, process, log)
            started.append(system)
        yield started


Started = tuple[str, list[str], int]


def _vllm_router(engines: Engines) -> Started:
    prefill, decode = engines.sides[MODEL]
    workers = ["--worker-urls", decode.url]
    if engines.mode == "pd":
        workers = ["--vllm-pd-disaggregation", "--prefill", prefill.url, "--decode", decode.url]
    port = _free_port()
    command = [str(Path(sys.executable).with_name("vllm-router")), *workers]
    command += ["--policy", "round_robin", "--port", str(port), "--log-level", "error"]
    command += ["--prometheus-port", str(_free_port()), "--worker-startup-check-interval", "1"]
    return "vllm_router", command, port


def _coordinator(engines: Engines, directory: Path, *, with_shadow: bool) -> Started:
    name = "ours_shadow" if with_shadow else "ours"
    port = _free_port()
    path = directory / f"{name}-{engines.mode}.yaml"
    # JSON is YAML.
    path.write_text(json.dumps(cluster_config(engines, port, with_shadow=with_shadow), indent=1))
    return name, [sys.executable, "-m", "coordinator", "--config", str(path)], port


def cluster_config(engines: Engines, port: int, *, with_shadow: bool) -> dict[str, Any]:
    """Two models with shadow work, or one model without."""
    models = [MODEL, OTHER_MODEL] if with_shadow else [MODEL]
    model = {"path": "fake", "max_model_len": 131072, "slo": {"ttft_s": 1.0, "tpot_s": 0.05}}
    instances: dict[str, Any] = {}
    for name in models:
        for role, side in zip(_ROLES[engines.mode], engines.sides[name], strict=False):
            instances[f"{name}-{role.value}"] = {
                "model": name,
                "role": role.value,
                "port": int(side.url.rpartition(":")[2]),
                "kv_port": None if role is Role.COLOCATED else _free_port(),
                "attach_url": side.url,
            }
    return {
        "profile": "cpu",
        "models": dict.fromkeys(models, model),
        "instances": instances,
        "shadow": {"controller": "harvest-slo" if with_shadow else "off"},
        # A machine that is busy with something else must not make an engine look dead.
        "coordinator": {"port": port, "probe_interval_s": 10.0},
    }


_ROLES: dict[Mode, tuple[Role, ...]] = {
    "plain": (Role.COLOCATED,),
    "pd": (Role.PREFILL, Role.DECODE),
}


def _prefill_leg(body: Body) -> Body:
    short = {"max_tokens": 1, "stream": False, "kv_transfer_params": PREFILL_LEG_KV_PARAMS}
    return {name: body[name] for name in body if name != "stream_options"} | short


@contextlib.asynccontextmanager
async def _process(command: list[str], core: int, log: Path) -> AsyncIterator[Process]:
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _PINNED, str(core), *command, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _until_it_answers(system: System, process: Process, log: Path) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1}
    last = "no answer"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_TIMEOUT_S), aiohttp.ClientSession() as session:
            while process.returncode is None:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.post(system.url + CHAT, json=body) as reply:
                        if reply.status == 200:
                            return
                        last = f"{reply.status} {await reply.text()}"
                await asyncio.sleep(0.1)
    raise RuntimeError(
        f"{system.name} (exit status {process.returncode}) did not answer within "
        f"{START_TIMEOUT_S} s; last: {last}; its output ends with:\n{_end_of(log)}"
    )


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def cpu_s(pid: int) -> float:
    """Processor time of a process, every thread counted, to the nanosecond."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def pin_client() -> tuple[int, int]:
    """Binds this process to the first core it may use; gives (client core, router core)."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    return cores[0], cores[-1]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
