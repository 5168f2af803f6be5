"""Real tokenizers and templates: the stable prefix starts the next prompt, and misses little."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.calls import CallKind
from coordinator.engine_post import ShadowFailed, ShadowFailure
from coordinator.history import History, ReasoningKept
from coordinator.instances import Instance
from coordinator.render import Renderer
from coordinator.shadow_counters import ShadowCounters
from coordinator.stream_text import NO_ANSWER_YET, Answer, ToolCall
from policy.vocabulary import Role

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

pytestmark = pytest.mark.smollm2

MODELS = Path(__file__).parents[2] / ".models"
TARGET = Instance(name="t", url="http://t", role=Role.COLOCATED, model="t")

# What the big families' templates do to a history, in short.
KEEPS_REASONING_AFTER_THE_LAST_USER = """
{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or m.reasoning_content) -%}
<think>
{{ (m.reasoning_content or '') | trim }}
</think>

{% endif -%}
{{ (m.content or '') | trim }}
{%- for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
DROPS_TEXT_BESIDE_CALLS = """
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.tool_calls -%}
{{ m.tool_calls[0].function | tojson }}
{%- else -%}
{{ m.content }}
{%- endif -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
REFUSES_TOOLS = """
{%- for m in messages -%}
{%- if m.role not in ('user', 'assistant') or m.tool_calls -%}
{{ raise_exception('no ' + m.role) }}
{%- endif -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate') }}
{%- endif -%}
{{ '[' + m.role + ']' + m.content }}
{%- endfor -%}"""

TEMPLATES: dict[str, tuple[str, str | None]] = {
    "smollm2": ("smollm2-135m-instruct", None),
    "tiny_a": ("tiny-a", None),
    "tiny_b": ("tiny-b", None),
    "keeps_reasoning": ("smollm2-135m-instruct", KEEPS_REASONING_AFTER_THE_LAST_USER),
    "drops_text": ("smollm2-135m-instruct", DROPS_TEXT_BESIDE_CALLS),
    "refuses_tools": ("smollm2-135m-instruct", REFUSES_TOOLS),
}

USER = {"role": "user", "content": "Which file sets the port? Füße 😀\n"}
CALLS = (ToolCall("c1", "grep", '{"pattern": "port", "path": "."}'), ToolCall("c2", "ls", "{}"))
THINKING = "I should look first.\n"


@cache
def tokenizer_of(model: str) -> PreTrainedTokenizerBase:
    if not (MODELS / model).is_dir():
        pytest.skip(f"{model} is not prepared: python -m engine.prepare_models .models")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODELS / model)


class FrontEnd:
    """Renders as vLLM does: what the template sees of a message is not quite what was sent."""

    def __init__(self, name: str) -> None:
        model, self._template = TEMPLATES[name]
        self._tokenizer = tokenizer_of(model)
        self.refused = 0

    def ids(self, messages: list[Any], tools: list[Any] | None = None) -> list[int]:
        seen = json.loads(json.dumps(messages))
        for message in seen:
            message["content"] = message.get("content") or ""
            message["reasoning_content"] = message.get("reasoning")
            message["tool_calls"] = [_as_vllm(call) for call in message.get("tool_calls", ())]
        text = self._tokenizer.apply_chat_template(
            seen,
            tools=tools,
            chat_template=self._template,
            add_generation_prompt=True,
            tokenize=False,
        )
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    async def __call__(self, instance: Instance, path: str, body: bytes) -> bytes:
        asked = json.loads(body)
        try:
            ids = self.ids(asked["messages"], asked.get("tools"))
        except Exception as error:
            self.refused += 1
            raise ShadowFailed(ShadowFailure.REJECTED, str(error)) from None
        return json.dumps({"token_ids": ids}).encode()


def _as_vllm(call: dict[str, Any]) -> dict[str, Any]:
    """Its request model fixes the order of keys; arguments become objects."""
    function = call["function"]
    arguments = json.loads(function["arguments"])
    seen = {"arguments": arguments, "name": function["name"]}
    return {"id": call["id"], "function": seen, "type": call["type"]}


def said(answer: Answer, *, reasoning: bool = False) -> dict[str, Any]:
    """As a client sends it back."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or None}
    if reasoning:
        message["reasoning"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"arguments": c.arguments, "name": c.name}, "id": c.id}
            for c in answer.tool_calls
        ]
    return message


def results(answer: Answer) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "tool_call_id": c.id, "content": f"{c.name}: port 8100\n"}
        for c in answer.tool_calls
    ]


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


PLAIN = Answer(content="It is in `app.yaml`:\n\nport: 8100", complete=True)
CALLING = Answer(content="Let me see.", tool_calls=CALLS, calling=True, complete=True)
THOUGHT = Answer(content="Port 8100.", reasoning=THINKING, complete=True)
THOUGHT_CALLING = Answer(
    content="Let me see.", reasoning=THINKING, tool_calls=CALLS, calling=True, complete=True
)
IN_TEXT = Answer(content="<think>hm</think>Port 8100.", complete=True)
SYSTEM = {"role": "system", "content": "You are a coding agent.\n\n"}
LONG = [SYSTEM, USER, said(CALLING), *results(CALLING), said(PLAIN), USER]


async def stable_prefix(
    front_end: FrontEnd, messages: list[Any], answer: Answer, tools: list[Any] | None, kept: bool
) -> list[int]:
    fields = {"tools": json.dumps(tools).encode()} if tools else {}
    reasoning = ReasoningKept.KEPT if kept else ReasoningKept.DROPPED
    history = History(
        kind=CallKind.CHAT, text=json.dumps(messages).encode(), fields=fields, reasoning=reasoning
    )
    renderer = Renderer(front_end, ShadowCounters())  # type: ignore[arg-type]  # same call
    return await renderer.stable_prefix(TARGET, history.answered(answer))


