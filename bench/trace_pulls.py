"""What a decode instance's trace says of its pulls: did a shadow pull ever start while a normal one
was in flight, and what moved.

The starts and ends are replayed: what the engine says was in flight at a start is checked, not
believed. Host: bench.trace_command."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.trace import PULL_GIVEN_UP, PULL_START
from policy.vocabulary import KvClass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.trace import TracePull


@dataclass(slots=True)
class Pulls:
    """Of one trace."""

    starts: Counter[str] = field(default_factory=Counter)
    """By KV class."""
    outcomes: Counter[str] = field(default_factory=Counter)
    size_bytes: Counter[str] = field(default_factory=Counter)
    """That arrived."""
    normal_behind_push: int = 0
    """Normal pulls that began while a push was in flight."""
    longest_push_tokens: int = 0
    violations: list[str] = field(default_factory=list)


def replay(lines: Iterable[TracePull]) -> Pulls:
    """A transfer that was given up has moved nothing for as long as the limit is: from then on it
    is not in flight, though it may still end."""
    pulls = Pulls()
    in_flight: dict[str, str] = {}
    given_up: set[str] = set()
    for line in lines:
        if line.phase == PULL_START:
            _started(pulls, line, Counter(in_flight.values()))
            in_flight[line.pull] = line.kv_class
            continue
        if line.pull in in_flight:
            pulls.outcomes[f"{line.kv_class} {line.outcome}"] += 1
            pulls.size_bytes[line.kv_class] += line.size_bytes if line.outcome == "done" else 0
            del in_flight[line.pull]
        elif line.pull not in given_up:
            pulls.violations.append(f"{line.t_s:.6f} s: {line.pull} ended and never began")
        if line.phase == PULL_GIVEN_UP:
            given_up.add(line.pull)
    return pulls


def _started(pulls: Pulls, line: TracePull, in_flight: Counter[str]) -> None:
    pulls.starts[line.kv_class] += 1
    if line.kv_class == KvClass.NORMAL:
        pulls.normal_behind_push += in_flight[KvClass.SHADOW] > 0
        return
    pulls.longest_push_tokens = max(pulls.longest_push_tokens, line.tokens)
    for kv_class, others in in_flight.items():
        pulls.violations.append(
            f"{line.t_s:.6f} s: shadow pull {line.pull} began with {others} {kv_class} in flight"
        )


def pulls_text(pulls: Pulls) -> str:
    moved = ", ".join(
        f"{pulls.starts[kv_class]} {kv_class} ({pulls.size_bytes[kv_class] / 1e6:.1f} MB arrived)"
        for kv_class in KvClass
    )
    ends = ", ".join(f"{count} {name}" for name, count in sorted(pulls.outcomes.items())) or "none"
    verdict = "no shadow pull began while another pull was in flight"
    if pulls.violations:
        verdict = "\n".join([f"VIOLATED {len(pulls.violations)} times:", *pulls.violations[:20]])
    return "\n".join(
        [
            f"pulls begun: {moved}",
            f"ends: {ends}",
            f"normal pulls that began behind a push: {pulls.normal_behind_push}; the longest push "
            f"had {pulls.longest_push_tokens} tokens",
            verdict,
        ]
    )
