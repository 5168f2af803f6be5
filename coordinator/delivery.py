"""From an engine's answer to the client: chunks as they come, or one body; usage read once.

Host: coordinator.pd_flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from coordinator.errors import EngineFailed, StreamBroken
from coordinator.named_events import EVENT_SHAPES, EventTail
from coordinator.sse import StreamTail, told_by, with_cached_tokens
from policy.vocabulary import RequestClass

if TYPE_CHECKING:
    from coordinator.call_book import CallBook
    from coordinator.calls import ShadowHooks
    from coordinator.legs import Job
    from coordinator.node_client import EngineAnswer, Handoff


class Reply(Protocol):
    """The client's side: `whole`, or `start` and then `write`. Nothing can be taken back."""

    events: int

    async def start(self, content_type: bytes, headers: list[tuple[bytes, bytes]]) -> None: ...

    async def write(self, data: bytes, last: bool = False) -> None: ...

    async def whole(
        self,
        content_type: bytes,
        headers: list[tuple[bytes, bytes]],
        data: bytes,
        status: int = 200,
    ) -> None: ...


Tail = StreamTail | EventTail


@dataclass(frozen=True, slots=True)
class Delivery:
    book: CallBook
    shadow: ShadowHooks

    async def deliver(
        self, job: Job, answer: EngineAnswer, handoff: Handoff | None, reply: Reply
    ) -> None:
        """Returns when the client has everything. Raises StreamBroken, EngineFailed."""
        # What D says of its cache is the truth only where no P was asked.
        cached_tokens = None if handoff is None else handoff.cached_tokens
        if job.call.stream:
            await self._stream(job, answer, cached_tokens, reply)
        else:
            await self._whole(job, answer, cached_tokens, reply)

    async def _stream(
        self, job: Job, answer: EngineAnswer, cached_tokens: int | None, reply: Reply
    ) -> None:
        call = job.call
        tail = _tail_of(job, cached_tokens)
        await reply.start(answer.content_type, _headers(job))
        await self._relay(job, answer, tail, reply)
        if tail.usage is not None:
            self.book.usage(call, tail.usage, cached_tokens)
        call.record.finish_reason = tail.finish_reason
        if not tail.done:
            raise StreamBroken(answer.instance.name, f"ended its stream before {tail.end}")
        if tail.engine_error:
            raise StreamBroken(answer.instance.name, "reported an error inside the stream")

    async def _relay(self, job: Job, answer: EngineAnswer, tail: Tail, reply: Reply) -> None:
        is_routed = job.call.request_class is RequestClass.ROUTED
        chunk = answer.first
        while chunk:
            if is_routed:
                self.shadow.output_bytes(job.session, job.call, chunk)
            if out := tail.feed(chunk):
                reply.events += out.count(b"\n\n")
                if job.call.record.ttft_ms is None and tail.has_output:
                    self.book.first_byte(job.call)
                await reply.write(out, last=tail.done)
            chunk = b"" if tail.done else await answer.read()
        answer.is_done = tail.done

    async def _whole(
        self, job: Job, answer: EngineAnswer, cached_tokens: int | None, reply: Reply
    ) -> None:
        data, call = answer.first, job.call
        shape = EVENT_SHAPES.get(call.kind)
        told = told_by(data) if shape is None else shape.read(data)
        if told is None:
            raise EngineFailed(answer.instance.name, "gave an answer that is not one")
        if told.usage is not None:
            self.book.usage(call, told.usage, cached_tokens)
            if cached_tokens is not None and told.usage.cached_tokens != cached_tokens:
                change = with_cached_tokens if shape is None else shape.with_cached_tokens
                data = change(data, cached_tokens)
        call.record.finish_reason = told.finish_reason
        if call.request_class is RequestClass.ROUTED:
            self.shadow.output_bytes(job.session, call, data)
        await reply.whole(answer.content_type, _headers(job), data)


def _tail_of(job: Job, cached_tokens: int | None) -> Tail:
    shape = EVENT_SHAPES.get(job.call.kind)
    if shape is not None:
        return EventTail(shape, cached_tokens)
    return StreamTail(usage_wanted=job.body.usage_wanted, replace_cached=cached_tokens)


def _headers(job: Job) -> list[tuple[bytes, bytes]]:
    record = job.call.record
    headers = [
        (b"x-shadowprefill-model", job.call.model.encode()),
        (b"x-shadowprefill-p-instance", (record.p_instance or "").encode()),
        (b"x-shadowprefill-d-instance", (record.d_instance or "").encode()),
    ]
    if job.session.id:
        headers.append((b"x-shadowprefill-session-id", job.session.id.encode()))
    return headers