def assert_starts(real: list[int], stable: list[int], at_least: int) -> None:
    assert real[: len(stable)] == stable
    assert len(stable) >= at_least


CHATML = ["smollm2", "tiny_a", "tiny_b", "keeps_reasoning"]


@pytest.mark.parametrize("name", CHATML)
@pytest.mark.parametrize(
    ("messages", "answer", "tools"),
    [
        ([USER], PLAIN, None),
        ([SYSTEM, USER], PLAIN, None),
        ([SYSTEM, USER], CALLING, [tool("grep"), tool("ls")]),
        (LONG, PLAIN, [tool("grep")]),
        (LONG, CALLING, [tool("grep")]),
        ([USER, said(PLAIN), USER], IN_TEXT, None),
    ],
    ids=["first", "system", "calls", "long", "long_calls", "think_in_text"],
)
async def test_a_finished_history_is_covered_but_for_its_last_tokens(
    name: str, messages: list[Any], answer: Answer, tools: list[Any] | None
) -> None:
    front_end = FrontEnd(name)
    stable = await stable_prefix(front_end, messages, answer, tools, kept=False)
    follow = results(answer) or [{"role": "user", "content": "Good. And the host?"}]
    real = front_end.ids([*messages, said(answer), *follow], tools)
    follow[0] = follow[0] | {"content": "\n\n"}
    other = front_end.ids([*messages, said(answer), *follow], tools)
    same = next(at for at, (a, b) in enumerate(zip(real, other, strict=False)) if a != b)
    assert_starts(real, stable, same - 2)
    assert front_end.refused == 0


@pytest.mark.parametrize("name", CHATML)
@pytest.mark.parametrize("tools", [None, [tool("grep")]], ids=["plain", "tools"])
async def test_a_running_answer_is_covered_as_far_as_it_was_said(
    name: str, tools: list[Any] | None
) -> None:
    front_end = FrontEnd(name)
    covered = 0
    for cut in (0, 5, 9, 21, 30, len(PLAIN.content)):
        part = Answer(content=PLAIN.content[:cut])
        stable = await stable_prefix(front_end, [SYSTEM, USER], part, tools, kept=False)
        for follow in ([USER], [{"role": "user", "content": " x"}]):
            real = front_end.ids([SYSTEM, USER, said(PLAIN), *follow], tools)
            # One token may still change at the cut.
            assert_starts(real, stable[:-1], covered)
        covered = len(stable) - 3
    assert covered > len(front_end.ids([SYSTEM, USER], tools))


@pytest.mark.parametrize("name", ["keeps_reasoning", "tiny_b"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("answer", [THOUGHT, THOUGHT_CALLING], ids=["plain", "calls"])
async def test_reasoning_is_in_the_prefix_exactly_where_the_next_prompt_has_it(
    name: str, kept: bool, answer: Answer
) -> None:
    front_end = FrontEnd(name)
    loop = [USER, said(THOUGHT_CALLING, reasoning=kept), *results(THOUGHT_CALLING)]
    stable = await stable_prefix(front_end, loop, answer, [tool("ls")], kept=kept)
    follow = results(answer) or [USER]
    real = front_end.ids([*loop, said(answer, reasoning=kept), *follow], [tool("ls")])
    assert_starts(real, stable, 0)
    if answer is THOUGHT_CALLING:
        assert_starts(real, stable, len(front_end.ids(loop, [tool("ls")])))


@pytest.mark.parametrize("is_calling", [True, False], ids=["tool_follows", "user_follows"])
async def test_while_it_is_unknown_what_follows_the_prefix_fits_both(is_calling: bool) -> None:
    front_end = FrontEnd("keeps_reasoning")
    loop = [USER, said(THOUGHT_CALLING, reasoning=True), *results(THOUGHT_CALLING)]
    stable = await stable_prefix(front_end, loop, NO_ANSWER_YET, [tool("ls")], kept=True)
    answer = THOUGHT_CALLING if is_calling else THOUGHT
    follow = results(answer) if is_calling else [USER]
    real = front_end.ids([*loop, said(answer, reasoning=True), *follow], [tool("ls")])
    assert_starts(real, stable, 1)


async def test_text_that_a_template_drops_beside_calls_waits_for_the_end() -> None:
    front_end = FrontEnd("drops_text")
    running = Answer(content="Let me see.")
    stable = await stable_prefix(front_end, [USER], running, [tool("ls")], kept=False)
    for answer, follow in ((CALLING, results(CALLING)), (PLAIN, [USER])):
        real = front_end.ids([USER, said(answer), *follow], [tool("ls")])
        assert_starts(real, stable, len(front_end.ids([USER])) - 2)


@pytest.mark.parametrize("tools", [None, [tool("grep")]], ids=["plain", "tools"])
async def test_a_template_that_refuses_tools_gets_user_messages(tools: list[Any] | None) -> None:
    front_end = FrontEnd("refuses_tools")
    stable = await stable_prefix(front_end, [USER], NO_ANSWER_YET, tools, kept=False)
    assert_starts(front_end.ids([USER, said(PLAIN), USER]), stable, len(front_end.ids([USER])))
    assert front_end.refused == (1 if tools else 0)


async def test_a_history_that_a_template_refuses_is_a_failure_and_no_crash() -> None:
    front_end = FrontEnd("refuses_tools")
    with pytest.raises(ShadowFailed):
        await stable_prefix(front_end, [USER, USER], PLAIN, None, kept=False)
