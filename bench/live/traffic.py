"""The traffic of one cell: READ AFTER bench.live.story.

Normal requests are open loop: each is sent at its planned time, whatever became of those before it.
Sessions are closed loop, as agents are: a call, its answer, the tool's time, the next call with the
recorded history. After the window nothing new begins; what runs may finish until the deadline."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from bench.demo.client import AgentClient, Limits, Message
from bench.demo.errors import CallFailed
from bench.live.client import complete
from bench.live.records import CallRow
from bench.live.text import SYSTEM_PROMPT
from bench.live.ttft_split import with_account

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import aiohttp

    from bench.demo.client import Reply, SessionView
    from bench.live.plan import NormalRequest, PlannedSession
    from bench.live.records import Calibration, RecordedSession
    from bench.live.settings import Settings

VIEW_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Played:
    rows: list[CallRow] = field(default_factory=list)
    shadow_tokens_computed: int = 0
    shadow_tokens_used: int = 0
    duration_s: float = 0.0
    client_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What every request of a cell needs. The bearer token is the cell's own: so is the cache."""

    http: aiohttp.ClientSession
    base_url: str
    token: str
    settings: Settings
    recorded: Mapping[str, RecordedSession]
    calibration: Calibration
    """Gives each normal request the TTFT SLO of its own prompt."""
    begin_s: float = field(default_factory=time.perf_counter)
    played: Played = field(default_factory=Played)

    async def play(
        self, normal: Sequence[NormalRequest], sessions: Sequence[PlannedSession]
    ) -> Played:
        cpu_s = time.process_time()
        async with asyncio.TaskGroup() as tasks:
            for slot in sorted({session.slot for session in sessions}):
                own = [session for session in sessions if session.slot == slot]
                tasks.create_task(self._slot(own))
            for request in normal:
                await self._until(request.at_s)
                tasks.create_task(self._normal(request))
        self.played.duration_s = self._now_s()
        self.played.client_cpu_s = time.process_time() - cpu_s
        self.played.rows.sort(key=lambda row: (row.at_s, row.key))
        return self.played

    def _now_s(self) -> float:
        return time.perf_counter() - self.begin_s

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self._now_s()))

    def _bound(self) -> asyncio.Timeout:
        """A call ends by its own limit or by the end of the drain, whichever comes first."""
        left_s = self.settings.window_s + self.settings.drain_s - self._now_s()
        return asyncio.timeout(max(0.0, min(self.settings.call_timeout_s, left_s)))

    async def _normal(self, request: NormalRequest) -> None:
        row = CallRow(
            kind="normal",
            key=request.key,
            model=request.model,
            at_s=round(request.at_s, 4),
            prompt_tokens=request.prompt_tokens,
        )
        prompt_ids = request.prompt_ids()
        late_ms = _ms(self._now_s() - request.at_s)
        try:
            async with self._bound():
                done = await complete(
                    self.http,
                    self.base_url,
                    request.model,
                    prompt_ids,
                    request.output_tokens,
                    self.token,
                    self.calibration.models[request.model].ttft_slo_s(request.prompt_tokens),
                )
        except (CallFailed, TimeoutError) as error:
            self.played.rows.append(
                msgspec.structs.replace(row, late_ms=late_ms, error=_text(error))
            )
            return
        self.played.rows.append(
            msgspec.structs.replace(
                row,
                late_ms=late_ms,
                cached_tokens=done.cached_tokens,
                output_tokens=done.output_tokens,
                ttft_ms=_ms(done.ttft_s),
                e2el_ms=_ms(done.e2el_s),
                itl_ms=tuple(_ms(gap_s) for gap_s in done.itl_s),
                p_instance=done.instance,
                d_instance=done.instance,
            )
        )

    async def _slot(self, sessions: Sequence[PlannedSession]) -> None:
        for session in sessions:
            if self._now_s() >= self.settings.window_s:
                return
            await self._session(session)

    async def _session(self, session: PlannedSession) -> None:
        # The id is part of what a coordinator may hash or rank by: the same in every cell.
        client = AgentClient(
            self.http, self.base_url, session_id=session.key, token=self.token, shadow=True
        )
        messages: list[Message] = [{"role": "system", "content": SYSTEM_PROMPT}]
        recorded = self.recorded[session.key]
        rows: list[CallRow] = []
        for index, call in enumerate(session.calls):
            await asyncio.sleep(call.gap_s)
            if self._now_s() >= self.settings.window_s:
                break
            messages.append({"role": "user", "content": call.new_text})
            rows.append(await self._call(client, session, index, messages, recorded))
            messages.append({"role": "assistant", "content": recorded.outputs[index]})
        await self._close(client, rows)

    async def _call(
        self,
        client: AgentClient,
        session: PlannedSession,
        index: int,
        messages: Sequence[Message],
        recorded: RecordedSession,
    ) -> CallRow:
        row = CallRow(
            kind="routed",
            key=f"{session.key}/{index + 1}",
            model=session.calls[index].model,
            at_s=round(self._now_s(), 4),
            session_id=session.key,
            call=index + 1,
            is_switch=session.is_switch(index),
        )
        # As many tokens as were recorded, so that every controller has the same work to do.
        limits = Limits(max_tokens=recorded.output_tokens[index], ignore_eos=True)
        try:
            async with self._bound():
                reply = await client.chat(row.model, messages, limits)
        except (CallFailed, TimeoutError) as error:
            return msgspec.structs.replace(row, error=_text(error))
        return _answered(row, reply, recorded.outputs[index])

    async def _close(self, client: AgentClient, rows: list[CallRow]) -> None:
        if not rows:
            return
        view: SessionView | None = None
        try:
            async with asyncio.timeout(VIEW_TIMEOUT_S):
                view = await client.session()
                await client.finish()
        except (CallFailed, TimeoutError) as error:
            rows[-1] = msgspec.structs.replace(rows[-1], error=f"session lost: {_text(error)}")
        if view is not None:
            self.played.shadow_tokens_computed += view.shadow_tokens_computed
            self.played.shadow_tokens_used += view.shadow_tokens_used
            told = {call.call: call for call in view.calls}
            rows = [with_account(row, told.get(row.call)) for row in rows]
        self.played.rows += rows


def _answered(row: CallRow, reply: Reply, recorded_output: str) -> CallRow:
    ids = ",".join(map(str, reply.prompt_ids)).encode()
    return msgspec.structs.replace(
        row,
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.cached_tokens,
        output_tokens=reply.output_tokens,
        ttft_ms=_ms(reply.ttft_s),
        e2el_ms=_ms(reply.e2el_s),
        prompt_digest=hashlib.blake2b(ids, digest_size=8).hexdigest(),
        output_as_recorded=reply.text == recorded_output,
        p_instance=reply.p_instance,
        d_instance=reply.d_instance,
        transfer_ms=reply.d_queue_ms,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)


def _text(error: BaseException) -> str:
    return str(error) or "not finished when the cell's time was over"
