"""sessions, session, quote, drain and status against a coordinator: words, JSON, exit codes."""

from __future__ import annotations

import asyncio
import io
import json
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from configs.keys import KeyFile
from coordinator.control_shapes import SessionDetail, SessionQuote
from coordinator.plain_text import in_cell, printable
from coordinator.session_tables import Room, call_table, quote_table, warmth_table
from tests.coordinator.call_rig import COLOCATED, TWO_PD, a_chat, a_coordinator, a_turn, until
from tests.coordinator.cli_rig import run
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

    from bench.fake_engine import FakeEngine
    from tests.coordinator.call_rig import Rig

WORDS = " ".join(f"w{at}" for at in range(300))
TWO_SMALL = {"small-1": ("small", "colocated"), "small-2": ("small", "colocated")}


async def a_session_with_a_switch(rig: Rig, name: str = "s") -> None:
    messages = a_turn(WORDS)
    reply = await rig.chat(a_chat(messages=messages), x_session_id=name)
    messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": "go on"}]
    await rig.chat(a_chat(messages=messages, model="large"), x_session_id=name)


async def test_sessions_are_listed_with_what_is_warm_for_each() -> None:
    async with a_coordinator(TWO_PD) as rig:
        await a_session_with_a_switch(rig)
        shown = await run(rig, "sessions")
        assert shown.exit_code == 0
        head, row = shown.stdout.splitlines()
        assert head.split() == ["session", "model", "calls", "switches", "idle", "warm"]
        assert row.split()[:4] == ["s", "large", "2", "1"]
        assert re.search(r"large 9\d% +small \d\d%", row)
        answer = json.loads((await run(rig, "sessions", "--json")).stdout)
        assert (answer["total"], answer["data"][0]["session_id"]) == (1, "s")


async def test_an_operator_sees_sessions_by_tenant_and_can_ask_for_one() -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.chat(a_chat(), x_session_id="theirs", authorization="Bearer somebody")
        nothing = await run(rig, "sessions")
        assert (nothing.exit_code, "--all-tenants" in nothing.stdout) == (0, True)
        shown = (await run(rig, "sessions", "--all-tenants")).stdout
        tenant = shown.splitlines()[0].split()[1]
        assert "theirs" in shown
        assert (await run(rig, "session", "theirs")).exit_code == 4
        assert (await run(rig, "session", "theirs", "--tenant", tenant)).exit_code == 0
        assert (await run(rig, "session", "theirs", key="somebody")).exit_code == 0


async def test_a_session_shows_its_warmth_and_its_calls_in_order() -> None:
    async with a_coordinator(TWO_PD) as rig:
        await a_session_with_a_switch(rig)
        shown = (await run(rig, "session", "s")).stdout
        lines = shown.splitlines()
        assert lines[0] == "s: chat, named by its client, on large"
        assert re.fullmatch(r"2 calls, 1 switch, idle \d+ s; shadow work on", lines[1])
        calls = [line.split() for line in lines[-2:]]
        assert [(call[0], "*" in call) for call in calls] == [("1", False), ("2", True)]
        assert calls[1][-3:] == ["large-p", "large-d", "length"]
        newest = (await run(rig, "session", "s", "--calls", "1")).stdout.splitlines()
        assert newest[-3].startswith("1 earlier call; * a switch of model; times in ms")
        assert newest[-1].split()[0] == "2"


async def test_a_quote_prices_each_model() -> None:
    price = {"price": {"input_per_million_tokens": 0.5, "cached_input_share": 0.1}}
    async with a_coordinator(TWO_PD, models={"small": price}) as rig:
        await a_session_with_a_switch(rig)
        shown = (await run(rig, "quote", "s", "--new-tokens", "100")).stdout.splitlines()
        assert [line.split()[0] for line in shown] == ["model", "small", "large"]
        quoted = json.loads((await run(rig, "quote", "s", "--json")).stdout)["quotes"]
        assert quoted[0]["input_price"] > 0
        assert shown[2].rstrip().endswith("no switch")


async def test_status_with_an_address_shows_a_cluster_that_runs_anywhere() -> None:
    async with a_coordinator(TWO_PD) as rig:
        shown = await run(rig, "status")
        assert shown.exit_code == 0
        assert "4 of 4 instances healthy" in shown.stdout
        assert {"small-p", "large-d"} < set(shown.stdout.split())
        answer = json.loads((await run(rig, "status", "--json")).stdout)
        assert (answer["cluster"]["ready"], len(answer["instances"]["data"])) == (True, 4)


async def test_status_says_what_is_not_ready() -> None:
    def frozen(engines: dict[str, FakeEngine]) -> None:
        engines["large-1"].faults.freeze()

    async with a_coordinator(COLOCATED, ready=False, prepare=frozen) as rig:
        shown = await run(rig, "status")
        assert shown.exit_code == 1
        assert "not ready" in shown.stdout
        assert "large: no healthy colocated instance" in shown.stdout
        rig.engines["large-1"].faults.thaw()


async def test_drain_waits_for_calls_that_run_and_says_when_they_do_not_end() -> None:
    async with a_coordinator(TWO_SMALL) as rig:
        for engine in rig.engines.values():
            engine.faults.hang()
        call = asyncio.create_task(rig.chat(a_chat(), x_session_id="s"))
        instances = rig.app.state.cluster.instances.values()
        await until(lambda: any(one.inflight_calls for one in instances), "a call runs")
        (busy,) = (one.name for one in instances if one.inflight_calls)
        late = await run(rig, "drain", busy, "--timeout", "0")
        assert (late.exit_code, late.stdout) == (6, f"{busy}: draining\n")
        assert f"{busy}: 1 calls are running" in late.stderr
        assert "--undo" in late.stderr
        rig.engines[busy].faults.release()
        done = await run(rig, "drain", busy)
        assert (done.exit_code, done.stdout) == (0, f"{busy}: drained\n")
        assert (await call).status_code == 200
        undone = await run(rig, "drain", busy, "--undo", "--json")
        assert json.loads(undone.stdout)["state"] == "healthy"


