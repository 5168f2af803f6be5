"""`/v1/cluster` and `/v1/config`: how all of it does, and the configuration in force.

A change of shadow parameters is checked as a whole before anything is sent. What the engines decide
by goes to them (coordinator.engine_control), and each says what it made of it; what the coordinator
itself decides by counts from the next call on. Every path here is for operators."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, Request, Response

from configs.messages import masked
from coordinator.control_answer import REFUSED, shown
from coordinator.control_shapes import (
    ClusterSummary,
    ConfigInForce,
    EngineAnswer,
    ShadowChange,
    ShadowChanged,
)
from coordinator.engine_control import tune
from coordinator.errors import BodyInvalid, ModelUnknown
from coordinator.load_shapes import LoadAnswer
from engine.control import CHANGEABLE, ControlRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.access import Access
    from coordinator.calls import ShadowHooks
    from coordinator.cluster_view import ClusterViews
    from coordinator.engine_control import Answer
    from coordinator.instance_loads import InstanceLoads
    from coordinator.live_config import LiveConfig
    from coordinator.session_store import SessionStore

_ENGINES_FIELDS: Final = frozenset(CHANGEABLE) - {"trace_path"}
"""A trace is a file on the engine's machine: `shadowprefill tune` names one, a client may not."""
_OWN_FIELDS: Final = {
    "controller",
    "top_k",
    "min_switch_probability",
    "min_expected_saving_s",
    "resubmit_tokens",
}
CHANGEABLE_FIELDS: Final = _ENGINES_FIELDS | _OWN_FIELDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterApi:
    access: Access
    live: LiveConfig
    shadow: ShadowHooks
    sessions: SessionStore
    views: ClusterViews
    loads: InstanceLoads

    def router(self) -> APIRouter:
        router = APIRouter(tags=["cluster"])
        add = router.add_api_route
        add(
            "/v1/cluster",
            self.summary,
            methods=["GET"],
            response_model=ClusterSummary,
            responses=REFUSED,
        )
        add(
            "/v1/cluster/load",
            self.load,
            methods=["GET"],
            response_model=LoadAnswer,
            responses=REFUSED,
        )
        add(
            "/v1/config",
            self.config,
            methods=["GET"],
            response_model=ConfigInForce,
            responses=REFUSED,
        )
        add(
            "/v1/config/shadow",
            self.change,
            methods=["PATCH"],
            response_model=ShadowChanged,
            responses=REFUSED,
        )
        return router

    async def summary(self, request: Request) -> Response:
        """Models, instances, sessions and shadow work in one answer."""
        self.access.operator(request)
        everybody = await self.sessions.page(None, 0, 1)
        return shown(self.views.summary(everybody.total))

    async def load(self, request: Request) -> Response:
        """What each engine says of itself: queue, KV by class, slack given to shadow work, link.
        Needs `metrics_port` of its instance."""
        self.access.operator(request)
        return shown(await self.loads.answer())

    async def config(self, request: Request) -> Response:
        """What is in force now."""
        self.access.operator(request)
        current = self.live.current
        cluster = masked(current.model_dump(mode="json"))
        off = sorted(self.live.shadow_off)
        return shown(ConfigInForce(shadow=current.shadow, shadow_off=off, cluster=cluster))

    async def change(self, request: Request, change: ShadowChange) -> Response:
        """Changes shadow parameters of the engines and of this coordinator."""
        self.access.operator(request)
        unknown = sorted(change.changes.keys() - CHANGEABLE_FIELDS)
        if unknown:
            text = f"{unknown} cannot be changed; what can is {sorted(CHANGEABLE_FIELDS)}"
            raise BodyInvalid(text, "changes")
        config = self.live.with_shadow(change.changes)
        off = self._off(change.models)
        for_engines = {
            name: value for name, value in change.changes.items() if name in _ENGINES_FIELDS
        }
        answers = await self._told(for_engines)
        self.live.current, self.live.shadow_off = config, off
        self.shadow.reconfigure(config.shadow, off)
        engines = [EngineAnswer(**asdict(answer)) for answer in answers]
        return shown(ShadowChanged(shadow=config.shadow, shadow_off=sorted(off), engines=engines))

    def _off(self, models: Mapping[str, bool]) -> frozenset[str]:
        """Raises ModelUnknown."""
        known = self.live.current.models
        for model in models:
            if model not in known:
                raise ModelUnknown(model, list(known))
        switched_off = {model for model, is_target in models.items() if not is_target}
        return frozenset((self.live.shadow_off | switched_off) - (models.keys() - switched_off))

    async def _told(self, changes: dict[str, float | int | str]) -> list[Answer]:
        if not changes:
            return []
        try:
            return await asyncio.to_thread(tune, self.live.current, changes)
        except ControlRefused as error:
            raise BodyInvalid(str(error), "changes") from None
