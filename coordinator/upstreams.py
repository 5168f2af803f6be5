"""Where instances may be registered: nobody can make us speak to a host that the operator of the
machine has not listed.

Names are compared as they are written and never looked up: what a name stands for can change after
the look. Pure. Host: coordinator.instances_api."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from coordinator.errors import UpstreamRefused

if TYPE_CHECKING:
    from collections.abc import Sequence


def checked_upstream(url: str, allowed: Sequence[str]) -> int:
    """The port of the URL; raises UpstreamRefused."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise UpstreamRefused(url, "is no URL") from None
    if parts.scheme not in ("http", "https") or not host:
        raise UpstreamRefused(url, "must be http://host[:port] or https://host[:port]")
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise UpstreamRefused(url, "must be a scheme, a host and a port, and nothing else")
    if any(char.isspace() or not char.isprintable() for char in url):
        raise UpstreamRefused(url, "must not hold blanks")
    port = port or (443 if parts.scheme == "https" else 80)
    if not any(_matches(host, port, one) for one in allowed):
        raise UpstreamRefused(url, "is not in coordinator.upstreams")
    return port


def _matches(host: str, port: int, allowed: str) -> bool:
    if "/" in allowed:
        try:
            return ip_address(host) in ip_network(allowed)
        except ValueError:
            return False  # a name is in no network, whatever it stands for
    return allowed.lower() in (host, f"{host}:{port}", f"[{host}]", f"[{host}]:{port}")
