"""What one engine's scheduler plug-in is told at start, once: the `shadowprefill` object inside
`--additional-config`.

The plug-in lives in vLLM's EngineCore process and reads no file of ours, so everything that it
needs of the cluster configuration travels as this one strict JSON object. Imports neither vLLM nor
torch: the command line writes it."""

import os
from collections.abc import Mapping
from typing import Annotated, Literal, Self

import msgspec

from configs.schema import ClusterConfig, StepTimeConfig
from engine.cores import bound_cpus
from policy.kv_class import KvClassParams
from policy.link_gate import LinkGateParams
from policy.slack import AUTO, MIN_AUTO_TOKENS, SlackParams
from policy.step_time import StepTimeCoefficients, StepTimeModel
from policy.vocabulary import Controller, RequestClass, Role, Slo

PARAMS_VERSION = 1
ADDITIONAL_CONFIG_KEY = "shadowprefill"
CONNECTOR_MODULE = "engine.nixl"
HOST_TIER_KEY = "host_tier"
SECRET_VARIABLE = "SHADOWPREFILL_ENGINE_SECRET"

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1)]
# A control request may name it: a suffix keeps it away from files that mean something elsewhere.
TracePath = Annotated[str, msgspec.Meta(pattern=r"^(/[^\0\n]+\.jsonl)?$")]


class EngineParamsInvalid(ValueError):
    """The engine was started with parameters that we cannot read: start it again with ours."""


class StepTimeStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Start coefficients of the latency form (policy.step_time)."""

    fixed_s: Positive
    s_per_request: NotNegative
    s_per_token: Positive
    s_per_token_context: NotNegative
    s_per_context_token: NotNegative = 0.0


class HostTierParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the host tier is told: the `host_tier` object of its connector's extra configuration."""

    size_bytes: PositiveCount
    """Of each GPU; of the whole instance on CPUs."""
    bandwidth_bytes_per_s: Positive
    idle_age_s: NotNegative

    @classmethod
    def from_extra_config(cls, extra_config: Mapping[str, object]) -> Self:
        """Raises EngineParamsInvalid."""
        try:
            return msgspec.convert(extra_config.get(HOST_TIER_KEY), cls)
        except msgspec.ValidationError as error:
            raise EngineParamsInvalid(f"{HOST_TIER_KEY}: {error}") from error

    def slots(self, block_bytes: int) -> int:
        """KV blocks that it holds; raises EngineParamsInvalid."""
        slots = self.size_bytes // block_bytes
        if slots < 1:
            raise EngineParamsInvalid(
                f"{HOST_TIER_KEY}.size_gb must hold a KV block ({block_bytes} bytes), got "
                f"{self.size_bytes} bytes"
            )
        return slots


class EngineParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names and meanings are those of `configs.schema` (ShadowConfig, SloConfig)."""

    version: int = PARAMS_VERSION
    instance: str
    model: str
    role: Role
    slo_ttft_s: Positive
    slo_tpot_s: Positive
    controller: Controller
    beta: Annotated[float, msgspec.Meta(gt=0, le=1)]
    delta: Share
    margin: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    n_min_tokens: PositiveCount | Literal["auto"]
    reread_share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.25
    iteration_cap_s: Annotated[float, msgspec.Meta(ge=0, le=3600)]
    max_chunk_tokens: PositiveCount
    segment_tokens: PositiveCount
    kv_cap_share: Annotated[float, msgspec.Meta(gt=0, le=1)]
    idle_age_s: NotNegative
    min_switch_probability: Share
    shadow_timeout_s: Positive
    """A shadow request that is older than this is given up."""
    pull_timeout_s: Positive
    """A longer pull of KV is given up, the prompt recomputed (vLLM itself waits for ever)."""
    push_tokens: PositiveCount = 4096
    push_grant_s: Positive = 10.0
    push_quarantine_s: NotNegative = 60.0
    step_time: StepTimeStart
    cpus: str = ""
    """Cores that the engine's thread stays on; empty: where the system puts it (engine.cores)."""
    metrics_host: str = "127.0.0.1"
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Of the exporter in the EngineCore process (engine.exporter); 0: none."""
    trace_path: TracePath = ""
    """Absolute; empty: no trace (engine.trace)."""
    trace_max_bytes: PositiveCount = 256 * 1024 * 1024
    secret: str = ""
    """Marks must carry it if it is set; empty: the engine listens privately."""
    secret_in_environment: bool = False
    """A command line is open to every user of the machine, and vLLM logs it: the secret travels in
    SECRET_VARIABLE, and an engine without it does not start."""

    @classmethod
    def from_cluster(
        cls, config: ClusterConfig, instance_name: str, profile_step_time: StepTimeConfig
    ) -> Self:
        """`profile_step_time`: the hardware profile's coefficients, which a model may override."""
        instance = config.instances[instance_name]
        model = config.models[instance.model]
        shadow = config.shadow
        start = model.step_time or profile_step_time
        # A request without marks counts as normal traffic.
        slo = model.slo_of(RequestClass.NORMAL)
        return cls(
            instance=instance_name,
            model=instance.model,
            role=instance.role,
            slo_ttft_s=slo.ttft_s,
            slo_tpot_s=slo.tpot_s,
            controller=shadow.controller,
            beta=shadow.beta,
            delta=shadow.delta,
            margin=shadow.margin,
            n_min_tokens=shadow.n_min_tokens,
            reread_share=shadow.reread_share,
            iteration_cap_s=shadow.iteration_cap_s,
            max_chunk_tokens=shadow.max_chunk_tokens,
            segment_tokens=shadow.segment_tokens,
            kv_cap_share=shadow.kv_cap_share,
            idle_age_s=shadow.idle_age_s,
            min_switch_probability=shadow.min_switch_probability,
            shadow_timeout_s=shadow.timeout_s,
            pull_timeout_s=model.pull_timeout_s,
            push_tokens=shadow.push_tokens,
            push_grant_s=shadow.push_grant_s,
            push_quarantine_s=shadow.push_quarantine_s,
            step_time=StepTimeStart(**start.model_dump()),
            cpus=bound_cpus(instance.cpus) or "",
            metrics_host=instance.host,
            metrics_port=instance.metrics_port or 0,
            trace_path=instance.trace_path or "",
            trace_max_bytes=instance.trace_max_bytes,
            secret=config.coordinator.engine_secret,
            secret_in_environment=bool(config.coordinator.engine_secret),
        )

    def slack_params(self) -> SlackParams:
        return SlackParams(
            controller=self.controller,
            beta=self.beta,
            delta=self.delta,
            margin=self.margin,
            n_min_tokens=self.n_min_tokens,
            reread_share=self.reread_share,
            iteration_cap_s=self.iteration_cap_s,
            max_chunk_tokens=self.max_chunk_tokens,
            slo=Slo(ttft_s=self.slo_ttft_s, tpot_s=self.slo_tpot_s),
            role=self.role,
        )

    def link_gate_params(self, block_size: int) -> LinkGateParams:
        return LinkGateParams(
            push_tokens=self.push_tokens,
            block_size=block_size,
            grant_s=self.push_grant_s,
            quarantine_s=self.push_quarantine_s,
        )

    def kv_class_params(self) -> KvClassParams:
        return KvClassParams(kv_cap_share=self.kv_cap_share, idle_age_s=self.idle_age_s)

    @property
    def first_chunk_tokens(self) -> int:
        """Of an instance that has seen no iteration yet."""
        return MIN_AUTO_TOKENS if self.n_min_tokens == AUTO else self.n_min_tokens

    def step_time_model(self) -> StepTimeModel:
        """A model that trusts itself for n_min tokens until it has seen larger steps."""
        start = StepTimeCoefficients(**msgspec.structs.asdict(self.step_time))
        return StepTimeModel(start, trusted_tokens=self.first_chunk_tokens)

    def to_json(self) -> str:
        """The value of the `shadowprefill` key of `--additional-config`."""
        shown = msgspec.structs.replace(self, secret="") if self.secret_in_environment else self
        return msgspec.json.encode(shown).decode()

    def to_object(self) -> dict[str, object]:
        """The same, for whoever builds a vLLM configuration in this process."""
        built: dict[str, object] = msgspec.to_builtins(self)
        return built

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return cls.from_object(_decoded(text))

    @classmethod
    def from_object(cls, value: object) -> Self:
        """From the parsed JSON object; raises EngineParamsInvalid."""
        version = value.get("version") if isinstance(value, Mapping) else None
        if version != PARAMS_VERSION:
            raise EngineParamsInvalid(
                f"{ADDITIONAL_CONFIG_KEY}.version must be {PARAMS_VERSION}, got {version!r}: "
                "coordinator and engine come from different versions of shadowprefill"
            )
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise EngineParamsInvalid(f"{ADDITIONAL_CONFIG_KEY}: {error}") from error

    def with_secret(self, environment: Mapping[str, str]) -> Self:
        """As the engine's process was given it; raises EngineParamsInvalid."""
        secret = environment.get(SECRET_VARIABLE, "")
        if not secret:
            raise EngineParamsInvalid(
                f"{SECRET_VARIABLE} is not set: this engine checks the coordinator's marks by "
                "coordinator.engine_secret, which has to be in its environment"
            )
        return msgspec.structs.replace(self, secret=secret)

    @classmethod
    def from_additional_config(cls, additional_config: object) -> Self:
        """From `vllm_config.additional_config`; raises EngineParamsInvalid."""
        if isinstance(additional_config, Mapping) and ADDITIONAL_CONFIG_KEY in additional_config:
            params = cls.from_object(additional_config[ADDITIONAL_CONFIG_KEY])
            return params.with_secret(os.environ) if params.secret_in_environment else params
        raise EngineParamsInvalid(
            f"--additional-config must carry {ADDITIONAL_CONFIG_KEY!r}; "
            "`shadowprefill engine-args` prints the whole command line"
        )


def _decoded(text: str | bytes) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise EngineParamsInvalid(f"{ADDITIONAL_CONFIG_KEY} is not JSON: {error}") from error
