"""A trained router in a coordinator: it chooses, foresees, and never holds up a call."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from configs.schema import LearnedRouter
from coordinator import learned_router
from coordinator.off_loop import MAX_WAITING, OffLoop
from coordinator.router_port import RouterFailed, SessionView
from routing.embedders import EmbedderFailed
from routing.router_file import write_router
from routing.samples import read_samples
from routing.training import train_router, vectors_of
from tests.coordinator.call_rig import COLOCATED, a_chat, a_coordinator, until
from tests.coordinator.test_routers import chosen, metric
from tests.routing.routing_rig import PAIR, WordEmbedder, planted_rows, write_jsonl

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


@pytest.fixture(scope="module")
def router_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It knows that the small model reads and cannot prove."""
    folder = tmp_path_factory.mktemp("router")
    samples = read_samples([write_jsonl(folder / "rows.jsonl", planted_rows())], PAIR).rows
    embedder = WordEmbedder()
    trained = train_router(samples, vectors_of(samples, embedder), PAIR, embedder, folds=3, seed=0)
    write_router(folder / "router.npz", trained.router)
    return folder / "router.npz"


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> WordEmbedder:
    """In the place of MiniLM."""
    fake = WordEmbedder()
    monkeypatch.setattr(learned_router, "open_embedder", lambda *given: fake)
    return fake


def a_router(path: Path, **fields: Any) -> dict[str, Any]:
    return {"kind": "learned", "path": str(path), "timeout_s": 20.0, **fields}


async def routed(rig: Any, text: str, session: str) -> str:
    reply = await rig.chat(a_chat(f"please {text} this", model="auto"), x_session_id=session)
    assert reply.status_code == 200, reply.text
    return str(reply.headers["x-shadowprefill-model"])


@pytest.mark.usefixtures("embedder")
async def test_easy_steps_go_to_the_small_model_and_hard_ones_to_the_large(
    router_path: Path,
) -> None:
    async with a_coordinator(COLOCATED, router=a_router(router_path)) as rig:
        assert await routed(rig, "read", "one") == "small"
        assert await routed(rig, "prove", "two") == "large"
        assert await metric(rig, "shadowprefill_router_failures_total") == 0


@pytest.mark.usefixtures("embedder")
@pytest.mark.parametrize(("least", "expected"), [(0.0, "small"), (1.0, "large")])
async def test_the_least_probability_is_the_operators(
    router_path: Path, least: float, expected: str
) -> None:
    router = a_router(router_path, min_probability=least)
    async with a_coordinator(COLOCATED, router=router) as rig:
        assert await routed(rig, "read", "one") == expected
        (session,), _ = await rig.app.state.sessions.page("anonymous", 0, 10)
        assert session.hint_scores[expected] == 1.0


@pytest.mark.usefixtures("embedder")
async def test_what_it_says_of_the_next_call_is_what_shadows_follow(router_path: Path) -> None:
    async with a_coordinator(COLOCATED, router=a_router(router_path), shadow=True) as rig:
        await routed(rig, "read", "one")
        (session,), _ = await rig.app.state.sessions.page("anonymous", 0, 10)
        assert set(session.hint_scores) == {"small", "large"}
        assert sum(session.hint_scores.values()) == pytest.approx(1.0)
        said, warmth = session.hint_scores["large"], session.warmth_of("large")
        await until(lambda: warmth.switch_probability, "the shadow job has its probability")
        assert warmth.switch_probability == pytest.approx(said)


async def test_an_embedder_that_fails_leaves_the_session_where_it_is(
    router_path: Path, embedder: WordEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(texts: Sequence[str]) -> NDArray[np.float32]:
        raise EmbedderFailed("no vectors today")

    monkeypatch.setattr(embedder, "embed", fail)
    async with a_coordinator(COLOCATED, router=a_router(router_path)) as rig:
        await rig.chat(a_chat(model="large"), x_session_id="s")
        assert await chosen(rig, 1) == ["large"]
        assert await metric(rig, "shadowprefill_router_failures_total") == 1


async def test_an_embedder_that_is_late_leaves_the_session_where_it_is(
    router_path: Path, embedder: WordEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed, go_on = embedder.embed, threading.Event()

    def wait(texts: Sequence[str]) -> NDArray[np.float32]:
        assert go_on.wait(20)
        return embed(texts)

    monkeypatch.setattr(embedder, "embed", wait)
    router = a_router(router_path, timeout_s=0.1)
    async with a_coordinator(COLOCATED, router=router) as rig:
        try:
            assert await routed(rig, "prove", "s") == "small"
            assert await metric(rig, "shadowprefill_router_failures_total") == 1
        finally:
            go_on.set()


async def test_more_waiting_choices_than_make_sense_are_refused_at_once() -> None:
    go_on = threading.Event()
    beside = OffLoop("test", timeout_s=0.05)
    try:
        beside._waiting = [beside._pool.submit(go_on.wait, 20) for _ in range(MAX_WAITING)]
        with pytest.raises(RouterFailed, match=f"{MAX_WAITING} choices wait already"):
            await beside.run(lambda: None)
    finally:
        go_on.set()


@pytest.mark.usefixtures("embedder")
async def test_nonsense_is_routed_too(router_path: Path) -> None:
    config = LearnedRouter.model_validate(a_router(router_path))
    router = learned_router.learned_router(config, PAIR)
    for prompt in (b"[]", b'""', b"[[1, 2]]", b'[{"role": 7}]'):
        view = SessionView(session_id="s", call=1, current_model=None, prompt_json=prompt)
        assert (await router.choose(view)).model in PAIR


@pytest.mark.usefixtures("embedder")
def test_a_pair_that_is_not_configured_is_refused_at_start(router_path: Path) -> None:
    config = LearnedRouter.model_validate(a_router(router_path))
    with pytest.raises(ValueError, match=r"router.path: .* \['large'\] are no models"):
        learned_router.learned_router(config, ["small", "huge"])


def test_a_file_that_is_not_there_is_refused_at_start(tmp_path: Path) -> None:
    config = LearnedRouter.model_validate(a_router(tmp_path / "no.npz"))
    with pytest.raises(ValueError, match=r"router.path: .*no.npz: cannot be read"):
        learned_router.learned_router(config, PAIR)
