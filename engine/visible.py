"""A scheduler that shows what it does and whose parameters change while it runs.

Joins the parts: control requests (engine.control), counters and trace (engine.observed), series
(engine.exporter). Whoever subclasses tells its own parts of new parameters (`_params_changed`).

Hosts: engine.stepping, engine.transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from engine.control import (
    ControlRefused,
    applied_text,
    changed_params,
    differences,
    is_control,
    refused_text,
)
from engine.exporter import Controls, Exporter, Reading
from engine.intake import ShadowIntake, logger
from engine.kv_union import host_tier_of
from engine.observed import Observed
from engine.params import EngineParamsInvalid
from engine.shadow_requests import ShadowEnd
from engine.trace import TraceFailed
from policy.vocabulary import Controller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm.config import VllmConfig
    from vllm.v1.request import Request

    from engine.kv_room import ShadowKv
    from engine.link_series import LinkReading
    from engine.params import EngineParams

EXIT_WAIT_S = 5.0
"""For a slow disk, when the engine ends."""


class VisibleScheduler(ShadowIntake):
    """Also answers control requests."""

    shadow_kv: ShadowKv
    """Set by the subclass."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        params = self.params
        self._exporter: Exporter | None = None
        if params.metrics_port:
            self._exporter = Exporter(params.metrics_host, params.metrics_port, self._reading)
        if params.trace_path:
            try:
                self.observed.trace_to(params, self.shadow_kv.cap_blocks, self.clock())
            except TraceFailed as error:
                raise EngineParamsInvalid(f"trace_path: {error}") from None

    def _prepare(self) -> None:
        super()._prepare()
        self.host_tier = host_tier_of(self.connector)
        batches = 2 if self.scheduler_config.async_scheduling else 1
        self.observed = Observed(self.block_size, batches)

    def shutdown(self) -> None:
        self.observed.close("the engine stopped", EXIT_WAIT_S)
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None
        super().shutdown()

    # Control requests

    def add_request(self, request: Request) -> None:
        sampling = request.sampling_params
        if sampling is not None and is_control(sampling.extra_args):
            self._control(request, sampling.extra_args)
        else:
            super().add_request(request)

    def _control(self, request: Request, xargs: Mapping[str, Any]) -> None:
        """Between two steps: the next one is planned with the new parameters."""
        try:
            answer = self._change(changed_params(self.params, xargs))
        except ControlRefused as error:
            self.observed.counts.changes_refused += 1
            answer, status = refused_text(error), RequestStatus.FINISHED_ABORTED
            logger.warning("control request %s: %s", request.request_id, answer)
        else:
            self.observed.counts.changes_applied += 1
            status = RequestStatus.FINISHED_STOPPED
        self.requests[request.request_id] = request
        request.stop_reason = answer
        self._finish(request, status)

    def _change(self, params: EngineParams) -> str:
        """Raises ControlRefused, and then nothing has changed."""
        before = self.params
        if params.trace_path != before.trace_path:
            try:
                self.observed.trace_to(params, self.shadow_kv.cap_blocks, self.clock())
            except TraceFailed as error:
                raise ControlRefused(f"trace_path: {error}") from None
        self.params = params
        self._params_changed()
        self.observed.changed(params, before, self.clock())
        logger.info("parameters changed: %s", differences(params, before))
        return applied_text(params, before)

    def _params_changed(self) -> None:
        """`self.params` are new ones. What was granted stays granted, what was earned stays."""
        self.shadow_kv.change(self.params.kv_class_params())
        if self.host_tier is not None:
            self.host_tier.manager.tier.idle_age_s = self.params.idle_age_s
        if self.params.controller is Controller.OFF:
            for shadow in list(self.shadows.values()):
                if not shadow.visible:  # a pull that was posted cannot be called back
                    self._end(shadow.request, ShadowEnd.OFF)

    # What a scrape shows

    def _reading(self) -> Reading:
        stats, queue, kv = self.shadow_stats, self.shadow_queue, self.shadow_kv.counts
        running, waiting = self.get_request_counts()
        return Reading(
            params=self.params,
            counts=self.observed.counts,
            jobs_arrived=stats.arrived,
            jobs_ended={"finished": stats.finished, **stats.ended},
            grants=dict(stats.grants),
            drops=stats.drops,
            pulls=stats.pulled,
            pulls_timed_out=stats.pulls_timed_out,
            requests={"running": running, "waiting": waiting},
            queued_jobs=len(queue),
            missing_tokens=sum(
                shadow.missing_tokens
                for request_id, shadow in list(self.shadows.items())
                if request_id in queue
            ),
            blocks={
                "held": self.shadow_kv.held_blocks,
                "cached": kv.cached_shadow_blocks,
            },
            cap_blocks=self.shadow_kv.cap_blocks,
            pool=self.shadow_kv.pool,
            evictions={str(kv_class): count for kv_class, count in kv.evictions.items()},
            promotions=kv.promotions,
            truncations=kv.truncations,
            controls=self._controls(),
            link=self._link_reading(),
            tier=None if self.host_tier is None else self.host_tier.reading(),
        )

    def _link_reading(self) -> LinkReading | None:
        """Of a scheduler that pulls."""
        return None

    def _controls(self) -> Controls | None:
        """Of a scheduler that grants shadow tokens."""
        return None
