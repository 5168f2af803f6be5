"""How long an answer may take: to its first byte if it is streamed, as a whole if not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.coordinator.call_rig import PD, a_chat, a_coordinator, until

if TYPE_CHECKING:
    from bench.fake_engine import FakeEngine

FIRST_BYTE = {"first_byte_timeout_s": 1.0}
WHOLE = {"answer_timeout_s": 1.0}
TWO_D = PD | {"small-d2": ("small", "decode")}


async def test_a_whole_answer_may_take_longer_than_a_first_byte() -> None:
    async with a_coordinator(PD, limits=FIRST_BYTE, engine={"chunk_delay_s": 0.2}) as rig:
        reply = await rig.chat(a_chat(max_tokens=8, ignore_eos=True))
        assert reply.status_code == 200
        assert reply.json()["usage"]["completion_tokens"] == 8
        assert reply.elapsed.total_seconds() > FIRST_BYTE["first_byte_timeout_s"]


async def test_a_whole_answer_that_is_not_complete_in_time_is_an_error_that_names_the_limit() -> (
    None
):
    async with a_coordinator(TWO_D, limits=WHOLE) as rig:
        for engine in rig.engines.values():
            if engine.settings.role == "decode":
                engine.faults.hang()
        reply = await rig.chat(a_chat(), x_session_id="s")
        assert reply.status_code == 504
        error = reply.json()["error"]
        assert error["code"] == "engine_timeout"
        assert "within 1 s" in error["message"]
        asked = [name for name in ("small-d", "small-d2") if rig.calls(name)]
        assert len(asked) == 1, "what takes too long here would do so there"
        await until(lambda: rig.engines[asked[0]].cancelled == 1, "the engine's request ends")
        suspect = rig.app.state.cluster.instances[asked[0]]
        assert suspect.suspect_until_s, "the next call prefers another"


async def test_a_hanging_p_ends_at_the_first_byte_limit_whatever_the_answer() -> None:
    async with a_coordinator(PD, limits=FIRST_BYTE) as rig:
        rig.engines["small-p"].faults.hang()
        reply = await rig.chat(a_chat())
        assert reply.status_code == 200
        assert reply.headers["x-shadowprefill-p-instance"] == "small-d"
        assert "did not begin" in rig.app.state.cluster.instances["small-p"].last_error


async def test_a_probe_of_a_hanging_engine_ends_at_the_first_byte_limit() -> None:
    def hang(engines: dict[str, FakeEngine]) -> None:
        engines["small-d"].faults.hang()

    async with a_coordinator(PD, limits=FIRST_BYTE, prepare=hang, ready=False) as rig:
        probes = rig.app.state.health.probes
        await until(lambda: "did not begin" in probes["small"].why_not, "the probe gave up")
