"""`/v1/instances`: the engines behind this coordinator; more may come, and any may leave.

Leaving takes two steps: a drained instance gets no new calls and finishes those that it has, then
it can be removed. Sessions that were elsewhere stay there. Every path here is for operators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response

from coordinator.control_answer import CONFLICT, NOT_FOUND, REFUSED, shown
from coordinator.control_shapes import Drain, InstanceList, InstanceRow, NewInstance
from coordinator.errors import InstanceBusy, InstanceUnknown
from coordinator.upstreams import checked_upstream

if TYPE_CHECKING:
    from coordinator.access import Access
    from coordinator.cluster_view import ClusterViews
    from coordinator.health import Health
    from coordinator.instances import Instance
    from coordinator.live_config import LiveConfig
    from coordinator.node_state import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancesApi:
    access: Access
    live: LiveConfig
    cluster: Cluster
    health: Health
    views: ClusterViews

    def router(self) -> APIRouter:
        router = APIRouter(tags=["instances"])
        add, one = router.add_api_route, "/v1/instances/{name}"
        one_row = partial(add, response_model=InstanceRow)
        add(
            "/v1/instances",
            self.list_all,
            methods=["GET"],
            response_model=InstanceList,
            responses=REFUSED,
        )
        one_row("/v1/instances", self.register, methods=["POST"], responses=CONFLICT)
        one_row(one, self.instance, methods=["GET"], responses=NOT_FOUND)
        one_row(one, self.remove, methods=["DELETE"], responses=CONFLICT)
        one_row(one + "/drain", self.drain, methods=["POST"], responses=CONFLICT)
        one_row(one + "/health", self.ask, methods=["GET"], responses=NOT_FOUND)
        return router

    async def list_all(self, request: Request) -> Response:
        """Every engine, those of the configuration first."""
        self.access.operator(request)
        instances = self.cluster.instances.values()
        return shown(InstanceList(data=[self.views.instance(one) for one in instances]))

    async def instance(self, request: Request, name: str) -> Response:
        """One engine: whether it is healthy, and what runs there."""
        return shown(self.views.instance(self._found(request, name)))

    async def ask(self, request: Request, name: str) -> Response:
        """One engine, asked now how it is."""
        instance = self._found(request, name)
        await self.health.check(instance)
        return shown(self.views.instance(instance))

    async def register(self, request: Request, new: NewInstance) -> Response:
        """Another engine, at an address that coordinator.upstreams allows. It gets calls as soon as
        it is healthy and its own list of models has the model."""
        self.access.operator(request)
        if new.name in self.cluster.instances:
            raise InstanceBusy(new.name, "the name is taken")
        allowed = self.live.current.coordinator.upstreams
        fields = new.model_dump(mode="json", exclude={"name", "url"})
        fields |= {"attach_url": new.url, "port": checked_upstream(new.url, allowed)}
        # Its series are where it is, and whoever looks at its load makes us read them.
        fields["host"] = urlsplit(new.url).hostname
        config = self.live.with_instance(new.name, fields)
        metrics_url = config.instances[new.name].metrics_url
        if metrics_url is not None:
            checked_upstream(metrics_url.removesuffix("/metrics"), allowed)
        instance = self.cluster.add(new.name, config.instances[new.name])
        self.live.current = config
        await self.health.check(instance)
        return shown(self.views.instance(instance), 201)

    async def drain(self, request: Request, name: str, drain: Drain) -> Response:
        """No new calls for this engine; those that run go on to their end (state `drained`)."""
        instance = self._found(request, name)
        begins = drain.draining and not instance.draining
        if begins and not drain.force and self.cluster.is_last(instance):
            why = f"no other {instance.role.value} instance of {instance.model!r} takes calls"
            raise InstanceBusy(name, f"{why}; force: true drains it all the same")
        instance.draining = drain.draining
        return shown(self.views.instance(instance))

    async def remove(self, request: Request, name: str) -> Response:
        """Forgets an engine that is drained. It runs on: who started it ends it."""
        instance = self._found(request, name)
        if not instance.draining or instance.inflight_calls:
            raise InstanceBusy(name, "drain it first, and wait for the state `drained`")
        peers = self.cluster.of_model(instance.model, instance.role)
        if len(peers) == 1:
            what = f"the only {instance.role.value} instance of {instance.model!r}"
            raise InstanceBusy(name, f"it is {what}")
        row = self.views.instance(instance)
        self.cluster.remove(instance)
        self.live.current = self.live.without_instance(name)
        return shown(row)

    def _found(self, request: Request, name: str) -> Instance:
        self.access.operator(request)
        found = self.cluster.instances.get(name)
        if found is None:
            raise InstanceUnknown(name, list(self.cluster.instances))
        return found
