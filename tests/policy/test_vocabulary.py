"""SLOs are checked by their YAML name."""

from __future__ import annotations

import pytest

from policy.vocabulary import Slo


@pytest.mark.parametrize("name", ["ttft_s", "tpot_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_an_slo_that_is_not_positive_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^slo\.{name} must be > 0, got {value}$"):
        Slo(**{"ttft_s": 1.0, "tpot_s": 1.0, name: value})
