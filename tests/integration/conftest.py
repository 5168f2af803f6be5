"""Real engines, started once per test session and shared: a start takes a minute on two cores."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from coordinator.local_cluster import LocalCluster
from tests.integration.client import Agent, until
from tests.integration.engine_state import alive, kv_usage, restart, running_requests
from tests.integration.real_cluster import MODELS, START_TIMEOUT_S, on_free_ports, plain_command

if TYPE_CHECKING:
    from collections.abc import Iterator

# A frozen P is given up after this long: short for the tests, long for two busy cores.
FIRST_BYTE_TIMEOUT_S = 20.0
KV_LEASE_S = 12
SMALL_POOL = {"num_gpu_blocks_override": 1200}
"""So that a few prompts fill all of it."""


@pytest.fixture(scope="session")
def needs_tiny() -> None:
    """Skips what needs a real engine where none is installed."""
    if find_spec("vllm") is None:
        pytest.skip("vllm is not installed: pip install shadowprefill[cpu]")
    if not (MODELS / "tiny-a").exists() or not (MODELS / "tiny-b").exists():
        pytest.skip(f"no tiny models: python -m engine.prepare_models {MODELS.name}")


@pytest.fixture(scope="session")
def needs_nixl() -> None:
    if find_spec("nixl") is None:
        pytest.skip("nixl is not installed: pip install shadowprefill[cpu]")


@pytest.fixture(scope="session")
def tiny_pd(
    needs_tiny: None, needs_nixl: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Two tiny models with different vocabularies, P and D apart, and the coordinator."""
    folder = tmp_path_factory.mktemp("tiny_pd")
    limits = {"first_byte_timeout_s": FIRST_BYTE_TIMEOUT_S}
    models = {
        "tiny-a": {"kv_lease_s": KV_LEASE_S, "pull_timeout_s": 5.0, "engine_args": SMALL_POOL}
    }
    config = on_free_ports("tiny_pd", folder, coordinator=limits, models=models)
    with LocalCluster(config, folder / "run", start_timeout_s=START_TIMEOUT_S) as cluster:
        yield cluster


@pytest.fixture
def healed(tiny_pd: LocalCluster) -> Iterator[LocalCluster]:
    """Whatever the test did to the instances of tiny-a, the next one finds them well: nothing died
    that the test did not kill, nothing is held, and a session that switches gets its answers."""
    others = {name: tiny_pd.pid(name) for name in ("tiny-b-p", "tiny-b-d")}
    yield tiny_pd
    for name in ("tiny-a-p", "tiny-a-d"):
        if not alive(tiny_pd, name):
            restart(tiny_pd, name)
    for name in tiny_pd.config.instances:
        until(lambda name=name: running_requests(tiny_pd, name), lambda running: running == 0)
        until(lambda name=name: kv_usage(tiny_pd, name), lambda usage: usage == 0)
    assert {name: tiny_pd.pid(name) for name in others} == others
    switch(tiny_pd)


def switch(cluster: LocalCluster) -> None:
    """There and back, with the shadow that goes with it."""
    answers: dict[bool, list[list[int]]] = {}
    for shadow in (False, True):
        agent = Agent(cluster.url, tenant=uuid4().hex, session="switch", shadow=shadow)
        history = [{"role": "user", "content": "Which handler is it? " * 40}]
        answers[shadow] = []
        for model, target in (("tiny-a", "tiny-b"), ("tiny-b", "tiny-a"), ("tiny-a", "")):
            answer = agent.call(model, history)
            answers[shadow].append(answer.token_ids)
            said = {"role": "assistant", "content": "The first one, I think. " * 20}
            history = [*history, said, {"role": "user", "content": "And then?"}]
            if shadow and target:
                agent.settled(target)
        if shadow:
            assert answer.cached_tokens > 0, "the switch back found nothing warm"
    assert answers[True] == answers[False]


@pytest.fixture(scope="session")
def tiny_plain(needs_tiny: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of one stock vLLM engine that serves `tiny-a`, without anything of ours in it."""
    folder = tmp_path_factory.mktemp("tiny_plain")
    config = on_free_ports("tiny_colocated", folder, only=("tiny-a-1",))
    with LocalCluster(
        config,
        folder / "run",
        coordinator=False,
        command=plain_command,
        start_timeout_s=START_TIMEOUT_S,
    ) as cluster:
        yield cluster.config.instances["tiny-a-1"].url
