"""The overhead benchmark: its client reads answers exactly, its figures are what they say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench.fake_engine.wire import listening
from bench.load_client import Leg, LoadFailed, LoadResult, http_request, run_load
from bench.overhead_report import Round, Sample, gates, summary
from bench.overhead_systems import System, fake_engines
from policy.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CHAT = "/v1/chat/completions"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"
)
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfour"


def a_request(stream: bool = False) -> bytes:
    return http_request(CHAT, {"model": "small", "messages": [], "stream": stream})


@contextlib.asynccontextmanager
async def dribbling(answer: bytes, piece_bytes: int) -> AsyncIterator[str]:
    """A server that sends `answer` to every request in pieces of that size."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.rpartition(b"content-length: ")[2]))
                for at in range(0, len(answer), piece_bytes):
                    writer.write(answer[at : at + piece_bytes])
                    await writer.drain()
                    await asyncio.sleep(0)

    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for writer in connections:
        writer.transport.abort()
    await asyncio.sleep(0)


async def load(url: str, request: bytes) -> LoadResult:
    return await run_load([Leg(url, [request])], connections=2, duration_s=0.1, warm_up_s=0.0)


@pytest.mark.parametrize("piece_bytes", [1, 3, 1000])
@pytest.mark.parametrize(("answer", "events"), [(CHUNKED, 2), (SIZED, 0)], ids=["chunked", "sized"])
async def test_answers_end_where_they_end_however_they_arrive(
    answer: bytes, events: int, piece_bytes: int
) -> None:
    async with dribbling(answer, piece_bytes) as url:
        result = await load(url, a_request())
    assert len(result.latencies_s) > 0
    assert result.events == events * len(result.latencies_s)


async def test_an_error_answer_ends_the_run_with_its_text() -> None:
    refusal = b"HTTP/1.1 503 Nope\r\nContent-Length: 2\r\n\r\nno"
    async with dribbling(refusal, 1000) as url:
        with pytest.raises(LoadFailed, match="503 Nope"):
            await load(url, a_request())


async def test_a_closed_connection_ends_the_run() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(LoadFailed, match="closed"):
            await load(url, a_request())


@pytest.mark.parametrize(
    ("stream", "events_per_call"), [(False, 0), (True, 7)], ids=["whole", "stream"]
)
async def test_the_fast_engine_answers_what_was_asked_for(
    stream: bool, events_per_call: int
) -> None:
    # Role chunk, four tokens, the finish chunk and [DONE].
    async with listening("small", Role.COLOCATED, 4) as engine:
        result = await load(engine.url, a_request(stream))
    assert result.events == events_per_call * len(result.latencies_s)
    assert engine.replies.generated >= result.all_calls > 0


async def test_a_direct_pd_call_asks_p_then_d() -> None:
    body = {"model": "small", "messages": [], "max_tokens": 4}
    async with fake_engines("pd", 4) as engines:
        legs = System("direct", "", None).legs(engines, [(body, {})])
        result = await run_load(legs, connections=1, duration_s=0.05, warm_up_s=0.0)
        prefill, decode = engines.sides["small"]
        assert prefill.replies.generated - decode.replies.generated in (0, 1)
        assert decode.replies.generated >= result.all_calls > 0
    assert b'"max_tokens": 1' in legs[0].requests[0]
    assert b"do_remote_decode" in legs[0].requests[0]
    assert b"do_remote_decode" not in legs[1].requests[0]


def a_sample(p50_ms: float, calls_per_s: float) -> Sample:
    return Sample(
        p50_ms=p50_ms,
        p99_ms=2 * p50_ms,
        calls=1,
        calls_per_s=calls_per_s,
        events_per_s=0.0,
        cpu_ms_per_call=0.1,
    )


def a_round(*, ours_ms: float, ours_rps: float, direct_ms: float = 0.1) -> Round:
    figures = {"direct": (direct_ms, 9e4), "vllm_router": (0.3, 1e4), "ours": (ours_ms, ours_rps)}
    return {
        name: dict.fromkeys(("c1", "c16", "c64", "stream"), a_sample(*pair))
        for name, pair in figures.items()
    }


def test_added_latency_is_the_median_of_differences_within_a_round() -> None:
    rounds = [
        a_round(ours_ms=0.5, ours_rps=1.0, direct_ms=0.1),
        a_round(ours_ms=5.3, ours_rps=3.0, direct_ms=5.0),
        a_round(ours_ms=0.3, ours_rps=2.0, direct_ms=0.1),
    ]
    ours = summary(rounds)["ours"]
    assert ours["added_ms_p50_c1"] == pytest.approx(0.3)
    assert ours["added_ms_p99_c64"] == pytest.approx(0.6)
    assert ours["rps_c64"] == 2.0
    assert summary(rounds)["direct"]["added_ms_p50_c1"] == 0.0


@pytest.mark.parametrize(
    ("ours_ms", "ours_rps", "passed", "aim_reached"),
    [
        (0.45, 5001.0, True, True),
        (0.65, 2501.0, True, False),
        (0.65, 2499.0, False, False),
        (0.75, 9000.0, False, False),
    ],
    ids=["both_aims", "gates_only", "too_slow", "too_late"],
)
def test_gates(ours_ms: float, ours_rps: float, passed: bool, aim_reached: bool) -> None:
    verdict = gates({"plain": [a_round(ours_ms=ours_ms, ours_rps=ours_rps)]})
    assert (verdict["plain"]["passed"], verdict["plain"]["aim_reached"]) == (passed, aim_reached)
    assert verdict["passed"] == passed


def test_the_smoke_run_measures_every_system_in_both_modes(tmp_path: Path) -> None:
    pytest.importorskip("vllm_router", reason="vllm-router is not installed")
    command = [sys.executable, "-m", "bench.coordinator_overhead", "--smoke", "--save-result"]
    command += ["--result-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "coordinator_overhead.json").read_text())
    keys = {"added_ms_p50_c1", "added_ms_p99_c64", "rps_c64", "chunks_per_s"}
    for system in ("ours", "vllm_router", "direct", "ours_shadow"):
        for mode in ("plain", "pd"):
            assert keys <= result[system][mode].keys()
            assert result[system][mode]["rps_c64"] > 0
    assert min(result["shadow_requests"].values()) > 0
