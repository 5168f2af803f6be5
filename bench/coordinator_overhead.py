"""What the coordinator costs, beside vllm-router, in front of engines that answer at once.

    python -m bench.coordinator_overhead --save-result --result-dir out/bench [--smoke] [--gate]

The systems take turns in every round, so that noise of the machine hits all of them, and every
figure is the median over rounds. `direct` is the client at the fake engines without a router (for
PD it does both legs itself); "added" is a system's latency minus that. `ours_shadow` is the same
coordinator with two models and shadow work on, under calls of growing sessions: what the shadow
flow costs at full load."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from rich.console import Console

from bench.load_client import Leg, run_load
from bench.overhead_report import Rounds, Sample, gates, summary, table
from bench.overhead_systems import (
    MODEL,
    OTHER_MODEL,
    Body,
    Engines,
    Mode,
    System,
    cpu_s,
    fake_engines,
    pin_client,
    systems,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

CONSOLE = Console()
OUTPUT_TOKENS = 64
"""Events of one stream, and tokens of one whole answer."""
CELLS = {"c1": (1, False), "c16": (16, False), "c64": (64, False), "stream": (16, True)}
"""Name -> (connections, streamed)."""
SESSIONS = 256
CALLS_PER_SESSION = 8
TURN_TEXT = "Read the file and tell me which function opens the socket, and why it is not closed. "

Call = tuple[Body, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    cell_s: float
    warm_up_s: float


FULL = Effort(rounds=5, cell_s=0.8, warm_up_s=0.2)
SMOKE = Effort(rounds=1, cell_s=0.2, warm_up_s=0.1)


def single_calls(*, streamed: bool) -> list[Call]:
    """One-turn requests of about 700 bytes that do not belong to a session."""
    return [(_body(1, f"task {number}", streamed=streamed), {}) for number in range(SESSIONS)]


def session_calls(*, streamed: bool) -> list[Call]:
    """Sessions whose history grows by two messages per call, as an agent's does."""
    return [
        (
            _body(turns, f"session {session}", streamed=streamed),
            {"x-session-id": f"session-{session}"},
        )
        for session in range(SESSIONS)
        for turns in range(1, CALLS_PER_SESSION + 1)
    ]


def _body(turns: int, task: str, *, streamed: bool) -> Body:
    messages = [{"role": "user", "content": f"{task}: " + TURN_TEXT * 7}]
    for turn in range(1, turns):
        messages.append({"role": "assistant", "content": f"Step {turn}. " + TURN_TEXT * 2})
        messages.append({"role": "user", "content": f"Result {turn}. " + TURN_TEXT * 3})
    body: Body = {"model": MODEL, "messages": messages, "max_tokens": OUTPUT_TOKENS}
    return body | {"stream": True} if streamed else body


async def _cell(system: System, legs: Sequence[Leg], connections: int, effort: Effort) -> Sample:
    before_s = cpu_s(system.pid) if system.pid else 0.0
    result = await run_load(
        legs, connections=connections, duration_s=effort.cell_s, warm_up_s=effort.warm_up_s
    )
    used_s = cpu_s(system.pid) - before_s if system.pid else 0.0
    return Sample.of(result, used_s)


def _legs(engines: Engines, compared: Sequence[System]) -> dict[tuple[str, bool], list[Leg]]:
    """Per system and kind of answer: what its clients send."""
    legs = {}
    for system in compared:
        make = session_calls if system.name == "ours_shadow" else single_calls
        for streamed in (False, True):
            legs[system.name, streamed] = system.legs(engines, make(streamed=streamed))
    return legs


async def _mode(mode: Mode, core: int, effort: Effort, directory: Path) -> tuple[Rounds, int]:
    """All rounds of one mode, and how many requests the shadow flow sent to the other model."""
    rounds: Rounds = []
    async with (
        fake_engines(mode, OUTPUT_TOKENS) as engines,
        systems(engines, core, directory) as compared,
    ):
        CONSOLE.print(f"{mode}: {', '.join(system.name for system in compared)} are up")
        # Made before the first round: while this process builds requests its engines are deaf.
        legs = _legs(engines, compared)
        for number in range(effort.rounds):
            one: dict[str, dict[str, Sample]] = {system.name: {} for system in compared}
            for cell, (connections, streamed) in CELLS.items():
                for system in compared:
                    own = legs[system.name, streamed]
                    one[system.name][cell] = await _cell(system, own, connections, effort)
            rounds.append(one)
            CONSOLE.print(f"{mode}: round {number + 1} of {effort.rounds} done")
        shadow_requests = engines.sides[OTHER_MODEL][0].replies.generated
    return rounds, shadow_requests


async def measure(effort: Effort, directory: Path) -> dict[str, Any]:
    """The whole comparison; `directory` takes generated configurations and the routers' logs."""
    started_at_s = time.perf_counter()
    client_core, router_core = pin_client()
    load_before = os.getloadavg()[0]
    modes: dict[str, Rounds] = {}
    shadow_requests: dict[str, int] = {}
    for mode in ("plain", "pd"):
        modes[mode], shadow_requests[mode] = await _mode(mode, router_core, effort, directory)
    per_mode = {mode: summary(rounds) for mode, rounds in modes.items()}
    names = list(per_mode["plain"])
    by_system = {name: {mode: per_mode[mode][name] for mode in modes} for name in names}
    return by_system | {
        "gates": gates(modes),
        "shadow_requests": shadow_requests,
        "setup": {
            "client_and_fake_engines_core": client_core,
            "router_core": router_core,
            "rounds": effort.rounds,
            "cell_s": effort.cell_s,
            "output_tokens": OUTPUT_TOKENS,
            "load_average_before": round(load_before, 2),
            "load_average_after": round(os.getloadavg()[0], 2),
            "duration_s": round(time.perf_counter() - started_at_s, 1),
            "cpu_count": os.cpu_count(),
            "python": platform.python_version(),
            "vllm_router_version": version("vllm-router"),
        },
    }


def show(result: dict[str, Any]) -> None:
    setup = result["setup"]
    CONSOLE.print(
        f"load client and fake engines on core {setup['client_and_fake_engines_core']}, the router "
        f"under test alone on core {setup['router_core']}; {setup['rounds']} rounds of "
        f"{setup['cell_s']} s; load average {setup['load_average_before']} before, "
        f"{setup['load_average_after']} after"
    )
    names = ("direct", "vllm_router", "ours", "ours_shadow")
    for mode in ("plain", "pd"):
        CONSOLE.print(table(mode, {name: result[name][mode] for name in names}))
        CONSOLE.print(f"{mode}: {result['gates'][mode]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.coordinator_overhead")
    parser.add_argument("--save-result", action="store_true")
    parser.add_argument("--result-dir", type=Path, default=Path("out/bench"))
    parser.add_argument("--smoke", action="store_true", help="one short round: does it run?")
    parser.add_argument("--gate", action="store_true", help="exit 1 if a gate is missed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overhead-") as directory:
        effort = SMOKE if arguments.smoke else FULL
        result = uvloop.run(measure(effort, Path(directory)))
    show(result)
    if arguments.save_result:
        arguments.result_dir.mkdir(parents=True, exist_ok=True)
        path = arguments.result_dir / "coordinator_overhead.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        CONSOLE.print(f"written to {path}")
    return 1 if arguments.gate and not result["gates"]["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
