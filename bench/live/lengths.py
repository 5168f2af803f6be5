"""Prompt and output lengths of normal traffic: quantiles of the Azure 2024 conversation trace.

Source: Azure/AzurePublicDataset, LLM inference trace of 12 to 18 May 2024, conversation service
(CC-BY 4.0; Stojkovic et al., "DynamoLLM", HPCA 2025): 27,303,999 requests, mean 1,632 tokens in,
106 out. Only these published quantiles are kept here; inputs and outputs are drawn independently.

Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

TRACE = "Azure 2024 conversation week, published quantiles"
MIN_PROMPT_TOKENS = 8
MIN_OUTPUT_TOKENS = 2
"""With one output token there is no time per output token."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Between two known quantiles a value grows with `exponent`, fitted so that the mean holds."""

    shares: tuple[float, ...]
    tokens: tuple[float, ...]
    exponent: float

    def at(self, share: float) -> float:
        points = list(zip(self.shares, self.tokens, strict=True))
        for (low, least), (high, most) in pairwise(points):
            if share <= high:
                return float(
                    least + (most - least) * ((share - low) / (high - low)) ** self.exponent
                )
        return self.tokens[-1]


PROMPT = Quantiles((0.0, 0.5, 0.9, 0.99, 1.0), (30, 928, 3830, 6683, 7999), 1.2612)
OUTPUT = Quantiles((0.0, 0.5, 0.9, 0.95, 0.99, 1.0), (1, 41, 342, 455, 694, 1500), 2.3521)


@dataclass(frozen=True, slots=True)
class Lengths:
    prompt_tokens: int
    output_tokens: int


def draw_lengths(count: int, scale: float, chance: random.Random) -> list[Lengths]:
    """`count` pairs in random order that share out the quantiles evenly.

    Independent draws of so heavy a tail would give a cell of a hundred requests another load than
    its neighbour: then the repeats would differ by luck and not by what is compared."""
    prompts = _spread(PROMPT, count, scale, MIN_PROMPT_TOKENS, chance)
    outputs = _spread(OUTPUT, count, scale, MIN_OUTPUT_TOKENS, chance)
    return [Lengths(*pair) for pair in zip(prompts, outputs, strict=True)]


def _spread(
    quantiles: Quantiles, count: int, scale: float, least: int, chance: random.Random
) -> list[int]:
    shares = [(index + chance.random()) / count for index in range(count)]
    chance.shuffle(shares)
    return [max(least, round(scale * quantiles.at(share))) for share in shares]
