"""`/v1/instances` and `/v1/cluster`: the engines behind this coordinator, and how they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter, Response

from coordinator.control_answer import NOT_FOUND, shown
from coordinator.control_shapes import ClusterSummary, InstanceList, InstanceRow
from coordinator.errors import InstanceUnknown

if TYPE_CHECKING:
    from coordinator.cluster_view import ClusterViews
    from coordinator.node_state import Cluster
    from coordinator.session_store import SessionStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterApi:
    cluster: Cluster
    sessions: SessionStore
    views: ClusterViews

    def router(self) -> APIRouter:
        router = APIRouter(tags=["cluster"])
        add = router.add_api_route
        add("/v1/instances", self.list_instances, methods=["GET"], response_model=InstanceList)
        add(
            "/v1/instances/{name}",
            self.instance,
            methods=["GET"],
            response_model=InstanceRow,
            responses=NOT_FOUND,
        )
        add("/v1/cluster", self.summary, methods=["GET"], response_model=ClusterSummary)
        return router

    async def list_instances(self) -> Response:
        """Every engine, in the order of the configuration."""
        instances = self.cluster.instances.values()
        return shown(InstanceList(data=[self.views.instance(one) for one in instances]))

    async def instance(self, name: str) -> Response:
        """One engine: whether it is healthy, and what runs there."""
        found = self.cluster.instances.get(name)
        if found is None:
            raise InstanceUnknown(name, list(self.cluster.instances))
        return shown(self.views.instance(found))

    async def summary(self) -> Response:
        """Models, instances, sessions and shadow work in one answer."""
        everybody = await self.sessions.page(None, 0, 1)
        return shown(self.views.summary(everybody.total))
