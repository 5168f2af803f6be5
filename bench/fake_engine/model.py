"""What a fake engine knows and decides: prompts, cache hits, hand-offs, the text it "generates".

Hosts: bench.fake_engine.app, and tests, which read its state."""

from __future__ import annotations

import asyncio
import itertools
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from bench.fake_engine.chat_forms import as_chat
from bench.fake_engine.faults import Faults
from bench.fake_engine.replies import Answer, EngineError
from bench.fake_engine.tokens import VOCABULARIES, Closing, PrefixCache
from engine.push_ask import PushAnswer, PushAsk, read_ask
from policy.segments import aligned
from policy.vocabulary import Role

_ENGINE_IDS = {
    "/v1/chat/completions": "chatcmpl-{}",
    "/v1/completions": "cmpl-{}-0",
    "/v1/responses": "{}_0",
    "/v1/messages": "chatcmpl-{}",
}
"""What vLLM makes of the id that a request comes with."""

GENERATE_PATHS = frozenset(_ENGINE_IDS)

_HANDOFF_IDS = itertools.count(1)


@dataclass(slots=True, kw_only=True)
class RecordedRequest:
    """One request as it arrived, and what became of it."""

    path: str
    body: dict[str, Any]
    raw: bytes
    headers: dict[str, str]
    prompt_ids: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    finished: bool = False
    cancelled: bool = False
    """The client closed the connection before the answer was complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    model: str
    role: Role
    output_tokens: int
    """Tokens until the fake model stops by itself."""
    delay_s: float
    chunk_delay_s: float
    prefill_s_per_token: float
    """Charged for tokens that are not cached, before the first one comes out."""
    max_model_len: int
    block_size: int
    vocabulary: str
    """`words` or `bytes` (bench.fake_engine.tokens)."""
    records: bool


class HandoffLedger:
    """Which hand-offs of this process are pinned on a P and which were read: each is read once."""

    def __init__(self) -> None:
        self.pinned: dict[str, str] = {}
        self.read: set[str] = set()

    def pin(self, request_id: str, engine_id: str) -> None:
        self.pinned[request_id] = engine_id

    def take(self, request_id: str) -> bool:
        """False if it was read before. One that another process pinned is unknown here and fine."""
        is_first = request_id not in self.read
        self.read.add(request_id)
        self.pinned.pop(request_id, None)
        return is_first


LEDGER = HandoffLedger()


class FakeEngine:
    """The state of one fake engine; tests read it and call `faults`."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.engine_id = f"fake-{settings.model}-{next(_HANDOFF_IDS)}"
        self.vocabulary = VOCABULARIES[settings.vocabulary]()
        self.cache = PrefixCache(settings.block_size)
        self.faults = Faults()
        self.requests: list[RecordedRequest] = []
        self.output_text: str | None = None
        """Overrides the generated text."""
        self.tool_call: dict[str, Any] | None = None
        """`{"name", "arguments"}`: chat answers then call this tool."""
        self.tells_cached_tokens = True
        """False: usage then says nothing of the cache, as vLLM's without the option for it."""
        self.queue_time_ms: float | None = None
        """Answers then tell it, as vLLM's do with `enable_per_request_metrics`."""
        self.takes_control = True
        """Whether control requests are answered, as our scheduler does; False: as plain vLLM."""
        self.refuses_pushes = ""
        """Why asks for a push are refused (policy.link_gate.GateReason); empty: they are not."""
        self.changes: list[dict[str, Any]] = []
        """What control requests asked for, in order."""
        self.takes_aborts = True
        """False: whatever it is told to abort was done already."""
        self.cancelled = 0
        self.running = 0
        self.refused_handoffs = 0
        self.pulled_tokens = 0
        self._ids = itertools.count(1)
        self._aborts: dict[str, asyncio.Future[None]] = {}

    @property
    def pinned_handoffs(self) -> int:
        """Hand-offs of this P that no D has read yet."""
        return sum(owner == self.engine_id for owner in LEDGER.pinned.values())

    def generating(self) -> list[RecordedRequest]:
        """The recorded requests that ask for tokens, in the order of arrival."""
        return [
            request
            for request in self.requests
            if request.path in GENERATE_PATHS and asked_push(request.body) is None
        ]

    def abort_of(self, record: RecordedRequest) -> asyncio.Future[None]:
        """Done when the request is aborted by its id, as vLLM knows it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        name = record.headers.get("x-request-id") or record.body.get("request_id")
        if name is not None:
            known = _ENGINE_IDS[record.path].format(name)
            self._aborts[known] = future
            future.add_done_callback(lambda _: self._aborts.pop(known, None))
        return future

    def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids if self.takes_aborts else ():
            future = self._aborts.get(request_id)
            if future is not None and not future.done():
                future.set_result(None)

    def give_back(self, body: dict[str, Any]) -> None:
        """A request that the front end refuses: its hand-off's P is told."""
        params = body.get("kv_transfer_params") or {}
        if params.get("do_remote_prefill"):
            LEDGER.take(str(params.get("remote_request_id")))

    def take_control(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The changes of a control request; None for every other request."""
        message = (body.get("vllm_xargs") or {}).get("shadowprefill_control")
        if message is None or not self.takes_control:
            return None
        changes: dict[str, Any] = json.loads(message)
        self.changes.append(changes)
        return changes

    def answer_ask(self, record: RecordedRequest, ask: PushAsk) -> PushAnswer:
        """As our decode scheduler does: to all of a push, unless told otherwise."""
        held_tokens = self.cache.hit_tokens(salt_of(record.body), record.prompt_ids)
        missing = aligned(len(record.prompt_ids) - held_tokens, self.settings.block_size)
        if ask.gives_back:
            return PushAnswer(reason="given_back")
        if self.refuses_pushes:
            return PushAnswer(reason=self.refuses_pushes, held_tokens=held_tokens)
        if missing <= 0:
            return PushAnswer(reason="nothing_missing", held_tokens=held_tokens)
        return PushAnswer(reason="granted", tokens=missing, held_tokens=held_tokens)

    def prompt_ids(self, path: str, body: dict[str, Any]) -> list[int]:
        body = as_chat(path, body)
        if "messages" in body:
            messages = body["messages"]
            if not isinstance(messages, list) or not messages:
                raise EngineError(400, "messages must be a non-empty list", "messages")
            text = self.vocabulary.chat(messages, body.get("tools"), Closing(body))
            return self._checked(self.vocabulary.encode(text))
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return self._checked(self.vocabulary.encode(prompt))
        if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
            return self._checked(list(prompt))
        param = "messages" if "chat" in path else "prompt"
        raise EngineError(400, f"1 validation error: body.{param}: Field required", param)

    def answer(self, record: RecordedRequest) -> Answer:
        body, ids = as_chat(record.path, record.body), record.prompt_ids
        handoff = self._pull(record)
        pieces = self._pieces(body, ids)
        piece_ids = [self.vocabulary.encode(piece)[0] for piece in pieces]
        # vLLM caches what it computed: the last generated token is never fed back.
        self.cache.add(salt_of(body), ids + piece_ids[:-1])
        is_cut = len(pieces) == self._limit(body)
        is_chat = "messages" in body
        call = self.tool_call if is_chat and not is_cut else None
        return Answer(
            model=self.settings.model,
            is_chat=is_chat,
            request_id=f"{'chatcmpl' if is_chat else 'cmpl'}-{next(self._ids)}",
            prompt_ids=ids,
            cached_tokens=self._told_cached(handoff, record),
            pieces=pieces,
            piece_ids=piece_ids,
            finish_reason="length" if is_cut else "tool_calls" if call else "stop",
            with_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            with_token_ids=bool(body.get("return_token_ids")),
            tool_call=call,
            queue_time_ms=self.queue_time_ms,
            kv_transfer_params=self._handoff(record),
        )

    def _told_cached(self, handoff: int | None, record: RecordedRequest) -> int:
        if not self.tells_cached_tokens:
            return 0
        return record.cached_tokens if handoff is None else handoff

    def _checked(self, ids: list[int]) -> list[int]:
        limit = self.settings.max_model_len
        if len(ids) >= limit:
            raise EngineError(
                400,
                f"This model's maximum context length is {limit} tokens. However, your prompt "
                f"contains {len(ids)} input tokens, which exceeds this limit even without any "
                "output tokens. Please reduce the length of the input prompt.",
                "input_tokens",
            )
        return ids

    def _limit(self, body: dict[str, Any]) -> int:
        default = 16 if "prompt" in body else self.settings.max_model_len
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        return default if limit is None else int(limit)

    def _pieces(self, body: dict[str, Any], ids: list[int]) -> list[str]:
        seed = zlib.crc32(f"{self.settings.model}{ids}".encode())
        wanted = self.settings.output_tokens
        if body.get("ignore_eos"):
            wanted = self._limit(body)
        if self.output_text is not None:
            text_ids = self.vocabulary.encode(self.output_text)
            return [self.vocabulary.decode([token]) for token in text_ids][: self._limit(body)]
        return [self.vocabulary.word(seed, at) for at in range(min(wanted, self._limit(body)))]

    def _handoff(self, record: RecordedRequest) -> dict[str, Any] | None:
        asked = record.body.get("kv_transfer_params") or {}
        has_connector = self.settings.role is not Role.COLOCATED
        if not (has_connector and asked.get("do_remote_decode")) or self.faults.handoff_is_missing:
            return None
        request_id = f"{self.engine_id}-{next(_HANDOFF_IDS)}"
        LEDGER.pin(request_id, self.engine_id)
        blocks = -(-len(record.prompt_ids) // self.settings.block_size)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(blocks))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": len(record.prompt_ids),
            "remote_blocks_expiry_time": None,
            "transfer_mode": "read",
            "remote_prefill_cached_tokens": record.cached_tokens,
        }

    def _pull(self, record: RecordedRequest) -> int | None:
        """Reads a hand-off; gives P's hit count, which vLLM reports in place of D's."""
        params = record.body.get("kv_transfer_params") or {}
        if self.settings.role is Role.COLOCATED or not params.get("do_remote_prefill"):
            return None
        request_id = str(params.get("remote_request_id"))
        if not LEDGER.take(request_id):
            self.refused_handoffs += 1
            raise EngineError(500, f"hand-off {request_id} was read before; its blocks are gone")
        self.pulled_tokens += len(record.prompt_ids) - record.cached_tokens
        return int(params.get("remote_prefill_cached_tokens") or 0)


def asked_push(body: dict[str, Any]) -> PushAsk | None:
    return read_ask(body.get("vllm_xargs"))


def salt_of(body: dict[str, Any]) -> str:
    return str(body.get("cache_salt") or "")
