"""configs/deploy/observability against what is really exported: no name in it is made up."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from configs.load import load_config
from coordinator.metrics import Leg, Outcome, ShadowCollector
from coordinator.shadow_counters import ShadowCounters
from engine.exporter import EngineCollector
from tests.coordinator.call_rig import TWO_PD, a_cluster
from tests.engine.readings import a_link, a_reading

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "configs/deploy/observability"
RULES = FOLDER / "rules.yml"
BOARD = json.loads((FOLDER / "grafana/dashboards/shadowprefill.json").read_text())
ADDED_BY_PROMETHEUS = {"job", "instance", "le"}
NAME = re.compile(r"\bshadowprefill_[a-z0-9_]+")
MATCHERS = re.compile(r"\b(shadowprefill_[a-z0-9_]+)\{([^}]*)\}")
GROUPS = re.compile(r"\b(?:by|on) \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def panel_expressions() -> Iterator[tuple[str, str]]:
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def alert_expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]


EXPRESSIONS = [*panel_expressions(), *alert_expressions()]


def of_a_coordinator() -> str:
    """With each event counted once, so that each series has a sample."""
    from coordinator.parts import build_parts

    instances = {
        name: (*place, f"http://127.0.0.1:{at + 1}")
        for at, (name, place) in enumerate(TWO_PD.items())
    }
    parts = build_parts(a_cluster(instances), None, lambda: 0.0, None, None)
    metrics = parts.metrics
    call: Any = SimpleNamespace(
        model="small", request_class="routed", is_switch=True, prompt_tokens=10, cached_tokens=5
    )
    metrics.call_ended(call, Outcome.OK, 5)
    metrics.first_byte(call, 0.1)
    metrics.placed("small", Leg.PREFILL, "first")
    metrics.leg_failed("small-p", Leg.PREFILL, ValueError())
    metrics.leg_retried(Leg.PREFILL)
    metrics.retry_refused(Leg.PREFILL)
    metrics.refused(429)
    metrics.hint_ended("right")
    registry = CollectorRegistry()
    counters = ShadowCounters()
    for by_reason in (counters.cancelled, counters.skipped, counters.asks, counters.failed):
        by_reason["a_reason"] += 1
    registry.register(ShadowCollector(counters))
    return metrics.exposition().decode() + generate_latest(registry).decode()


def of_an_engine() -> str:
    registry = CollectorRegistry()
    registry.register(EngineCollector(lambda: a_reading(link=a_link())))
    return generate_latest(registry).decode()


def exported() -> dict[str, set[str]]:
    """By name of a series: its labels."""
    labels: dict[str, set[str]] = {}
    for text in (of_a_coordinator(), of_an_engine()):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def test_every_series_that_a_panel_or_an_alert_names_is_exported() -> None:
    known = exported()
    missing = {
        (title, name)
        for title, expression in EXPRESSIONS
        for name in NAME.findall(expression)
        if name not in known
    }
    assert not missing
    named = {name for _, expression in EXPRESSIONS for name in NAME.findall(expression)}
    assert len(named) > 40, "the pattern still finds them"


def test_every_label_that_a_panel_or_an_alert_names_is_one_of_its_series() -> None:
    known = exported()
    missing = set()
    for title, expression in EXPRESSIONS:
        names = NAME.findall(expression)
        for name, matchers in MATCHERS.findall(expression):
            wanted = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            missing |= {(title, name, label) for label in wanted - known.get(name, set())}
        if names:
            of_all = set.union(*(known.get(name, set()) for name in names)) | ADDED_BY_PROMETHEUS
            grouped = {
                label.strip() for found in GROUPS.findall(expression) for label in found.split(",")
            }
            missing |= {(title, "by", label) for label in grouped - of_all}
    assert not missing


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert rule["annotations"]["summary"]
    assert len(rule["annotations"]["runbook"]) > 40


def test_the_targets_are_those_of_the_local_cluster() -> None:
    config = load_config(ROOT / "configs/local_pd.yaml")
    (coordinators,) = yaml.safe_load((FOLDER / "targets/coordinator.yml").read_text())
    (engines,) = yaml.safe_load((FOLDER / "targets/engines.yml").read_text())
    assert coordinators["targets"] == [f"127.0.0.1:{config.coordinator.port}"]
    assert engines["targets"] == [
        f"{instance.host}:{instance.metrics_port}" for instance in config.instances.values()
    ]


def test_compose_mounts_what_is_there_and_the_dashboard_finds_its_source() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    for service in compose["services"].values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert source in compose["volumes"] or (FOLDER / source).exists(), mount
    provisioning = FOLDER / "grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    chosen = {one["name"]: one["current"] for one in BOARD["templating"]["list"]}["datasource"]
    assert (chosen["value"], chosen["text"]) == (source["uid"], source["name"])


def test_panels_have_titles_and_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    places = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        assert panel["title"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & places, panel["title"]
        places |= cells


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed: apt-get install --no-install-recommends prometheus")
    return found


def run(*argv: str) -> None:
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_prometheus_takes_the_rules_and_the_configuration(promtool: str) -> None:
    run(promtool, "check", "rules", str(RULES))
    run(promtool, "check", "config", str(FOLDER / "prometheus.yml"))


def test_prometheus_can_read_every_panel(promtool: str, tmp_path: Path) -> None:
    """As recording rules, because promtool reads expressions nowhere else."""
    recorded = [
        {"record": f"panel:{at}", "expr": expression.replace("$__rate_interval", "1m")}
        for at, (_, expression) in enumerate(panel_expressions())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    run(promtool, "check", "rules", str(path))


INSTANCE = {"instance": "small-p", "model": "small", "role": "prefill"}
OF_AN_ENGINE = "instance='small-p',model='small'"
PLAYED = {
    "InstanceUnhealthy": (
        {'shadowprefill_instance_healthy{instance="small-p",model="small",role="prefill"}': "0x10"},
        "5m",
        INSTANCE,
    ),
    "CallsFail": (
        {
            'shadowprefill_calls_total{model="small",class="routed",outcome="ok"}': "0+90x30",
            'shadowprefill_calls_total{model="small",class="routed",outcome="failed"}': "0+10x30",
        },
        "20m",
        {"model": "small"},
    ),
    "ShadowWasted": (
        {
            'shadowprefill_shadow_computed_tokens_total{job="s",instance="c"}': "0+60000x300",
            'shadowprefill_shadow_tokens_used_total{job="s",instance="c",model="m"}': "0+600x300",
        },
        "4h",
        {"job": "s", "instance": "c"},
    ),
    "KvPoolFull": (
        {
            f"shadowprefill_engine_kv_blocks{{{OF_AN_ENGINE},state='normal_used'}}": "98x30",
            f"shadowprefill_engine_kv_blocks{{{OF_AN_ENGINE},state='empty'}}": "2x30",
        },
        "20m",
        {"instance": "small-p", "model": "small"},
    ),
}


@pytest.mark.parametrize("alert", PLAYED)
def test_an_alert_fires_on_what_it_is_about(promtool: str, tmp_path: Path, alert: str) -> None:
    series, at, labels = PLAYED[alert]
    (severity,) = (rule["labels"]["severity"] for rule in rules() if rule["alert"] == alert)
    expected = [{"labels": f"{{{_labels(alert, labels | {'severity': severity})}}}", "value": 1}]
    test = {
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "interval": "1m",
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}',
                "eval_time": at,
                "exp_samples": expected,
            }
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]})
    )
    run(promtool, "test", "rules", str(path))


def _labels(alert: str, labels: dict[str, str]) -> str:
    named = labels | {"__name__": "ALERTS", "alertname": alert, "alertstate": "firing"}
    return ", ".join(f'{name}="{value}"' for name, value in named.items())
