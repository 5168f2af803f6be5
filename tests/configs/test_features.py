"""What `shadowprefill config check` refuses before an engine starts."""

from __future__ import annotations

from typing import Any

import pytest

from configs.features import feature_problem


@pytest.mark.parametrize(
    ("flag", "value", "text"),
    [
        ("data_parallel_size", 2, "must be 1, got 2: every rank has a KV pool of its own"),
        ("pipeline_parallel_size", 4, "must be 1, got 4: each stage has a step in flight"),
        ("decode_context_parallel_size", 2, "must be 1, got 2: a KV block would hold more"),
        ("prefill_context_parallel_size", 2, "must be 1, got 2: a KV block would hold more"),
        ("enable_chunked_prefill", False, "a shadow is computed in chunks"),
        ("no_enable_chunked_prefill", True, "a shadow is computed in chunks"),
        ("kv_offloading_size", 8, "must not be set, got 8: KV that comes from another tier"),
        ("speculative_config", {"method": "eagle3"}, "method must be ngram, got 'eagle3'"),
        ("speculative_config", '{"method": "mtp"}', "method must be ngram, got 'mtp'"),
        ("speculative_config", {"model": "org/draft"}, "must be ngram, got 'org/draft'"),
        ("speculative_config", "nonsense", "must be ngram, got 'nonsense'"),
        ("speculative_config.method", "medusa", "must be ngram, got 'medusa'"),
        ("spec_method", "draft_model", "must be ngram, got 'draft_model'"),
        ("spec_model", "org/draft", "must be ngram, got 'org/draft'"),
    ],
)
def test_a_refused_argument_says_the_value_the_reason_and_what_to_do(
    flag: str, value: Any, text: str
) -> None:
    problem = feature_problem(flag, value)
    assert problem is not None
    assert text in problem
    assert problem.rpartition("; ")[2].split()[0] in ("configure", "use", "leave")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("data_parallel_size", 1),
        ("tensor_parallel_size", 8),
        ("enable_chunked_prefill", True),
        ("kv_offloading_size", None),
        ("speculative_config", {"method": "ngram", "num_speculative_tokens": 3}),
        ("speculative_config", {"model": "[ngram]"}),
        ("spec_method", "ngram"),
        ("scheduling_policy", "priority"),
        ("kv_cache_dtype", "fp8"),
        ("enable_lora", True),
        ("disable_hybrid_kv_cache_manager", True),
    ],
)
def test_everything_else_is_let_through(flag: str, value: Any) -> None:
    assert feature_problem(flag, value) is None
