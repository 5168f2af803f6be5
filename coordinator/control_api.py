"""The endpoints beside the calls that every client may read: models, health, readiness, metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter, Request, Response

if TYPE_CHECKING:
    from configs.schema import ClusterConfig
    from coordinator.access import Access
    from coordinator.health import Health
    from coordinator.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlApi:
    access: Access
    config: ClusterConfig
    health: Health
    metrics: Metrics
    started_at: int
    """Unix time, for the model list."""

    def router(self) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/v1/models", self.models, methods=["GET"])
        router.add_api_route("/health", self.alive, methods=["GET"])
        router.add_api_route("/ready", self.ready, methods=["GET"])
        router.add_api_route("/metrics", self.prometheus, methods=["GET"])
        return router

    async def models(self, request: Request) -> Response:
        self.access.client(request)
        # `auto` is listed too: a client that picks from the list must be able to pick it.
        names = [*self.config.models, "auto"]
        cards = [
            {
                "id": name,
                "object": "model",
                "created": self.started_at,
                "owned_by": "shadowprefill",
                "max_model_len": self._max_model_len(name),
            }
            for name in names
        ]
        return _json({"object": "list", "data": cards})

    async def alive(self) -> Response:
        return Response(status_code=200)

    async def ready(self) -> Response:
        """503 until each model has passed a probe and has a healthy instance of each role."""
        reasons = self.health.not_ready()
        models = {
            model: {
                "ready": model not in reasons,
                "why_not": reasons.get(model),
                "probes": probe.attempts,
            }
            for model, probe in self.health.probes.items()
        }
        return _json({"ready": not reasons, "models": models}, 503 if reasons else 200)

    async def prometheus(self, request: Request) -> Response:
        """Sums over all tenants: with configured keys for operators only."""
        if self.access.clients.are_known:
            self.access.operator(request)
        text = self.metrics.exposition()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _max_model_len(self, name: str) -> int:
        """Of `auto`: what any model can hold."""
        if name in self.config.models:
            return self.config.models[name].max_model_len
        return min(model.max_model_len for model in self.config.models.values())


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
