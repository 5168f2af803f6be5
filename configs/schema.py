"""The one description of a cluster: models, instances, SLOs, shadow, router, coordinator.

Strict: an unknown key is an error, every value has a limit, and everything is frozen once loaded.
Hosts: every `__main__`, the coordinator, the local cluster and the simulator."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from policy.quote import InputPrice
from policy.step_time import StepTimeCoefficients, StepTimeModel
from policy.vocabulary import Controller, RequestClass, Role, Slo

EngineArgs = dict[str, Any]
"""Extra vLLM flags by long name without dashes (`enforce_eager: true`, `max_num_seqs: 64`)."""

Port = Annotated[int, Field(ge=1, le=65535)]
Host = Annotated[str, Field(pattern=r"^[^\s/@]+$")]


def _http_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, or brackets that do not close
        valid = False
    if not valid or any(c.isspace() for c in url):
        raise ValueError("must be http://host[:port] or https://host[:port]")
    if "@" in parts.netloc:
        raise ValueError("must not carry a user or a password; this file is printed")
    return url.rstrip("/")


HttpUrl = Annotated[str, AfterValidator(_http_url)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SloConfig(Strict):
    ttft_s: float = Field(gt=0)
    tpot_s: float = Field(gt=0)

    def to_policy(self) -> Slo:
        return Slo(ttft_s=self.ttft_s, tpot_s=self.tpot_s)


class SloByClass(Strict):
    """Where a class of requests has targets other than `slo`."""

    normal: SloConfig | None = None
    routed: SloConfig | None = None


class StepTimeConfig(Strict):
    """Start coefficients of the latency form; the live controller corrects them online."""

    fixed_s: float = Field(gt=0)
    s_per_request: float = Field(ge=0)
    s_per_token: float = Field(gt=0)
    s_per_token_context: float = Field(ge=0)
    """Per (new token x token it attends to): the arithmetic of attention."""
    s_per_context_token: float = Field(default=0.0, ge=0)
    """Per token of context, once per request and iteration: reading its KV."""

    def to_policy(self) -> StepTimeModel:
        return StepTimeModel(StepTimeCoefficients(**self.model_dump()))


class PriceConfig(Strict):
    """What a model's tokens cost, in the currency of whoever asks for a quote."""

    input_per_million_tokens: float = Field(ge=0)
    cached_input_share: float = Field(default=0.1, ge=0, le=1)
    """Of that price, for tokens that a prefix cache holds."""

    def to_policy(self) -> InputPrice:
        uncached = self.input_per_million_tokens
        return InputPrice(uncached=uncached, cached=uncached * self.cached_input_share)

    @property
    def saved_per_cached_token(self) -> float:
        return self.input_per_million_tokens * (1 - self.cached_input_share) / 1_000_000


class ModelConfig(Strict):
    path: str = Field(min_length=1)
    """Folder of the weights, relative to the configuration file, or a hub name."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    max_model_len: int = Field(ge=16)
    block_size: int = Field(default=32, ge=1)
    slo: SloConfig
    """Of every request that states none itself (headers of a call)."""
    slo_by_class: SloByClass = SloByClass()
    shadow: bool = True
    """Whether this model is a target of shadow jobs."""
    bytes_per_token: float = Field(default=3.5, gt=0)
    """Estimate of UTF-8 bytes per prompt token, used before the first exact count is known."""
    price: PriceConfig | None = None
    """Of a million tokens; without it a quote has none."""
    step_time: StepTimeConfig | None = None
    """Overrides the profile's start coefficients."""
    pull_timeout_s: float = Field(default=20.0, gt=0)
    """Longest pull of KV on a decode instance; after it the prompt is recomputed there."""
    skip_prefill_tokens: int = Field(default=0, ge=0, le=1_048_576)
    """Where P and D are apart: a call for whose prompt D lacks at most this many tokens, as far as
    we know, is computed on D, and P is not asked. They lengthen D's iterations, so that the
    TPOT of its other calls pays for them. 0: P is always asked."""
    kv_lease_s: int = Field(default=30, ge=10, le=3600)
    """How long a prefill instance keeps the KV of a finished prompt for a decode instance that does
    not read it. A pull counts up to 5 s before its end (engine.nixl)."""
    engine_args: EngineArgs = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)

    def slo_of(self, request_class: RequestClass) -> SloConfig:
        by_class = self.slo_by_class
        own = by_class.routed if request_class is RequestClass.ROUTED else by_class.normal
        return own or self.slo


