"""An agent that prices a switch before it makes one: `python switch_aware_agent.py URL`.

Before each step it asks the coordinator for a quote: what the step would cost on each model now,
first token and input price, given what is warm where. It takes the model whose value, less what
waiting and tokens are worth, is best; and says afterwards what it expects of the next step, so that
that model is kept warm. Needs httpx, and nothing of ours."""

from __future__ import annotations

import sys
from typing import Any

import httpx

PER_SECOND = 0.02
"""What a second of waiting is worth, in the currency of `models.X.price`."""
TYPICAL_TOKENS = 1_000
"""What a step adds to the prompt."""


def best_model(quote: dict[str, Any], values: dict[str, float]) -> str:
    """`values`: what a step on each model is worth, by whatever knows (a router, a benchmark)."""

    def gain(row: dict[str, Any]) -> float:
        waiting = PER_SECOND * (row["estimated_ttft_ms"] or 0.0) / 1000
        return values[row["model"]] - waiting - (row["input_price"] or 0.0)

    rows = [row for row in quote["quotes"] if row["available"] and row["model"] in values]
    return str(max(rows, key=gain)["model"]) if rows else best_cold(values)


def best_cold(values: dict[str, float]) -> str:
    return max(values, key=lambda model: values[model])


def step(
    client: httpx.Client, session: str, messages: list[dict[str, Any]], values: dict[str, float]
) -> tuple[str, str]:
    """One step of the agent: the model that was taken, and its answer."""
    reply = client.get(f"/v1/sessions/{session}/quote", params={"new_tokens": TYPICAL_TOKENS})
    # The coordinator does not know a session before its first call: nothing is warm anywhere.
    model = best_model(reply.json(), values) if reply.is_success else best_cold(values)
    answer = client.post(
        "/v1/chat/completions",
        json={"model": model, "messages": messages, "max_tokens": 64},
        headers={"x-session-id": session},
    )
    answer.raise_for_status()
    total = sum(values.values())
    expected = {name: value / total for name, value in values.items()}
    client.post(f"/v1/sessions/{session}/hints", json={"probabilities": expected})
    return model, str(answer.json()["choices"][0]["message"]["content"])


def main(url: str) -> None:
    tasks = (("List three sorts.", False), ("Prove one.", True), ("Thank you.", False))
    messages: list[dict[str, Any]] = []
    with httpx.Client(base_url=url, timeout=600) as client:
        for task, hard in tasks:
            messages.append({"role": "user", "content": task})
            values = {"small": 0.2 if hard else 0.9, "large": 1.0}
            model, text = step(client, "switch-aware", messages, values)
            messages.append({"role": "assistant", "content": text})
            sys.stdout.write(f"{model}: {text}\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8100")
