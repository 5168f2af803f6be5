"""chat: piped, by lines and as JSON; typed, on a terminal of its own."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import sys
from contextlib import suppress

import pytest

from coordinator.cli_options import URL_VARIABLE
from engine.launch import import_environment
from tests.coordinator.call_rig import COLOCATED, TWO_PD, a_coordinator
from tests.coordinator.cli_rig import run

LONG = " ".join(f"w{at}" for at in range(300))


async def test_one_question_is_answered_on_stdout_and_measured_on_stderr() -> None:
    async with a_coordinator(TWO_PD) as rig:
        answer = await run(rig, "chat", "hello there", "--model", "small", "--session", "mine")
        assert answer.exit_code == 0
        assert len(answer.stdout.split()) == 8
        assert answer.stdout.endswith("\n")
        about = r"\[small \(small-p -> small-d\): \d+ prompt, 0 cached \(0%\), 8 out, TTFT \d+ ms,"
        assert re.match(about, answer.stderr)
        calls = (await rig.client.get("/v1/sessions/mine")).json()["calls"]
        assert len(calls) == 1


async def test_what_is_piped_in_is_one_message_after_the_question() -> None:
    async with a_coordinator(COLOCATED) as rig:
        assert (await run(rig, "chat", "explain:", stdin="line 1\nline 2\n")).exit_code == 0
        (call,) = rig.all_calls()
        assert call.body["messages"] == [{"role": "user", "content": "explain:\n\nline 1\nline 2"}]


async def test_lines_are_turns_of_one_session_and_a_switch_keeps_the_conversation() -> None:
    async with a_coordinator(COLOCATED) as rig:
        lines = f"{LONG}\n/model large\nand again\n\n/model small\nonce more\n"
        told = await run(rig, "chat", "--lines", "--json", "--model", "small", stdin=lines)
        turns = [json.loads(line) for line in told.stdout.splitlines()]
        assert [turn["model"] for turn in turns] == ["small", "large", "small"]
        assert len({turn["session_id"] for turn in turns}) == 1
        assert turns[2]["cached_tokens"] >= 288
        assert all(turn["ttft_ms"] <= turn["e2el_ms"] for turn in turns)
        last = rig.calls("small-1")[-1].body["messages"]
        assert [message["role"] for message in last] == ["user", "assistant"] * 2 + ["user"]
        assert last[1]["content"] == turns[0]["text"]


async def test_commands_show_the_session_and_what_a_switch_would_cost() -> None:
    async with a_coordinator(COLOCATED) as rig:
        lines = "hello\n/session\n/quote\n/models\n/new\n/session\n"
        told = await run(rig, "chat", "--lines", "--model", "small", stdin=lines)
        assert "missing" in told.stderr
        assert "est. TTFT ms" in told.stderr
        assert "small large auto" in told.stderr
        # The new session has had no call, so nobody knows it.
        assert (told.exit_code, "does not exist" in told.stderr) == (4, True)
        assert len(told.stdout.splitlines()) == 1


@pytest.mark.parametrize("lines", ["/model nope\nhello\n", "hello\n/model nope\n"])
async def test_an_unknown_model_ends_a_script_before_the_next_turn(lines: str) -> None:
    async with a_coordinator(COLOCATED) as rig:
        told = await run(rig, "chat", "--lines", stdin=lines)
        assert (told.exit_code, "known models are" in told.stderr) == (4, True)


async def test_an_answer_that_breaks_off_is_no_part_of_the_conversation() -> None:
    async with a_coordinator(COLOCATED) as rig:
        rig.engines["small-1"].faults.die_mid_stream(after_chunks=3)
        told = await run(rig, "chat", "--lines", "--model", "small", stdin="hello\nagain\n")
        assert (told.exit_code, "incomplete" in told.stderr) == (1, True)
        assert len(rig.all_calls()) == 1


async def test_somebody_who_types_goes_on_after_an_error() -> None:
    async with a_coordinator(COLOCATED) as rig:
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shadowprefill", "chat", "--model", "small"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, **import_environment(), URL_VARIABLE: rig.url, "TERM": "dumb"},
        )
        os.close(theirs)
        terminal = Terminal(ours)
        try:
            await terminal.types(b"small> ", b"/model nope\n")
            await terminal.types(b"small> ", b"hello\n")
            seen = await terminal.types(b"small> ", b"\x04")
            assert await process.wait() == 0
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            os.close(ours)
        assert b"8 out" in seen
        assert len(rig.all_calls()) == 1


class Terminal:
    """Somebody in front of one."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._unread = b""

    async def types(self, after: bytes, text: bytes) -> bytes:
        """Once `after` is there; what was on the screen up to it."""
        async with asyncio.timeout(120):
            while after not in self._unread:
                self._unread += await asyncio.to_thread(os.read, self._file, 4096)
        seen, _, self._unread = self._unread.partition(after)
        os.write(self._file, text)
        return seen