async def test_drain_leaves_a_model_with_somebody_to_ask() -> None:
    async with a_coordinator(COLOCATED) as rig:
        refused = await run(rig, "drain", "small-1")
        assert (refused.exit_code, "force" in refused.stderr) == (1, True)
        assert (await run(rig, "drain", "small-1", "--force")).exit_code == 0


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (("session", "nobody"), 4, "'nobody' does not exist"),
        (("quote", "nobody"), 4, "'nobody' does not exist"),
        (("drain", "nobody"), 4, "known instances are"),
        (("quote", "s", "--new-tokens", "-1"), 2, "--new-tokens"),
        (("sessions", "--limit", "501"), 2, "--limit"),
        (("sessions", "--url", "127.0.0.1:80"), 2, "http(s)://host"),
        (("sessions", "--key-file", "/no/such/file"), 2, "/no/such/file"),
    ],
)
async def test_what_is_wrong_is_said_and_has_its_exit_code(
    command: tuple[str, ...], code: int, text: str
) -> None:
    async with a_coordinator(COLOCATED, ready=False) as rig:
        result = await run(rig, *command)
        assert (result.exit_code, result.stdout) == (code, "")
        assert text in " ".join(result.stderr.split())


async def test_keys_come_from_a_file_or_the_environment_and_decide_what_is_allowed(
    tmp_path: Path,
) -> None:
    entries = [
        {
            "name": name,
            "tenant": "t",
            "sha256": sha256(f"sk-{name}".encode()).hexdigest(),
            "operator": name == "boss",
        }
        for name in ("boss", "guest")
    ]
    keys = KeyFile.model_validate({"keys": entries, "tenants": {"t": {}}})
    file = tmp_path / "key"
    file.write_text("sk-boss\n")
    async with a_coordinator(COLOCATED, keys=keys) as rig:
        assert (await run(rig, "sessions")).exit_code == 5
        assert (await run(rig, "sessions", key="sk-guest")).exit_code == 0
        refused = await run(rig, "drain", "small-1", "--force", key="sk-guest")
        assert (refused.exit_code, "operator" in refused.stderr) == (5, True)
        # What is said on the command line goes before the environment.
        drained = await run(
            rig, "drain", "small-1", "--force", "--key-file", str(file), key="sk-guest"
        )
        assert drained.exit_code == 0


async def test_where_nobody_answers_the_exit_code_is_3_and_the_way_out_is_shown() -> None:
    async with a_coordinator(COLOCATED, ready=False) as rig:
        (nobody,) = free_ports(1)
        for command in (["sessions"], ["session", "s"], ["drain", "x"], ["chat", "hi"], ["status"]):
            result = await run(rig, *command, "--url", f"http://127.0.0.1:{nobody}")
            assert (result.exit_code, result.stdout) == (3, ""), command
            assert "refused" in result.stderr
            assert "shadowprefill up" in result.stderr


def test_what_others_wrote_does_not_command_a_terminal() -> None:
    assert printable("a\x1b]0;owned\x07[red]\n\tb\ud800") == "a\\x1b]0;owned\\x07[red]\n\tb\\ud800"
    assert printable("\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}") == (
        "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}"
    )
    assert in_cell("two\nlines\r") == "two lines\\r"


NARROW, WIDE = 80, 130


@pytest.mark.parametrize("width", [NARROW, WIDE])
async def test_tables_fit_a_terminal_without_cutting_a_number(width: int) -> None:
    async with a_coordinator(TWO_PD) as rig:
        await a_session_with_a_switch(rig)
        detail = SessionDetail.model_validate_json((await rig.client.get("/v1/sessions/s")).content)
        quote = SessionQuote.model_validate_json(
            (await rig.client.get("/v1/sessions/s/quote")).content
        )
    console = Console(width=width, force_terminal=True, record=True, file=io.StringIO())
    room = Room.of(console)
    assert room.wide == (width == WIDE)
    tables = (
        warmth_table(detail.summary, room),
        call_table(at_its_longest(detail), 20, room),
        quote_table(quote, room),
    )
    for table in tables:
        console.print(table)
    shown = console.export_text()
    assert "█" in shown
    for number in ("131,072", "130,944", "65,536", "123,456"):
        assert number in shown
    assert all(len(line) <= width for line in shown.splitlines())
    # The text of an error is cut, at the end of its line; nothing before it is.
    assert not any("…" in line.rstrip()[:-1] for line in shown.splitlines())


def at_its_longest(detail: SessionDetail) -> SessionDetail:
    """A long session: large numbers, and an error whose text would push them aside."""
    numbers: dict[str, Any] = {
        "prompt_tokens": 131_072,
        "cached_tokens": 130_944,
        "shadow_tokens": 65_536,
        "output_tokens": 4096,
        "ttft_ms": 12_345.0,
        "e2el_ms": 123_456.0,
        "error": "engine_timeout " * 20,
    }
    calls = [call.model_copy(update={"call": 999, **numbers}) for call in detail.calls]
    return detail.model_copy(update={"calls": calls})
