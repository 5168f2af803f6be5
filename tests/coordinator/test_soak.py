"""Many clients for a long time, bad ones among them: nothing of them stays.

The coordinator runs as a process of its own, so that its memory and its open files can be counted.
CI takes a short length; `SHADOWPREFILL_SOAK=full` takes 1,500 streams at once and 100,000 sessions,
and prints what it has measured (`-s` shows it)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from bench.fake_engine.wire import PreparedReplies, WireEngine, listening
from policy.vocabulary import Role
from tests.coordinator.call_rig import a_cluster
from tests.coordinator.cluster_rig import ROOT
from tests.coordinator.soak_client import END, WANT_ALL, Line, Manner, one_stream
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.soak

IS_FULL = os.environ.get("SHADOWPREFILL_SOAK") == "full"
STREAMS, ROUNDS = (1500, 8) if IS_FULL else (90, 3)
SESSIONS, KEPT_SESSIONS = (300_000, 100_000) if IS_FULL else (3000, 1000)
RACES = 5000 if IS_FULL else 250
LINES = 16
OUTPUT_TOKENS = 64
MIB = 1024 * 1024
SLACK_BYTES = 24 * MIB
"""What an allocator may keep of a burst, and what a second burst may find fragmented."""


@dataclass(frozen=True)
class Soaked:
    """A coordinator as a process."""

    port: int
    pid: int

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def series(self, name: str) -> float:
        for line in self._get("/metrics").splitlines():
            if line.startswith(name):
                return float(line.split()[-1])
        raise AssertionError(name)

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self._get("/ready"))
        return False

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
            return text


@contextlib.asynccontextmanager
async def soaked(folder: Path, engine_url: str, max_sessions: int = 1000) -> AsyncIterator[Soaked]:
    """Ends it with SIGTERM, and an end that is not clean fails the test. (uvicorn shuts down, and
    then dies of the signal all the same: only its last word tells.)"""
    (port,) = free_ports(1)
    config = a_cluster(
        {"small-1": ("small", "colocated", engine_url)},
        # A burst beyond the engine's backlog connects at the kernel's second try, after a second.
        {
            "port": port,
            "max_sessions": max_sessions,
            "probe_interval_s": 20.0,  # the engine shares a loop with all of the clients
            "connect_timeout_s": 30.0,
        },
    )
    path = folder / "cluster.yaml"
    document = config.model_dump(mode="json", exclude_none=True)
    document["models"]["small"]["path"] = str(folder)
    path.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "coordinator", "--config", str(path)]
    log = folder / "log"
    # (blocking, before anything runs)
    with (
        log.open("w") as file,
        subprocess.Popen(command, cwd=ROOT, stderr=file) as process,  # noqa: ASYNC220
    ):
        try:
            one = Soaked(port, process.pid)
            await until(one.is_ready)
            yield one
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait, 60)
            said = log.read_text()
            assert "Finished server process" in said, said
            assert "Traceback" not in said, said
        finally:
            process.kill()


async def until(condition: object, limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not await asyncio.to_thread(condition):  # type: ignore[arg-type]
        assert time.monotonic() < deadline_s, condition
        await asyncio.sleep(0.05)


def say(text: str) -> None:
    """The full length is run by hand, for these."""
    if IS_FULL:
        sys.stdout.write(f"\n{text}\n")


async def test_bad_clients_among_many_streams_leave_nothing_behind(tmp_path: Path) -> None:
    async with (
        listening("small", Role.COLOCATED, OUTPUT_TOKENS) as engine,
        soaked(tmp_path, engine.url) as one,
    ):
        files = one.open_files
        residents = []
        for number in range(ROUNDS):
            manners = [list(Manner)[at % len(Manner)] for at in range(STREAMS)]
            calls = (one_stream(one.port, f"s{at}", manner) for at, manner in enumerate(manners))
            tails = await asyncio.wait_for(asyncio.gather(*calls), 300)
            cut = [
                tail
                for tail, manner in zip(tails, manners, strict=True)
                if manner in WANT_ALL and END not in tail
            ]
            assert not cut, f"round {number}: {len(cut)} good clients were cut off: {cut[0]!r}"
            await until(lambda: one.series("shadowprefill_calls_in_flight") == 0)
            # One for this question, and those to the engine that are kept: the others go a few at a
            # time, with the next calls.
            line = Line(one.port)
            while one.open_files > files + 8:
                assert (await line.call("after"))[0] == 200
                await asyncio.sleep(0.05)
            await line.close()
            residents.append(one.resident_bytes)
        say(f"streams: resident MiB after each round {[size // MIB for size in residents]}")
        # The first rounds of a burst fill what the allocator keeps for the next one.
        assert residents[-1] - residents[ROUNDS // 2] < SLACK_BYTES, residents


async def test_sessions_come_and_go_and_memory_stays(tmp_path: Path) -> None:
    async with (
        listening("small", Role.COLOCATED, 1) as engine,
        soaked(tmp_path, engine.url, KEPT_SESSIONS) as one,
    ):
        names = iter(f"session-{number}" for number in range(SESSIONS))
        residents: list[int] = []

        async def some(line: Line, count: int) -> None:
            for name, _ in zip(names, range(count), strict=False):
                assert (await line.call(name))[0] == 200

        started_s = time.monotonic()
        lines = [Line(one.port) for _ in range(LINES)]
        for _ in range(SESSIONS // KEPT_SESSIONS):
            await asyncio.gather(*(some(line, KEPT_SESSIONS // LINES) for line in lines))
            residents.append(one.resident_bytes)
        calls_per_s = SESSIONS / (time.monotonic() - started_s)
        say(
            f"sessions: resident MiB after each {KEPT_SESSIONS} {[s // MIB for s in residents]}, "
            f"{calls_per_s:.0f} calls per second"
        )
        for line in lines:
            await line.close()
        # The store is full after the first: what comes then takes the place of what goes.
        assert residents[-1] - residents[0] < max(SLACK_BYTES, residents[0] // 10), residents
        await until(lambda: one.series("shadowprefill_calls_in_flight") == 0)


class ImpatientEngine(WireEngine):
    """Closes a connection that is idle, sometimes just as the next request is on its way."""

    chance = random.Random(7)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        delay_s = self.chance.uniform(0, 0.01)
        asyncio.get_running_loop().call_later(delay_s, self.leave)

    def leave(self) -> None:
        self._transport.close()


async def test_a_race_with_an_engine_that_closes_idle_connections_is_won(tmp_path: Path) -> None:
    replies = PreparedReplies("small", Role.COLOCATED, 1)
    connections: set[WireEngine] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: ImpatientEngine(replies, connections), "127.0.0.1", 0, backlog=512
    )
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    chance = random.Random(8)
    try:
        async with soaked(tmp_path, url) as one:
            line = Line(one.port)
            for number in range(RACES):
                status, answer = await line.call(f"s{number % 50}")
                assert status == 200, answer
                await asyncio.sleep(chance.uniform(0, 0.01))
            await line.close()
            say(f"races: {RACES} calls, {replies.generated} requests seen by the engine")
    finally:
        server.close()
        for connection in tuple(connections):
            connection.abort()
        await asyncio.sleep(0)
