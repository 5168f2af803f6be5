"""Which session a call belongs to: named by the client, else found by the history that it extends.

Pure. A session's name is scoped by its tenant (a digest of the bearer token), so one client can
neither read nor extend another's."""

from __future__ import annotations

from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Final

import msgspec

from coordinator.errors import BodyInvalid, HeaderInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.call_body import ClientBody
    from coordinator.calls import CallKind

SESSION_HEADERS: Final = (
    b"x-session-id",
    b"x-claude-code-session-id",
    b"session-id",
    b"x-session-affinity",
    b"x-litellm-session-id",
)
"""In this order, before anything in the body."""

BODY_HINTS: Final = ("session_id", "prompt_cache_key", "metadata.session_id")

KIND_HEADER: Final = b"x-shadowprefill-task-kind"
"""What sort of task the session is; switches are learned per kind."""
MAX_KIND_CHARS: Final = 64

API_KEY_HEADER: Final = b"x-api-key"
ANONYMOUS: Final = "anonymous"
MAX_ID_CHARS: Final = 256

_decode_messages = msgspec.json.Decoder(list[msgspec.Raw]).decode


def tenant_of(headers: Mapping[bytes, bytes]) -> str:
    """The scope of sessions and caches: who presents the same key or token."""
    token = presented(headers)
    return ANONYMOUS if token is None else sha256(token).hexdigest()[:32]


def presented(headers: Mapping[bytes, bytes]) -> bytes | None:
    """As OpenAI's clients send a key, or as Anthropic's do."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and token.strip():
        return token.strip()
    return headers.get(API_KEY_HEADER) or None


def named_session(headers: Mapping[bytes, bytes], body: ClientBody) -> str | None:
    """The session id that the client gave, first one present; raises BodyInvalid."""
    for name in SESSION_HEADERS:
        value = headers.get(name)
        if value:
            return _checked(value.decode("latin-1"), name.decode())
    for hint, place in zip(body.session_hints, BODY_HINTS, strict=True):
        if hint:
            return _checked(hint, place)
    return None


def task_kind(value: bytes) -> str:
    """Raises HeaderInvalid."""
    text = value.decode("latin-1").strip()
    if len(text) > MAX_KIND_CHARS or not text.isascii() or not text.isprintable():
        rule = f"must be at most {MAX_KIND_CHARS} printable ASCII characters"
        raise HeaderInvalid(KIND_HEADER.decode(), rule, text)
    return text


def history_digests(kind: CallKind, messages: msgspec.Raw) -> list[bytes]:
    """Digest i covers messages[: i + 1]: a call extends a history whose digest is among them.

    Whole messages are compared by their bytes: a client that re-serialises its history differently
    starts a new session, which costs a switch its warmth and nothing else."""
    try:
        items = _decode_messages(as_list(bytes(messages)))
    except msgspec.DecodeError:
        raise BodyInvalid(f"{kind.prompt_field} must be a list", kind.prompt_field) from None
    chain = blake2b(digest_size=16, person=kind.encode())
    digests = []
    for item in items:
        view = memoryview(item)
        chain.update(len(view).to_bytes(8, "big"))
        chain.update(view)
        digests.append(chain.digest())
    return digests


def as_list(prompt: bytes) -> bytes:
    """The Responses API takes the first message of a user as a plain string, too."""
    return b'[{"role":"user","content":%b}]' % prompt if prompt.startswith(b'"') else prompt


def _checked(value: str, name: str) -> str:
    # It comes back in a response header and in marks: printable ASCII only.
    if len(value) > MAX_ID_CHARS or not value.isascii() or not value.isprintable():
        raise BodyInvalid(
            f"{name} must be at most {MAX_ID_CHARS} printable ASCII characters, "
            f"got {len(value)} characters",
            name,
        )
    return value
