"""The legs of a call as HTTP requests: limits, typed failures, and what an answer means.

What comes back has begun to answer: its first bytes are here. Until then another instance may be
asked; after that nobody may."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from coordinator.connection import Disconnected
from coordinator.errors import (
    AnswerTimeout,
    AnswerUnfinished,
    ConnectFailed,
    ConnectionLost,
    ConnectionStale,
    EngineFailed,
    EngineRejected,
    StreamBroken,
)
from coordinator.sse import Details  # noqa: TC001  msgspec resolves it when it decodes
from coordinator.wire import CannotConnect, WentStale
from kv_transport.errors import KvParamsInvalid
from kv_transport.kv_params import RemoteKv, remote_kv_of

if TYPE_CHECKING:
    from coordinator.connection import Connection
    from coordinator.instances import Instance
    from coordinator.wire import Sending, Wire

_CLIENTS_FAULT: Final = frozenset({400, 404, 405, 409, 413, 415, 422, 429})
"""What the engine says about the request; other 4xx (401: our secret) are about us."""

_SHOWN_BYTES: Final = 300


class _Metrics(msgspec.Struct):
    """Only of engines with `enable_per_request_metrics`."""

    queue_time_ms: float | None = None


class _HitCount(msgspec.Struct):
    """Of the usage of any API: each has a place of its own for it."""

    prompt_tokens_details: Details | None = None
    input_tokens_details: Details | None = None
    cache_read_input_tokens: int | None = None

    @property
    def cached_tokens(self) -> int:
        details = self.prompt_tokens_details or self.input_tokens_details
        told = self.cache_read_input_tokens if details is None else details.cached_tokens
        return told or 0


class _PrefillReply(msgspec.Struct):
    kv_transfer_params: Any = None
    usage: _HitCount | None = None
    metrics: _Metrics | None = None


class _ModelCard(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ModelCard]


_decode_models = msgspec.json.Decoder(_ModelList).decode
_decode_prefill = msgspec.json.Decoder(_PrefillReply).decode


class Handoff(NamedTuple):
    """P is done: its KV waits for one D."""

    remote_kv: RemoteKv
    cached_tokens: int
    """What P found in its own cache: the truth of the call's usage."""
    queue_ms: float | None = None
    """How long the leg waited in P, if the engine tells."""


def handoff_in(answer: bytes) -> Handoff:
    """Of a P leg; raises msgspec.DecodeError, KvParamsInvalid."""
    reply = _decode_prefill(answer)
    remote_kv = remote_kv_of(reply.kv_transfer_params)
    cached_tokens = 0 if reply.usage is None else reply.usage.cached_tokens
    queue_ms = None if reply.metrics is None else reply.metrics.queue_time_ms
    return Handoff(remote_kv, cached_tokens, queue_ms)


class EngineAnswer:
    """An answer that has begun. The owner calls `release`, whatever happens."""

    __slots__ = ("_connection", "_idle_s", "first", "instance", "is_done")

    def __init__(
        self, instance: Instance, connection: Connection, first: bytes, idle_s: float
    ) -> None:
        self.instance = instance
        self.first = first
        self.is_done = False
        """Its last event was read; only HTTP's own end may be missing."""
        self._connection = connection
        self._idle_s = idle_s

    @property
    def content_type(self) -> bytes:
        return self._connection.content_type or b"application/json"

    async def read(self) -> bytes:
        """More bytes; empty at the end. Raises StreamBroken."""
        try:
            return await self._connection.read(self._idle_s)
        except TimeoutError:
            reason = f"sent nothing for {self._idle_s:g} s"
            raise StreamBroken(self.instance.name, reason) from None
        except Disconnected as error:
            raise StreamBroken(self.instance.name, str(error)) from None

    def release(self) -> None:
        """Cancels the request in the engine, unless its answer is at its end."""
        if self.is_done:
            self._connection.release_at_end()
        else:
            self._connection.release()


