"""Who calls: the tenant that a key or token stands for, and what it may do.

Without configured keys every bearer token is a tenant of its own. With them only their holders get
in. Keys are compared as SHA-256 digests: a key that is wrong by one bit has another digest
altogether, so neither the lookup nor the comparison, which takes the same time for every digest,
tells how close it was. Hosts: coordinator.openai_api, coordinator.access."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from coordinator.door_errors import KeyUnknown
from coordinator.session_identity import ANONYMOUS, presented, tenant_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from configs.keys import KeyEntry, KeyFile
    from configs.schema import LimitsConfig


class Client(NamedTuple):
    """Of one request."""

    tenant: str
    """Scope of sessions and caches; an id, not a name."""
    tenant_name: str
    key: str
    """Its name, never itself; without keys the tenant."""
    limits: LimitsConfig
    is_operator: bool = False


class Clients:
    """`keys` None: every token is welcome. `open_control`: without keys, everybody is operator."""

    def __init__(self, keys: KeyFile | None, limits: LimitsConfig, *, open_control: bool) -> None:
        self._limits = limits
        self._open_control = open_control
        self._by_digest = None if keys is None else self._clients(keys.keys)

    @property
    def are_known(self) -> bool:
        return self._by_digest is not None

    def of(self, headers: Mapping[bytes, bytes]) -> Client:
        """Raises KeyUnknown."""
        if self._by_digest is None:
            tenant = tenant_of(headers)
            return Client(tenant, tenant, tenant, self._limits, self._open_control)
        digest = sha256(presented(headers) or ANONYMOUS.encode()).hexdigest()
        found = self._by_digest.get(digest)
        if found is None or not hmac.compare_digest(found[0], digest):
            raise KeyUnknown
        return found[1]

    def _clients(self, entries: list[KeyEntry]) -> dict[str, tuple[str, Client]]:
        return {
            entry.sha256: (
                entry.sha256,
                Client(
                    tenant=tenant_id(entry.tenant),
                    tenant_name=entry.tenant,
                    key=entry.name,
                    limits=entry.limits or self._limits,
                    is_operator=entry.operator,
                ),
            )
            for entry in entries
        }


def tenant_id(name: str) -> str:
    """As long as that of a token, and no prefix of another's: marks carry the first characters."""
    return sha256(f"tenant:{name}".encode()).hexdigest()[:32]
