"""vLLM features that shadow work does not go together with, and what to set instead.

What the arguments alone can tell, before an engine starts; what the model decides is looked at in
the engine (engine.features). Pure.

Hosts: configs.checks, engine.features."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MUST_BE_ONE = {
    "data_parallel_size": "every rank has a KV pool of its own, and a shadow would warm another "
    "one than its session's calls reach; configure one instance per rank",
    "pipeline_parallel_size": "each stage has a step in flight, and how long an arrival waits "
    "behind shadow work could no longer be bounded; use tensor_parallel_size",
    "decode_context_parallel_size": "a KV block would hold more tokens than block_size says, and "
    "shadow KV be counted wrongly; use tensor_parallel_size",
    "prefill_context_parallel_size": "a KV block would hold more tokens than block_size says, and "
    "shadow KV be counted wrongly; use tensor_parallel_size",
}
HOST_TIER_HAZARD = (
    "KV that comes from another tier can be longer than a shadow chunk, which ends vLLM's "
    "scheduler with a failed assertion"
)
DRAFTS_WITHOUT_KV = ("ngram", "[ngram]")
_SPECULATIVE = "speculative_config"
_METHODS = ("method", "spec_method", f"{_SPECULATIVE}.method")
_MODELS = ("model", "spec_model", f"{_SPECULATIVE}.model")


def feature_problem(flag: str, value: Any) -> str | None:
    """Why this entry of `engine_args` is refused; None if it is not."""
    name, value = _positive(flag, value)
    if name in MUST_BE_ONE:
        return None if value == 1 else f"must be 1, got {value!r}: {MUST_BE_ONE[name]}"
    if name == "enable_chunked_prefill" and value is False:
        return "must be true, got false: a shadow is computed in chunks; leave it out"
    if name == "kv_offloading_size" and value is not None:
        return f"must not be set, got {value!r}: {HOST_TIER_HAZARD}; use host_tier"
    return _speculative_problem(name, value)


def _positive(flag: str, value: Any) -> tuple[str, Any]:
    """`no_x: true` is `x: false`."""
    plain = flag.replace("-", "_")
    if plain.startswith("no_") and isinstance(value, bool):
        return plain.removeprefix("no_"), not value
    return plain, value


def _speculative_problem(name: str, value: Any) -> str | None:
    if name == _SPECULATIVE:
        given = _mapping(value)
        method = given.get("method", given.get("model"))
        where = f"{_SPECULATIVE}.method "
    elif name in (*_METHODS[1:], *_MODELS[1:]):
        method, where = value, ""
    else:
        return None
    if method is None or method in DRAFTS_WITHOUT_KV:
        return None
    return (
        f"{where}must be ngram, got {method!r}: other drafters keep KV or hidden states of their "
        "own for every prompt, which a shadow chunk was not shown to fill as a whole prompt does; "
        "use ngram, or none"
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {"method": value}
    return value if isinstance(value, Mapping) else {}
