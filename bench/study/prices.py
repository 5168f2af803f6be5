"""What a token of a simulated model costs: LLMRouter's price of the model that stands for it."""

from __future__ import annotations

from functools import cache

from bench.workloads.score_matrix import prices


@cache
def dollars_per_token(model: str) -> float:
    listed = prices()
    if model not in listed.stand_ins:
        raise ValueError(f"{model} has no price; there are {sorted(listed.stand_ins)}")
    return listed.dollars_per_million_tokens[listed.stand_ins[model]] / 1e6
