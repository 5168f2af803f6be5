"""What every one of our schedulers does with a request before and after vLLM schedules it.

Marks are read once, at arrival. A shadow request is kept out of vLLM's queues; whoever subclasses
decides when it may enter them. When we end one ourselves (superseded, released by a routed call,
timed out) the HTTP side still gets an answer, with the reason as `stop_reason`.

Hosts: engine.scheduler (shadow compute), engine.connector (shadow pulls)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from engine.compat import check_internal_names, check_vllm_version
from engine.cores import bind_thread
from engine.features import check_features
from engine.marks import MarkInvalid, Marks, read_marks
from engine.params import EngineParams, EngineParamsInvalid
from engine.shadow_requests import (
    LAST_PRIORITY,
    CappedRequest,
    ShadowEnd,
    ShadowRequest,
    ShadowStats,
)
from policy.shadow_queue import ShadowJob, ShadowQueue
from policy.vocabulary import Controller, RequestClass, Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.shadowprefill")


class ShadowIntake(Scheduler):
    """vLLM's scheduler, which knows normal, routed and shadow requests apart."""

    running: list[Request]
    role: Role
    """Of the instance that this class schedules."""
    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __new__(cls, vllm_config: VllmConfig, *args: object, **kwargs: object) -> Self:
        # Nothing in vLLM checks that the class it was given matches the mode it runs in.
        wants_async = vllm_config.scheduler_config.async_scheduling
        if wants_async and not issubclass(cls, AsyncScheduler):
            names = {"__module__": cls.__module__}
            return super().__new__(type(f"Async{cls.__name__}", (cls, AsyncScheduler), names))
        return super().__new__(cls)

    def __init__(
        self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any
    ) -> None:
        check_vllm_version()
        check_internal_names()
        self.params = EngineParams.from_additional_config(vllm_config.additional_config)
        self._check_role()
        check_features(vllm_config, kv_cache_config, self.role)
        super().__init__(vllm_config, kv_cache_config, *args, **kwargs)
        if self.params.cpus:
            bind_thread(self.params.cpus)
        self.shadow_queue = ShadowQueue(self.params.segment_tokens)
        self.shadow_stats = ShadowStats()
        self.shadows: dict[str, ShadowRequest] = {}
        self._unanswered: list[Request] = []
        self._prepare()

    def _prepare(self) -> None:
        """What a subclass sets up, once vLLM's scheduler and this part stand."""

    def _check_role(self) -> None:
        if self.params.role is not self.role:
            raise EngineParamsInvalid(
                f"--scheduler-cls {type(self).__name__} serves role {self.role.value}, but the "
                f"parameters are those of {self.params.instance}, role {self.params.role.value}"
            )

    # Intake

    def add_request(self, request: Request) -> None:
        if request.request_id in self.requests:  # the next chunk of a streamed input
            super().add_request(request)
            return
        try:
            marks = self._marks_of(request)
        except MarkInvalid as error:
            logger.warning("request %s is refused: %s", request.request_id, error)
            self.requests[request.request_id] = request
            self._end(request, ShadowEnd.REFUSED, RequestStatus.FINISHED_ERROR)
            return
        is_shadow = marks.request_class is RequestClass.SHADOW
        if is_shadow and self.params.controller is not Controller.EAGER:
            self._add_shadow(request, marks)
            return
        if marks.session_id and not is_shadow:
            self._release_shadow_of(marks.session_id)
        self._foreground_arrived(request, marks)
        super().add_request(request)

    def _marks_of(self, request: Request) -> Marks:
        sampling = request.sampling_params
        if sampling is None:
            return Marks()
        marks = read_marks(sampling.extra_args, self.params.secret)
        if marks.request_class is RequestClass.SHADOW and request.max_tokens != 1:
            raise MarkInvalid(
                f"a shadow request must have max_tokens 1, got {request.max_tokens}: it is run for "
                "its KV alone"
            )
        return marks

    def _add_shadow(self, request: Request, marks: Marks) -> None:
        request.__class__ = CappedRequest
        assert isinstance(request, CappedRequest)
        request.priority = LAST_PRIORITY
        shadow = ShadowRequest(request, marks, arrival_s=self.clock())
        self.requests[request.request_id] = request
        self.shadow_stats.arrived += 1
        refusal = self._refusal_of(shadow)
        if refusal is not None:
            self._end(request, refusal)
            return
        self.shadows[request.request_id] = shadow
        superseded = self.shadow_queue.add(
            ShadowJob(
                request_id=request.request_id,
                session_id=marks.session_id,
                probability=marks.switch_probability,
            )
        )
        for request_id in superseded:
            self._end(self.shadows[request_id].request, ShadowEnd.SUPERSEDED)
        if self.connector is not None:
            # At arrival: a connector that keeps a lease on the other side starts here.
            self.connector.on_new_request(request)

    def _refusal_of(self, shadow: ShadowRequest) -> ShadowEnd | None:
        """Why this shadow request ends before it begins, if it does."""
        if self.params.controller is Controller.OFF:
            return ShadowEnd.OFF
        if self._pause_state != PauseState.UNPAUSED:
            return ShadowEnd.PAUSED
        return None

    def _foreground_arrived(self, request: Request, marks: Marks) -> None:
        """A normal or routed request is about to enter vLLM's queue."""

    def _release_shadow_of(self, session_id: str) -> None:
        """A call never waits for its session's shadow; what that computed stays in the cache."""
        for request_id in self.shadow_queue.release(session_id):
            self._end(self.shadows[request_id].request, ShadowEnd.RELEASED)

    # Ends

    def _shadow_limit_s(self) -> float:
        """A hidden shadow that is older is given up."""
        return self.params.shadow_timeout_s

    def _expire(self, now_s: float) -> None:
        limit_s = self._shadow_limit_s()
        late: list[ShadowRequest] = []
        for shadow in self.shadows.values():  # in the order in which they arrived
            if now_s - shadow.arrival_s <= limit_s:
                break
            if not shadow.visible:
                late.append(shadow)
        for shadow in late:
            self._end(shadow.request, ShadowEnd.TIMED_OUT)

    def _end(
        self,
        request: Request,
        end: ShadowEnd,
        status: RequestStatus = RequestStatus.FINISHED_ABORTED,
    ) -> None:
        """Finish a request ourselves; its answer goes out with the outputs of the next step."""
        logger.debug("shadow request %s ends: %s", request.request_id, end.value)
        self.shadow_stats.count_end(end)
        request.stop_reason = end.value
        self._finish(request, status)

    def _finish(self, request: Request, status: RequestStatus) -> None:
        self.finish_requests(request.request_id, status)
        self._unanswered.append(request)

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        # Every way to finish leads through here: tokens done, client gone, ended by us.
        if self.shadows.pop(request.request_id, None) is not None:
            self.shadow_queue.cancel(request.request_id)
            if request.status != RequestStatus.FINISHED_ABORTED:
                self.shadow_stats.finished += 1
            logger.debug("shadow request %s left: %s", request.request_id, self.shadow_stats)
        return super()._free_request(request, delay_free_blocks)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for request in self._unanswered:
            answer = EngineCoreOutput(
                request_id=request.request_id,
                new_token_ids=[],
                finish_reason=request.get_finished_reason(),
                stop_reason=request.stop_reason,
                events=request.take_events(),
                prefill_stats=request.take_prefill_stats(),
                trace_headers=request.trace_headers,
            )
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(answer)
        self._unanswered.clear()
        return outputs

    # What the engine loop asks

    def get_num_unfinished_requests(self) -> int:
        """Hidden shadows count, or the engine would sleep in front of them."""
        return super().get_num_unfinished_requests() + self._hidden_shadows()

    def _hidden_shadows(self) -> int:
        return sum(not shadow.visible for shadow in self.shadows.values())

    def set_pause_state(self, pause_state: PauseState) -> None:
        """A pause waits for what runs; shadow work is given up, not waited for."""
        if pause_state != PauseState.UNPAUSED:
            for shadow in list(self.shadows.values()):
                if not shadow.visible:
                    self._end(shadow.request, ShadowEnd.PAUSED)
        super().set_pause_state(pause_state)
