"""Which dtype the demo's models really run in: bfloat16 only where the processor computes in it.

Elsewhere it is emulated, about five times slower than float32 (one core, a linear layer of the
demo's model): `small` would cost more than `large`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from configs.load import effective_yaml, load_config

if TYPE_CHECKING:
    from pathlib import Path

NATIVE_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
"""In the flags (x86) or Features (ARM) of /proc/cpuinfo."""


def native_bfloat16(cpuinfo: Path) -> list[str]:
    """The flags that say so; empty: emulated."""
    words = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return [flag for flag in NATIVE_FLAGS if flag in words]


def without_emulation(config_path: Path, folder: Path, cpuinfo: Path) -> Path:
    """The configuration itself, or a copy in `folder` whose bfloat16 models are float32."""
    config = load_config(config_path)
    emulated = [name for name, model in config.models.items() if model.dtype == "bfloat16"]
    if config.profile != "cpu" or not emulated or native_bfloat16(cpuinfo):
        return config_path
    changes = tuple(f"models.{name}.dtype=float32" for name in emulated)
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / config_path.name
    copy.write_text(effective_yaml(load_config(config_path, changes)))
    return copy
