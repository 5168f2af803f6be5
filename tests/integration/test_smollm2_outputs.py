"""Real weights in float32: an engine with our plug-in and shadow work on it, against stock vLLM.

Both models of the cluster are the same files in float32, so what `small` (ours) and `large` (stock
vLLM, which serves shadow requests like any others) say to the same prompt must be the same."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from coordinator.local_cluster import COORDINATOR, LocalCluster, node_command
from tests.integration.client import Agent, Message
from tests.integration.real_cluster import MODELS, START_TIMEOUT_S, on_free_ports, plain_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from configs.schema import ClusterConfig

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.smollm2]

FLOAT32 = {"small": {"dtype": "float32"}, "large": {"dtype": "float32"}}
STOCK = "large"
OTHER = {"small": "large", "large": "small"}
MAX_TOKENS = 24
QUESTIONS = (
    ("small", "Write one sentence about a harbour at night. " * 8),
    ("small", "Now say it as a question. " * 8),
    ("large", "Name three ships that could lie there. " * 8),
    ("small", "Which of them is the oldest, and why? " * 8),
)


def ours_and_stock(config_path: Path, config: ClusterConfig, name: str) -> list[str]:
    if name != COORDINATOR and config.instances[name].model == STOCK:
        return plain_command(config_path, config, name)
    return node_command(config_path, config, name)


@pytest.fixture(scope="module")
def cluster(needs_tiny: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    if not (MODELS / "smollm2-135m-instruct").exists():
        pytest.skip(f"no SmolLM2: python -m engine.prepare_models {MODELS.name}")
    folder = tmp_path_factory.mktemp("smollm2")
    config = on_free_ports("local_colocated", folder, models=FLOAT32)
    with LocalCluster(
        config, folder / "run", command=ours_and_stock, start_timeout_s=START_TIMEOUT_S
    ) as started:
        yield started


def test_answers_with_shadow_work_equal_those_of_stock_vllm(cluster: LocalCluster) -> None:
    agent = Agent(cluster.url, tenant=uuid4().hex, session="on")
    history: list[Message] = []
    for model, question in QUESTIONS:
        history.append({"role": "user", "content": question})
        answer = agent.call(model, history, MAX_TOKENS)
        cold = Agent(cluster.url, tenant=uuid4().hex, session="off", shadow=False)
        assert cold.call(OTHER[model], history, MAX_TOKENS).token_ids == answer.token_ids
        history.append({"role": "assistant", "content": answer.text})
        agent.settled(OTHER[model])
    calls = agent.detail()["calls"]
    assert calls[-1]["shadow_tokens"] > 0, "the last switch found no shadow on our engine"
