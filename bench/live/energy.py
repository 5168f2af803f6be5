"""Energy of the GPUs by NVML, where there is one; nothing is estimated where there is none."""

from __future__ import annotations

import importlib
from typing import Any


class EnergyMeter:
    """Total energy counters of all GPUs; `joules` is None without pynvml or without a GPU."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
            self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            self._nvml = nvml if self._handles else None
        except nvml.NVMLError:
            self._nvml = None

    def joules(self) -> float | None:
        """Since the driver was loaded: only differences mean anything."""
        if self._nvml is None:
            return None
        total_mj = sum(
            self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles
        )
        return float(total_mj) / 1e3


def used_joules(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
