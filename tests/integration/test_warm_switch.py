"""One agent session over two models with different vocabularies, on real engines, P and D apart."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.integration.client import Agent, Answer, Message

if TYPE_CHECKING:
    from coordinator.local_cluster import LocalCluster

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.nixl]

ROUTE = ("tiny-a", "tiny-a", "tiny-b", "tiny-b", "tiny-a", "tiny-b")
BLOCK_TOKENS = 32


def a_tool_result(step: int) -> str:
    return "\n".join(
        f"{step}.{line} def handler_{line}(x): return x * {step}" for line in range(30)
    )


def play(agent: Agent, base: list[Answer] | None = None, *, settle: bool = False) -> list[Answer]:
    """The route; `base` replays an earlier run's answers, so that the prompts are the same."""
    history: list[Message] = [{"role": "system", "content": "You read code."}]
    answers = []
    for step, model in enumerate(ROUTE):
        history.append({"role": "user", "content": a_tool_result(step)})
        answers.append(agent.call(model, history))
        said = (base or answers)[step].text
        history.append({"role": "assistant", "content": said})
        if settle:
            agent.settled("tiny-b" if model == "tiny-a" else "tiny-a")
    return answers


@pytest.fixture(scope="module")
def off(tiny_pd: LocalCluster) -> list[Answer]:
    tenant = uuid4().hex
    return play(Agent(tiny_pd.url, tenant=tenant, session="agent", shadow=False))


@pytest.fixture(scope="module")
def on(tiny_pd: LocalCluster, off: list[Answer]) -> tuple[Agent, list[Answer]]:
    agent = Agent(tiny_pd.url, tenant=uuid4().hex, session="agent")
    return agent, play(agent, off, settle=True)


def test_a_switch_finds_its_history_warm(on: tuple[Agent, list[Answer]], off: list[Answer]) -> None:
    _, answers = on
    for step in range(2, len(ROUTE)):
        if ROUTE[step] != ROUTE[step - 1]:
            before = answers[step].prompt_tokens - _new_tokens(answers, step)
            assert answers[step].cached_tokens >= 0.9 * before - BLOCK_TOKENS, step
            assert answers[step].cached_tokens > off[step].cached_tokens, step


def _new_tokens(answers: list[Answer], step: int) -> int:
    """Of this step's input: the calls of one model differ by it, and by the answers."""
    same = [at for at in range(len(ROUTE)) if ROUTE[at] == ROUTE[step]]
    earlier = max((at for at in same if at < step), default=None)
    if earlier is None:
        return answers[step].prompt_tokens // (step + 1)
    grown = answers[step].prompt_tokens - answers[earlier].prompt_tokens
    return grown // (step - earlier)


def test_outputs_are_the_same_with_shadow_off_and_on(
    on: tuple[Agent, list[Answer]], off: list[Answer]
) -> None:
    _, answers = on
    assert [a.token_ids for a in answers] == [a.token_ids for a in off]
    assert all(a.token_ids for a in off)


def test_outputs_equal_those_of_one_plain_engine(tiny_plain: str, off: list[Answer]) -> None:
    agent = Agent(tiny_plain, tenant="plain", session="agent")
    plain = play_only(agent, "tiny-a", off)
    assert plain == {s: a.token_ids for s, a in enumerate(off) if ROUTE[s] == "tiny-a"}


def play_only(agent: Agent, model: str, base: list[Answer]) -> dict[int, list[int]]:
    history: list[Message] = [{"role": "system", "content": "You read code."}]
    ids = {}
    for step, routed in enumerate(ROUTE):
        history.append({"role": "user", "content": a_tool_result(step)})
        if routed == model:
            ids[step] = agent.call(model, history).token_ids
        history.append({"role": "assistant", "content": base[step].text})
    return ids


def test_the_session_accounts_for_what_its_shadows_cost_and_saved(
    on: tuple[Agent, list[Answer]],
) -> None:
    agent, answers = on
    detail = agent.detail()
    assert [call["model"] for call in detail["calls"]] == list(ROUTE)
    assert [call["cached_tokens"] for call in detail["calls"]] == [a.cached_tokens for a in answers]
    assert detail["shadow_tokens_computed"] >= detail["shadow_tokens_used"] > 0
    pushed = {model: shadow["pushed_tokens"] for model, shadow in detail["shadows"].items()}
    assert pushed["tiny-a"] > 0, "D pulled nothing ahead of time"
    assert pushed["tiny-b"] > 0, "D pulled nothing ahead of time"


def test_tenants_do_not_share_what_is_warm(
    tiny_pd: LocalCluster, on: tuple[Agent, list[Answer]], off: list[Answer]
) -> None:
    stranger = Agent(tiny_pd.url, tenant=uuid4().hex, session="agent", shadow=False)
    history: list[Message] = [
        {"role": "system", "content": "You read code."},
        {"role": "user", "content": a_tool_result(0)},
    ]
    assert stranger.call(ROUTE[0], history).cached_tokens == off[0].cached_tokens == 0
