"""Who asks the control API, and whether it may.

A client sees its own tenant. Operators see all of them and change what runs: with configured keys
those whose key says so, without keys everybody who reaches a coordinator that listens on this
machine only. Hosts: the control API's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from coordinator.door_errors import NotOperator

if TYPE_CHECKING:
    from fastapi import Request

    from coordinator.clients import Client, Clients

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "[::1]", "localhost")


@dataclass(frozen=True, slots=True)
class Access:
    clients: Clients

    def client(self, request: Request) -> Client:
        """Raises KeyUnknown."""
        return self.clients.of(dict(request.headers.raw))

    def operator(self, request: Request) -> Client:
        """Raises KeyUnknown, NotOperator."""
        client = self.client(request)
        if not client.is_operator:
            raise NotOperator(self.clients.are_known)
        # A browser sends its pages' requests to this machine, too, whoever wrote the page.
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            raise NotOperator(self.clients.are_known)
        return client

    def tenant(self, request: Request, wanted: str | None) -> str:
        """Whose sessions a request is about: its own, or those an operator names."""
        own = self.client(request).tenant
        if wanted is None or wanted == own:
            return own
        self.operator(request)
        return wanted
