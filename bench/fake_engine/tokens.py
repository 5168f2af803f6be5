"""The fake engine's tokenizers, chat templates and prefix cache, as awkward as real ones.

Two vocabularies that share nothing, so that two fake models differ as two real ones do. A cut text
ends in another token than the whole text does ("fo" of "foob"), and the second template drops the
reasoning of earlier turns: a shadow must survive both. Hosts: bench.fake_engine and tests."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any, Protocol

Message = dict[str, Any]


class Vocabulary(Protocol):
    """What the fake engine asks of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def word(self, seed: int, index: int) -> str:
        """Output token `index` as text; encodes to exactly one id wherever it stands."""
        ...

    def chat(self, messages: list[Message], tools: list[Any] | None, closing: Closing) -> str: ...


class Closing:
    """How a rendered conversation ends."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.is_open = bool(body.get("continue_final_message", False))
        self.has_generation_prompt = bool(body.get("add_generation_prompt", not self.is_open))


class WordVocabulary:
    """At most four letters per token, a leading space included; ChatML."""

    _pieces = re.compile(r"<\|im_start\|>|<\|im_end\|>| ?\w{1,4}|\s|[^\w\s]")
    _first_id = 10

    def __init__(self) -> None:
        self._text_of: dict[int, str] = {}

    def encode(self, text: str) -> list[int]:
        ids = []
        for piece in self._pieces.findall(text):
            token = self._first_id + zlib.crc32(piece.encode()) % 1_000_003
            self._text_of[token] = piece
            ids.append(token)
        return ids

    def decode(self, ids: list[int]) -> str:
        return "".join(self._text_of.get(token, "\ufffd") for token in ids)

    def word(self, seed: int, index: int) -> str:
        return f" {zlib.crc32(f'{seed}:{index}'.encode()) % 0x10000:04x}"

    def chat(self, messages: list[Message], tools: list[Any] | None, closing: Closing) -> str:
        head = f"<|im_start|>tools\n{json.dumps(tools)}<|im_end|>\n" if tools else ""
        turns = [f"<|im_start|>{turn['role']}\n{text_of(turn)}<|im_end|>\n" for turn in messages]
        if closing.is_open:
            turns[-1] = turns[-1].removesuffix("<|im_end|>\n")
        end = "<|im_start|>assistant\n" if closing.has_generation_prompt else ""
        return head + "".join(turns) + end


class ByteVocabulary:
    """One token per UTF-8 byte; another template, which forgets the reasoning of earlier turns."""

    _first_id = 3
    _reasoning = re.compile(r"<think>.*?</think>\s*", re.DOTALL)

    def encode(self, text: str) -> list[int]:
        return [self._first_id + byte for byte in text.encode()]

    def decode(self, ids: list[int]) -> str:
        return bytes(max(0, token - self._first_id) % 256 for token in ids).decode(errors="replace")

    def word(self, seed: int, index: int) -> str:
        return chr(ord("a") + zlib.crc32(f"{seed}:{index}".encode()) % 26)

    def chat(self, messages: list[Message], tools: list[Any] | None, closing: Closing) -> str:
        last_user = max(
            (at for at, turn in enumerate(messages) if turn["role"] == "user"), default=-1
        )
        turns = [
            f"[{turn['role']}] {self._visible(turn, at < last_user)} [/{turn['role']}]"
            for at, turn in enumerate(messages)
        ]
        if closing.is_open:
            turns[-1] = turns[-1].removesuffix(f" [/{messages[-1]['role']}]")
        head = f"<s>{json.dumps(tools)}" if tools else "<s>"
        return head + "".join(turns) + ("[assistant] " if closing.has_generation_prompt else "")

    def _visible(self, turn: Message, is_earlier: bool) -> str:
        text = text_of(turn)
        return self._reasoning.sub("", text) if is_earlier else text


VOCABULARIES: dict[str, type[WordVocabulary] | type[ByteVocabulary]] = {
    "words": WordVocabulary,
    "bytes": ByteVocabulary,
}


def text_of(message: Message) -> str:
    """A message's text as a template sees it, tool calls included."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text", "") for part in content)
    calls = [json.dumps(call["function"]) for call in message.get("tool_calls") or []]
    return content + "".join(f"\n<tool_call>{call}</tool_call>" for call in calls)


class PrefixCache:
    """Which leading blocks of a prompt an engine holds, per `cache_salt`; nothing is evicted."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._blocks: set[int] = set()

    def hit_tokens(self, salt: str, ids: list[int]) -> int:
        """Block aligned, and never the whole prompt: vLLM always computes its last token."""
        hit = 0
        for block in self._chain(salt, ids[: max(0, len(ids) - 1)]):
            if block not in self._blocks:
                break
            hit += self._block_tokens
        return hit

    def add(self, salt: str, ids: list[int]) -> None:
        self._blocks.update(self._chain(salt, ids))

    def clear(self) -> None:
        self._blocks.clear()

    def _chain(self, salt: str, ids: list[int]) -> list[int]:
        size = self._block_tokens
        parent, chain = hash(salt), []
        for start in range(0, len(ids) - size + 1, size):
            parent = hash((parent, tuple(ids[start : start + size])))
            chain.append(parent)
        return chain
