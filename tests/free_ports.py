"""Ports for servers that a test starts."""

from __future__ import annotations

import random
import socket

# Below the range that the kernel gives to outgoing connections: an engine binds some of its ports
# half a minute after they were chosen, and a client's port must not have taken one by then.
_CANDIDATES = range(18000, 30000)


def free_ports(count: int) -> list[int]:
    return [port for port in random.sample(_CANDIDATES, 50 * count) if _is_free(port)][:count]


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
