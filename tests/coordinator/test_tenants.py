"""Two tenants with the same session id and the same words share nothing, and none of them can tell
from cached tokens, from time or from a quote what the other has cached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coordinator.calls import CallKind
from tests.coordinator.api_calls import a_body, a_question, answered, prompt_and_cached
from tests.coordinator.call_rig import COLOCATED, TWO_PD, a_coordinator, until

if TYPE_CHECKING:
    from tests.coordinator.call_rig import Rig

LONG = " ".join(f"secret{number}" for number in range(100))
CHATS = (CallKind.CHAT, CallKind.RESPONSES, CallKind.MESSAGES)
ALICE = {"authorization": "Bearer alice", "x-session-id": "s"}
BOB = {"authorization": "Bearer bob", "x-session-id": "s"}
ANTHROPIC_BOB = {"x-api-key": "bob", "x-session-id": "s"}


async def ask(
    rig: Rig, kind: CallKind, model: str, messages: list[Any], headers: dict[str, str]
) -> dict[str, Any]:
    body = a_body(kind, messages, model=model)
    reply = await rig.client.post(kind.path, json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


async def quote(rig: Rig, headers: dict[str, str]) -> Any:
    reply = await rig.client.get("/v1/sessions/s/quote", headers=headers)
    return reply.status_code, reply.json()


@pytest.mark.parametrize("layout", [COLOCATED, TWO_PD], ids=["colocated", "pd"])
@pytest.mark.parametrize("kind", CHATS)
async def test_what_one_has_cached_serves_the_other_nothing(
    kind: CallKind, layout: dict[str, Any]
) -> None:
    async with a_coordinator(layout, shadow=True) as rig:
        flow = rig.app.state.shadow
        before = await quote(rig, BOB)
        first = await ask(rig, kind, "small", [a_question(LONG)], ALICE)
        history = [a_question(LONG), *answered(kind, first), a_question("go on")]
        await until(lambda: flow.counters.segments and not flow.running, "the shadow is there")
        assert await quote(rig, BOB) == before, "of a session that Alice has, and Bob has not"
        for model in ("large", "small"):
            told = await ask(rig, kind, model, history, BOB)
            assert prompt_and_cached(kind, told)[1] == 0, model
        told = await ask(rig, kind, "large", history, ALICE)
        assert prompt_and_cached(kind, told)[1] > 0, "her own is there"


async def test_a_call_that_is_new_costs_a_tenant_the_same_whatever_others_have_cached() -> None:
    """Time is what the engine has to compute: exactly the tokens that it did not find."""

    async def computed(*, alice_first: bool) -> list[int]:
        async with a_coordinator(COLOCATED) as rig:
            if alice_first:
                await ask(rig, CallKind.CHAT, "small", [a_question(LONG)], ALICE)
            await ask(rig, CallKind.CHAT, "small", [a_question(LONG)], BOB)
            call = rig.calls("small-1")[-1]
            session = (await rig.client.get("/v1/sessions/s", headers=BOB)).json()
            return [len(call.prompt_ids) - call.cached_tokens, len(session["calls"])]

    assert await computed(alice_first=True) == await computed(alice_first=False)


async def test_the_quote_of_an_own_session_does_not_change_with_what_others_do() -> None:
    async with a_coordinator(COLOCATED, shadow=True) as rig:
        flow = rig.app.state.shadow
        await ask(rig, CallKind.CHAT, "small", [a_question(LONG)], BOB)
        await until(lambda: not flow.running, "his shadow is there")
        before = await quote(rig, BOB)
        assert before[0] == 200
        first = await ask(rig, CallKind.CHAT, "small", [a_question(LONG * 3)], ALICE)
        history = [a_question(LONG * 3), *answered(CallKind.CHAT, first), a_question("go on")]
        await ask(rig, CallKind.CHAT, "large", history, ALICE)
        await until(lambda: not flow.running, "hers is there, too")
        assert await quote(rig, BOB) == before


async def test_a_key_is_the_same_tenant_in_either_header() -> None:
    async with a_coordinator(COLOCATED) as rig:
        await ask(rig, CallKind.CHAT, "small", [a_question(LONG)], BOB)
        told = await ask(rig, CallKind.MESSAGES, "small", [a_question(LONG)], ANTHROPIC_BOB)
        assert prompt_and_cached(CallKind.MESSAGES, told)[1] > 0
        sessions = (await rig.client.get("/v1/sessions", headers=ANTHROPIC_BOB)).json()
        assert [row["calls"] for row in sessions["data"]] == [2]
