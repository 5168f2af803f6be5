"""What fits one kind of hardware: caps, start coefficients, engine flags, transport settings.

`cpu` and `h100` ship with the package. A profile fills in what a configuration leaves out and
decides nothing else. Hosts: configs.load, engine.launch."""

from __future__ import annotations

import importlib.resources
from typing import Literal

from pydantic import Field, model_validator

from configs.schema import EngineArgs, HostTierConfig, ShadowConfig, StepTimeConfig, Strict
from configs.strict_yaml import read_yaml

Dtype = Literal["auto", "bfloat16", "float16", "float32"]


class GpuConfig(Strict):
    """What memory is planned with (configs.memory)."""

    memory_gb: float = Field(gt=0)
    """That CUDA reports of one; GB = 1e9 bytes."""
    overhead_gb: float = Field(ge=0)
    """Of it, for activations, CUDA graphs and libraries: assumed; vLLM measures it at start."""
    per_node: int = Field(ge=1)


class Profile(Strict):
    kv_buffer_device: Literal["cpu", "cuda"]
    """Where NIXL reads and writes KV."""
    shadow: ShadowConfig
    host_tier: HostTierConfig
    """Where a configuration switches it on."""
    gpu: GpuConfig | None = None
    """None: engines run on CPUs."""
    step_time: dict[Dtype, StepTimeConfig]
    """Start coefficients by the model's dtype; `auto` stands for a dtype that is not listed."""
    engine_args: EngineArgs
    env: dict[str, str]

    @model_validator(mode="after")
    def _has_a_default(self) -> Profile:
        if "auto" not in self.step_time:
            raise ValueError(f"step_time.auto is missing; known are {sorted(self.step_time)}")
        return self

    def step_time_of(self, dtype: str) -> StepTimeConfig:
        for known, start in self.step_time.items():
            if known == dtype:
                return start
        return self.step_time["auto"]


def profile_names() -> list[str]:
    folder = importlib.resources.files("configs") / "profiles"
    return sorted(
        file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")
    )


def load_profile(name: str) -> Profile:
    """One of `profile_names()`; raises KeyError for another name."""
    if name not in profile_names():
        raise KeyError(f"profile {name!r} is not known; known are {profile_names()}")
    text = (importlib.resources.files("configs") / "profiles" / f"{name}.yaml").read_text()
    values, problems = read_yaml(text)
    assert not problems, (name, problems)
    return Profile.model_validate(values)
