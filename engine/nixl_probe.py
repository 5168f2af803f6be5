"""One READ between two NIXL agents, so that UCX says which transports it really takes.

`python -m engine.nixl_probe`, with UCX_PROTO_INFO=y: UCX writes its choice for the read to its log,
this process one line of JSON. A process of its own, because UCX reads its settings once and a
broken driver ends whoever loads it. Host: coordinator.doctor."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import numpy as np

from kv_transport.nixl_link import Memory, NixlEnd, Operation

SIZE_BYTES = 1 << 20
_FILL = 7


def main() -> None:
    target, source = _memory(0), _memory(1)
    kept = [target[1], source[1]]
    reader, holder = NixlEnd("probe-target", target[0]), NixlEnd("probe-source", source[0])
    route = reader.route_to(holder.invitation(), SIZE_BYTES)
    transfer = route.prepare(Operation.READ, [0], [0])
    done = transfer.post()
    while not done:
        done = transfer.is_done()
    moved = int(kept[0][-1]) == _FILL
    # (printed: what the parent reads)
    print(json.dumps({"memory": target[0].kind, "moved": moved}), flush=True)  # noqa: T201


def _memory(index: int) -> tuple[Memory, Any]:
    """On a GPU each where there are any; the second one holds what the first will read."""
    fill = _FILL * index
    devices = _gpus()
    if devices:
        import torch

        device = index % devices
        tensor = torch.full((SIZE_BYTES,), fill, dtype=torch.uint8, device=f"cuda:{device}")
        torch.cuda.synchronize(device)
        place = Memory(kind="VRAM", address=tensor.data_ptr(), size_bytes=SIZE_BYTES, device=device)
        return place, tensor
    array = np.full(SIZE_BYTES, fill, np.uint8)
    return Memory(kind="DRAM", address=array.ctypes.data, size_bytes=SIZE_BYTES), array


def _gpus() -> int:
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


if __name__ == "__main__":
    main()
