"""Renders against a front end that answers, refuses, or answers nonsense."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from coordinator.calls import CallKind
from coordinator.engine_post import ShadowFailed, ShadowFailure
from coordinator.history import History
from coordinator.instances import Instance
from coordinator.render import Renderer
from coordinator.shadow_counters import ShadowCounters
from coordinator.stream_text import Answer
from policy.vocabulary import Role

TARGET = Instance(name="large", url="http://large", role=Role.COLOCATED, model="large")
CHAT = History(kind=CallKind.CHAT, text=b'[{"role":"user","content":"hi"}]', fields={})
WITH_TOOLS = History(kind=CallKind.CHAT, text=CHAT.text, fields={"tools": b"[]"})
TEXT = History(kind=CallKind.TEXT, text=b'"hi"', fields={})


@dataclass
class FrontEnd:
    """Stands in for EnginePost: renders a body to its characters."""

    refuses: str = "\0"
    failure: ShadowFailure = ShadowFailure.REJECTED
    answer: bytes | None = None
    paths: list[str] = field(default_factory=list)

    async def __call__(self, instance: Instance, path: str, body: bytes) -> bytes:
        self.paths.append(path)
        if self.refuses in body.decode():
            raise ShadowFailed(self.failure, "no")
        if self.answer is not None:
            return self.answer
        asked = json.loads(body)
        text = asked.get("prompt") or "".join(
            f"<{m['role']}>{m['content']}" for m in asked["messages"]
        )
        rendered = {"token_ids": [ord(char) for char in text], "request_id": "r"}
        return json.dumps([rendered] if "prompt" in asked else rendered).encode()


async def prefix(front_end: FrontEnd, history: History) -> str:
    renderer = Renderer(front_end, ShadowCounters())  # type: ignore[arg-type]  # same call
    return "".join(map(chr, await renderer.stable_prefix(TARGET, history)))


async def test_the_stable_prefix_is_what_two_futures_share() -> None:
    answered = CHAT.answered(Answer(content="yo", complete=True))
    assert await prefix(FrontEnd(), CHAT) == "<user>hi<assistant>"
    assert await prefix(FrontEnd(), answered) == "<user>hi<assistant>yo<user>"
    assert await prefix(FrontEnd(), CHAT.answered(Answer(content="yo"))) == (
        "<user>hi<assistant>yo"
    )


async def test_chat_and_text_have_their_own_endpoints() -> None:
    front_end = FrontEnd()
    assert await prefix(front_end, TEXT.answered(Answer(content=" yo"))) == "hi yo"
    await prefix(front_end, CHAT)
    assert front_end.paths == ["/v1/completions/render"] * 2 + ["/v1/chat/completions/render"] * 2


async def test_a_template_that_refuses_tool_messages_gets_a_plainer_future() -> None:
    front_end = FrontEnd(refuses='"role":"tool"')
    assert await prefix(front_end, WITH_TOOLS) == "<user>hi<assistant>"
    # user (fine), tool (refused), then both plain ones
    assert len(front_end.paths) == 4


@pytest.mark.parametrize(
    ("front_end", "history", "failure", "renders"),
    [
        (FrontEnd(refuses="user"), WITH_TOOLS, ShadowFailure.REJECTED, 2),
        (
            FrontEnd(refuses="user", failure=ShadowFailure.TIMED_OUT),
            WITH_TOOLS,
            ShadowFailure.TIMED_OUT,
            1,
        ),
        (FrontEnd(answer=b"<html>"), CHAT, ShadowFailure.UNREADABLE, 1),
        (FrontEnd(answer=b"[]"), TEXT, ShadowFailure.UNREADABLE, 1),
        (FrontEnd(answer=b'{"token_ids": ["a"]}'), CHAT, ShadowFailure.UNREADABLE, 1),
        (
            FrontEnd(answer=b'{"token_ids": [1], "features": {"mm_hashes": {}}}'),
            CHAT,
            ShadowFailure.MULTIMODAL,
            1,
        ),
    ],
    ids=["refused", "timed_out", "html", "empty", "no_ids", "multimodal"],
)
async def test_a_render_that_fails_says_why(
    front_end: FrontEnd, history: History, failure: ShadowFailure, renders: int
) -> None:
    counters = ShadowCounters()
    renderer = Renderer(front_end, counters)  # type: ignore[arg-type]  # same call
    with pytest.raises(ShadowFailed) as caught:
        await renderer.stable_prefix(TARGET, history)
    assert caught.value.failure is failure
    assert counters.renders == renders


async def test_renders_are_counted_and_timed() -> None:
    counters = ShadowCounters()
    renderer = Renderer(FrontEnd(), counters)  # type: ignore[arg-type]  # same call
    await renderer.stable_prefix(TARGET, CHAT)
    assert counters.renders == 2
    assert counters.render_s > 0
    assert counters.rendered_tokens > 2 * len("<user>hi<assistant>")
