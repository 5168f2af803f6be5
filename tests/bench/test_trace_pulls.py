"""What the log of a decode instance's pulls proves."""

from __future__ import annotations

from typing import Any

from bench.trace_pulls import pulls_text, replay
from engine.trace import TracePull


def a_line(pull: str, phase: str, t_s: float, **fields: Any) -> TracePull:
    kv_class = "shadow" if pull.startswith("s") else "normal"
    given: dict[str, Any] = {"tokens": 32, "size_bytes": 1000} | fields
    return TracePull(t_s=t_s, pull=pull, phase=phase, kv_class=kv_class, **given)


def test_pulls_that_take_turns_are_counted() -> None:
    pulls = replay(
        [
            a_line("s1", "start", 0.0, tokens=64),
            a_line("n1", "start", 0.5),
            a_line("s1", "end", 1.0, outcome="done"),
            a_line("n1", "end", 2.0, outcome="failed"),
            a_line("s2", "start", 2.0),
            a_line("s2", "end", 3.0, outcome="done"),
        ]
    )
    assert pulls.violations == []
    assert pulls.starts == {"shadow": 2, "normal": 1}
    assert pulls.size_bytes == {"shadow": 2000, "normal": 0}
    assert (pulls.normal_behind_push, pulls.longest_push_tokens) == (1, 64)
    text = pulls_text(pulls)
    assert "1 normal (0.0 MB arrived), 2 shadow" in text
    assert "no shadow pull began while another pull was in flight" in text


def test_a_push_beside_another_pull_is_a_violation_whatever_the_engine_says() -> None:
    pulls = replay(
        [
            a_line("n1", "start", 0.0),
            a_line("s1", "start", 0.25, normal_in_flight=0),
            a_line("s2", "start", 0.5),
        ]
    )
    assert len(pulls.violations) == 3
    assert "0.250000 s: shadow pull s1 began with 1 normal in flight" in pulls_text(pulls)


def test_a_pull_that_was_given_up_is_not_in_flight_but_may_end() -> None:
    pulls = replay(
        [
            a_line("n1", "start", 0.0),
            a_line("n1", "given_up", 5.0, outcome="timed_out"),
            a_line("s1", "start", 6.0),
            a_line("n1", "end", 7.0, outcome="done"),
        ]
    )
    assert pulls.violations == []
    assert pulls.outcomes == {"normal timed_out": 1}
    assert pulls.size_bytes["normal"] == 0


def test_an_end_without_a_start_is_a_violation() -> None:
    assert replay([a_line("n1", "end", 1.0, outcome="done")]).violations == [
        "1.000000 s: n1 ended and never began"
    ]
