"""Whether an engine iteration may carry shadow tokens at all, whatever time it has for them; and
what the controllers grant that look at no time.

Pure. Host: policy.slack."""

from __future__ import annotations

from policy.step_load import JobLoad, SlackGrant, SlackParams, SlackReason, StepLoad
from policy.vocabulary import Controller, Role

PREDICTIVE_GATE = 0.25
"""Least switch probability of a job under `predictive`."""


def refusal_of(load: StepLoad, params: SlackParams) -> SlackReason:
    """Why this iteration must not carry shadow tokens, whatever its budget; GRANTED if it may."""
    controller = params.controller
    if controller is Controller.OFF:
        return SlackReason.OFF
    if not load.jobs:
        return SlackReason.NO_JOB
    first = load.jobs[0]
    if controller is Controller.EAGER or (controller is Controller.REQUEST and first.started):
        return SlackReason.GRANTED
    reason = refusal_of_any_job(load, params)
    unlikely = controller is Controller.PREDICTIVE and first.probability < PREDICTIVE_GATE
    return SlackReason.UNLIKELY if unlikely and reason is SlackReason.GRANTED else reason


def refusal_of_any_job(load: StepLoad, params: SlackParams) -> SlackReason:
    """The same of whatever job."""
    if load.waiting_requests > 0:
        return SlackReason.FOREGROUND_WAITING
    if load.admission_blocked:
        return SlackReason.ADMISSION_BLOCKED
    on_prefill = params.role is Role.PREFILL and params.controller is not Controller.REQUEST
    if on_prefill and load.carries_routed:
        return SlackReason.ROUTED_IN_BATCH
    return SlackReason.GRANTED


def likely_jobs(load: StepLoad, params: SlackParams) -> tuple[JobLoad, ...]:
    if params.controller is not Controller.PREDICTIVE:
        return load.jobs
    return tuple(job for job in load.jobs if job.probability >= PREDICTIVE_GATE)


def unbudgeted(load: StepLoad, params: SlackParams) -> SlackGrant:
    """`request`: the paper's GPU prototype, one whole request in flight, in chunks as long as the
    engine makes them; `eager`: shadow work as normal traffic. Both look at no budget: that is what
    they are the baseline for."""
    jobs = load.jobs[: 1 if params.controller is Controller.REQUEST else None]
    tokens = min(max(0, load.free_shadow_tokens), sum(job.missing_tokens for job in jobs))
    reason = SlackReason.GRANTED if tokens > 0 else SlackReason.NO_SHADOW_KV
    return SlackGrant(tokens, reason)
