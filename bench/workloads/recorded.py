"""Sessions of a trace that tells which call belongs to which (`TraceFormat.SESSIONS`, BurstGPT with
`Session ID`), in the form that the drawn ones have.

A trace gives lengths and times, no text: a prompt longer than the history before it is taken to
start with all of it; another one has been compacted and starts anew. The gap before a call is what
the trace's times leave, from one call's record to the next one's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.workloads.sessions import RoutedSession, SessionCall

if TYPE_CHECKING:
    from bench.workloads.trace import Trace

RECORDED = "recorded"


def recorded_sessions(trace: Trace) -> tuple[RoutedSession, ...]:
    """In order of their first call."""
    if not trace.session_ids:
        raise ValueError(f"{trace.name} does not tell which request belongs to which session")
    members: dict[str, list[int]] = {}
    for number, session_id in enumerate(trace.session_ids):
        members.setdefault(session_id, []).append(number)
    return tuple(
        RoutedSession(
            session_id=session_id,
            kind=RECORDED,
            task=RECORDED,
            arrival_s=float(trace.arrival_s[numbers[0]]),
            calls=_calls(trace, numbers),
        )
        for session_id, numbers in members.items()
    )


def _calls(trace: Trace, numbers: list[int]) -> tuple[SessionCall, ...]:
    calls: list[SessionCall] = []
    history, before_s = 0, float(trace.arrival_s[numbers[0]])
    for number in numbers:
        prompt, output = int(trace.input_tokens[number]), int(trace.output_tokens[number])
        at_s = float(trace.arrival_s[number])
        # A prompt has at least one token that was not there before.
        kept = history if prompt > history else 0
        calls.append(SessionCall(kept, prompt - kept, output, at_s - before_s))
        history, before_s = prompt + output, at_s
    return tuple(calls)
