"""The endpoints beside the calls: models, health, readiness, metrics, sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, Request, Response

from coordinator.errors import SessionUnknown
from coordinator.session_identity import tenant_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from configs.schema import ClusterConfig
    from coordinator.calls import ShadowHooks
    from coordinator.health import Health
    from coordinator.metrics import Metrics
    from coordinator.session_store import SessionStore
    from coordinator.sessions import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlApi:
    config: ClusterConfig
    sessions: SessionStore
    shadow: ShadowHooks
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
        router.add_api_route("/v1/sessions", self.list_sessions, methods=["GET"])
        router.add_api_route("/v1/sessions/{session_id:path}", self.session, methods=["GET"])
        router.add_api_route("/finish_session", self.finish, methods=["POST"])
        return router

    async def models(self) -> Response:
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

    async def prometheus(self) -> Response:
        text = self.metrics.exposition()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def list_sessions(self, request: Request) -> Response:
        found = await self.sessions.of_tenant(_tenant(request))
        data = [
            {
                "session_id": session.id,
                "model": session.current_model,
                "calls": session.calls_total,
                "switches": session.switches,
            }
            for session in found
        ]
        return _json({"object": "list", "data": data})

    async def session(self, request: Request, session_id: str) -> Response:
        session = await self.sessions.get(_tenant(request), session_id)
        if session is None:
            raise SessionUnknown(session_id)
        return _json(self._shown(session))

    async def finish(self, request: Request, session_id: str) -> Response:
        session = await self.sessions.remove(_tenant(request), session_id)
        if session is None:
            raise SessionUnknown(session_id)
        return _json({"session_id": session_id, "calls": session.calls_total, "finished": True})

    def _shown(self, session: Session) -> dict[str, Any]:
        warmth = session.warmth.values()
        return {
            "session_id": session.id,
            "model": session.current_model,
            "calls": session.calls,
            "shadows": self.shadow.snapshot(session),
            "shadow_tokens_computed": _total(one.computed_tokens for one in warmth),
            "shadow_tokens_used": _total(one.used_tokens for one in warmth),
        }

    def _max_model_len(self, name: str) -> int:
        """Of `auto`: what any model can hold."""
        if name in self.config.models:
            return self.config.models[name].max_model_len
        return min(model.max_model_len for model in self.config.models.values())


def _tenant(request: Request) -> str:
    return tenant_of(dict(request.headers.raw))


def _total(values: Iterable[int]) -> int:
    return sum(values)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
