"""Seeded random traffic, as a script by iteration: the same one is played to two schedulers.

Sessions grow: a routed call continues what was said, here or on another model, and shadow jobs
follow the part said elsewhere. Without the shadow events a script is what arrives where nobody runs
shadow work."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from policy.vocabulary import RequestClass
from tests.engine.kv_runner import answer_to

SESSIONS = 4
LONGEST_HISTORY = 500


@dataclass(frozen=True, kw_only=True)
class Arrival:
    name: str
    request_class: RequestClass
    prompt: list[int]
    max_tokens: int = 1
    session: str = ""
    probability: float = 1.0


@dataclass(frozen=True)
class Leave:
    """The client of this request is gone; it may have ended long before."""

    name: str


@dataclass(frozen=True)
class Reset:
    """Of the prefix cache."""

    preempt_running: bool


@dataclass(frozen=True)
class Pause:
    """PauseState, by name."""

    state: str


Event = Arrival | Leave | Reset | Pause


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Probabilities are per iteration."""

    iterations: int = 300
    normal: float = 0.06
    routed: float = 0.06
    elsewhere: float = 0.06
    """A call of a session on another model: its history grows, and a shadow job follows."""
    lone_shadow: float = 0.03
    """Of no session: nothing supersedes or releases it."""
    leave: float = 0.03
    reset: float = 0.005
    pause: float = 0.004
    burst: float = 0.01
    longest_prompt: int = 300
    longest_answer: int = 40
    shared: bool = True
    """Normal calls share prefixes with each other, routed ones with their shadows. Otherwise no
    foreground request finds anything in the cache but what it computed itself."""
    unlikely: float = 0.3
    """Share of the shadow jobs that are unlikely to be used."""


@dataclass
class Script:
    """`iterations[i]`: what happens before the i-th step is built."""

    seed: int
    mix: Mix
    iterations: list[list[Event]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._fresh = 1_000_000
        self._histories = [self._text(40) for _ in range(SESSIONS)]
        self._preambles = [self._text(90) for _ in range(2)]
        self._names: list[str] = []
        self._paused_until = -1
        for iteration in range(self.mix.iterations):
            self.iterations.append(self._events(iteration))

    def arrivals(self) -> dict[str, Arrival]:
        return {
            event.name: event
            for events in self.iterations
            for event in events
            if isinstance(event, Arrival)
        }

    def without_shadows(self) -> list[list[Event]]:
        shadows = {
            name
            for name, arrival in self.arrivals().items()
            if arrival.request_class is RequestClass.SHADOW
        }
        return [
            [event for event in events if getattr(event, "name", None) not in shadows]
            for events in self.iterations
        ]

    def fill_then_burst(self, pool_tokens: int, quiet: int) -> int:
        """Shadow jobs for the whole pool, then many foreground requests at once, while the last
        jobs are at work or long after; answers the iteration of the first ones."""
        tokens = 0
        jobs: list[Event] = []
        while tokens < 4 * pool_tokens:
            prompt = self._text(self._chance.randrange(100, 500))
            jobs.append(self._shadow(f"y{len(jobs)}", prompt, ""))
            tokens += len(prompt)
        self.iterations += [jobs, *([] for _ in range(quiet))]
        burst_at = len(self.iterations)
        for iteration in range(3):
            self.iterations.append(
                [
                    self._foreground(
                        f"n{iteration}.{index}", RequestClass.NORMAL, self._any_prompt()
                    )
                    for index in range(self._chance.randrange(2, 12))
                ]
            )
        return burst_at

    def left(self) -> set[str]:
        return {
            event.name for events in self.iterations for event in events if isinstance(event, Leave)
        }

    def _events(self, iteration: int) -> list[Event]:
        mix = self.mix
        events: list[Event] = []
        if self._paused_until == iteration:
            events.append(Pause("UNPAUSED"))
        if self._happens(mix.pause) and self._paused_until < iteration:
            self._paused_until = iteration + self._chance.randrange(1, 12)
            events.append(Pause(self._chance.choice(["PAUSED_NEW", "PAUSED_ALL"])))
        if self._happens(mix.reset):
            events.append(Reset(self._happens(0.5)))
        for _ in range(self._chance.randrange(4, 9) if self._happens(mix.burst) else 1):
            events += self._arriving(iteration, len(events))
        if self._names and self._happens(mix.leave):
            events.append(Leave(self._chance.choice(self._names[-8:])))
        self._chance.shuffle(events)
        self._names += [event.name for event in events if isinstance(event, Arrival)]
        return events

    def _arriving(self, iteration: int, index: int) -> list[Event]:
        mix, session = self.mix, self._chance.randrange(SESSIONS)
        suffix = f"{iteration}.{index}"
        events: list[Event] = []
        if self._happens(mix.normal):
            events.append(self._foreground(f"n{suffix}", RequestClass.NORMAL, self._any_prompt()))
        if self._happens(mix.routed):
            events.append(self._routed(f"r{suffix}", session))
        if self._happens(mix.elsewhere):
            events.append(self._after_a_call_elsewhere(f"x{suffix}", session))
        if self._happens(mix.lone_shadow):
            prompt = self._any_prompt()
            shared = mix.shared and self._happens(0.5)
            prompt = self._chance.choice(self._preambles) + prompt if shared else prompt
            events.append(self._shadow(f"y{suffix}", prompt, ""))
        return events

    def _routed(self, name: str, session: int) -> Arrival:
        if not self.mix.shared:
            return self._foreground(name, RequestClass.ROUTED, self._any_prompt(), session)
        prompt = self._histories[session] + self._text(self._chance.randrange(1, 60))
        call = self._foreground(name, RequestClass.ROUTED, prompt, session)
        self._remember(session, prompt + answer_to(prompt, call.max_tokens))
        return call

    def _after_a_call_elsewhere(self, name: str, session: int) -> Arrival:
        self._remember(session, self._histories[session] + self._text(self._length()))
        return self._shadow(name, self._histories[session], f"s{session}")

    def _remember(self, session: int, history: list[int]) -> None:
        # A history that has grown too long is compacted: its prefix changes.
        too_long = len(history) > LONGEST_HISTORY
        self._histories[session] = self._text(50) if too_long else history

    def _foreground(
        self, name: str, request_class: RequestClass, prompt: list[int], session: int | None = None
    ) -> Arrival:
        return Arrival(
            name=name,
            request_class=request_class,
            prompt=prompt,
            max_tokens=self._chance.randrange(1, self.mix.longest_answer),
            session="" if session is None else f"s{session}",
        )

    def _shadow(self, name: str, prompt: list[int], session: str) -> Arrival:
        unlikely = self._happens(self.mix.unlikely)
        return Arrival(
            name=name,
            request_class=RequestClass.SHADOW,
            prompt=prompt,
            session=session,
            probability=self._chance.uniform(0.0, 0.2) if unlikely else self._chance.random(),
        )

    def _any_prompt(self) -> list[int]:
        if self.mix.shared and self._happens(0.4):
            return self._chance.choice(self._preambles) + self._text(self._length() // 2 + 1)
        return self._text(self._length())

    def _length(self) -> int:
        return self._chance.randrange(2, self.mix.longest_prompt)

    def _text(self, tokens: int) -> list[int]:
        """Never said before."""
        self._fresh += tokens
        return list(range(self._fresh - tokens, self._fresh))

    def _happens(self, probability: float) -> bool:
        return self._chance.random() < probability