class NodeClient:
    """Speaks to instances; knows no model, session or policy."""

    def __init__(
        self,
        wire: Wire,
        *,
        first_byte_timeout_s: float,
        answer_timeout_s: float,
        idle_timeout_s: float,
    ) -> None:
        self._wire = wire
        self._first_byte_timeout_s = first_byte_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._idle_timeout_s = idle_timeout_s

    async def prefill(
        self, instance: Instance, path: str, body: bytes, sending: Sending | None = None
    ) -> Handoff:
        """The P leg. Raises NodeUnavailable, EngineRejected."""
        answer = await self.one_token(instance, path, body, sending)
        answer.release()
        try:
            return handoff_in(answer.first)
        except (msgspec.DecodeError, KvParamsInvalid) as error:
            raise EngineFailed(instance.name, f"gave no hand-off: {error}") from error

    async def begin(
        self, instance: Instance, path: str, body: bytes, sending: Sending
    ) -> EngineAnswer:
        """A leg whose answer is a stream: its first bytes. Raises NodeUnavailable,
        EngineRejected."""
        limit_s = self._first_byte_timeout_s
        try:
            connection = await self._send(instance, path, body, sending, limit_s)
            try:
                first = await self._first(instance, connection)
            except BaseException:
                connection.release()
                raise
        except TimeoutError:
            raise AnswerTimeout(instance.name, limit_s) from None
        return EngineAnswer(instance, connection, first, self._idle_timeout_s)

    async def one_token(
        self, instance: Instance, path: str, body: bytes, sending: Sending | None = None
    ) -> EngineAnswer:
        """A leg that asks for one token: all of its answer, as `first`, within the limit for a
        first byte. Raises NodeUnavailable, EngineRejected."""
        try:
            return await self._all(instance, path, body, sending, self._first_byte_timeout_s)
        except TimeoutError:
            raise AnswerTimeout(instance.name, self._first_byte_timeout_s) from None

    async def whole(
        self, instance: Instance, path: str, body: bytes, sending: Sending, spent_s: float
    ) -> EngineAnswer:
        """A leg whose answer is one JSON body: all of it, as `first`. Nobody has seen a byte of it
        before the last one, so an answer that breaks off may be asked for again elsewhere.
        Raises NodeUnavailable, EngineRejected, AnswerUnfinished. `spent_s`: of the limit."""
        limit_s = self._answer_timeout_s
        try:
            return await self._all(instance, path, body, sending, limit_s - spent_s)
        except TimeoutError:
            raise AnswerUnfinished(instance.name, limit_s) from None

    async def healthy(self, instance: Instance, timeout_s: float) -> str:
        """Empty if /health answers 200, else why not; raises TimeoutError if it stays silent."""
        try:
            connection = await self._wire.send(
                "GET", instance.url, "/health", b"", timeout_s, fresh=True
            )
            try:
                await connection.read_all(timeout_s)
            finally:
                connection.release()
        except (CannotConnect, Disconnected) as error:
            return str(error)
        return "" if connection.status == 200 else f"/health answered {connection.status}"

    async def serves(self, instance: Instance, timeout_s: float) -> str:
        """Empty if its list of models has ours, else what is wrong; raises TimeoutError."""
        try:
            connection = await self._wire.send(
                "GET", instance.url, "/v1/models", b"", timeout_s, fresh=True
            )
            try:
                answer = await connection.read_all(timeout_s)
            finally:
                connection.release()
            names = [card.id for card in _decode_models(answer).data]
        except (CannotConnect, Disconnected, msgspec.MsgspecError) as error:
            return f"its list of models cannot be read: {error}"
        return "" if instance.model in names else f"serves {names}, not {instance.model!r}"

    async def _all(
        self, instance: Instance, path: str, body: bytes, sending: Sending | None, limit_s: float
    ) -> EngineAnswer:
        """Raises TimeoutError as well."""
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + limit_s
        connection = await self._send(instance, path, body, sending, limit_s)
        try:
            answer = await self._rest(instance, connection, deadline_s - clock())
        except BaseException as error:
            if sending is not None and isinstance(error, asyncio.CancelledError):
                sending.connection = connection
            else:
                connection.release()
            raise
        return EngineAnswer(instance, connection, answer, self._idle_timeout_s)

    async def _send(
        self, instance: Instance, path: str, body: bytes, sending: Sending | None, limit_s: float
    ) -> Connection:
        """Sent, and accepted with status 200. Raises TimeoutError as well."""
        try:
            connection = await self._wire.send(
                "POST", instance.url, path, body, limit_s, sending=sending
            )
        except CannotConnect as error:
            raise ConnectFailed(instance.name, str(error)) from None
        except WentStale as error:
            raise ConnectionStale(instance.name, str(error)) from None
        except Disconnected as error:
            raise ConnectionLost(instance.name, str(error)) from None
        if connection.status != 200:
            try:
                answer = await self._rest(instance, connection, self._first_byte_timeout_s)
            finally:
                connection.release()
            if connection.status in _CLIENTS_FAULT:
                raise EngineRejected(instance.name, connection.status, answer)
            shown = answer[:_SHOWN_BYTES].decode("utf-8", "replace")
            raise EngineFailed(instance.name, f"answered {connection.status}: {shown}")
        return connection

    async def _first(self, instance: Instance, connection: Connection) -> bytes:
        try:
            first = await connection.read(self._first_byte_timeout_s)
        except Disconnected as error:
            raise ConnectionLost(instance.name, str(error)) from None
        if not first:
            raise EngineFailed(instance.name, "gave an empty answer")
        return first

    async def _rest(self, instance: Instance, connection: Connection, limit_s: float) -> bytes:
        try:
            return await connection.read_all(limit_s)
        except Disconnected as error:
            raise ConnectionLost(instance.name, str(error)) from None
