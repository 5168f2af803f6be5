from __future__ import annotations

from typing import Any

import pytest

from engine.marks import CLASS_KEY, PROBABILITY_KEY, SECRET_KEY, MarkInvalid, Marks, read_marks
from policy.vocabulary import RequestClass

SHADOW = RequestClass.SHADOW


@pytest.mark.parametrize(
    "marks",
    [
        Marks(),
        Marks(request_class=RequestClass.ROUTED, session_id="s", ttft_budget_s=0.5, tpot_s=0.05),
        Marks(request_class=SHADOW, session_id="s", switch_probability=0.25),
        Marks(request_class=SHADOW, switch_probability=0.0),
    ],
)
@pytest.mark.parametrize("secret", ["", "ours"])
def test_what_is_written_is_read(marks: Marks, secret: str) -> None:
    assert read_marks(marks.to_xargs(secret), secret) == marks


@pytest.mark.parametrize("xargs", [None, {}, {"kv_transfer_params": {}}])
def test_an_unmarked_request_is_normal_traffic(xargs: dict[str, Any] | None) -> None:
    assert read_marks(xargs, "ours") == Marks()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({CLASS_KEY: "vip"}, "must be one of"),
        ({CLASS_KEY: ["shadow"]}, "must be one of"),
        ({PROBABILITY_KEY: 1.5}, "between 0 and 1"),
        ({PROBABILITY_KEY: float("nan")}, "finite"),
        ({PROBABILITY_KEY: True}, "finite"),
        ({"shadowprefill_ttft_budget_s": "soon"}, "finite"),
        ({SECRET_KEY: "theirs"}, "secret"),
        ({SECRET_KEY: "caf\u00e9"}, "secret"),
        ({SECRET_KEY: ""}, "secret"),
    ],
)
def test_marks_that_cannot_be_trusted_or_read_are_refused(
    change: dict[str, Any], complaint: str
) -> None:
    xargs = Marks(request_class=SHADOW, session_id="s").to_xargs("ours") | change
    with pytest.raises(MarkInvalid, match=complaint):
        read_marks(xargs, "ours")


def test_a_secret_may_be_any_text() -> None:
    marks = Marks(request_class=SHADOW, session_id="s")
    assert read_marks(marks.to_xargs("caf\u00e9"), "caf\u00e9") == marks
