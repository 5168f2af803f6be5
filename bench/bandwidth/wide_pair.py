"""A model and a P/D pair for CPUs whose pulls are large: 256 KiB of KV per token.

A pull of 256 MB would be 11,000 tokens of SmolLM2, and half a minute of prefill each. This one
is a Llama of 16 layers with 16 KV heads and almost no weights, which vLLM makes up (`load_format:
dummy`). What it answers is noise, what it transfers has the layers and blocks of a real model."""

from __future__ import annotations

import json
import os
import shutil
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MODEL = "wide"
PROMPT_TOKENS = 1089
"""294 MB. One more than whole blocks: what D holds afterwards is all but the last token."""
POOL_BYTES = 1 << 30
_WIDE = {
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
}
_NOT_COPIED = ("*.safetensors", "shadowprefill.json")


class ModelMissing(Exception):
    """The tokenizer to build on is not there: prepare the models first."""


def write_pair(folder: Path, models: Path, ports: Sequence[int], profile: str) -> Path:
    """The configuration of the pair; `ports`: four free ones. Raises ModelMissing."""
    path = folder / "wide_pair.yaml"
    cores = sorted(os.sched_getaffinity(0))
    p_port, d_port, p_kv_port, d_kv_port = ports
    common = {"model": MODEL, "host": "127.0.0.1"}
    p = {"role": "prefill", "port": p_port, "kv_port": p_kv_port, "cpus": str(cores[0])}
    d = {"role": "decode", "port": d_port, "kv_port": d_kv_port, "cpus": str(cores[-1])}
    document = {
        "profile": profile,
        "models": {
            MODEL: {
                "path": str(_write_model(folder / MODEL, models / "tiny-a")),
                "dtype": "float32",
                "max_model_len": 2048,
                "slo": {"ttft_s": 60.0, "tpot_s": 1.0},
                "engine_args": {"load_format": "dummy"},
                "env": {"VLLM_CPU_KVCACHE_SPACE": str(POOL_BYTES >> 30)},
            }
        },
        "instances": {"wide-p": common | p, "wide-d": common | d},
        "shadow": {"controller": "off"},
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]


def _write_model(folder: Path, source: Path) -> Path:
    config = source / "config.json"
    if not config.exists():
        raise ModelMissing(f"{config} is missing: run `make models`")
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    wide = json.loads(config.read_text()) | _WIDE
    (folder / "config.json").write_text(json.dumps(wide, indent=1))
    return folder.resolve()