class InstanceConfig(Strict):
    model: str
    role: Role
    host: Host = "127.0.0.1"
    port: Port
    kv_host: Host = "127.0.0.1"
    """Address at which peers reach this instance's NIXL side channel."""
    kv_port: Port | None = None
    """NIXL side channel; required for prefill and decode."""
    cpus: str | None = Field(default=None, pattern=r"^(auto|nobind|\d[\d,|-]*)$")
    """CPU list that the engine's compute threads are bound to (`VLLM_CPU_OMP_THREADS_BIND`)."""
    devices: list[Annotated[int, Field(ge=0)]] | None = Field(default=None, min_length=1)
    """GPUs (`CUDA_VISIBLE_DEVICES`)."""
    metrics_port: Port | None = None
    """Prometheus series of the instance's scheduler, on its `host`; unset: none are served."""
    trace_path: str | None = None
    """A .jsonl file for a line per iteration, relative to the configuration file; unset: nothing is
    written until `shadowprefill tune` says so."""
    trace_max_bytes: int = Field(default=256 * 1024 * 1024, ge=64 * 1024)
    attach_url: HttpUrl | None = None
    """Set for an engine that was started by hand; the local cluster then only probes it."""
    engine_args: EngineArgs = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.attach_url or f"http://{self.host}:{self.port}"

    @property
    def metrics_url(self) -> str | None:
        """Of the scheduler's own series, for this machine."""
        if self.metrics_port is None:
            return None
        return f"http://{self.host}:{self.metrics_port}/metrics"


class ExplicitRouter(Strict):
    kind: Literal["explicit"] = "explicit"
    """The client names the model; `auto` means the first model of the configuration."""


class ScriptRouter(Strict):
    kind: Literal["script"]
    models: list[str] = Field(min_length=1)
    """Model of call k of a session is models[k % len(models)]."""


class MarkovRouter(Strict):
    kind: Literal["markov"]
    switch_probability: float = Field(ge=0, le=1)
    seed: int = 0


class PythonRouter(Strict):
    kind: Literal["python"]
    path: str = Field(pattern=r"^[\w.]+:[\w.]+$")
    """`package.module:Class`."""
    options: dict[str, Any] = Field(default_factory=dict)
    timeout_s: float | None = Field(default=None, gt=0)
    """For a class that takes time: it is asked in a thread of its own, one call after the other.
    Unset: on the event loop, where it has to be quick."""


class HttpRouter(Strict):
    kind: Literal["http"]
    url: HttpUrl
    timeout_s: float = Field(default=0.5, gt=0)


class LearnedRouter(Strict):
    kind: Literal["learned"]
    path: str = Field(min_length=1)
    """A file of `shadowprefill router train`, relative to the configuration file."""
    min_probability: float = Field(default=0.5, ge=0, le=1)
    """The small model is chosen if it does as well as the large one with this probability."""
    timeout_s: float = Field(default=1.0, gt=0)
    """Longest wait for a choice, part of a call's TTFT; then the session stays where it is."""
    embedder_url: HttpUrl | None = None
    """Of the embeddings API (`https://host/v1`) that the router was trained with, if it was."""
    embedder_api_key: str | None = None


RouterConfig = Annotated[
    ExplicitRouter | ScriptRouter | MarkovRouter | PythonRouter | HttpRouter | LearnedRouter,
    Field(discriminator="kind"),
]


