"""Which instances a call goes to: asks the policy, with the numbers of this moment.

Sticky: a session keeps returning to the P and D of a model that hold its prefix, unless another one
is estimated to finish the prefill first. Hosts policy.placement."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final
from zlib import crc32

from coordinator.instances import Instance, Pair
from policy.placement import (
    DecodeCandidate,
    Placed,
    PlacementReason,
    PrefillCandidate,
    place_decode,
    place_prefill,
    skip_prefill,
)
from policy.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from coordinator.node_state import Cluster
    from coordinator.sessions import Session

ROOM_UNKNOWN: Final = sys.maxsize
"""No free-KV figure of a decode instance reaches us yet: it counts as roomy, and queues if not."""


class Placement:
    """Asks the policy, with the numbers of this moment."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock

    def place(
        self,
        session: Session,
        model: str,
        prompt_tokens: int,
        exclude: Collection[str] = (),
    ) -> Pair:
        """The pair for a call of the session, without the instances that failed it already.
        Raises NoInstance. A PD model whose P instances are all down is served by D alone."""
        if self._cluster.is_disaggregated(model):
            decode, decode_reason = self._decode(session, model, prompt_tokens, exclude)
            apart = (*exclude, *self._cluster.cut_off_from(decode))
            placed = self._prefill(session, model, prompt_tokens, apart, Role.PREFILL)
            return self._pair(placed, decode, decode_reason)
        placed = self._prefill(session, model, prompt_tokens, exclude, Role.COLOCATED)
        if placed.reason is PlacementReason.NONE_HEALTHY:
            raise self._cluster.nobody(model, Role.COLOCATED)
        instance = self._cluster.instances[placed.instance]
        return Pair(instance, instance, placed.reason, placed.reason)

    def place_call(self, session: Session, model: str, prompt_tokens: int) -> Pair:
        """The pair for a call that no instance has failed yet. D computes its prompt alone where
        that takes no longer than a P leg. Raises NoInstance."""
        pair = self.place(session, model, prompt_tokens)
        if pair.colocated:
            return pair
        warmth, decode = session.peek(model), pair.decode
        placed = skip_prefill(
            Placed(pair.prefill.name, pair.prefill_reason),
            decode.name,
            prompt_tokens,
            warmth.decode_tokens if decode.name == warmth.decode_instance else 0,
            self._cluster.skip_prefill_tokens(model),
        )
        return self._pair(placed, decode, pair.decode_reason)

    def _pair(self, placed: Placed, decode: Instance, decode_reason: PlacementReason) -> Pair:
        is_alone = placed.reason is PlacementReason.NONE_HEALTHY
        prefill = decode if is_alone else self._cluster.instances[placed.instance]
        return Pair(prefill, decode, placed.reason, decode_reason)

    def _prefill(
        self,
        session: Session,
        model: str,
        prompt_tokens: int,
        exclude: Collection[str],
        role: Role,
    ) -> Placed:
        warmth = session.peek(model)
        s_per_token = self._cluster.s_per_token(model)
        instances = self._usable(model, role, exclude)
        candidates = [
            PrefillCandidate(
                name=instance.name,
                healthy=instance.healthy,
                # The last term breaks ties between idle instances differently per session.
                queue_s=instance.inflight_tokens * s_per_token + _spread(session, instance) * 1e-9,
                uncached_tokens=max(
                    0,
                    prompt_tokens
                    - (warmth.warm_tokens if instance.name == warmth.prefill_instance else 0),
                ),
                s_per_token=s_per_token,
            )
            for instance in instances
        ]
        return place_prefill(candidates, warmth.prefill_instance)

    def _decode(
        self, session: Session, model: str, prompt_tokens: int, exclude: Collection[str]
    ) -> tuple[Instance, PlacementReason]:
        warmth = session.peek(model)
        candidates = [
            DecodeCandidate(
                name=instance.name,
                healthy=instance.healthy,
                in_flight_requests=instance.inflight_calls * 1024 + _spread(session, instance),
                free_tokens=ROOM_UNKNOWN,
            )
            for instance in self._usable(model, Role.DECODE, exclude)
        ]
        placed = place_decode(candidates, warmth.decode_instance, prompt_tokens)
        if placed.reason is PlacementReason.NONE_HEALTHY:
            raise self._cluster.nobody(model, Role.DECODE)
        return self._cluster.instances[placed.instance], placed.reason

    def _usable(self, model: str, role: Role, exclude: Collection[str]) -> list[Instance]:
        """Without the suspects, unless only suspects are left."""
        left = [
            instance
            for instance in self._cluster.of_model(model, role)
            if instance.name not in exclude and not instance.draining
        ]
        now_s = self._clock()
        calm = [
            one
            for one in left
            if one.healthy and one.suspect_until_s <= now_s and one.breaker.lets_through(now_s)
        ]
        return calm or left


def _spread(session: Session, instance: Instance) -> int:
    """Below 1024, the same in every process."""
    return crc32(instance.name.encode(), crc32(session.id.encode())) & 1023
