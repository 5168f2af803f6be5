"""What running engines show and take: series, control requests, a trace; over real HTTP."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.trace_read import read_trace
from coordinator.engine_control import tune
from engine.marks import Marks
from policy.vocabulary import RequestClass

if TYPE_CHECKING:
    from pathlib import Path

    from coordinator.local_cluster import LocalCluster

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.nixl]

PREFILL, DECODE = "tiny-a-p", "tiny-a-d"


def scraped(cluster: LocalCluster, instance: str) -> dict[tuple[str, str], float]:
    """By name and the value of the label that is not the engine's own."""
    url = cluster.config.instances[instance].metrics_url
    assert url is not None
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (
            sample.name.removeprefix("shadowprefill_engine_"),
            "".join(v for k, v in sample.labels.items() if k not in ("model", "instance", "le")),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def completion(cluster: LocalCluster, seed: int, tokens: int, marks: Marks | None) -> Any:
    """What the prefill instance says at the end of a request."""
    body = {
        "model": "tiny-a",
        "prompt": [10 + (seed * 7919 + position * 31) % 300 for position in range(tokens)],
        "max_tokens": 1,
    }
    if marks is not None:
        body["vllm_xargs"] = marks.to_xargs()
    request = urllib.request.Request(
        cluster.config.instances[PREFILL].url + "/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        choice = json.load(answer)["choices"][0]
    return choice["finish_reason"], choice["stop_reason"]


def test_an_engine_shows_its_work_and_is_switched_off_and_on_while_it_runs(
    tiny_pd: LocalCluster, tmp_path: Path
) -> None:
    shadow = Marks(request_class=RequestClass.SHADOW)
    path = tmp_path / "p.jsonl"
    before = scraped(tiny_pd, PREFILL)

    def changed(instance: str = PREFILL, **changes: object) -> str:
        (answer,) = tune(tiny_pd.config, changes, [instance])
        return answer.text

    assert changed(trace_path=str(path)) == "control_applied"
    assert completion(tiny_pd, 1, 700, shadow) == ("length", None)
    assert completion(tiny_pd, 2, 200, None) == ("length", None)
    assert changed(controller="off") == "control_applied"
    assert completion(tiny_pd, 3, 700, shadow) == ("abort", "shadow_off")
    assert changed(controller="harvest-slo") == "control_applied"
    assert completion(tiny_pd, 4, 300, shadow) == ("length", None)
    assert "n_min_tokens" in changed(n_min_tokens=10**6)
    assert changed(trace_path="") == "control_applied"

    after = scraped(tiny_pd, PREFILL)
    trace = read_trace(path)
    traced = sum(step.shadow_tokens for step in trace.steps)
    counted = after["shadow_tokens_total", ""] - before["shadow_tokens_total", ""]
    assert traced == counted == 700 + 300
    assert [event.changes for event in trace.events[:-1]] == [
        {"controller": "off"},
        {"controller": "harvest-slo"},
    ]
    assert trace.events[-1].text == "switched off"
    assert after["jobs_ended_total", "shadow_off"] == 1
    assert after["control_requests_total", "refused"] == 1
    assert after["controller_info", "harvest-slo"] == 1
    assert after["iterations_total", "shadow"] > 0
    assert after["arrival_wait_seconds_count", "nothing"] > 0


def test_a_decode_instance_takes_what_concerns_it(tiny_pd: LocalCluster) -> None:
    (answer,) = tune(tiny_pd.config, {"kv_cap_share": 0.2, "beta": 0.3}, [DECODE])
    assert answer.text == "control_applied: without effect on a decode instance: beta"
    values = scraped(tiny_pd, DECODE)
    assert values["parameter", "kv_cap_share"] == 0.2
    assert values["pulls_total", ""] >= 0
    before = tiny_pd.config.shadow
    tune(tiny_pd.config, {"kv_cap_share": before.kv_cap_share, "beta": before.beta}, [DECODE])
