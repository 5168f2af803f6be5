"""The size of one live run: how long a cell lasts, what its traffic is made of, what is measured
before the first one. Everything in here goes into the hash that keeps results apart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    seed: int = 20261130
    window_s: float = 112.0
    """How long a cell's requests arrive and its sessions begin calls."""
    drain_s: float = 25.0
    """How long what is still running then may take; after it a call counts as failed."""
    call_timeout_s: float = 90.0

    length_scale: float = 0.05
    """Of the trace's prompt and output lengths: one core without AVX-512 prefills some 220 tokens
    of SmolLM2 in a second."""
    prefill_budget_tokens: int = 128
    """Of one iteration (`max_num_batched_tokens`), scaled from the paper's 2,048 with the lengths:
    unscaled, one iteration could prefill for 9 s here while everybody else's decode waits."""

    slots: int = 2
    """Agents at work at the same time; one that ends its session begins the next."""
    sessions_per_slot: int = 3
    calls_per_session: int = 8
    switch_probability: float = 0.5
    task_words: int = 200
    result_words_median: float = 60.0
    result_words_sigma: float = 0.5
    result_words_max: int = 180
    output_tokens: int = 12
    """Of a session's call, unless the model stops by itself."""
    gap_median_s: float = 4.0
    gap_sigma: float = 0.5
    gap_max_s: float = 12.0

    calibration_prompts: tuple[int, ...] = (16, 64, 128, 256, 384)
    calibration_rounds: int = 2
    decode_tokens: int = 24
    saturation_s: float = 35.0
    saturation_warm_up_s: float = 8.0
    saturation_callers: int = 10
    """Closed-loop callers per model: more than an engine's run slots, so that it never idles."""
    capacity_shares: tuple[float, ...] = (0.2, 0.35, 0.5, 0.65)
    """Of the saturated rate: the rates that are tried for the capacity, rising."""
    capacity_test_s: float = 45.0


FULL = Settings()
SMOKE = Settings(
    window_s=30.0,
    drain_s=12.0,
    sessions_per_slot=1,
    calls_per_session=6,
    switch_probability=0.7,
    gap_median_s=1.0,
    calibration_prompts=(16, 128),
    calibration_rounds=1,
    decode_tokens=12,
    saturation_s=15.0,
    saturation_warm_up_s=4.0,
    capacity_shares=(0.4,),
    capacity_test_s=20.0,
)
