"""Whether the addresses of a configuration can be used on this machine, and whether one answers.

Host: coordinator.local_cluster, before it starts anything and while it waits."""

from __future__ import annotations

import errno
import http.client
import socket
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from configs.schema import ClusterConfig

LOCAL_NAMES = ("localhost", "127.0.0.1", "0.0.0.0", "::", "::1", "[::1]")
_ELSEWHERE = "is not an address of this machine; start the instance there and set attach_url"
_PROBE_TIMEOUT_S = 1.0
_BODY_CHARACTERS = 300
# Never through a proxy of the environment: these are addresses of this machine or nearby ones.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def port_problems(config: ClusterConfig, *, coordinator: bool) -> list[str]:
    """One line per address that an instance of ours could not listen on."""
    problems = []
    for owner, host, port in _addresses(config, coordinator):
        problem = _bind_problem(host, port)
        if problem:
            problems.append(f"{owner}: {host}:{port} {problem}")
    return problems


def is_foreign(problem: str) -> bool:
    """Whether this line of `port_problems` is about an address of another machine."""
    return problem.endswith(_ELSEWHERE)


def probe(url: str) -> str:
    """Empty if it answers with 200, else what it said."""
    try:
        with _DIRECT.open(url, timeout=_PROBE_TIMEOUT_S) as answer:
            return "" if answer.status == 200 else f"HTTP {answer.status}"
    except urllib.error.HTTPError as error:
        body = error.read(_BODY_CHARACTERS).decode(errors="replace")
        return f"HTTP {error.code} {body}".strip()
    except (OSError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__


def coordinator_url(config: ClusterConfig) -> str:
    """How a client on this machine reaches it."""
    host = config.coordinator.host
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://{reachable}:{config.coordinator.port}"


def _addresses(config: ClusterConfig, coordinator: bool) -> Iterator[tuple[str, str, int]]:
    if coordinator:
        yield "coordinator", config.coordinator.host, config.coordinator.port
    for name, instance in config.instances.items():
        if instance.attach_url is not None:
            continue
        yield f"instances.{name}.port", instance.host, instance.port
        if instance.kv_port is not None:
            yield f"instances.{name}.kv_port", instance.kv_host, instance.kv_port
        if instance.metrics_port is not None:
            yield f"instances.{name}.metrics_port", instance.host, instance.metrics_port


def _bind_problem(host: str, port: int) -> str:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            # As the servers do: a port whose old connections linger in TIME_WAIT is free.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen(1)
    except OSError as error:
        return _explained(error)
    return ""


def _explained(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "is already in use by another process; stop it or choose another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return _ELSEWHERE
    return f"cannot be listened on: {error}"
