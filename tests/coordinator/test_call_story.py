"""One line of JSON per call, with everything to find it by and nothing that is a secret."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.__main__ import _log_options
from coordinator.json_log import JsonLines
from tests.coordinator.call_rig import COLOCATED, PD, TWO_PD, a_chat, a_coordinator, until
from tests.coordinator.test_clients import of, some_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

JSON = {"log_format": "json"}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    with caplog.at_level(logging.DEBUG):
        yield Lines(caplog)


class Lines:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def text(self) -> str:
        return "\n".join(map(JsonLines().format, self._caplog.records))

    @property
    def calls(self) -> list[dict[str, Any]]:
        every = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in every if line["message"] == "call"]


async def test_a_call_is_one_line_once_it_has_ended(lines: Lines) -> None:
    async with a_coordinator(PD, keys=some_keys(), limits=JSON) as rig:
        await rig.chat(a_chat(stream=True), x_session_id="s", **of("alice"))
    (line,) = lines.calls
    assert (line["level"], line["logger"]) == ("info", "coordinator.call_story")
    assert (line["session_id"], line["model"], line["key"]) == ("s", "small", "alice")
    assert (line["p_instance"], line["d_instance"]) == ("small-p", "small-d")
    assert (line["outcome"], line["status"], line["kind"]) == ("ok", 200, "chat")
    assert line["e2el_ms"] >= line["ttft_ms"] > 0
    assert line["d_leg_ms"] >= 0
    assert line["p_leg_ms"] > 0
    assert line["output_tokens"] == 4
    assert {"request_id", "tenant", "time"} <= line.keys()
    assert "error" not in line


async def test_every_call_has_an_id_of_its_own(lines: Lines) -> None:
    async with a_coordinator(COLOCATED, limits=JSON) as rig:
        for _ in range(3):
            await rig.chat(a_chat())
    assert len({line["request_id"] for line in lines.calls}) == 3


async def test_a_call_that_is_refused_or_fails_says_how(lines: Lines) -> None:
    async with a_coordinator(COLOCATED, keys=some_keys(), limits=JSON) as rig:
        await rig.chat(a_chat(), authorization="Bearer wrong")
        await rig.chat(a_chat(model="nope"), **of("alice"))
        rig.engines["small-1"].faults.fail_next(400)
        await rig.chat(a_chat(), **of("alice"))
        rig.engines["small-1"].faults.fail_next(500)
        await rig.chat(a_chat(), **of("alice"))
    told = [(line["outcome"], line["status"], line["error"]) for line in lines.calls]
    assert told[:2] == [
        ("refused", 401, "invalid_api_key"),
        ("refused", 404, "model_not_found"),
    ]
    assert told[2:] == [("rejected", 400, "EngineRejected"), ("failed", 502, "engine_error")]
    assert "tenant" not in lines.calls[0]
    assert lines.calls[3]["d_instance"] == "small-1"


async def test_a_client_that_leaves_is_told_of_without_a_status(lines: Lines) -> None:
    async with a_coordinator(COLOCATED, limits=JSON) as rig:
        rig.engines["small-1"].faults.hang()
        call = asyncio.create_task(rig.chat(a_chat()))
        await until(rig.all_calls, "the engine has the call")
        call.cancel()
        await until(lambda: lines.calls, "the call is told of")
    (line,) = lines.calls
    assert (line["outcome"], line.get("status")) == ("cancelled", None)


async def test_text_logs_have_no_line_per_call(lines: Lines) -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.chat(a_chat())
    assert lines.calls == []


async def test_no_line_holds_a_key_a_secret_a_prompt_or_an_answer(lines: Lines) -> None:
    limits = JSON | {"engine_secret": "between-us"}
    async with a_coordinator(TWO_PD, keys=some_keys(), limits=limits, shadow=True) as rig:
        answer = await rig.chat(a_chat("swordfish " * 50), x_session_id="s", **of("alice"))
        await rig.chat(a_chat("swordfish"), authorization="Bearer sesame")
        await rig.chat(a_chat("swordfish", temperature="swordfish"), **of("alice"))
        rig.engines["small-d"].faults.fail_next(500, times=3)
        await rig.chat(a_chat("swordfish"), **of("alice"))
        await until(lambda: not rig.app.state.shadow.running, "nothing runs any more")
    assert len(lines.calls) == 4
    said = answer.json()["choices"][0]["message"]["content"].split()[0]
    for secret in ("between-us", "alicealice", "sesame", "swordfish", said):
        assert secret not in lines.text


def test_a_line_stays_one_line_whatever_is_in_it() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        raised = sys.exc_info()
    record = logging.LogRecord("a", logging.ERROR, "", 0, "it %s\n", ("broke\u2028",), raised)
    record.fields = {"odd": object, "half": "\ud800"}
    text = JsonLines().format(record)
    line = json.loads(text)
    assert len(text.splitlines()) == 1
    assert (line["level"], line["message"]) == ("error", "it broke\u2028\n")
    assert line["exception"].splitlines()[-2:] == ["ValueError: first", "second"]


def test_with_json_uvicorn_has_no_format_of_its_own() -> None:
    root = logging.getLogger()
    handler = logging.StreamHandler()
    root.addHandler(handler)
    before = [one.formatter for one in root.handlers]
    try:
        assert _log_options("text") == {}
        assert handler.formatter is None
        assert _log_options("json") == {"log_config": None}
        assert isinstance(handler.formatter, JsonLines)
    finally:
        for one, formatter in zip(root.handlers, before, strict=True):
            one.setFormatter(formatter)
        root.removeHandler(handler)
