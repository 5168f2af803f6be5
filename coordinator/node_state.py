"""What the coordinator knows of the instances, and which of them a call goes to.

Sticky: a session keeps returning to the P and D of a model that hold its prefix, unless another one
is estimated to finish the prefill first. Hosts policy.placement; the flows supply the numbers."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from coordinator.errors import NoInstance
from policy.breaker import Breaker, BreakerParams
from policy.placement import (
    DecodeCandidate,
    Placed,
    PlacementReason,
    PrefillCandidate,
    place_decode,
    place_prefill,
    skip_prefill,
)
from policy.step_time import StepTimeCoefficients, StepTimeModel
from policy.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from configs.schema import ClusterConfig, InstanceConfig
    from coordinator.sessions import Session

ROOM_UNKNOWN: Final = sys.maxsize
"""No free-KV figure of a decode instance reaches us yet: it counts as roomy, and queues if not."""

_S_PER_TOKEN_GUESS: Final = 0.0005
"""Of models whose configuration has none. Instances of one model are compared, so only the ratio
to the move margin depends on it."""

_FIXED_GUESS_S: Final = 0.01

BREAKER: Final = BreakerParams(failures=5, open_s=5.0, most_open_s=60.0)
"""Of an instance that answers its health probes and fails its calls."""
PAIR_BREAKER: Final = BreakerParams(failures=2, open_s=30.0, most_open_s=300.0)
"""Of a P and a D between which KV does not move: each such call has waited for a pull in vain."""

_WEIGHT_OF_NEWEST = 0.2
"""In the running mean of a D's hand-offs: they differ by the length that D lacks."""


@dataclass(slots=True, kw_only=True, eq=False)
class Instance:
    """One engine, as seen from here."""

    name: str
    url: str
    role: Role
    model: str
    healthy: bool = False
    """Answered its last health probe, and refused no connection since."""
    silent_probes: int = 0
    """Health probes in a row that got no answer in time."""
    draining: bool = False
    """Takes no new calls; those that run go on to their end."""
    registered: bool = False
    """It came while the coordinator ran: the configuration file does not know it."""
    verified: bool = True
    """Seen to serve its model; one that was registered has to be, before it gets a call."""
    suspect_until_s: float = 0.0
    """It let a call time out: others are preferred until then."""
    inflight_tokens: int = 0
    """Uncached prompt tokens (estimate) of the legs that are being prefilled there."""
    inflight_calls: int = 0
    handoffs_out: int = 0
    """Normal hand-offs of this P that no D has answered for."""
    failures: int = 0
    """Legs that failed there in a row."""
    last_error: str = field(default="", repr=False)
    breaker: Breaker = field(default_factory=lambda: Breaker(BREAKER), repr=False)
    handoff_s: float = 0.0
    """From a hand-off sent to this D to its first byte (running mean): transfer, queue, first
    iteration. 0: none was seen."""

    @property
    def takes_calls(self) -> bool:
        return self.healthy and not self.draining

    def saw_handoff(self, took_s: float) -> None:
        newest = _WEIGHT_OF_NEWEST if self.handoff_s else 1.0
        self.handoff_s += newest * (took_s - self.handoff_s)


class Pair(NamedTuple):
    """Where one call runs. Colocated (or P is skipped): both are the same object."""

    prefill: Instance
    decode: Instance
    prefill_reason: PlacementReason = PlacementReason.FIRST
    decode_reason: PlacementReason = PlacementReason.FIRST

    @property
    def colocated(self) -> bool:
        return self.prefill is self.decode

    @contextmanager
    def handing_over(self, hands_over: bool) -> Iterator[None]:
        """A call's KV leaves P until D has answered; no push leaves it then."""
        self.prefill.handoffs_out += hands_over
        try:
            yield
        finally:
            self.prefill.handoffs_out -= hands_over


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


