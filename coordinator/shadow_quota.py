"""How many shadow tokens a tenant may have computed: so many per hour, saved up for at most one.

Host: coordinator.shadow_work."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from policy.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_TENANTS: Final = 10_000
HOUR_S: Final = 3600.0


class ShadowQuota:
    """`own`: by tenant id, instead of the number for everybody; None: no limit."""

    def __init__(
        self,
        tokens_per_hour: int | None,
        own: Mapping[str, int | None],
        clock: Callable[[], float],
    ) -> None:
        self._tokens_per_hour = tokens_per_hour
        self._own = own
        self._clock = clock
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def left_tokens(self, tenant: str) -> float | None:
        """None: no limit."""
        bucket = self._bucket(tenant)
        return None if bucket is None else bucket.level(self._clock())

    def allows(self, tenant: str) -> bool:
        left = self.left_tokens(tenant)
        return left is None or left > 0

    def spend(self, tenant: str, tokens: int) -> None:
        bucket = self._bucket(tenant)
        if bucket is not None:
            bucket.spend(self._clock(), tokens)

    def _bucket(self, tenant: str) -> TokenBucket | None:
        found = self._buckets.get(tenant)
        if found is not None:
            self._buckets.move_to_end(tenant)
            return found
        limit = self._own.get(tenant, self._tokens_per_hour)
        if limit is None:
            return None
        found = self._buckets[tenant] = TokenBucket(
            rate_per_s=limit / HOUR_S, capacity=limit, now_s=self._clock()
        )
        if len(self._buckets) > MAX_TENANTS:
            self._buckets.popitem(last=False)
        return found
