"""A client of the coordinator (or of one engine) as an agent would write it: streamed, greedy."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Message = dict[str, Any]
CALL_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    text: str
    token_ids: list[int]
    finish_reason: str | None
    usage: dict[str, Any] | None
    errors: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    """The stream ended with [DONE]."""

    @property
    def prompt_tokens(self) -> int:
        assert self.usage is not None, self
        return int(self.usage["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        assert self.usage is not None, self
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


class Agent:
    """One session of one tenant."""

    def __init__(self, base_url: str, *, tenant: str, session: str, shadow: bool = True) -> None:
        headers = {"authorization": f"Bearer {tenant}", "x-session-id": session}
        if not shadow:
            headers["x-shadowprefill-shadow"] = "off"
        self.session = session
        self.base_url = base_url
        self.headers = headers

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        url = f"{self.base_url}{path}"
        return httpx.request(method, url, headers=self.headers, timeout=CALL_TIMEOUT_S, **more)

    @contextmanager
    def stream(self, body: dict[str, Any]) -> Iterator[httpx.Response]:
        """One chat call; leaving the block early is the client that goes away."""
        url = f"{self.base_url}/v1/chat/completions"
        with httpx.stream(
            "POST", url, json=body | {"stream": True}, headers=self.headers, timeout=CALL_TIMEOUT_S
        ) as response:
            yield response

    def call(
        self, model: str, messages: list[Message], max_tokens: int = 16, **more: object
    ) -> Answer:
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream_options": {"include_usage": True},
            **more,
        }
        with self.stream(body) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                raise AssertionError(f"{response.status_code}: {response.text}")
            return read_stream(response)

    def detail(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.request("GET", f"/v1/sessions/{self.session}").json()
        return answer

    def settled(self, model: str) -> dict[str, Any]:
        """The shadow of this session on `model` once nothing of it is under way."""
        return until(
            lambda: self.detail()["shadows"].get(model),
            lambda shadow: (
                shadow is not None and shadow["state"] == "idle" and shadow["segments"] > 0
            ),
        )


def read_stream(response: httpx.Response) -> Answer:
    text, ids, errors = "", [], []
    finish_reason, usage, done = None, None, False
    for line in response.iter_lines():
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            done = True
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            errors.append(chunk["error"])
            continue
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            ids += choice.get("token_ids") or []
            finish_reason = choice.get("finish_reason") or finish_reason
    return Answer(
        text=text, token_ids=ids, finish_reason=finish_reason, usage=usage, errors=errors, done=done
    )


def until(
    look: Callable[[], Any], holds: Callable[[Any], object], timeout_s: float = SETTLE_TIMEOUT_S
) -> Any:
    """Polls `look` until its value holds; fails with the last value."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = look()
        if holds(value):
            return value
        assert time.monotonic() < deadline_s, f"not so after {timeout_s} s: {value}"
        time.sleep(0.05)
