"""What the coordinator knows of the instances, by name, by model and by pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coordinator.errors import NoInstance
from coordinator.instances import Instance, Pair
from coordinator.placing import Placement
from policy.breaker import Breaker, BreakerParams
from policy.placement import PlacementReason
from policy.step_time import StepTimeCoefficients, StepTimeModel
from policy.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from configs.schema import ClusterConfig, InstanceConfig
    from coordinator.sessions import Session

_S_PER_TOKEN_GUESS: Final = 0.0005
"""Of models whose configuration has none. Instances of one model are compared, so only the ratio
to the move margin depends on it."""

_FIXED_GUESS_S: Final = 0.01

PAIR_BREAKER: Final = BreakerParams(failures=2, open_s=30.0, most_open_s=300.0)
"""Of a P and a D between which KV does not move: each such call has waited for a pull in vain."""


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
