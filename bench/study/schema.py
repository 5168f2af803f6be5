"""What one simulated experiment is made of: pools, normal traffic, sessions, approach, window.

Strict as the configuration of a cluster: an unknown key is an error, every value has a limit. The
same frozen object is the file of `shadowprefill sim run`, the job of a worker process and, as JSON,
the name of a finished cell. Hosts: bench.study, bench.paper, bench.plan."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

# Read at run time too: pydantic validates by these annotations.
from bench.sim.approach import Credit, Dedicated, Evicts, Predicts  # noqa: TC001
from bench.sim.cluster import MAX_INSTANCES
from bench.sim.hardware import LatencyMode
from bench.study.approaches import ApproachName
from bench.workloads.loaders import TraceFormat  # noqa: TC001
from bench.workloads.routers import RoutingPolicy
from bench.workloads.traffic import HOUR_S
from configs.schema import Strict
from policy.slack import Accrual  # noqa: TC001

Count = Annotated[int, Field(ge=0, le=MAX_INSTANCES)]


class HourWindow(StrEnum):
    """Which hour of the trace; its load is a share of the busiest hour's."""

    PEAK = "peak"
    MEDIAN = "median"
    TROUGH = "trough"


class PoolConfig(Strict):
    """Instances of one model: colocated ones, or prefill and decode apart."""

    colocated: Count = 0
    prefill: Count = 0
    decode: Count = 0
    tensor_parallel: int | None = Field(default=None, ge=1, le=8)
    """GPUs of an instance; unset: the paper's for this model."""

    @property
    def instances(self) -> int:
        return self.colocated + self.prefill + self.decode


class PublishedTraffic(Strict):
    """Poisson arrivals with the published lengths of Azure's week of May 2024."""

    kind: Literal["published"] = "published"
    service: Literal["conversation", "code"] = "conversation"


class TraceTraffic(Strict):
    """The arrivals and lengths of a trace file, stretched to the rate."""

    kind: Literal["trace"]
    path: str = Field(min_length=1)
    """Relative to the configuration file."""
    format: TraceFormat
    window_s: float = Field(default=HOUR_S, gt=0)
    """Length of the windows among which peak, median and trough are looked for."""


class NormalConfig(Strict):
    traffic: PublishedTraffic | TraceTraffic = Field(
        default=PublishedTraffic(), discriminator="kind"
    )
    rho: float = Field(default=0.7, gt=0, le=2)
    """Load in the peak hour as a share of the pool's measured capacity."""
    window: HourWindow = HourWindow.PEAK


class DrawnSessions(Strict):
    """Sessions of one of the kinds of the paper's Table 1, in Poisson arrivals."""

    kind: Literal["drawn"] = "drawn"
    benchmark: str
    per_s: float = Field(gt=0, le=100)
    """Of the whole cluster."""


class RecordedSessions(Strict):
    """The calls of a JSONL file of sessions, at the times at which its sessions began."""

    kind: Literal["recorded"]
    path: str = Field(min_length=1)
    """Relative to the configuration file."""


class MarkovRouter(Strict):
    """Leaves its model with the same probability at every step."""

    kind: Literal["markov"] = "markov"
    switch_probability: float | None = Field(default=None, ge=0, le=1)
    """Unset: the rate of the benchmark in Table 1."""


class MatrixRouter(Strict):
    """Knows what every model scores on every query (LLMRouter's matrix)."""

    kind: Literal["matrix"]
    path: str = Field(min_length=1)
    policy: RoutingPolicy = RoutingPolicy.ACCURACY_PER_COST


class RandomRouter(Strict):
    kind: Literal["random"]


class FixedRouter(Strict):
    """Sends every call to one model: what routing is compared with."""

    kind: Literal["fixed"]
    model: str


class SessionsConfig(Strict):
    workload: DrawnSessions | RecordedSessions = Field(discriminator="kind")
    router: MarkovRouter | MatrixRouter | RandomRouter | FixedRouter = Field(
        default=MarkovRouter(), discriminator="kind"
    )


class ShadowConfig(Strict):
    """Switches of `bench.sim.approach.Approach`; unset: those of the approach."""

    beta: float | None = Field(default=None, gt=0, le=1)
    delta: float | None = Field(default=None, ge=0, le=1)
    margin: float | None = Field(default=None, ge=0, lt=1)
    n_min_tokens: int | None = Field(default=None, ge=1)
    predicts: Predicts | None = None
    iteration_cap_s: float | None = Field(default=None, gt=0)
    kv_cap_share: float | None = Field(default=None, gt=0, le=1)
    idle_age_s: float | None = Field(default=None, ge=0)
    evicts: Evicts | None = None
    top_k: int | None = Field(default=None, ge=1)
    min_probability: float | None = Field(default=None, ge=0, le=1)
    credit: Credit | None = None
    accrual: Accrual | None = None
    dedicated: Dedicated | None = None
    """Of the approach `dedicated` alone."""


class HostTierConfig(Strict):
    """Of the approaches that have one."""

    gb_per_gpu: float = Field(default=32.0, gt=0)
    gb_per_s_per_gpu: float = Field(default=25.0, gt=0)
    """PCIe, in each direction."""


class RunConfig(Strict):
    warmup_s: float = Field(default=120.0, ge=0)
    """Its requests run and are not measured."""
    measured_s: float = Field(default=600.0, gt=0, le=86_400)
    drain_s: float = Field(default=120.0, ge=0)
    """Normal traffic goes on for so long while the measured sessions finish; not measured."""
    seed: int = Field(default=0, ge=0, le=2**32 - 1)

    @property
    def end_s(self) -> float:
        """Of what is measured."""
        return self.warmup_s + self.measured_s


class SimConfig(Strict):
    latency: LatencyMode = LatencyMode.VLLM_TESTBED
    models: dict[str, PoolConfig] = Field(min_length=1)
    """By the model's name in the table of architectures; a router numbers them in this order."""
    max_batch_tokens: int = Field(default=2048, ge=1, le=65_536)
    max_sequences: int = Field(default=256, ge=1, le=4096)
    link_gb_per_s_per_gpu: float = Field(default=50.0, gt=0, le=10_000)
    """Of a decode instance's inbound link, which all its GPUs share out; GB = 1e9 bytes."""
    keeps_finished: bool = True
    """The KV of a finished normal request stays cached until its place is needed, as in vLLM."""
    slo_scale: float = Field(default=1.0, gt=0, le=100)
    """Of both SLOs of all models. Capacity stays what it is at 1: provisioning was before."""
    normal: NormalConfig | None = NormalConfig()
    sessions: SessionsConfig | None = None
    approach: ApproachName = ApproachName.NO_SHADOW
    shadow: ShadowConfig = ShadowConfig()
    host_tier: HostTierConfig = HostTierConfig()
    run: RunConfig = RunConfig()
