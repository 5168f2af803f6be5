"""A configuration file becomes one object, or every mistake at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.errors import ConfigError
from configs.load import effective_yaml, load_config, load_profile
from policy.vocabulary import Controller, Role

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("configs/*.yaml", "configs/h100/*.yaml")
    for path in ROOT.glob(pattern)
)


def pd_cluster() -> dict[str, Any]:
    """Two models, P and D each; the tests break it in one place."""
    slo = {"ttft_s": 10.0, "tpot_s": 0.25}
    return {
        "profile": "cpu",
        "models": {
            "small": {"path": "./small", "dtype": "float32", "max_model_len": 4096, "slo": slo},
            "large": {"path": "org/large", "max_model_len": 4096, "slo": slo},
        },
        "instances": {
            "small-p": {"model": "small", "role": "prefill", "port": 8101, "kv_port": 8201},
            "small-d": {"model": "small", "role": "decode", "port": 8102, "kv_port": 8202},
            "large-p": {"model": "large", "role": "prefill", "port": 8103, "kv_port": 8203},
            "large-d": {"model": "large", "role": "decode", "port": 8104, "kv_port": 8204},
        },
    }


def changed(path: str, value: Any) -> dict[str, Any]:
    tree: dict[str, Any] = pd_cluster()
    *parents, last = path.split("/")
    holder = tree
    for part in parents:
        holder = holder.setdefault(part, {})
    if value is None:
        del holder[last]
    else:
        holder[last] = value
    return tree


def write(folder: Path, tree: dict[str, Any]) -> Path:
    file = folder / "pd.yaml"
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    return file


def problems_of(file: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides)
    assert all(problem.startswith(f"{file}: ") for problem in caught.value.problems)
    return [problem.removeprefix(f"{file}: ") for problem in caught.value.problems]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_configuration_loads(name: str) -> None:
    config = load_config(ROOT / name)
    assert len(config.models) == 2


def test_the_unbroken_cluster_of_these_tests_loads(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, pd_cluster()))
    assert config.instances["small-p"].role is Role.PREFILL
    assert config.shadow.controller is Controller.HARVEST_SLO


def test_the_profile_fills_in_what_the_file_leaves_out(tmp_path: Path) -> None:
    tree = changed("shadow", {"n_min_tokens": 16})
    tree["models"]["small"] |= {"engine_args": {"max_num_seqs": 3}, "env": {"UCX_TLS": "tcp"}}
    config, profile = load_config(write(tmp_path, tree)), load_profile("cpu")
    assert config.shadow == profile.shadow.model_copy(update={"n_min_tokens": 16})
    assert config.models["large"].engine_args == profile.engine_args
    assert config.models["small"].engine_args == {**profile.engine_args, "max_num_seqs": 3}
    assert config.models["small"].env == {**profile.env, "UCX_TLS": "tcp"}
    assert config.models["small"].step_time == profile.step_time["float32"]
    assert config.models["large"].step_time == profile.step_time["auto"]


@pytest.mark.parametrize(
    ("given", "delta"),
    [
        ({"controller": "harvest-slo"}, 0.025),
        ({"controller": "harvest"}, 0.1),
        ({"controller": "predictive"}, 0.1),
        ({"controller": "harvest", "delta": 0.05}, 0.05),
    ],
)
def test_where_one_credit_pays_for_everything_it_grows_faster_by_default(
    tmp_path: Path, given: dict[str, Any], delta: float
) -> None:
    assert load_config(write(tmp_path, changed("shadow", given))).shadow.delta == delta


def test_the_smallest_chunk_may_follow_from_its_cost(tmp_path: Path) -> None:
    shadow = load_config(write(tmp_path, changed("shadow", {"n_min_tokens": "auto"}))).shadow
    assert (shadow.n_min_tokens, shadow.reread_share) == ("auto", 0.25)


def test_the_h100_profile_holds_the_caps_of_the_paper() -> None:
    shadow = load_profile("h100").shadow
    assert (shadow.beta, shadow.delta, shadow.n_min_tokens) == (0.5, 0.025, 256)
    assert (shadow.iteration_cap_s, shadow.segment_tokens, shadow.idle_age_s) == (0.1, 4096, 5.0)
    assert (shadow.kv_cap_share, shadow.margin, shadow.resubmit_tokens) == (0.25, 0.1, 1024)


@pytest.mark.parametrize(
    ("given", "size_gb", "bandwidth_gb_per_s"),
    [({}, 2, 4), ({"size_gb": 0.5}, 0.5, 4), ({"size_gb": 8, "bandwidth_gb_per_s": 50}, 8, 50)],
)
def test_a_host_tier_is_there_if_it_is_named(
    tmp_path: Path, given: dict[str, Any], size_gb: float, bandwidth_gb_per_s: float
) -> None:
    assert load_config(write(tmp_path, pd_cluster())).host_tier is None
    tier = load_config(write(tmp_path, changed("host_tier", given))).host_tier
    assert tier is not None
    assert (tier.size_gb, tier.bandwidth_gb_per_s) == (size_gb, bandwidth_gb_per_s)
    by_override = load_config(write(tmp_path, pd_cluster()), ["host_tier.size_gb=3"]).host_tier
    assert by_override is not None
    assert by_override.size_gb == 3


def test_the_h100_profile_holds_the_host_tier_of_the_paper() -> None:
    tier = load_profile("h100").host_tier
    assert (tier.size_gb, tier.bandwidth_gb_per_s) == (32, 25)


def test_an_unknown_profile_name_is_refused_by_load_profile() -> None:
    with pytest.raises(KeyError, match=r"known are \['cpu', 'h100'\]"):
        load_profile("tpu")


def test_paths_are_relative_to_the_file_and_hub_names_stay(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    tree = changed("models/large/path", "plain")
    config = load_config(write(tmp_path, tree))
    assert config.models["small"].path == str(tmp_path / "small")
    assert config.models["large"].path == str(tmp_path / "plain")
    hub = load_config(write(tmp_path, pd_cluster()))
    assert hub.models["large"].path == "org/large"


MISTAKES = [
    (
        "profile",
        "tpu",
        "profile: must be one of ['cpu', 'h100'], got 'tpu'",
    ),
    (
        "profile",
        None,
        "profile: is missing",
    ),
    (
        "shadow/beta",
        1.5,
        "shadow.beta: must be less than or equal to 1, got 1.5",
    ),
    (
        "shadow/beta",
        "0.5",
        "shadow.beta: must be a valid number, got '0.5'",
    ),
    (
        "shadow/top_k",
        True,
        "shadow.top_k: must be a valid integer, got True",
    ),
    (
        "shadow/timeout_s",
        float("inf"),
        "shadow.timeout_s: must be a finite number, got inf",
    ),
    (
        "shadow/controller",
        "on",
        "shadow.controller: must be 'off', 'harvest', 'harvest-slo', 'predictive', 'eager' or "
        "'request', got 'on'",
    ),
    (
        "shadow/n_min_tokens",
        512,
        "shadow.n_min_tokens: must be at most shadow.max_chunk_tokens (256), got 512: no chunk "
        "would ever be granted",
    ),
    (
        "models/small/block_size",
        48,
        "shadow.segment_tokens: must be a multiple of models.small.block_size (48), got 1024: "
        "only whole blocks are handed over",
    ),
    (
        "models/small/slo",
        None,
        "models.small.slo: is missing",
    ),
    (
        "models/small/slo/p99",
        1,
        "models.small.slo.p99: unknown key; known keys are ['tpot_s', 'ttft_s']",
    ),
    (
        "models/small/slo_by_class",
        {"shadow": {"ttft_s": 1.0, "tpot_s": 0.1}},
        "models.small.slo_by_class.shadow: unknown key; known keys are ['normal', 'routed']",
    ),
    (
        "models/small/slo_by_class",
        {"routed": {"ttft_s": 0, "tpot_s": 0.1}},
        "models.small.slo_by_class.routed.ttft_s: must be greater than 0, got 0",
    ),
    (
        "models/auto",
        {},
        "models.auto: is the name by which a client asks the router to choose",
    ),
    (
        "models/a b",
        {},
        "models.a b: a model's name must match [A-Za-z0-9][A-Za-z0-9._/-]*",
    ),
    (
        "models/small/engine_args",
        {"dtype": "half"},
        "models.small.engine_args.dtype: must not be set: shadowprefill sets it itself, from "
        "models.<name>.dtype",
    ),
    (
        "models/small/engine_args",
        {"no-enable-prefix-caching": True},
        "models.small.engine_args.no-enable-prefix-caching: must not be set: shadowprefill "
        "sets it itself, from nothing: shadow work is useless without it",
    ),
    (
        "models/small/engine_args",
        {"--swap-space": 4},
        "models.small.engine_args.--swap-space: must be the long name of a vLLM flag with "
        "underscores, such as 'swap_space'",
    ),
    (
        "models/small/env",
        {"OMP_NUM_THREADS": 1},
        "models.small.env.OMP_NUM_THREADS: must be a valid string, got 1",
    ),
    (
        "instances/small-p/env",
        {"PYTHONHASHSEED": "1"},
        "instances.small-p.env.PYTHONHASHSEED: must not be set: shadowprefill sets it itself, "
        "from nothing: block hashes must compare across processes",
    ),
    (
        "instances/small-p/model",
        "smal",
        "instances.small-p.model: must be one of the models ['large', 'small'], got 'smal'",
    ),
    (
        "instances/small-p/port",
        70000,
        "instances.small-p.port: must be less than or equal to 65535, got 70000",
    ),
    (
        "instances/small-p/kv_port",
        None,
        "instances.small-p.kv_port: is missing; a prefill instance exchanges KV over it",
    ),
    (
        "instances/small-p",
        None,
        "models.small: needs at least 1 prefill and 1 decode instance, got 0 prefill, 1 "
        "decode, 0 colocated",
    ),
    (
        "instances/extra",
        {"model": "small", "role": "colocated", "port": 8109},
        "models.small: must be colocated or disaggregated, not both, got 1 prefill, 1 decode, "
        "1 colocated",
    ),
    (
        "instances/small-d/port",
        8101,
        "instances.small-d.port: 127.0.0.1:8101 is already used by instances.small-p.port",
    ),
    (
        "instances/small-d/kv_port",
        8101,
        "instances.small-d.kv_port: 127.0.0.1:8101 is already used by instances.small-p.port",
    ),
    (
        "instances/small-d/metrics_port",
        8101,
        "instances.small-d.metrics_port: 127.0.0.1:8101 is already used by instances.small-p.port",
    ),
    (
        "instances/small-d/trace_path",
        "d.jsonl",
        "instances.small-d.trace_path: must not be set on a decode instance: it computes no "
        "shadow tokens",
    ),
    (
        "instances/small-p/trace_path",
        "p.json",
        "instances.small-p.trace_path: must end in .jsonl",
    ),
    (
        "coordinator",
        {"host": "0.0.0.0", "port": 8101},
        "instances.small-p.port: 127.0.0.1:8101 is already used by coordinator.port",
    ),
    (
        "instances/small-d/attach_url",
        "http://localhost:8101/",
        "instances.small-d.attach_url: localhost:8101 is already used by instances.small-p.port",
    ),
    (
        "instances/small-d/attach_url",
        "ftp://host",
        "instances.small-d.attach_url: must be http://host[:port] or https://host[:port], got "
        "'ftp://host'",
    ),
    (
        "instances/small-d/attach_url",
        "http://user:hunter2@host",
        "instances.small-d.attach_url: must not carry a user or a password; this file is "
        "printed, got (hidden)",
    ),
    (
        "instances/small-d/engine_args",
        {"speculative_config": {"method": "ngram"}},
        "instances.small-d.engine_args.speculative_config: must equal that of "
        "instances.small-p (None), got {'method': 'ngram'}: KV moves between them",
    ),
    (
        "shadow",
        {"iteration_cap_s": 0},
        "shadow.iteration_cap_s: must be > 0 with prefill instances, got 0",
    ),
    (
        "router",
        {"kind": "script", "models": ["small", "tiny"]},
        "router.models[1]: must be one of the models ['large', 'small'], got 'tiny'",
    ),
    (
        "router",
        {"kind": "coin"},
        "router.kind: must be one of explicit, script, markov, python, http, learned, got 'coin'",
    ),
    (
        "router",
        {"models": ["small"]},
        "router.kind: is missing",
    ),
    (
        "router",
        {"kind": "http", "url": "x"},
        "router.url: must be http://host[:port] or https://host[:port], got 'x'",
    ),
    ("host_tier", {"size_gb": 0}, "host_tier.size_gb: must be greater than 0, got 0"),
    (
        "host_tier",
        {"size_gb": 5000},
        "host_tier.size_gb: must be less than or equal to 4096, got 5000",
    ),
    (
        "host_tier",
        {"size": 5},
        "host_tier.size: unknown key; known keys are ['bandwidth_gb_per_s', 'size_gb']",
    ),
    ("host_tier", [1], "host_tier: must be a mapping, got a list"),
    (
        "coordinator",
        {"engine_secret": 12345},
        "coordinator.engine_secret: must be a valid string, got (hidden)",
    ),
]


@pytest.mark.parametrize(
    ("path", "value", "problem"), MISTAKES, ids=[f"{path}={value}" for path, value, _ in MISTAKES]
)
def test_a_mistake_is_named_by_path_limit_and_value(
    tmp_path: Path, path: str, value: Any, problem: str
) -> None:
    assert problem in problems_of(write(tmp_path, changed(path, value)))


def test_all_mistakes_are_shown_at_once_those_of_the_schema_and_of_the_whole(
    tmp_path: Path,
) -> None:
    tree = changed("shadow", {"step_budget_ms": 3, "beta": 2})
    tree["instances"]["small-d"] |= {"port": 8101, "gpu": 1}
    tree["router"] = {"kind": "script", "models": ["tiny"]}
    problems = problems_of(write(tmp_path, tree))
    assert [problem.split(": ")[0] for problem in problems] == [
        "instances.small-d.gpu",
        "shadow.beta",
        "shadow.step_budget_ms",
        "router.models[0]",
        "instances.small-d.port",
    ]
    assert "unknown key; known keys are ['beta', 'controller', 'delta'" in problems[2]


def test_a_broken_instance_does_not_make_its_model_look_incomplete(tmp_path: Path) -> None:
    problems = problems_of(write(tmp_path, changed("instances/small-p/port", "x")))
    assert problems == ["instances.small-p.port: must be a valid integer, got 'x'"]


def test_both_sides_may_use_the_same_speculative_decoding(tmp_path: Path) -> None:
    tree = changed("models/small/engine_args", {"speculative_config": {"method": "ngram"}})
    assert load_config(write(tmp_path, tree)).models["small"].engine_args["speculative_config"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            b"a: [",
            "not YAML: line 1, column 5: expected the node content, but found '<stream end>'",
        ),
        (b"- 1", "must be a mapping with the keys ['profile', 'models', 'instances'"),
        (b"", "must be a mapping with the keys ['profile', 'models', 'instances'"),
        (b"\xff\xfe\xfd", "must be UTF-8 text: invalid start byte"),
        (b"a: &x [*x]", "an alias must not refer to itself"),
        (b"a: !!python/name:os.system x", "not YAML: line 1, column 4: could not determine"),
    ],
    ids=["not_yaml", "a_list", "empty", "not_text", "recursive", "python_tag"],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    file = tmp_path / "pd.yaml"
    file.write_bytes(content)
    assert problems_of(file)[0].startswith(problem)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "no.yaml") == ["cannot be read: No such file or directory"]


def test_duplicate_keys_are_refused_with_both_lines(tmp_path: Path) -> None:
    file = write(tmp_path, pd_cluster())
    file.write_text(file.read_text() + "profile: h100\n")
    (problem,) = problems_of(file)
    assert problem.startswith("line ")
    assert "duplicate key 'profile'; it is already on line " in problem


def test_a_key_that_hides_another_one_is_the_only_mistake_told(tmp_path: Path) -> None:
    file = write(tmp_path, pd_cluster())
    file.write_text(file.read_text().replace("  large-d:", "  large-p:"))
    (problem,) = problems_of(file)
    assert "duplicate key 'large-p'; it is already on line " in problem


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("shadow.controller=off", lambda config: config.shadow.controller is Controller.OFF),
        ("coordinator.port=9000", lambda config: config.coordinator.port == 9000),
        ("models.small.engine_args.seed=1", lambda c: c.models["small"].engine_args["seed"] == 1),
        ("router={kind: markov, switch_probability: 1}", lambda config: config.router.seed == 0),
    ],
    ids=["enum", "new_section", "nested", "mapping"],
)
def test_an_override_changes_one_value(tmp_path: Path, text: str, read: Any) -> None:
    assert read(load_config(write(tmp_path, pd_cluster()), [text]))


def test_an_override_reaches_a_model_whose_name_has_dots(tmp_path: Path) -> None:
    tree = pd_cluster()
    tree["models"]["q2.5"] = tree["models"].pop("large")
    for name in ("large-p", "large-d"):
        tree["instances"][name]["model"] = "q2.5"
    config = load_config(write(tmp_path, tree), ["models.q2.5.max_model_len=64"])
    assert config.models["q2.5"].max_model_len == 64


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("shadow.beta", "override 'shadow.beta' must be YAML.PATH=VALUE"),
        ("=1", "override '=1' must be YAML.PATH=VALUE"),
        ("profile.x=1", "override 'profile.x=1': 'profile' holds a value, not a mapping"),
        ("shadow.beta=[", "override 'shadow.beta=[': the value is not YAML: line 1, column 2"),
        ("shadow.betta=1", "shadow.betta: unknown key"),
    ],
)
def test_a_wrong_override_is_a_mistake_like_any_other(
    tmp_path: Path, text: str, problem: str
) -> None:
    assert problems_of(write(tmp_path, pd_cluster()), text)[0].startswith(problem)


def test_the_effective_configuration_loads_again_and_is_the_same(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, pd_cluster()), ["shadow.controller=off"])
    again = tmp_path / "again.yaml"
    again.write_text(effective_yaml(config))
    assert load_config(again) == config


def test_the_effective_configuration_hides_secrets_and_nothing_else(tmp_path: Path) -> None:
    tree = changed("coordinator/engine_secret", "hunter2")
    tree["models"]["small"]["env"] = {"HF_TOKEN": "hunter2", "OMP_NUM_THREADS": "1"}
    text = effective_yaml(load_config(write(tmp_path, tree)))
    assert "hunter2" not in text
    values = yaml.safe_load(text)
    assert values["models"]["small"]["env"]["OMP_NUM_THREADS"] == "1"
    assert values["shadow"]["n_min_tokens"] == 32
    assert values["models"]["small"]["bytes_per_token"] == 3.5


def test_a_loaded_configuration_cannot_be_changed(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, pd_cluster()))
    with pytest.raises(ValueError, match="frozen"):
        config.shadow.beta = 1.0
