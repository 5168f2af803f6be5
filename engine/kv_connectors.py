"""Which KV connectors an instance is started with: NIXL between P and D, and the host tier.

Imports neither vLLM nor torch: the command line prints it.

Hosts: engine.launch, engine.features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.params import CONNECTOR_MODULE, HOST_TIER_KEY
from policy.vocabulary import Role

if TYPE_CHECKING:
    from configs.schema import ClusterConfig, HostTierConfig

BYTES_PER_GB = 1_000_000_000
HOST_TIER_CONNECTOR = "HostTierConnector"
HOST_TIER_MODULE = "engine.host_tier"
UNION_CONNECTOR = "MultiConnector"
"""vLLM decides by the connector's name in several places, so ours has that of its own."""
UNION_MODULE = "engine.kv_union"
KV_ROLES = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
"""vLLM is about to remove `kv_both` for NIXL."""


def kv_transfer(
    config: ClusterConfig, instance_name: str, kv_buffer_device: str
) -> dict[str, Any] | None:
    """The value of `--kv-transfer-config`; None: the instance needs no connector."""
    instance = config.instances[instance_name]
    tier = _host_tier(config.host_tier, config.shadow.idle_age_s) if config.host_tier else None
    if instance.role is Role.COLOCATED:
        return tier
    nixl = {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": KV_ROLES[instance.role],
        "kv_buffer_device": kv_buffer_device,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "kv_lease_duration": config.models[instance.model].kv_lease_s
        },
    }
    if tier is None:
        return nixl
    return {
        "kv_connector": UNION_CONNECTOR,
        "kv_connector_module_path": UNION_MODULE,
        "kv_role": "kv_both",
        "kv_buffer_device": kv_buffer_device,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [tier, nixl]},
    }


def _host_tier(tier: HostTierConfig, idle_age_s: float) -> dict[str, Any]:
    return {
        "kv_connector": HOST_TIER_CONNECTOR,
        "kv_connector_module_path": HOST_TIER_MODULE,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "HostTierSpec",
            "spec_module_path": HOST_TIER_MODULE,
            HOST_TIER_KEY: {
                "size_bytes": int(tier.size_gb * BYTES_PER_GB),
                "bandwidth_bytes_per_s": tier.bandwidth_gb_per_s * BYTES_PER_GB,
                "idle_age_s": idle_age_s,
            },
        },
    }
