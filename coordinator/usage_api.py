"""`/v1/usage`: what the keys of a tenant have used, and what shadow work cost and saved it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from coordinator.control_answer import REFUSED, shown
from coordinator.control_shapes import KeyUsageRow, TenantShadow, UsageAnswer

if TYPE_CHECKING:
    from coordinator.access import Access
    from coordinator.shadow_quota import ShadowQuota
    from coordinator.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageApi:
    access: Access
    usage: Usage
    quota: ShadowQuota

    def router(self) -> APIRouter:
        router = APIRouter(tags=["usage"])
        router.add_api_route(
            "/v1/usage", self.of, methods=["GET"], response_model=UsageAnswer, responses=REFUSED
        )
        return router

    async def of(self, request: Request, all_tenants: bool = False) -> Response:
        """Since this coordinator started, by key. `all_tenants` is for operators."""
        own = self.access.client(request).tenant
        if all_tenants:
            self.access.operator(request)
        rows = [KeyUsageRow(**asdict(row)) for row in self.usage.rows(None if all_tenants else own)]
        tenants = {own, *(row.tenant for row in rows)}
        shadow = {tenant: self._shadow(tenant) for tenant in sorted(tenants)}
        return shown(UsageAnswer(keys=rows, shadow_by_tenant=shadow))

    def _shadow(self, tenant: str) -> TenantShadow:
        left = self.quota.left_tokens(tenant)
        return TenantShadow(
            computed_tokens=self.usage.computed_tokens(tenant),
            used_tokens=sum(row.shadow_tokens_used for row in self.usage.rows(tenant)),
            quota_left_tokens=None if left is None else int(left),
        )
