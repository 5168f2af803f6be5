"""What is written down of finished calls, and that a router can be trained on it."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

from routing.samples import read_samples
from routing.step_view import NUMBERS
from tests.coordinator.call_rig import COLOCATED, a_chat, a_coordinator, a_turn
from tests.coordinator.test_routers import metric
from tests.routing.routing_rig import PAIR, write_jsonl

if TYPE_CHECKING:
    from pathlib import Path


async def logged(path: Path, **fields: Any) -> list[dict[str, Any]]:
    """Two calls of one session, one of another tenant's, one that an engine refuses."""
    async with a_coordinator(COLOCATED, limits={"call_log": {"path": str(path)} | fields}) as rig:
        for text, model in (("secret one", "small"), ("two", "large")):
            reply = await rig.chat(a_chat(text, model=model), x_session_id="s")
            assert reply.status_code == 200
        await rig.chat(a_chat("hi"), x_session_id="s", authorization="Bearer other")
        refused = await rig.chat(a_chat(messages=a_turn("x"), n=-1, max_tokens=0), x_session_id="s")
        assert refused.status_code >= 400
    return rows_of(path)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_line_has_the_calls_row_and_the_steps_numbers_but_no_prompt(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    rows = await logged(path)
    assert [(row["session_id"], row["call"], row["model"]) for row in rows] == [
        *(("s", 1, "small"), ("s", 2, "large"), ("s", 1, "small"))
    ]
    assert [row["is_switch"] for row in rows] == [False, True, False]
    assert rows[0]["tenant"] != rows[2]["tenant"]
    assert sorted(rows[0]["numbers"]) == sorted(NUMBERS)
    assert rows[0]["prompt_tokens"] > 0
    assert "secret" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_with_prompts_and_scores_it_is_what_a_router_is_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    rows = await logged(path, prompts=True)
    assert rows[0]["prompt"] == a_chat("secret one")["messages"]
    labels = [
        {"session_id": "s", "call": call, "scores": {"small": 0, "large": 1}} for call in (1, 2)
    ]
    samples = read_samples([path], PAIR, write_jsonl(tmp_path / "scores.jsonl", labels)).rows
    assert [sample.view.texts.tail for sample in samples] == [("secret one",), ("two",), ("hi",)]
    assert len({sample.task for sample in samples}) == 2


async def test_a_full_log_leaves_calls_out_and_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text("x" * 2000 + "\n")
    async with a_coordinator(
        COLOCATED, limits={"call_log": {"path": str(path), "max_bytes": 2100}}
    ) as rig:
        await rig.chat(a_chat(), x_session_id="s")
        metrics = rig.app.state.metrics
    assert path.stat().st_size == 2001
    assert metrics.calls_not_logged._value.get() == 1


async def test_a_log_that_cannot_be_written_fails_no_call(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "calls.jsonl"
    async with a_coordinator(COLOCATED, limits={"call_log": {"path": str(path)}}) as rig:
        assert (await rig.chat(a_chat(), x_session_id="s")).status_code == 200
        assert await metric(rig, "shadowprefill_calls_not_logged_total") == 0


async def test_a_call_of_no_session_belongs_to_no_task(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    async with a_coordinator(COLOCATED, limits={"call_log": {"path": str(path)}}) as rig:
        await rig.client.post("/v1/completions", json={"model": "small", "prompt": "x"})
    assert not path.exists()
