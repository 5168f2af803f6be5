"""How long a tool's result may be, in exact tokens of the model that reads it next.

A result that was cut ends with an explicit line, as real agents' tools do."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

CUT_LINE = "[truncated]"
MIN_RESULT_TOKENS = 40
TOKENS_PER_MESSAGE = 8
"""What a chat template adds around one message; an estimate that the next exact count corrects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPlan:
    """Where the context shall end up, and what an output takes of it on the way."""

    target_tokens: int
    output_tokens: int

    def result_tokens(self, history_tokens: int, weights: Sequence[float]) -> int:
        """Budget of the next result; `weights` are those of the results still to come, it included.

        What an earlier, shorter result left over is shared out again, so that the target is met."""
        per_call = self.output_tokens + 2 * TOKENS_PER_MESSAGE
        free = self.target_tokens - history_tokens - per_call * (len(weights) - 1)
        return max(MIN_RESULT_TOKENS, int(free * weights[0] / sum(weights)))


MAX_CHARACTERS_PER_TOKEN = 16
"""Of what is counted at all: an engine counts no text that is longer than its window."""


async def fit(text: str, limit_tokens: int, count: Callable[[str], Awaitable[int]]) -> str:
    """`text`, or as many of its leading lines as `limit_tokens` hold, and the cut line."""
    whole = text.splitlines()
    lines = _countable(whole, limit_tokens)
    if len(lines) == len(whole) and await count(text) <= limit_tokens:
        return text
    fits, too_many = 0, len(lines)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if await count(_cut(lines[:middle])) <= limit_tokens:
            fits = middle
        else:
            too_many = middle
    if fits:
        return _cut(lines[:fits])
    # One line is longer than the whole budget: a token is at least one character.
    return _cut([whole[0][:limit_tokens]])


def _countable(lines: Sequence[str], limit_tokens: int) -> Sequence[str]:
    """The leading ones that could be within the limit."""
    ends = accumulate(len(line) + 1 for line in lines)
    most = limit_tokens * MAX_CHARACTERS_PER_TOKEN
    return lines[: sum(end <= most for end in ends)]


def _cut(lines: Sequence[str]) -> str:
    return "\n".join((*lines, CUT_LINE))
