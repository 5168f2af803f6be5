"""Sessions out of a trace that names them."""

from __future__ import annotations

import numpy as np
import pytest

from bench.workloads.recorded import recorded_sessions
from bench.workloads.sessions import SessionCall
from bench.workloads.trace import Trace


def a_trace(*rows: tuple[float, int, int, str]) -> Trace:
    at, prompts, outputs, names = zip(*rows, strict=True)
    return Trace(
        name="told",
        arrival_s=np.array(at, dtype=float),
        input_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
        session_ids=tuple(names),
    )


def test_a_prompt_that_grew_keeps_its_history_and_a_shorter_one_starts_anew() -> None:
    trace = a_trace(
        (0.0, 100, 10, "a"), (1.0, 50, 5, "b"), (4.0, 150, 20, "a"), (9.0, 60, 1, "a")
    )  # fmt: skip
    first, second = recorded_sessions(trace)
    assert first.calls == (
        SessionCall(0, 100, 10, 0.0),
        SessionCall(110, 40, 20, 4.0),
        SessionCall(0, 60, 1, 5.0),
    )
    assert (first.session_id, first.arrival_s) == ("a", 0.0)
    assert (second.session_id, second.arrival_s) == ("b", 1.0)


def test_a_prompt_that_is_the_history_alone_computes_at_least_one_token() -> None:
    session = recorded_sessions(a_trace((0.0, 100, 10, "a"), (1.0, 110, 5, "a")))[0]
    assert session.calls[1] == SessionCall(0, 110, 5, 1.0)


def test_a_trace_without_sessions_is_refused() -> None:
    trace = Trace(
        name="plain",
        arrival_s=np.zeros(1),
        input_tokens=np.ones(1, dtype=int),
        output_tokens=np.ones(1, dtype=int),
    )
    with pytest.raises(ValueError, match="plain does not tell which request belongs"):
        recorded_sessions(trace)
