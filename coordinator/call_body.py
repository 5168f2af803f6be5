"""The client's JSON body: read once at the top level, checked and stripped.

`messages`, `tools` and whatever else we do not decide on stay the client's own bytes (msgspec.Raw):
re-serialising JSON reorders keys and changes token ids. Duplicate keys collapse to the last one, as
in the engine's own parser, so that nothing is smuggled past the strip list."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from coordinator.call_checks import Fields, check_fields, runs_tools
from coordinator.calls import CallKind
from coordinator.errors import BodyInvalid, PromptTooLong

STRIPPED: Final = (
    "kv_transfer_params",  # would pull KV from any host
    "ec_transfer_params",  # the same for encoder caches
    "vllm_xargs",  # would pose as shadow or routed traffic
    "priority",
    "cache_salt",  # would join another tenant's cache
    "session_id",
    "request_id",
)
"""What a client may not say to an engine: removed, silently, as an unknown field would be."""

_BESIDE_PROMPT: Final = ("tools", "system", "instructions")

ONE_ENGINE: Final = frozenset({"best_of", "prompt_logprobs", "echo", "use_beam_search", "n"})
"""Fields that one hand-off cannot serve when they are on: D computes the prompt then."""

LONGEST_BYTES_PER_TOKEN: Final = 1024
"""No token of any vocabulary stands for more JSON bytes (128 blanks, each escaped, are 768)."""

_CUT_TO_FIT: Final = frozenset({"truncate_prompt_tokens", "truncation"})
_NOT_TEXT: Final = (b'_url"', b'"input_audio"', b'"image"', b'"file"', b'"input_file"')
_decode_fields = msgspec.json.Decoder(Fields).decode
_decode_any = msgspec.json.Decoder().decode
_OFF: Final = (b"null", b"false", b"0", b"1")


class ClientBody(NamedTuple):
    """A checked body. `fields` is what engines may see, without `model`."""

    kind: CallKind
    model: str
    fields: Fields
    stream: bool
    usage_wanted: bool
    """Whether the client gets the usage that ends a stream: it asked, or its API always tells."""
    session_hints: tuple[str | None, str | None, str | None]
    """Body `session_id`, `prompt_cache_key`, `metadata.session_id`."""

    @property
    def prompt(self) -> msgspec.Raw:
        return self.fields[self.kind.prompt_field]

    @property
    def prompt_bytes(self) -> int:
        """Length of everything the prompt is made of."""
        return len(memoryview(self.prompt)) + sum(
            len(memoryview(self.fields[name])) for name in _BESIDE_PROMPT if name in self.fields
        )

    @property
    def needs_one_engine(self) -> bool:
        """Whether prefill and decode apart would give another answer than one engine."""
        if self.kind is CallKind.RESPONSES:
            return runs_tools(self.fields.get("tools"))
        if self.kind is CallKind.MESSAGES:
            return False
        if not ONE_ENGINE.isdisjoint(self.fields):
            for name in ONE_ENGINE.intersection(self.fields):
                value = bytes(self.fields[name])
                if value not in _OFF or (name == "prompt_logprobs" and value != b"null"):
                    return True
        return self.kind is CallKind.TEXT and _is_batch(bytes(memoryview(self.prompt)[:64]))


def read_body(kind: CallKind, body: bytes) -> ClientBody:
    """Checks what no engine should refuse after another one has worked; raises BodyInvalid."""
    fields = _top_level(body)
    model = _string(fields.pop("model", None), "model")
    if not model:
        raise BodyInvalid("model is required: a model key or 'auto'", "model")
    hints = _session_hints(fields)
    for name in STRIPPED:
        fields.pop(name, None)
    check_fields(kind, fields)
    stream = _boolean(fields, "stream")
    return ClientBody(
        kind=kind,
        model=model,
        fields=fields,
        stream=stream,
        usage_wanted=_usage_wanted(kind, fields, stream),
        session_hints=hints,
    )


def check_prompt_length(body: ClientBody, model: str, max_model_len: int) -> None:
    """Refuses what cannot fit by any count; everything else is the engine's to judge."""
    limit_bytes = max_model_len * LONGEST_BYTES_PER_TOKEN
    if not _CUT_TO_FIT.isdisjoint(body.fields):
        return
    name = body.kind.prompt_field
    raw = bytes(body.prompt) if body.kind is CallKind.TEXT else b""
    if raw[:1] == b"[" and not _is_batch(raw[:64]):
        tokens = raw.count(b",") + 1
        if tokens > max_model_len:
            raise PromptTooLong(model, f"{tokens} tokens", max_model_len, name)
    if len(memoryview(body.prompt)) <= limit_bytes:
        return
    raw = bytes(body.prompt)
    if not any(marker in raw for marker in _NOT_TEXT):
        raise PromptTooLong(model, f"{len(raw)} bytes", max_model_len, name)


def _top_level(body: bytes) -> Fields:
    try:
        if not body.isascii():
            body.decode()
        return _decode_fields(body)
    except msgspec.ValidationError:
        raise BodyInvalid("the request body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyInvalid(f"the request body is not valid JSON: {error}") from None


def _string(raw: msgspec.Raw | None, name: str) -> str | None:
    if raw is None or bytes(raw) == b"null":
        return None
    value = _decode_any(raw)
    if not isinstance(value, str):
        raise BodyInvalid(f"{name} must be a string, got {type(value).__name__}", name)
    return value


def _session_hints(fields: Fields) -> tuple[str | None, str | None, str | None]:
    metadata = fields.get("metadata")
    inner = None
    if metadata is not None and b"session_id" in bytes(metadata):
        value = _decode_any(metadata)
        inner = value.get("session_id") if isinstance(value, dict) else None
    return (
        _string(fields.get("session_id"), "session_id"),
        _string(fields.get("prompt_cache_key"), "prompt_cache_key"),
        inner if isinstance(inner, str) else None,
    )


def _boolean(fields: Fields, name: str) -> bool:
    raw = fields.get(name)
    if raw is None:
        return False
    value = bytes(raw)
    if value not in (b"true", b"false", b"null"):
        raise BodyInvalid(f"{name} must be true or false, got {value[:40].decode()}", name)
    return value == b"true"


def _usage_wanted(kind: CallKind, fields: Fields, stream: bool) -> bool:
    if kind in (CallKind.RESPONSES, CallKind.MESSAGES):
        return True
    raw = fields.get("stream_options")
    if raw is None or bytes(raw) == b"null":
        return False
    if not stream:
        raise BodyInvalid("stream_options is only allowed when stream is true", "stream_options")
    options = _decode_any(raw)
    if not isinstance(options, dict):
        raise BodyInvalid("stream_options must be an object", "stream_options")
    return options.get("include_usage") is True


def _is_batch(start: bytes) -> bool:
    """Whether a text prompt (its first bytes) is a list of prompts rather than one."""
    inner = start[1:].lstrip()
    return start[:1] == b"[" and inner[:1] in (b"[", b'"')