class Cluster:
    """All instances, by name and by model."""

    def __init__(self, config: ClusterConfig, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._models = config.models
        self._retry_after_s = max(1, round(config.coordinator.probe_interval_s))
        self._suspect_s = config.coordinator.first_byte_timeout_s
        self._pairs: dict[tuple[str, str], Breaker] = {}
        """P and D whose last hand-off failed."""
        self.instances = {
            name: Instance(name=name, url=instance.url, role=instance.role, model=instance.model)
            for name, instance in config.instances.items()
        }
        self.placement = Placement(self, clock)
        self._by_role: dict[tuple[str, Role], list[Instance]] = {}
        for instance in self.instances.values():
            self._by_role.setdefault((instance.model, instance.role), []).append(instance)

    def add(self, name: str, config: InstanceConfig) -> Instance:
        """While it runs. Sessions stay where they are: what is new holds nothing of theirs."""
        instance = Instance(
            name=name,
            url=config.url,
            role=config.role,
            model=config.model,
            registered=True,
            verified=False,
        )
        self.instances[name] = instance
        self._by_role.setdefault((instance.model, instance.role), []).append(instance)
        return instance

    def remove(self, instance: Instance) -> None:
        """One that is drained. Its sessions find another when they next call; the others do not
        move."""
        assert not instance.inflight_calls, instance
        del self.instances[instance.name]
        self._by_role[instance.model, instance.role].remove(instance)
        for place in [place for place in self._pairs if instance.name in place]:
            del self._pairs[place]

    def is_last(self, instance: Instance) -> bool:
        """Whether its model could serve no call without it. Calls get by without P."""
        others = self.of_model(instance.model, instance.role)
        is_needed = instance.role is not Role.PREFILL
        return is_needed and not any(one.takes_calls for one in others if one is not instance)

    def of_model(self, model: str, role: Role | None = None) -> list[Instance]:
        if role is not None:
            return self._by_role.get((model, role), [])
        return [one for one in self.instances.values() if one.model == model]

    def is_disaggregated(self, model: str) -> bool:
        return (model, Role.DECODE) in self._by_role

    def sticky_pair(self, session: Session, model: str) -> Pair:
        """The instances that the session keeps returning to on `model`, however busy they are now.
        A first answer binds: the call has to find the shadow that was computed there. Raises
        NoInstance; P may be a D while no P is healthy."""
        warmth = session.warmth_of(model)
        prefill = self._healthy(warmth.prefill_instance)
        decode = self._healthy(warmth.decode_instance)
        sticky = PlacementReason.STICKY
        if prefill is not None and decode is not None:
            return Pair(prefill, decode, sticky, sticky)
        placed = self.placement.place(session, model, 0)
        pair = placed._replace(prefill=prefill or placed.prefill, decode=decode or placed.decode)
        if warmth.decode_instance != pair.decode.name:
            warmth.decode_instance = pair.decode.name
            warmth.decode_tokens = warmth.decode_own_tokens = 0
        if pair.prefill.role is not Role.DECODE and warmth.prefill_instance != pair.prefill.name:
            # What the lost one held, the new one does not.
            warmth.prefill_instance = pair.prefill.name
            warmth.own_tokens = warmth.shadow_tokens = 0
        return pair

    def _healthy(self, name: str | None) -> Instance | None:
        instance = self.instances.get(name or "")
        return instance if instance is not None and instance.takes_calls else None

    def placed(self, pair: Pair) -> None:
        """A call goes there: of an open breaker it is the trial."""
        now_s = self.clock()
        for instance in {pair.prefill.name: pair.prefill, pair.decode.name: pair.decode}.values():
            instance.breaker.tries(now_s)
        breaker = self._pairs.get((pair.prefill.name, pair.decode.name))
        if breaker is not None:
            breaker.tries(now_s)

    def cut_off_from(self, decode: Instance) -> list[str]:
        """P instances whose hand-offs this D cannot pull, as it seems."""
        now_s = self.clock()
        return [
            prefill
            for (prefill, name), breaker in self._pairs.items()
            if name == decode.name and not breaker.lets_through(now_s)
        ]

    def pulled(self, prefill: str, decode: Instance, took_s: float) -> None:
        """A hand-off was answered. As late as a pull that was given up: it was one."""
        if took_s < self._models[decode.model].pull_timeout_s:
            self._pairs.pop((prefill, decode.name), None)
        else:
            self.not_pulled(prefill, decode)

    def not_pulled(self, prefill: str, decode: Instance) -> None:
        place = (prefill, decode.name)
        if place not in self._pairs:
            self._pairs[place] = Breaker(PAIR_BREAKER)
        self._pairs[place].failed(self.clock())

    def served(self, instance: Instance) -> None:
        instance.failures = 0
        instance.breaker.succeeded()
        instance.suspect_until_s = 0.0

    def refused(self, instance: Instance, error: str) -> None:
        """No connection: down until a probe says otherwise."""
        instance.healthy = False
        instance.failures += 1
        instance.last_error = error

    def timed_out(self, instance: Instance, error: str) -> None:
        """Its front end may be fine while its engine hangs, which a health probe cannot see."""
        instance.suspect_until_s = self.clock() + self._suspect_s
        self.failed(instance, error)

    def failed(self, instance: Instance, error: str) -> None:
        instance.failures += 1
        instance.breaker.failed(self.clock())
        instance.last_error = error

    def nobody(self, model: str, role: Role) -> NoInstance:
        return NoInstance(model, role.value, self._retry_after_s)

    def s_per_token(self, model: str) -> float:
        step_time = self._models[model].step_time
        return _S_PER_TOKEN_GUESS if step_time is None else step_time.s_per_token

    def skip_prefill_tokens(self, model: str) -> int:
        return self._models[model].skip_prefill_tokens

    def step_time(self, model: str) -> StepTimeModel:
        """The latency form of its instances, as the configuration has it."""
        step_time = self._models[model].step_time
        if step_time is not None:
            return step_time.to_policy()
        guess = StepTimeCoefficients(
            fixed_s=_FIXED_GUESS_S,
            s_per_request=0.0,
            s_per_token=_S_PER_TOKEN_GUESS,
            s_per_token_context=0.0,
        )
        return StepTimeModel(guess)

    def missing_role(self, model: str) -> Role | None:
        """A role of the model that no healthy instance plays now."""
        roles: Iterable[Role] = (
            (Role.PREFILL, Role.DECODE) if self.is_disaggregated(model) else (Role.COLOCATED,)
        )
        for role in roles:
            if not any(instance.takes_calls for instance in self.of_model(model, role)):
                return role
        return None


def _spread(session: Session, instance: Instance) -> int:
    """Below 1024, the same in every process."""
    return crc32(instance.name.encode(), crc32(session.id.encode())) & 1023
