"""Clients on bare sockets, the good and the bad: what a library would hide is what is tested."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from enum import Enum, auto
from typing import Any


class Manner(Enum):
    """What a client does with its stream."""

    READS = auto()
    READS_SLOWLY = auto()
    CLOSES_ITS_HALF = auto()  # and still reads: most servers take that for good-bye
    LEAVES = auto()
    SENDS_HALF_A_HEAD = auto()
    SENDS_HALF_A_BODY = auto()


WANT_ALL = (Manner.READS, Manner.READS_SLOWLY)
SLOW_READ_BYTES, SLOW_READ_S = 512, 0.005
END = b"data: [DONE]\n\n"
TAIL_BYTES = 400


def a_request(session: str, *, stream: bool, keep_alive: bool = True) -> bytes:
    message = {"role": "user", "content": f"hello from {session}"}
    body = {"model": "small", "messages": [message], "max_tokens": 64, "stream": stream}
    raw = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"x-session-id: {session}\r\ncontent-length: {len(raw)}\r\n"
    )
    if not keep_alive:
        head += "connection: close\r\n"
    return head.encode() + b"\r\n" + raw


async def one_stream(port: int, session: str, manner: Manner) -> bytes:
    """What came last of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        request = a_request(session, stream=True, keep_alive=False)
        if manner is Manner.SENDS_HALF_A_HEAD:
            request = request[:40]
        elif manner is Manner.SENDS_HALF_A_BODY:
            request = request[:-10]
        writer.write(request)
        if manner is Manner.CLOSES_ITS_HALF:
            writer.write_eof()
        return await _read(reader, manner)
    finally:
        writer.transport.abort() if manner not in WANT_ALL else writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, manner: Manner) -> bytes:
    if manner in (Manner.SENDS_HALF_A_HEAD, Manner.SENDS_HALF_A_BODY):
        await asyncio.sleep(0.05)
        return b""
    if manner is Manner.LEAVES:
        with suppress(asyncio.IncompleteReadError):
            await reader.readexactly(400)
        return b""
    tail = b""
    with suppress(ConnectionError):
        while chunk := await reader.read(SLOW_READ_BYTES):
            tail = (tail + chunk)[-TAIL_BYTES:]
            if manner is Manner.READS_SLOWLY:
                await asyncio.sleep(SLOW_READ_S)
    return tail


class Line:
    """One connection that is kept: calls one after the other, answers that are not streamed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, session: str) -> tuple[int, Any]:
        if self._open is None:
            self._open = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._open
        writer.write(a_request(session, stream=False))
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        return int(head.split()[1]), json.loads(await reader.readexactly(length))

    async def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            with suppress(OSError):
                await self._open[1].wait_closed()
