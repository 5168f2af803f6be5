"""Which models are kept warm: learned and carried on, gated, switched off, and resting."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.calls import CallContext, CallKind
from coordinator.learned import LearnedFile
from coordinator.sessions import Session
from coordinator.shadow_counters import ShadowCounters
from coordinator.shadow_targets import ShadowTargets
from policy.switching import SwitchPrior
from policy.vocabulary import RequestClass
from tests.coordinator.call_rig import COLOCATED, a_chat, a_cluster, a_coordinator, until

if TYPE_CHECKING:
    from pathlib import Path

THREE = {f"{name}-1": (name, "colocated", f"http://h:{at}") for at, name in enumerate("abc", 1)}
STEP_TIME = {"fixed_s": 0.1, "s_per_request": 0, "s_per_token": 0.001, "s_per_token_context": 0}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def some_targets(
    clock: Clock | None = None, models: dict[str, Any] | None = None, **shadow: Any
) -> ShadowTargets:
    config = a_cluster(THREE, models=models, shadow=shadow)
    return ShadowTargets(config, ShadowCounters(), clock or Clock())


def a_session(kind: str = "") -> Session:
    session = Session(id="s", tenant="t", kind=CallKind.CHAT, identified=True, task_kind=kind)
    session.history_bytes = 3500
    return session


def a_call(previous: str, model: str) -> CallContext:
    return CallContext(
        kind=CallKind.CHAT,
        number=2,
        model=model,
        previous_model=previous,
        request_class=RequestClass.ROUTED,
        stream=True,
        body_fields={},
        started_s=0.0,
    )


def names(targets: ShadowTargets, session: Session | None = None) -> list[str]:
    return [target.model for target in targets.of(session or a_session(), "a")]


def test_each_task_kind_has_switches_of_its_own() -> None:
    targets = some_targets(top_k=1)
    for _ in range(50):
        targets.observe(a_session("code"), a_call("a", "c"))
        targets.observe(a_session("chat"), a_call("a", "b"))
    assert names(targets, a_session("code")) == ["c"]
    assert names(targets, a_session("chat")) == ["b"]


def test_what_a_router_says_wins_over_what_was_learned() -> None:
    targets, session = some_targets(top_k=1), a_session()
    for _ in range(50):
        targets.observe(a_session(), a_call("a", "b"))
    session.hint({"c": 0.9}, [])
    assert names(targets, session) == ["c"]
    session.hint({}, ["a", "c"])
    assert names(targets, session) == ["c"]


def test_a_job_must_be_worth_its_probability_times_what_it_saves() -> None:
    models = {name: {"step_time": STEP_TIME} for name in "abc"}
    targets = some_targets(models=models, min_expected_saving_s=0.3)
    session = a_session()  # 1000 tokens, 1 s
    session.hint({"b": 0.5, "c": 0.2}, [])
    assert names(targets, session) == ["b"]
    assert targets._counters.skipped["not_worth"] == 1
    session.warmth_of("b").own_tokens = 900
    assert names(targets, session) == []


def test_a_model_that_is_switched_off_is_no_target() -> None:
    targets = some_targets()
    targets.reconfigure(a_cluster(THREE).shadow, {"b"})
    assert names(targets) == ["c"]
    assert targets._counters.skipped["switched_off"] == 1


def test_a_model_whose_shadows_are_not_used_rests_for_a_while() -> None:
    clock = Clock()
    targets = some_targets(clock, min_use_share=0.1, use_window_tokens=1000, rest_s=60)
    targets.computed("b", 900)
    targets.computed("c", 900)
    targets.used("c", 200)
    assert names(targets) == ["c"]
    assert targets._counters.skipped["resting"] == 1
    clock.now_s += 61
    assert names(targets) == ["b", "c"]


async def test_what_was_learned_is_there_after_a_restart(tmp_path: Path) -> None:
    path, prior = tmp_path / "learned.json", SwitchPrior()
    first = LearnedFile(str(path), prior)
    await first.start()
    for _ in range(50):
        prior.observe("code", "a", "c")
    await first.stop()
    again = SwitchPrior()
    second = LearnedFile(str(path), again)
    await second.start()
    await second.stop()
    assert again.probabilities("code", "a", ["a", "b", "c"])["c"] > 0.9
    left = await asyncio.to_thread(lambda: [one.name for one in tmp_path.iterdir()])
    assert left == ["learned.json"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"kinds": 1}', b'{"kinds":{},"all_kinds":{"a":{"b":"x"}}}']
)
async def test_a_file_that_cannot_be_read_is_put_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "learned.json"
    path.write_bytes(content)
    learned = LearnedFile(str(path), SwitchPrior())
    await learned.start()
    await learned.stop()
    assert (tmp_path / "learned.unreadable").read_bytes() == content


async def test_a_folder_that_is_not_there_ends_nothing(tmp_path: Path) -> None:
    learned = LearnedFile(str(tmp_path / "nobody" / "learned.json"), SwitchPrior())
    await learned.start()
    learned._prior.observe("code", "a", "b")
    await learned.stop()


async def test_the_task_kind_of_a_session_is_what_its_client_names(tmp_path: Path) -> None:
    limits = {"learned_path": str(tmp_path / "learned.json")}
    async with a_coordinator(COLOCATED, shadow=True, limits=limits) as rig:
        for model in ("small", "large", "small"):
            await rig.chat(
                a_chat(model=model), x_session_id="s", x_shadowprefill_task_kind="refactor"
            )
        prior = rig.app.state.shadow._targets._prior
        await until(lambda: sum(prior.counts().all_kinds.get("large", {}).values()), "seen")
        assert prior.counts().kinds == {"refactor": {"small": {"large": 1}, "large": {"small": 1}}}
        bad = await rig.chat(a_chat(), x_session_id="s", x_shadowprefill_task_kind="x" * 65)
        assert bad.status_code == 400
    assert "refactor" in await asyncio.to_thread((tmp_path / "learned.json").read_text)


async def test_a_model_can_be_switched_off_while_it_runs() -> None:
    async with a_coordinator(COLOCATED, shadow=True) as rig:
        shadow = rig.app.state.shadow
        for wanted, off in ((False, ["large"]), (True, [])):
            body = {"models": {"large": wanted}}
            reply = await rig.client.patch("/v1/config/shadow", json=body)
            assert reply.json()["shadow_off"] == off
            assert (await rig.client.get("/v1/config")).json()["shadow_off"] == off
            before = shadow.counters.jobs
            await rig.chat(a_chat("words " * 300), x_session_id=f"s-{wanted}")
            await until(lambda: not shadow._feeds and not shadow._changed, "read")
            assert (shadow.counters.jobs > before) is wanted
        reply = await rig.client.patch("/v1/config/shadow", json={"models": {"nobody": True}})
        assert reply.status_code == 404
