"""What can go wrong with a call, its HTTP face, and the next move of whoever catches it.

* CallError                 has a status and an OpenAI error body
  + ClientError             4xx: the client must change the request; no engine is asked
    - (401, 403, 429)       who asks and how often: coordinator.door_errors
    - BodyInvalid           not JSON, or a field of the wrong type or value
    - HeaderInvalid         a header of ours with a value that is none
    - PromptTooLong         cannot fit the model's context
    - BodyTooLarge          413
    - ContentTypeUnsupported 415
    - MethodNotAllowed      405
    - ModelUnknown          404
    - SessionUnknown        404
    - InstanceUnknown       404
    - InstanceBusy          409: drain it first, or bring another one
    - UpstreamRefused       403: an address that the configuration does not allow
  + EngineRejected          an engine's own 4xx: pass its body on, do not try another instance
  + NodeUnavailable         this instance cannot serve the call now: place it on another one
    - ConnectFailed         nothing was sent; mark the instance unhealthy
    - ConnectionLost        it went away before it answered
    - ConnectionStale       an idle connection ended under our request: ask the same one again
    - AnswerTimeout         it did not begin to answer in time; suspect it
    - EngineFailed          it answered 5xx, or something we cannot read
  + AnswerUnfinished        a whole answer took too long: tell the client, nobody would be faster
  + ShuttingDown            this coordinator stops: the client retries, elsewhere or later
  + StoreUnavailable        the sessions cannot be reached: the client retries later
  + NoInstance              every instance of the model is down: the client retries later
  + StreamBroken            bytes are out already: tell the client inside the stream, never retry"""

from __future__ import annotations

from typing import Any

import msgspec


class CallError(Exception):
    """Root of the tree."""

    status = 500
    type = "server_error"
    code: str | None = None
    param: str | None = None

    @property
    def retry_after_s(self) -> int | None:
        """Seconds for a Retry-After header, if waiting can help."""
        return None

    def body(self) -> bytes:
        """The OpenAI error object."""
        return msgspec.json.encode(
            {
                "error": {
                    "message": unicode_of(str(self)),
                    "type": self.type,
                    "param": None if self.param is None else unicode_of(self.param),
                    "code": self.code,
                }
            }
        )


def unicode_of(text: str) -> str:
    """JSON may name half a character (`\\ud800`), which a client then finds in our message."""
    return text.encode(errors="backslashreplace").decode()


class ClientError(CallError):
    """The request itself is wrong."""

    status = 400
    type = "invalid_request_error"


class BodyInvalid(ClientError):
    """A body, field or value that no engine should see."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class HeaderInvalid(ClientError):
    """Our own headers only: what others mean by theirs is not ours to judge."""

    def __init__(self, header: str, limit: str, value: str) -> None:
        super().__init__(f"{header} {limit}, got {value[:80]!r}")
        self.param = header


class PromptTooLong(ClientError):
    """More prompt than the model's context can hold, whatever its tokenizer does."""

    code = "context_length_exceeded"

    def __init__(self, model: str, measured: str, limit_tokens: int, param: str) -> None:
        super().__init__(
            f"the prompt ({measured}) exceeds the context of model {model!r}, "
            f"which is {limit_tokens} tokens"
        )
        self.param = param


class BodyTooLarge(ClientError):
    """A request body over the configured limit."""

    status = 413
    code = "request_too_large"

    def __init__(self, limit_bytes: int, announced_bytes: int | None = None) -> None:
        measured = "larger" if announced_bytes is None else f"{announced_bytes} bytes"
        super().__init__(f"the request body is {measured}; the limit is {limit_bytes} bytes")


class ContentTypeUnsupported(ClientError):
    """Anything but JSON."""

    status = 415
    code = "unsupported_media_type"

    def __init__(self, content_type: str) -> None:
        super().__init__(f"content-type must be application/json, got {content_type!r}")


