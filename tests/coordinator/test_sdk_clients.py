"""The libraries that people use: what they make of our answers, streams and errors."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest

from tests.coordinator.call_rig import PD, TWO_PD, a_coordinator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.coordinator.call_rig import Rig

QUESTION: Any = [{"role": "user", "content": "Which file sets the port?"}]
ASKED: dict[str, Any] = {"model": "small", "max_tokens": 6, "messages": QUESTION}


@asynccontextmanager
async def of_anthropic(rig: Rig) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=rig.url, api_key="me", auth_token=None, max_retries=0
    ) as client:
        yield client


@asynccontextmanager
async def of_openai(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="me", max_retries=0) as client:
        yield client


async def test_anthropics_library_reads_answers_and_streams() -> None:
    async with a_coordinator(PD) as rig, of_anthropic(rig) as client:
        whole = await client.messages.create(**ASKED)
        async with client.messages.stream(**ASKED) as stream:
            streamed = await stream.get_final_message()
        assert whole.content[0].type == streamed.content[0].type == "text"
        assert whole.content[0].text == streamed.content[0].text != ""
        assert whole.stop_reason == streamed.stop_reason == "max_tokens"
        assert whole.usage.output_tokens == streamed.usage.output_tokens == 6
        assert len(rig.calls("small-p")) == len(rig.calls("small-d")) == 2


async def test_openais_library_reads_responses_and_their_streams() -> None:
    async with a_coordinator(PD) as rig, of_openai(rig) as client:
        asked: dict[str, Any] = {"model": "small", "input": "Which file?", "max_output_tokens": 6}
        whole = await client.responses.create(**asked)
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        assert whole.output_text != ""
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == whole.output_text
        assert whole.usage is not None
        assert whole.usage.output_tokens == 6


async def test_a_conversation_goes_on_as_one_session_in_either_library() -> None:
    async with a_coordinator(TWO_PD) as rig, of_anthropic(rig) as ours, of_openai(rig) as theirs:
        first = await ours.messages.create(**ASKED)
        said = [{"role": "assistant", "content": first.content}, *QUESTION]
        await ours.messages.create(**ASKED | {"model": "large", "messages": QUESTION + said})
        answer = await theirs.responses.create(model="small", input="Which file?")
        again: Any = [{"role": "user", "content": "Which file?"}, *answer.output, *QUESTION]
        await theirs.responses.create(model="large", input=again)
        headers = {"x-api-key": "me"}
        sessions = (await rig.client.get("/v1/sessions", headers=headers)).json()["data"]
        assert [(row["kind"], row["calls"], row["switches"]) for row in sessions] == [
            ("responses", 2, 1),
            ("messages", 2, 1),
        ]


async def test_errors_are_the_ones_that_each_library_names() -> None:
    async with a_coordinator(PD) as rig, of_anthropic(rig) as ours, of_openai(rig) as theirs:
        with pytest.raises(anthropic.NotFoundError, match="gpt-9"):
            await ours.messages.create(**ASKED | {"model": "gpt-9"})
        with pytest.raises(openai.NotFoundError, match="gpt-9"):
            await theirs.responses.create(model="gpt-9", input="hi")
        with pytest.raises(openai.BadRequestError, match="previous_response_id") as found:
            await theirs.responses.create(model="small", input="hi", previous_response_id="r")
        assert found.value.param == "previous_response_id"
        rig.engines["small-d"].faults.die_mid_stream(4, times=2)
        with pytest.raises(anthropic.APIStatusError, match="small-d"):
            async with ours.messages.stream(**ASKED) as stream:
                await stream.get_final_message()
        stream_of = await theirs.responses.create(model="small", input="hi", stream=True)
        *_, last = [event async for event in stream_of]
        assert last.type == "error"
        assert "small-d" in last.message
        assert last.sequence_number == 4