class LimitsConfig(Strict):
    """Of one API key (without keys: of one bearer token)."""

    requests_per_minute: float | None = Field(default=None, gt=0)
    """On average; up to ten seconds' worth may come at once."""
    concurrent_calls: int | None = Field(default=None, ge=1)
    queued_calls: int = Field(default=64, ge=0)
    """Calls beyond that wait for one to end; more are refused with 429."""
    shadow_tokens_per_hour: int | None = Field(default=None, ge=1)
    """Computed by shadow work for all keys of a tenant together."""


class TlsConfig(Strict):
    certificate: str = Field(min_length=1)
    """A PEM file, as the next one relative to the configuration file."""
    private_key: str = Field(min_length=1)


class CallLogConfig(Strict):
    """A line per answered call, to train a router on."""

    path: str = Field(min_length=1)
    """A .jsonl file, relative to the configuration file; lines are added."""
    prompts: bool = False
    """Whether lines hold the prompts. Without, a router can learn from the steps' numbers alone."""
    max_bytes: int = Field(default=1024 * 1024 * 1024, ge=1024)
    """Calls that do not fit any more are left out."""


class CoordinatorConfig(Strict):
    host: Host = "127.0.0.1"
    port: Port = 8100
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    connect_timeout_s: float = Field(default=2.0, gt=0)
    first_byte_timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for an engine's answer to begin: the P leg, or the first byte of a stream."""
    answer_timeout_s: float = Field(default=600.0, gt=0)
    """Longest time for the whole of an answer that is not streamed, from the call's arrival."""
    stream_idle_timeout_s: float = Field(default=60.0, gt=0)
    """Longest silence inside a stream."""
    probe_interval_s: float = Field(default=2.0, gt=0)
    session_ttl_s: float = Field(default=3600.0, gt=0)
    max_sessions: int = Field(default=10_000, ge=1)
    max_calls: int = Field(default=4096, ge=1)
    """Running at once, of all clients."""
    max_queued_calls: int = Field(default=1024, ge=0)
    """Waiting for one of these to end; more are refused with 429."""
    queue_wait_s: float = Field(default=30.0, gt=0)
    """Longest wait in a queue, a key's own or everybody's."""
    drain_s: float = Field(default=8.0, ge=0)
    """At a stop: how long calls that run may take to end. `shadowprefill down` kills what is left
    after ten seconds."""
    redis_url: str | None = Field(default=None, pattern=r"^rediss?://[^\s@]+$")
    """Where sessions live, for several coordinators behind one address (`redis://host:6379/0`);
    unset: in this process."""
    redis_password: str = ""
    limits: LimitsConfig = LimitsConfig()
    keys_path: str | None = None
    """A YAML file of API keys (configs.keys), relative to the configuration file; without keys
    every bearer token is a tenant of its own."""
    keys_variable: str | None = Field(default=None, min_length=1)
    """An environment variable that holds the same document."""
    upstreams: list[Annotated[str, Field(pattern=r"^[^\s/@]+(/\d{1,3})?$")]] = Field(
        default_factory=list
    )
    """Where instances may be registered while it runs: `host`, `host:port` or a network such as
    10.0.0.0/8. Nowhere else; those of the configuration need no entry."""
    learned_path: str | None = None
    """A JSON file for the switches that were seen, relative to the configuration file; unset: they
    are learned anew after a start."""
    call_log: CallLogConfig | None = None
    tls: TlsConfig | None = None
    log_format: Literal["text", "json"] = "text"
    """`json`: every record is a line of JSON, and so is every call, once it has ended."""
    otlp_endpoint: str | None = Field(default=None, pattern=r"^https?://[^\s@]+$")
    """Of an OpenTelemetry collector (`http://127.0.0.1:4317`), for traces of calls and shadow work
    here and in the engines; unset: none."""
    otlp_sample_share: float = Field(default=1.0, gt=0, le=1)
    """Of the calls: how many are traced."""
    engine_secret: str = ""
    """Shared with the engines so that they trust our marks; empty: engines listen privately."""


