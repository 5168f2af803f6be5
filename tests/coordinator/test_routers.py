"""Who chooses the model, and what happens when a router fails."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from configs.schema import MarkovRouter, PythonRouter, ScriptRouter
from coordinator.routers import Choice, SessionView, build_router
from coordinator.wire import Wire
from tests.coordinator.call_rig import COLOCATED, a_chat, a_coordinator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from tests.coordinator.call_rig import Rig

MODELS = ["small", "large"]
HERE = "tests.coordinator.test_routers"


class Alternating:
    """A user's router."""

    def __init__(self, first: str = "large") -> None:
        self.first = first

    def choose(self, session: SessionView, models: Sequence[str]) -> str:
        assert json.loads(session.prompt_json)[0]["role"] == "user"
        if session.current_model is None:
            return self.first
        return next(model for model in models if model != session.current_model)


class Raising:
    def choose(self, session: SessionView, models: Sequence[str]) -> str:
        raise KeyError("lost")


class Inventing:
    def choose(self, session: SessionView, models: Sequence[str]) -> str:
        return "gpt-9"


class Foreseeing:
    """Knows what comes next."""

    def choose(self, session: SessionView, models: Sequence[str]) -> Choice:
        return Choice("small", {"large": 0.75})


class Blocking:
    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def choose(self, session: SessionView, models: Sequence[str]) -> str:
        time.sleep(self.wait_s)
        return "large"


class NoRouter:
    pass


async def chosen(rig: Rig, calls: int, session: str = "s", **headers: str) -> list[str]:
    models = []
    for _ in range(calls):
        reply = await rig.chat(a_chat(model="auto"), x_session_id=session, **headers)
        assert reply.status_code == 200, reply.text
        models.append(reply.headers["x-shadowprefill-model"])
    return models


async def test_a_named_model_is_the_one_with_any_router() -> None:
    async with a_coordinator(COLOCATED, router={"kind": "script", "models": ["large"]}) as rig:
        reply = await rig.chat(a_chat(model="small"))
        assert reply.headers["x-shadowprefill-model"] == "small"


async def test_auto_without_a_router_is_the_first_model() -> None:
    async with a_coordinator(COLOCATED) as rig:
        assert await chosen(rig, 2) == ["small", "small"]


async def test_a_script_goes_round() -> None:
    script = {"kind": "script", "models": ["small", "large", "large"]}
    async with a_coordinator(COLOCATED, router=script) as rig:
        assert await chosen(rig, 4) == ["small", "large", "large", "small"]
        session = (await rig.client.get("/v1/sessions/s")).json()
        assert [row["is_switch"] for row in session["calls"]] == [False, True, False, True]
        assert session["model"] == "small"


async def test_the_choice_of_a_router_in_front_of_us_counts_for_auto_only() -> None:
    async with a_coordinator(COLOCATED) as rig:
        assert await chosen(rig, 1, x_vsr_selected_model="large") == ["large"]
        assert await chosen(rig, 1, x_selected_model="large") == ["large"]
        named = await rig.chat(a_chat(model="small"), x_vsr_selected_model="large")
        assert named.headers["x-shadowprefill-model"] == "small"
        wrong = await rig.chat(a_chat(model="auto"), x_vsr_selected_model="gpt-9")
        assert wrong.status_code == 404


@pytest.mark.parametrize(("probability", "switches"), [(0.0, 0), (1.0, 39)])
async def test_markov_switches_with_its_probability(probability: float, switches: int) -> None:
    models = await walk(MarkovRouter(kind="markov", switch_probability=probability), "s")
    assert sum(one != two for one, two in pairwise(models)) == switches


async def test_markov_is_the_same_for_the_same_seed_and_session() -> None:
    config = MarkovRouter(kind="markov", switch_probability=0.5, seed=7)
    assert await walk(config, "s") == await walk(config, "s")
    assert await walk(config, "s") != await walk(config, "t")
    other = MarkovRouter(kind="markov", switch_probability=0.5, seed=8)
    assert await walk(config, "s") != await walk(other, "s")


async def walk(config: MarkovRouter, session: str) -> list[str]:
    router = build_router(config, MODELS, Wire(connect_timeout_s=1))
    models: list[str] = []
    for call in range(1, 41):
        current = models[-1] if models else None
        view = SessionView(session_id=session, call=call, current_model=current)
        models.append((await router.choose(view)).model)
    return models


async def test_a_python_class_chooses() -> None:
    router = {"kind": "python", "path": f"{HERE}:Alternating"}
    async with a_coordinator(COLOCATED, router=router) as rig:
        assert await chosen(rig, 3) == ["large", "small", "large"]
    router["options"] = {"first": "small"}  # type: ignore[assignment]  # a plain dict of JSON
    async with a_coordinator(COLOCATED, router=router) as rig:
        assert await chosen(rig, 2) == ["small", "large"]


@pytest.mark.parametrize("name", ["Raising", "Inventing"])
async def test_a_python_class_that_fails_leaves_the_session_where_it_is(name: str) -> None:
    async with a_coordinator(COLOCATED, router={"kind": "python", "path": f"{HERE}:{name}"}) as rig:
        assert await chosen(rig, 1) == ["small"]
        await rig.chat(a_chat(model="large"), x_session_id="s")
        assert await chosen(rig, 1) == ["large"]
        assert await metric(rig, "shadowprefill_router_failures_total") == 2


