"""Which hand-offs a decode instance may give to its connector, and each of them once.

vLLM's connector believes what it is told: blocks of another prompt are read without an error,
blocks that P has given to someone else too. So what reaches it was sealed by an engine of this
cluster for this very prompt (kv_transport.seal) and was not used before. Whether its lease is over
is for the worker to say, which knows P's clock (engine.nixl).

Hosts: engine.connector (checks), engine.scheduler (seals)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kv_transport.errors import HandOffUsed
from kv_transport.kv_params import check_pullable
from kv_transport.seal import check_seal, prompt_digest

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request

VLLM_LEASE_S = 30
"""Unless its configuration says something else."""
LEASE_MARGIN_S = 5.0
"""The worker refuses what ends later."""

HandOffId = tuple[str, str]


class HandOffs:
    """Of one decode instance."""

    def __init__(self, secret: str, lease_s: float, *, compares: bool) -> None:
        """`compares`: whether both ends see the same prompt."""
        self._secret = secret
        self._compares = compares
        # Beyond its lease a used one is refused for its age.
        self._remembered_s = 2 * lease_s
        self._used: set[HandOffId] = set()
        self._used_since: deque[tuple[float, HandOffId]] = deque()
        self.useful_s = max(1.0, lease_s - LEASE_MARGIN_S)
        """After its arrival; a pull takes time, too, but nothing is lost by one that is late."""

    def take(self, request: Request, now_s: float) -> None:
        """Raises KvParamsInvalid: compute the prompt."""
        params = request.kv_transfer_params
        # One that is aborted at once pulls nothing, and its prompt is a dummy: by it vLLM's front
        # end gives the blocks of a call that it refused back to the other side.
        compares = self._compares and not request.abort_immediately
        check_pullable(params, request.num_prompt_tokens if compares else None)
        check_seal(params, prompt_of(request) if compares else "", self._secret)
        hand_off = (str(params["remote_engine_id"]), str(params["remote_request_id"]))
        self._forget(now_s)
        if hand_off in self._used:
            raise HandOffUsed(f"the hand-off {hand_off[1]} of engine {hand_off[0]} was used before")
        self._used.add(hand_off)
        self._used_since.append((now_s, hand_off))

    def _forget(self, now_s: float) -> None:
        while self._used_since and now_s - self._used_since[0][0] > self._remembered_s:
            self._used.discard(self._used_since.popleft()[1])


def lease_s(config: VllmConfig) -> float:
    """How long P keeps the blocks of a hand-off; all instances of a cluster have the same."""
    transfer = config.kv_transfer_config
    if transfer is None:
        return float(VLLM_LEASE_S)
    return float(transfer.get_from_extra_config("kv_lease_duration", VLLM_LEASE_S))


def sees_whole_prompts(scheduler: Scheduler) -> bool:
    """Hybrid models and some drafters leave the prompt's last tokens to the decode instance."""
    return (
        len(scheduler.kv_cache_config.kv_cache_groups) == 1
        and not scheduler.has_mamba_layers
        and scheduler.num_prefill_lookahead <= 1
    )


def prompt_of(request: Request) -> str:
    """What the KV of a request's prompt depends on, as a digest that both ends agree on."""
    others = [feature.identifier for feature in request.mm_features or ()]
    if request.lora_request is not None:
        others.append(request.lora_request.lora_name)
    return prompt_digest(request.prompt_token_ids or (), others)