class ShadowConfig(Strict):
    """Parameters of shadow work (paper section 3); a missing value comes from the profile."""

    controller: Controller = Controller.HARVEST_SLO
    beta: float = Field(gt=0, le=1)
    delta: float = Field(ge=0, le=1)
    margin: float = Field(ge=0, lt=1)
    n_min_tokens: Annotated[int, Field(ge=1)] | Literal["auto"]
    """Smaller chunks are deferred, because each one reads the whole cached context again; `auto`:
    as many tokens as make that reading worthwhile (`reread_share`)."""
    reread_share: float = Field(default=0.25, gt=0, lt=1)
    """With `n_min_tokens: auto`: most of a chunk's time that may go into reading its context, and
    on an idle instance into the fixed part of the iteration too."""
    iteration_cap_s: float = Field(ge=0, le=3600)
    """Longest iteration with shadow tokens on a prefill instance, or on an idle colocated one;
    0 (colocated only): beta x TPOT SLO, the paper's rule."""
    segment_tokens: int = Field(ge=1)
    push_tokens: int = Field(default=4096, ge=1)
    """Most tokens of KV that one push moves to a decode instance: a normal transfer that arrives
    waits for at most one."""
    push_grant_s: float = Field(default=10.0, gt=0)
    """How long a decode instance keeps its slot for a push that it granted and did not get."""
    push_quarantine_s: float = Field(default=60.0, ge=0)
    """How long no shadow is pushed from a prefill to a decode instance after a transfer between
    them failed or took too long."""
    resubmit_tokens: int = Field(ge=1)
    """While A streams, a job is extended at most once per this many new tokens."""
    max_chunk_tokens: int = Field(ge=1)
    """Most shadow tokens in one busy iteration, whatever the budget says. An idle one is bounded by
    its cap and the engine's own token budget."""
    kv_cap_share: float = Field(gt=0, le=1)
    """Of an instance's KV pool: what shadow requests hold and have cached, until a call uses it."""
    idle_age_s: float = Field(ge=0)
    """Cached KV that was used within this time is never displaced by shadow work."""
    top_k: int = Field(ge=1)
    """Shadow jobs per session: the most probable models that were not chosen."""
    min_switch_probability: float = Field(ge=0, le=1)
    min_expected_saving_s: float = Field(default=0.0, ge=0)
    """Least prefill time that a job may save, times its probability; less is not worth a job."""
    min_use_share: float = Field(default=0.0, ge=0, le=1)
    """A model of whose shadow tokens less is used rests for `rest_s`; 0: never."""
    use_window_tokens: int = Field(default=200_000, ge=1)
    """Shadow tokens of a model by which that is judged; the older half counts half."""
    rest_s: float = Field(default=600.0, gt=0)
    timeout_s: float = Field(gt=0)
    """A shadow segment that takes longer is given up."""
    pushes: bool = True
    """Whether decode instances pull shadow KV ahead of a switch; without, it stays on the prefill
    instance until the switch (for comparisons: bench.live --topology pd)."""


class HostTierConfig(Strict):
    """Host memory in which an instance keeps the KV that its pool evicts; a missing value comes
    from the profile."""

    size_gb: float = Field(gt=0, le=4096)
    """Of each GPU, of a whole instance on CPUs; GB = 1e9 bytes. On GPUs it is pinned at start."""
    bandwidth_gb_per_s: float = Field(gt=0, le=1000)
    """Between a GPU and its host. Decides which hits are copied back and which are computed again,
    and how much is written through at a time."""


class ClusterConfig(Strict):
    profile: str
    models: dict[str, ModelConfig] = Field(min_length=1)
    instances: dict[str, InstanceConfig] = Field(min_length=1)
    shadow: ShadowConfig
    host_tier: HostTierConfig | None = None
    """`host_tier: {}` switches it on for every instance, with the profile's values."""
    router: RouterConfig = Field(default_factory=ExplicitRouter)
    coordinator: CoordinatorConfig = Field(default_factory=CoordinatorConfig)
