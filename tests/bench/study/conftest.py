"""Tiny runs, in plain Python: compiling the event loop takes longer than all of them."""

from __future__ import annotations

from typing import Any

import pytest

from bench.sim.simulation import Simulation


@pytest.fixture(autouse=True)
def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Simulation.__init__

    def init(self: Simulation, *arguments: Any, **keywords: Any) -> None:
        plain(self, *arguments, **{**keywords, "with_numba": False})

    monkeypatch.setattr(Simulation, "__init__", init)
