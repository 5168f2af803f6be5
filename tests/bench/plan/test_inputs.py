"""Questions that cannot be answered say which option to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.plan.inputs import PlanRefused, Question, traffic_of
from bench.sim.hardware import LatencyMode
from bench.study.schema import PublishedTraffic, TraceTraffic

if TYPE_CHECKING:
    from pathlib import Path

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:16:50.9951690,396,109
"""


def a_question(**changes: Any) -> Question:
    settings: dict[str, Any] = {
        "models": ("Qwen2.5-7B", "Llama-3.1-70B"),
        "traffic": PublishedTraffic(),
        "gpus": 16,
        "rho": 0.7,
        "benchmark": "FusionBench",
        "sessions_per_s": 0.2,
        "latency": LatencyMode.VLLM_TESTBED,
        "measured_s": 60.0,
        "seeds": 1,
    }
    return Question(**{**settings, **changes})


def test_every_split_of_the_instances_is_tried() -> None:
    question = a_question()
    assert question.instances("Llama-3.1-70B") == 4
    assert [(s.prefill, s.decode) for s in question.splits("Llama-3.1-70B")] == [
        (1, 3), (2, 2), (3, 1),
    ]  # fmt: skip
    assert len(question.splits("Qwen2.5-7B")) == 15


def test_one_model_alone_has_no_sessions() -> None:
    question = a_question(models=("Qwen2.5-7B",), gpus=4)
    pools = {"Qwen2.5-7B": question.splits("Qwen2.5-7B")[0]}
    assert question.config(pools).sessions is None
    assert a_question().config(dict.fromkeys(("a", "b"), pools["Qwen2.5-7B"])).sessions is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ("Qwen9",)}, r"--models: 'Qwen9' has no architecture here; known: \["),
        ({"models": ("Qwen2.5-7B",) * 2}, "--models: must name 1 to 5 different models"),
        ({"benchmark": "Fusion"}, r"--benchmark: must be one of \['FusionBench'"),
        ({"gpus": 4}, "--gpus: Llama-3.1-70B takes 4 GPUs per instance, so 4 GPUs are 1 instances"),
        ({"gpus": 10}, r"so 10 GPUs are 2\.5 instances; a split needs a whole number from 2 to 16"),
    ],
)
def test_what_cannot_be_planned_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanRefused, match=message):
        a_question(**changes)


def test_traffic_is_published_or_a_file(tmp_path: Path) -> None:
    assert traffic_of("code") == PublishedTraffic(service="code")
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    found = traffic_of(f"azure:{path}")
    assert isinstance(found, TraceTraffic)
    assert found.window_s == pytest.approx(64.314579)
    with pytest.raises(PlanRefused, match=r"--trace: must be one of \['conversation', 'code'\]"):
        traffic_of(str(path))
    with pytest.raises(PlanRefused, match=r"--trace: .*absent: No such file"):
        traffic_of("azure:absent")
