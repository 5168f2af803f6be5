"""What `/v1/cluster/load` answers: how busy each engine is, by its own account.

Counts are since the engine's start: whoever wants a rate asks twice. Fields are only ever added.
Hosts: coordinator.engine_series fills them, coordinator.cluster_api answers with them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coordinator.control_shapes import Shape


class KvUse(Shape):
    """KV blocks by class; what is neither used nor cached is empty."""

    total_blocks: int
    normal_used_blocks: int = Field(description="Held by requests that run")
    normal_cached_blocks: int = Field(description="In nobody's use, and found again by a call")
    shadow_used_blocks: int
    shadow_cached_blocks: int
    shadow_cap_blocks: int = Field(description="The most that shadow work may hold")


class SlackUse(Shape):
    """What shadow work was given of the engine's iterations."""

    shadow_tokens: int = Field(description="Computed in slack")
    shadow_iterations: int = Field(description="That carried shadow tokens")
    plain_iterations: int
    shadow_iteration_s: float = Field(description="Time of those that carried shadow tokens")
    plain_iteration_s: float
    credit_s: float = Field(description="Time that routed calls may still lose")
    plans: dict[str, int] = Field(description="Plans with a job waiting, by what it was given")


class TransferUse(Shape):
    """Inbound KV transfers of one class."""

    in_flight: int
    in_flight_bytes: int
    arrived_bytes: int
    busy_s: float


class LinkUse(Shape):
    """Inbound link of a decode instance."""

    normal: TransferUse
    shadow: TransferUse
    idle_s: float = Field(description="Since the last transfer ended")
    quarantined_pairs: int = Field(description="Prefill instances that it pulls no pushes from")


class InstanceLoad(Shape):
    name: str
    why_not: str | None = Field(description="Why nothing more is known")
    running_requests: int | None = None
    waiting_requests: int | None = None
    queued_jobs: int | None = Field(default=None, description="Shadow requests with work left")
    missing_tokens: int | None = Field(default=None, description="Of those, not computed")
    kv: KvUse | None = None
    slack: SlackUse | None = Field(default=None, description="null: it grants no shadow tokens")
    link: LinkUse | None = Field(default=None, description="null: it pulls no KV")
    cut_off_from: list[str] = Field(
        default=[], description="Prefill instances whose last hand-offs it could not pull"
    )


class LoadAnswer(Shape):
    object: Literal["list"] = "list"
    data: list[InstanceLoad]
    age_s: float = Field(description="Since the engines were asked; at most a few seconds")