class MethodNotAllowed(ClientError):
    """Anything but POST."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, method: str) -> None:
        super().__init__(f"the method must be POST, got {method}")


class ModelUnknown(ClientError):
    """A model name that is neither a key of the configuration nor `auto`."""

    status = 404
    code = "model_not_found"
    param = "model"

    def __init__(self, model: str, known: list[str]) -> None:
        super().__init__(f"the model {model!r} does not exist; known models are {known}")


class SessionUnknown(ClientError):
    """No such session of this tenant."""

    status = 404
    code = "session_not_found"
    param = "session_id"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"the session {session_id!r} does not exist; it may have expired")


class InstanceUnknown(ClientError):
    """No such instance."""

    status = 404
    code = "instance_not_found"
    param = "name"

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"the instance {name!r} does not exist; known instances are {known}")


class InstanceBusy(ClientError):
    """What is asked would cut off calls or leave a model without a role."""

    status = 409
    code = "instance_busy"
    param = "name"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"instance {name}: {why}")


class UpstreamRefused(ClientError):
    """An address that we will not speak to."""

    status = 403
    code = "upstream_refused"
    param = "url"

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"url {url[:200]!r} {why}")


class EngineRejected(CallError):
    """The engine says that the request is wrong: its words are passed on."""

    def __init__(self, instance: str, status: int, answer: bytes) -> None:
        super().__init__(f"instance {instance} rejected the request with status {status}")
        self.status = status
        self.type = "invalid_request_error"
        self._answer = answer

    def body(self) -> bytes:
        """The engine's own body if it is an error object, else ours."""
        return super().body() if self.says("error") is None else self._answer

    def says(self, name: str) -> Any:
        """A field of the engine's answer; None if it is no object that has it."""
        try:
            return msgspec.json.decode(self._answer, type=dict[str, Any]).get(name)
        except msgspec.DecodeError:
            return None


class NodeUnavailable(CallError):
    """One instance cannot serve this call now."""

    status = 502
    code = "engine_unavailable"

    def __init__(self, instance: str, reason: str) -> None:
        super().__init__(f"instance {instance} {reason}")
        self.instance = instance


class ConnectFailed(NodeUnavailable):
    """No connection: nothing was sent."""


class ConnectionLost(NodeUnavailable):
    """The connection ended before an answer."""


class ConnectionStale(NodeUnavailable):
    """An idle connection that ended when it was used again. Whether the request was seen is
    unknown, so a hand-off that it carried counts as consumed."""


class AnswerTimeout(NodeUnavailable):
    """No answer within the limit."""

    status = 504
    code = "engine_timeout"

    def __init__(self, instance: str, limit_s: float) -> None:
        super().__init__(instance, f"did not begin to answer within {limit_s:g} s")


class AnswerUnfinished(CallError):
    """An answer that is not streamed was not complete in time. Not asked for again elsewhere: one
    that is long rather than stuck would take as long there, and the client waited long enough."""

    status = 504
    code = "engine_timeout"

    def __init__(self, instance: str, limit_s: float) -> None:
        super().__init__(
            f"instance {instance} did not complete the answer within {limit_s:g} s of the call's "
            "arrival (coordinator.answer_timeout_s); a streamed answer has no such limit"
        )
        self.instance = instance


class EngineFailed(NodeUnavailable):
    """An answer that is no answer."""

    code = "engine_error"


class ShuttingDown(CallError):
    """This coordinator stops before the call could end."""

    status = 503
    code = "shutting_down"

    def __init__(self) -> None:
        super().__init__("this coordinator is shutting down; the answer is incomplete, try again")

    @property
    def retry_after_s(self) -> int | None:
        return 1


class StoreUnavailable(CallError):
    """Redis does not answer."""

    status = 503
    code = "store_unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store of sessions (coordinator.redis_url) failed: {reason}")

    @property
    def retry_after_s(self) -> int | None:
        return 1


class NoInstance(CallError):
    """Nobody is left to ask."""

    status = 503
    code = "no_instance"

    def __init__(self, model: str, role: str, retry_after_s: int) -> None:
        super().__init__(f"no healthy {role} instance of model {model!r}")
        self._retry_after_s = retry_after_s

    @property
    def retry_after_s(self) -> int | None:
        return self._retry_after_s


class StreamBroken(CallError):
    """The engine went silent or away after the first bytes were relayed."""

    status = 502
    code = "stream_broken"

    def __init__(self, instance: str, reason: str) -> None:
        super().__init__(f"instance {instance} {reason}; the answer is incomplete")
        self.instance = instance
