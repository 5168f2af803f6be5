"""What a call and a run leave behind: the plan that later runs replay, and the rows we compare."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.demo.client import Message, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """One call of the first run, exactly as every other run repeats it."""

    call: int
    model: str
    is_switch: bool
    messages: tuple[Message, ...]
    """The whole prompt; all but the last message existed before the call."""
    history_tokens: int
    """Prompt tokens that existed before the call, counted by the model that answers it."""
    gap_s: float
    """From the end of the call before to the sending of this one."""
    action: str
    output_tokens: int
    output_text: str

    @property
    def history(self) -> tuple[Message, ...]:
        return self.messages[:-1] if self.call > 1 else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """One call of one run: the row of `calls.jsonl`."""

    run: str
    session_id: str
    call: int
    model: str
    is_switch: bool
    prompt_tokens: int
    history_tokens: int
    cached_tokens: int
    shadow_tokens: int
    output_tokens: int
    ttft_ms: float
    e2el_ms: float
    gap_s: float
    p_instance: str
    d_instance: str
    finish_reason: str
    prompt_ids: tuple[int, ...] = field(repr=False)
    output_ids: tuple[int, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Without the prompt's ids: thousands of numbers that the transcript holds as text."""
        row = asdict(self)
        del row["prompt_ids"]
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    run: str
    rows: tuple[CallRow, ...]
    shadow_tokens_computed: int
    shadow_tokens_used: int


def row_of(run: str, session_id: str, planned: PlannedCall, reply: Reply) -> CallRow:
    return CallRow(
        run=run,
        session_id=session_id,
        call=planned.call,
        model=planned.model,
        is_switch=planned.is_switch,
        prompt_tokens=reply.prompt_tokens,
        history_tokens=planned.history_tokens,
        cached_tokens=reply.cached_tokens,
        shadow_tokens=0,
        output_tokens=reply.output_tokens,
        ttft_ms=round(reply.ttft_s * 1e3, 1),
        e2el_ms=round(reply.e2el_s * 1e3, 1),
        gap_s=round(planned.gap_s, 3),
        p_instance=reply.p_instance,
        d_instance=reply.d_instance,
        finish_reason=reply.finish_reason,
        prompt_ids=tuple(reply.prompt_ids),
        output_ids=tuple(reply.output_ids),
    )
