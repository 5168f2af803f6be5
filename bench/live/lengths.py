"""Prompt and output lengths of a cell's normal requests: those of Azure's conversation traffic,
scaled to a machine that prefills some hundred tokens in a second.

Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.workloads.lengths import azure_2024

if TYPE_CHECKING:
    import random

    from bench.workloads.lengths import QuantileTable

TRACE = "Azure 2024, conversation service, published quantiles (bench.workloads)"
MIN_PROMPT_TOKENS = 8
MIN_OUTPUT_TOKENS = 2
"""With one output token there is no time per output token."""


@dataclass(frozen=True, slots=True)
class Lengths:
    prompt_tokens: int
    output_tokens: int


def draw_lengths(count: int, scale: float, chance: random.Random) -> list[Lengths]:
    """`count` pairs in random order that share out the quantiles evenly.

    Independent draws of so heavy a tail would give a cell of a hundred requests another load than
    its neighbour: then the repeats would differ by luck and not by what is compared."""
    law = azure_2024("conversation")
    prompts = _spread(law.input_tokens, count, scale, MIN_PROMPT_TOKENS, chance)
    outputs = _spread(law.output_tokens, count, scale, MIN_OUTPUT_TOKENS, chance)
    return [Lengths(*pair) for pair in zip(prompts, outputs, strict=True)]


def _spread(
    table: QuantileTable, count: int, scale: float, least: int, chance: random.Random
) -> list[int]:
    shares = [(index + chance.random()) / count for index in range(count)]
    chance.shuffle(shares)
    return [max(least, round(scale * tokens)) for tokens in table.at(np.array(shares)).tolist()]
