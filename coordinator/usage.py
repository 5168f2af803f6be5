"""What each key has used, and what shadow work cost and saved each tenant.

Bounded: without configured keys every token is a key, and the least recently used are forgotten.
Hosts: coordinator.pd_flow, coordinator.shadow_work; coordinator.usage_api shows it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from coordinator.metrics import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from configs.schema import ModelConfig
    from coordinator.calls import CallContext
    from coordinator.clients import Client

MAX_ROWS: Final = 10_000


@dataclass(slots=True)
class KeyUsage:
    """Since the start of this coordinator."""

    tenant: str
    tenant_name: str
    key: str
    calls: int = 0
    unfinished_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    shadow_tokens_used: int = 0
    saved_prefill_s: float = 0.0
    """What computing those would have taken."""
    saved_input_price: float = 0.0


class Usage:
    def __init__(self, models: Mapping[str, ModelConfig]) -> None:
        self._s_per_token = {
            name: 0.0 if model.step_time is None else model.step_time.s_per_token
            for name, model in models.items()
        }
        self._saved_price = {
            name: 0.0 if model.price is None else model.price.saved_per_cached_token
            for name, model in models.items()
        }
        self._rows: OrderedDict[tuple[str, str], KeyUsage] = OrderedDict()
        self._computed: OrderedDict[str, int] = OrderedDict()

    def call_ended(
        self, client: Client, call: CallContext, outcome: Outcome, used_tokens: int
    ) -> None:
        row = self._row(client)
        row.calls += 1
        row.unfinished_calls += outcome is not Outcome.OK
        row.prompt_tokens += call.prompt_tokens or 0
        row.cached_tokens += call.cached_tokens or 0
        row.output_tokens += call.output_tokens or 0
        row.shadow_tokens_used += used_tokens
        row.saved_prefill_s += used_tokens * self._s_per_token[call.model]
        row.saved_input_price += used_tokens * self._saved_price[call.model]

    def computed(self, tenant: str, tokens: int) -> None:
        """By shadow work."""
        self._computed[tenant] = self._computed.get(tenant, 0) + tokens
        self._computed.move_to_end(tenant)
        if len(self._computed) > MAX_ROWS:
            self._computed.popitem(last=False)

    def computed_tokens(self, tenant: str) -> int:
        return self._computed.get(tenant, 0)

    def rows(self, tenant: str | None) -> Iterator[KeyUsage]:
        """Of one tenant, or (None) of all."""
        return (row for row in self._rows.values() if tenant in (None, row.tenant))

    def _row(self, client: Client) -> KeyUsage:
        place = (client.tenant, client.key)
        row = self._rows.get(place)
        if row is None:
            row = self._rows[place] = KeyUsage(client.tenant, client.tenant_name, client.key)
            if len(self._rows) > MAX_ROWS:
                self._rows.popitem(last=False)
        self._rows.move_to_end(place)
        return row