async def test_a_class_that_takes_time_is_asked_beside_the_event_loop() -> None:
    router = {
        "kind": "python",
        "path": f"{HERE}:Blocking",
        "options": {"wait_s": 0.5},
        "timeout_s": 0.2,
    }
    async with a_coordinator(COLOCATED, router=router) as rig:
        asked = asyncio.create_task(chosen(rig, 1))
        pinned = await rig.chat(a_chat(model="small"), x_session_id="t")
        assert pinned.status_code == 200
        assert not asked.done(), "the event loop went on meanwhile"
        assert await asked == ["small"], "it was too late, the session stays"
        assert await metric(rig, "shadowprefill_router_failures_total") == 1


async def test_what_a_router_foresees_is_the_hint_for_the_next_call() -> None:
    async with a_coordinator(
        COLOCATED, router={"kind": "python", "path": f"{HERE}:Foreseeing"}
    ) as rig:
        await chosen(rig, 1)
        (session,), _ = await rig.app.state.sessions.page("anonymous", 0, 10)
        assert session.hint_scores == {"large": 0.75}
        await rig.chat(a_chat(model="small"), x_session_id="s")
        assert session.hint_scores == {}, "a named model says nothing of the next one"


async def test_an_agents_plan_wins_over_what_a_router_foresees() -> None:
    async with a_coordinator(
        COLOCATED, router={"kind": "python", "path": f"{HERE}:Foreseeing"}
    ) as rig:
        await chosen(rig, 1)
        plan = {"plan": ["small", "small", "large"]}
        await rig.client.post("/v1/sessions/s/hints", json=plan)
        await chosen(rig, 1)
        (session,), _ = await rig.app.state.sessions.page("anonymous", 0, 10)
        assert (session.hint_plan, session.hint_scores) == (["small", "large"], {})


@pytest.mark.parametrize(
    "said",
    [{"gpt-9": 0.5}, {"small": 0.7, "large": 0.7}, {"large": -1}, {"large": "x"}, 7],
    ids=["unknown", "more_than_1", "negative", "text", "no_mapping"],
)
async def test_probabilities_that_cannot_be_are_a_failure(said: Any) -> None:
    answer = json.dumps({"model": "large", "next_probabilities": said}).encode()
    async with a_router_service(answer) as (url, _), routed_by(url) as rig:
        assert await chosen(rig, 1) == ["small"]
        assert await metric(rig, "shadowprefill_router_failures_total") == 1


async def test_a_url_may_say_what_comes_next() -> None:
    answer = b'{"model": "large", "next_probabilities": {"small": 1.0}}'
    async with a_router_service(answer) as (url, _), routed_by(url) as rig:
        assert await chosen(rig, 1) == ["large"]
        (session,), _ = await rig.app.state.sessions.page("anonymous", 0, 10)
        assert session.hint_scores == {"small": 1.0}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PythonRouter(kind="python", path="no.such:Thing"), "cannot load"),
        (PythonRouter(kind="python", path=f"{HERE}:Missing"), "cannot load"),
        (PythonRouter(kind="python", path=f"{HERE}:NoRouter"), "no method choose"),
        (ScriptRouter(kind="script", models=["small", "gpt-9"]), "unknown"),
    ],
)
def test_a_router_that_cannot_work_is_refused_at_start(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_router(config, MODELS, Wire(connect_timeout_s=1))


@asynccontextmanager
async def a_router_service(answer: bytes, silent: bool = False) -> AsyncIterator[tuple[str, list]]:
    """A URL that answers every POST with `answer`, and what it was asked."""
    asked: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        asked.append(json.loads(await reader.readexactly(length)))
        if not silent:
            lines = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            writer.write(lines % len(answer) + answer)
            await writer.drain()
            writer.close()
        else:
            await reader.read()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/choose", asked


def routed_by(url: str) -> AbstractAsyncContextManager[Rig]:
    return a_coordinator(COLOCATED, router={"kind": "http", "url": url})


async def test_a_url_chooses_and_is_told_what_it_needs() -> None:
    async with a_router_service(b'{"model": "large"}') as (url, asked):
        async with a_coordinator(COLOCATED, router={"kind": "http", "url": url}) as rig:
            assert await chosen(rig, 2) == ["large", "large"]
        assert asked[1] == {
            "session_id": "s",
            "call": 2,
            "current_model": "large",
            "models": MODELS,
            "prompt": a_chat()["messages"],
        }


@pytest.mark.parametrize(
    ("answer", "silent"),
    [(b'{"model": "gpt-9"}', False), (b"oops", False), (b"[]", False), (b"", True)],
    ids=["unknown", "not_json", "no_choice", "silent"],
)
async def test_a_url_that_fails_leaves_the_session_where_it_is(answer: bytes, silent: bool) -> None:
    async with a_router_service(answer, silent) as (url, _):
        router = {"kind": "http", "url": url, "timeout_s": 0.2}
        async with a_coordinator(COLOCATED, router=router) as rig:
            await rig.chat(a_chat(model="large"), x_session_id="s")
            assert await chosen(rig, 1) == ["large"]
            assert await metric(rig, "shadowprefill_router_failures_total") == 1


async def test_a_url_that_nobody_serves_leaves_the_session_where_it_is() -> None:
    async with a_router_service(b"") as (url, _):
        pass
    async with a_coordinator(COLOCATED, router={"kind": "http", "url": url}) as rig:
        assert await chosen(rig, 1) == ["small"]


async def metric(rig: Rig, name: str) -> float:
    text = (await rig.client.get("/metrics")).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    )
