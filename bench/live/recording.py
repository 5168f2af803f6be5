"""What the models answer in the planned sessions, generated once per repeat.

Every cell of the repeat replays these answers as history, so the prompts of a call are the same
under every controller, token for token. Recorded without waiting for tools and all sessions at
once: only the text counts here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bench.demo.client import AgentClient, Limits, Message
from bench.live.client import within
from bench.live.records import RecordedSession
from bench.live.text import SYSTEM_PROMPT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import aiohttp

    from bench.live.plan import PlannedSession
    from bench.live.settings import Settings

MIN_OUTPUT_TOKENS = 4


async def record_sessions(
    http: aiohttp.ClientSession,
    base_url: str,
    sessions: Sequence[PlannedSession],
    settings: Settings,
) -> list[RecordedSession]:
    """Raises CallFailed: a session that cannot be recorded cannot be compared."""
    recording = [_record(http, base_url, session, settings) for session in sessions]
    return list(await asyncio.gather(*recording))


async def _record(
    http: aiohttp.ClientSession, base_url: str, session: PlannedSession, settings: Settings
) -> RecordedSession:
    client = AgentClient(
        http, base_url, session_id=session.key, token=f"record-{session.key}", shadow=False
    )
    messages: list[Message] = [{"role": "system", "content": SYSTEM_PROMPT}]
    texts: list[str] = []
    counts: list[int] = []
    limits = Limits(max_tokens=settings.output_tokens, min_tokens=MIN_OUTPUT_TOKENS)
    for call in session.calls:
        messages.append({"role": "user", "content": call.new_text})
        async with within(settings.call_timeout_s, f"{session.key} on {call.model}"):
            reply = await client.chat(call.model, messages, limits)
        texts.append(reply.text)
        counts.append(reply.output_tokens)
        messages.append({"role": "assistant", "content": reply.text})
    await client.finish()
    return RecordedSession(key=session.key, outputs=tuple(texts), output_tokens=tuple(counts))
