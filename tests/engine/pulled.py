"""A decode instance whose pulls are played: memory of a prefill instance, a link, and every fault.

What P keeps for a hand-off are the digests that its slots would hold (tests.engine.kv_runner). Once
it was told that they were read, or once their lease is over, it gives the blocks to somebody else.
So KV that was pulled too late, from the wrong blocks, or into blocks that D gave away, is foreign
KV, and the worker of D, which checks what every step attends to, fails."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.v1.outputs import KVConnectorOutput

from engine.hand_offs import prompt_of
from kv_transport.errors import PeerGone
from kv_transport.fake_link import FakeLink
from kv_transport.link import BlockCopy
from kv_transport.seal import sealed
from policy.vocabulary import KvClass, RequestClass
from tests.engine.kv_runner import KvRunner, digests_after
from tests.engine.played import BLOCK, Played
from tests.engine.traffic import Reset

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from engine.trace import TracePull
    from tests.engine.traffic import Arrival, Event

LEASE_S = 3.0
LEASE_MARGIN_S = 0.5
BLOCK_BYTES = 1000
FOREIGN = -1
"""What a slot of P holds that belongs to somebody else by now."""


@dataclass
class PrefillMemory:
    """The blocks that one P keeps for D, and for how long."""

    blocks: dict[int, list[int]] = field(default_factory=dict)
    leases: dict[str, tuple[float, list[int]]] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def hand_over(self, prompt: list[int], now_s: float) -> dict[str, Any]:
        digests: list[int] = []
        digests_after(digests, prompt)
        ids = []
        for start in range(0, len(prompt), BLOCK):
            number = next(self._numbers)
            self.blocks[number] = digests[start : start + BLOCK]
            ids.append(number)
        name = f"p-{next(self._numbers)}"
        self.leases[name] = (now_s + LEASE_S, ids)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [ids],
            "remote_engine_id": "p",
            "remote_request_id": name,
            "remote_host": "127.0.0.1",
            "remote_port": 1,
            "remote_num_tokens": len(prompt),
            "remote_blocks_expiry_time": now_s + LEASE_S,
            "tp_size": 1,
        }

    def let_go(self, name: str) -> None:
        """D has read them, or nobody will."""
        for number in self.leases.pop(name, (0.0, []))[1]:
            self.blocks[number] = [FOREIGN] * BLOCK

    def expire(self, now_s: float) -> None:
        for name in [name for name, (until_s, _) in self.leases.items() if until_s <= now_s]:
            self.let_go(name)


@dataclass
class _Pull:
    remote_name: str
    expires_s: float
    kv_class: KvClass


class PullingRunner(KvRunner):
    """The worker of D: posts the pulls of a step, and tells which have ended."""

    def __init__(self, run: DecodePlayed, blocks: int, *, asynchronous: bool) -> None:
        super().__init__(blocks, BLOCK, asynchronous=asynchronous)
        self._run = run
        self.memory = PrefillMemory()
        self.link = FakeLink(
            self._copy,
            block_bytes=BLOCK_BYTES,
            bytes_per_s=run.bytes_per_s,
            clock=lambda: run.now_s,
        )
        self.pulls: dict[str, _Pull] = {}
        """Whose bytes may still move."""
        self._failed_at_once: list[str] = []

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self.link.advance()
        self.memory.expire(self._run.now_s)
        for name, meta in output.kv_connector_metadata.reqs_to_recv.items():
            self._begin(name, meta)
        result = super().execute(output)
        result.kv_connector_output = self._ended()
        return result

    def _begin(self, name: str, meta: Any) -> None:
        local = meta.local_block_ids[0] if meta.local_block_ids else []
        if not local:
            self.memory.let_go(meta.remote.request_id)
            return
        pull = _Pull(
            meta.remote.request_id,
            meta.remote.blocks_expiry_time,
            KvClass.SHADOW if self._run.is_shadow(name) else KvClass.NORMAL,
        )
        self._run.check_start(name, pull.kv_class)
        remote = meta.remote.block_ids[0][-len(local) :]
        copies = [BlockCopy(source, target) for source, target in zip(remote, local, strict=True)]
        self.pulls[name] = pull
        try:
            self.link.post(name, copies)
        except PeerGone:
            self._failed_at_once.append(name)

    def _ended(self) -> KVConnectorOutput:
        ended, failed = set(self._failed_at_once), set(self._failed_at_once)
        self._failed_at_once.clear()
        for transfer in self.link.ended():
            name = transfer.transfer_id
            ended.add(name)
            # As engine.nixl has it: what ended too close to the end of the lease does not count.
            late = self._run.now_s + LEASE_MARGIN_S >= self.pulls[name].expires_s
            if transfer.error is not None or late:
                failed.add(name)
        for name in ended:
            self.memory.let_go(self.pulls.pop(name).remote_name)
        return KVConnectorOutput(finished_recving=ended, failed_recving=failed)

    def _copy(self, one: BlockCopy) -> None:
        self.memory.expire(self._run.now_s)
        content = self.memory.blocks[one.source]
        at = one.target * BLOCK
        self._slots[at : at + len(content)] = content


@dataclass
class DecodePlayed(Played):
    """A decode scheduler, its worker, its P and the link between them."""

    bytes_per_s: float = 200_000.0
    handed_over_share: float = 0.7
    """Of the arrivals; of the rest some bring a hand-off that must not be used."""
    fault_share: float = 0.02
    """Of the steps."""
    log: list[TracePull] = field(default_factory=list)
    _used: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scheduler.link.tell = self.log.append
        self._faults = random.Random(self.seed + 1)
        self.worker = PullingRunner(self, self.blocks, asynchronous=self.depth > 1)
        self.runner = self.worker
        self._healthy_at = 0
        self.before.append(DecodePlayed._fault)

    def check_start(self, name: str, kv_class: KvClass) -> None:
        """By what really moves, whatever the scheduler believes. What it has given up may count no
        more."""
        if kv_class is KvClass.NORMAL:
            return
        known = self.scheduler.link.meter._in_flight
        for other in self.worker.pulls:
            given_up_s = known[other].gives_up_s if other in known else None
            is_over = given_up_s is not None and given_up_s <= self.now_s
            assert is_over, f"shadow pull {name} begins while {other} is in flight"

    def settle(self, steps: int = 400) -> None:
        """After the last answer: what was given up ends, too."""
        self.worker.link.thaw()
        self.worker.link.find_peer()
        self.before.remove(DecodePlayed._fault)
        for _ in range(steps):
            if not self.worker.pulls:
                break
            self.step()
        for _ in range(2):
            self.step()

    def held_aside(self) -> list[int]:
        """Blocks of late transfers."""
        kept = self.scheduler._kept_aside.values()
        return [block.block_id for blocks in kept for block in blocks]

    def deferred(self) -> list[int]:
        """Blocks that a step in flight may still write: vLLM frees them with the next one."""
        frees = self.scheduler.deferred_frees
        return [block.block_id for _, blocks in frees for block in blocks]

    def _happens(self, event: Event) -> None:
        if isinstance(event, Reset):  # vLLM itself cannot preempt beside pulls in flight
            event = Reset(preempt_running=False)
        super()._happens(event)

    def _request(self, arrival: Arrival) -> Request:
        request = super()._request(arrival)
        is_shadow = arrival.request_class is RequestClass.SHADOW
        if self._faults.random() < (0.9 if is_shadow else self.handed_over_share):
            hand_off = self._sealed(request)
            self._used.append(dict(hand_off))
        elif self._faults.random() < 0.6:
            hand_off = self._useless(request)
        else:
            return request
        request.kv_transfer_params = hand_off
        return request

    def _sealed(self, request: Request) -> dict[str, Any]:
        hand_off = self.worker.memory.hand_over(list(request.prompt_token_ids), self.now_s)
        return sealed(hand_off, prompt_of(request), "")

    def _useless(self, request: Request) -> dict[str, Any]:
        """What a client could send, or a coordinator by mistake."""
        kind = self._faults.randrange(3)
        if kind == 0 and self._used:  # of another prompt, or used before
            return dict(self._faults.choice(self._used))
        hand_off = self._sealed(request)
        if kind == 1:
            ids = hand_off["remote_block_ids"][0]
            return hand_off | {"remote_block_ids": [[number + 1 for number in ids]]}
        del hand_off["shadowprefill_seal"]
        return hand_off

    def _fault(self) -> None:
        step = len(self.steps)
        if step == self._healthy_at:
            self.worker.link.thaw()
            self.worker.link.find_peer()
        elif step > self._healthy_at and self._faults.random() < self.fault_share:
            fault = self._faults.choice([self.worker.link.freeze, self.worker.link.lose_peer])
            fault()
            self._healthy_at = step + self._faults.randrange(2, 60)
