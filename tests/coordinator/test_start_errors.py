"""The cause of a failed start is found in logs as vLLM, argparse and our own rooms write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from coordinator.start_errors import TAIL_LINES, cause_of, exit_text_of, failure_text, last_line_of

if TYPE_CHECKING:
    from pathlib import Path

ENGINE_CORE_FAILED = """\
(APIServer pid=7) INFO 11-30 13:19:03 [api_utils.py:286] non-default args: {'port': 1}
(EngineCore pid=8) ERROR 11-30 13:19:29 [core.py:1487] EngineCore failed to start.
(EngineCore pid=8) ERROR 11-30 13:19:29 [core.py:1487] Traceback (most recent call last):
(EngineCore pid=8) ERROR 11-30 13:19:29 [core.py:1487]   File "x.py", line 1, in f
(EngineCore pid=8) ERROR 11-30 13:19:29 [core.py:1487] zmq.error.ZMQError: Address in use
(EngineCore pid=8) Process EngineCore:
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "y.py", line 2, in g
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. {}
"""
UNKNOWN_FLAG = """\
usage: api_server.py [-h] [--headless]
api_server.py: error: unrecognized arguments: --enforce-eagre
"""
REFUSED_BY_US = "prefill_node: error: vLLM >=0.32,<0.34 is required, got 0.31.0\n"
COLOURED = "\x1b[1;36m(APIServer pid=7)\x1b[0;0m OSError: no such model: /x\n"


@pytest.mark.parametrize(
    ("log_text", "expected"),
    [
        (ENGINE_CORE_FAILED, "zmq.error.ZMQError: Address in use"),
        (UNKNOWN_FLAG, "api_server.py: error: unrecognized arguments: --enforce-eagre"),
        (REFUSED_BY_US, "prefill_node: error: vLLM >=0.32,<0.34 is required, got 0.31.0"),
        (COLOURED, "OSError: no such model: /x"),
        ("Loading weights\n", None),
        ("", None),
    ],
    ids=[
        "root_cause",
        "unknown_flag",
        "our_refusal",
        "colours",
        "none",
        "empty",
    ],
)
def test_the_cause_is_the_first_error_at_first_hand(
    tmp_path: Path, log_text: str, expected: str | None
) -> None:
    log = tmp_path / "x.log"
    log.write_text(log_text)
    assert cause_of(log) == expected


def test_an_error_at_second_hand_is_better_than_none(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("RuntimeError: Engine core initialization failed.\n")
    assert cause_of(log) == "RuntimeError: Engine core initialization failed."


def test_the_text_of_a_failure_has_the_cause_the_last_lines_and_the_path(tmp_path: Path) -> None:
    log = tmp_path / "small-p.log"
    log.write_text(ENGINE_CORE_FAILED + "\n".join(f"line {n}" for n in range(100)))
    text = failure_text("small-p", exit_text_of(1), log).splitlines()
    assert text[0] == "small-p exited with code 1: zmq.error.ZMQError: Address in use"
    assert str(log) in text[1]
    assert text[-1] == "  | line 99"
    assert len(text) == 2 + TAIL_LINES


def test_a_failure_without_a_log_still_has_a_text(tmp_path: Path) -> None:
    missing = tmp_path / "no.log"
    assert failure_text("small-p", "does not answer", missing) == "small-p does not answer"
    assert last_line_of(missing) == ""


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exited with code 0"), (2, "exited with code 2"), (-9, "was killed by SIGKILL")],
)
def test_an_exit_code_is_told_in_words(code: int, text: str) -> None:
    assert exit_text_of(code) == text
