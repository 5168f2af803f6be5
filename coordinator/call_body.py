"""The client's JSON body: read once at the top level, checked, stripped, and written for each leg.

`messages`, `tools` and whatever else we do not decide on stay the client's own bytes (msgspec.Raw):
re-serialising JSON reorders keys and changes token ids. Duplicate keys collapse to the last one, as
in the engine's own parser, so that nothing is smuggled past the strip list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from coordinator.calls import CallKind
from coordinator.errors import BodyInvalid, PromptTooLong
from kv_transport.kv_params import PREFILL_LEG_KV_PARAMS

if TYPE_CHECKING:
    from collections.abc import Mapping

Fields = dict[str, msgspec.Raw]

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

ONE_ENGINE: Final = frozenset({"best_of", "prompt_logprobs", "echo", "use_beam_search", "n"})
"""Fields that one hand-off cannot serve when they are on: D computes the prompt then."""

LONGEST_BYTES_PER_TOKEN: Final = 1024
"""No token of any vocabulary stands for more JSON bytes (128 blanks, each escaped, are 768)."""

_NOT_TEXT: Final = (b'_url"', b'"input_audio"', b'"image"', b'"file"')
_decode_fields = msgspec.json.Decoder(Fields).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_TRUE, _ONE = msgspec.Raw(b"true"), msgspec.Raw(b"1")
_FALSE = msgspec.Raw(b"false")
_USAGE_WANTED = msgspec.Raw(b'{"include_usage":true}')
_PREFILL_KV = msgspec.Raw(_encode(PREFILL_LEG_KV_PARAMS))
_OFF: Final = (b"null", b"false", b"0", b"1")


class ClientBody(NamedTuple):
    """A checked body. `fields` is what engines may see, without `model`."""

    kind: CallKind
    model: str
    fields: Fields
    stream: bool
    usage_wanted: bool
    """Whether the client asked for the usage chunk of a stream."""
    session_hints: tuple[str | None, str | None, str | None]
    """Body `session_id`, `prompt_cache_key`, `metadata.session_id`."""

    @property
    def prompt(self) -> msgspec.Raw:
        return self.fields["messages" if self.kind is CallKind.CHAT else "prompt"]

    @property
    def prompt_bytes(self) -> int:
        """Length of everything the prompt is made of."""
        tools = self.fields.get("tools")
        return len(memoryview(self.prompt)) + (0 if tools is None else len(memoryview(tools)))

    @property
    def needs_one_engine(self) -> bool:
        """Whether prefill and decode apart would give another answer than one engine."""
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
    _require_prompt(kind, fields)
    stream = _boolean(fields, "stream")
    _check_lengths(fields)
    return ClientBody(
        kind=kind,
        model=model,
        fields=fields,
        stream=stream,
        usage_wanted=_usage_wanted(fields, stream),
        session_hints=hints,
    )


def check_prompt_length(body: ClientBody, model: str, max_model_len: int) -> None:
    """Refuses what cannot fit by any count; everything else is the engine's to judge."""
    limit_bytes = max_model_len * LONGEST_BYTES_PER_TOKEN
    if "truncate_prompt_tokens" in body.fields:
        return
    name = "messages" if body.kind is CallKind.CHAT else "prompt"
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


def engine_body(
    body: ClientBody,
    model: str,
    cache_salt: str,
    xargs: Mapping[str, str | float],
    kv_transfer_params: Mapping[str, Any] | None = None,
) -> bytes:
    """The body of a colocated call or of the D leg: the client's own, plus what is ours."""
    fields: dict[str, Any] = {"model": model, **body.fields}
    if body.stream:
        fields["stream"] = _TRUE
        if not body.usage_wanted:
            fields["stream_options"] = _USAGE_WANTED
    fields["cache_salt"] = cache_salt
    fields["vllm_xargs"] = xargs
    if kv_transfer_params is not None:
        fields["kv_transfer_params"] = kv_transfer_params
    return _encode(fields)


def prefill_body(
    body: ClientBody,
    model: str,
    cache_salt: str,
    xargs: Mapping[str, str | float],
    request_id: str,
) -> bytes:
    """The body of the P leg: the same prompt, one token, KV kept for D."""
    fields: dict[str, Any] = {"model": model, **body.fields}
    for name in ("max_completion_tokens", "min_tokens", "stream_options"):
        fields.pop(name, None)
    fields["max_tokens"] = _ONE
    fields["stream"] = _FALSE
    fields["cache_salt"] = cache_salt
    fields["vllm_xargs"] = xargs
    fields["request_id"] = request_id
    fields["kv_transfer_params"] = _PREFILL_KV
    return _encode(fields)


def _top_level(body: bytes) -> Fields:
    try:
        if not body.isascii():
            body.decode()
        return _decode_fields(body)
    except msgspec.ValidationError:
        raise BodyInvalid("the request body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyInvalid(f"the request body is not valid JSON: {error}") from None


def _require_prompt(kind: CallKind, fields: Fields) -> None:
    name, starts, what = (
        ("messages", b"[", "a list")
        if kind is CallKind.CHAT
        else ("prompt", b'["', "a string or a list")
    )
    raw = fields.get(name)
    if raw is None or bytes(memoryview(raw)[:1]) not in (starts[:1], starts[1:]):
        raise BodyInvalid(f"{name} is required and must be {what}", name)


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


def _usage_wanted(fields: Fields, stream: bool) -> bool:
    raw = fields.get("stream_options")
    if raw is None or bytes(raw) == b"null":
        return False
    if not stream:
        raise BodyInvalid("stream_options is only allowed when stream is true", "stream_options")
    options = _decode_any(raw)
    if not isinstance(options, dict):
        raise BodyInvalid("stream_options must be an object", "stream_options")
    return options.get("include_usage") is True


def _check_lengths(fields: Fields) -> None:
    """These are left out of the P leg, so only D would refuse them, after P has worked."""
    limits = {
        name: _integer(fields, name, least)
        for name, least in (("max_tokens", 1), ("max_completion_tokens", 1), ("min_tokens", 0))
        if name in fields
    }
    most = limits.get("max_completion_tokens") or limits.get("max_tokens")
    least = limits.get("min_tokens")
    if least is not None and most is not None and least > most:
        raise BodyInvalid(f"min_tokens must be <= {most} (max tokens), got {least}", "min_tokens")


def _integer(fields: Fields, name: str, least: int) -> int | None:
    value = _decode_any(fields[name])
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BodyInvalid(f"{name} must be an integer >= {least}, got {value!r:.40}", name)
    return value


def _is_batch(start: bytes) -> bool:
    """Whether a text prompt (its first bytes) is a list of prompts rather than one."""
    inner = start[1:].lstrip()
    return start[:1] == b"[" and inner[:1] in (b"[", b'"')
