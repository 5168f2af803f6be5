"""`shadowprefill plan memory`: the table of configs.memory.plan, and its JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from configs.memory.plan import GB

if TYPE_CHECKING:
    from configs.memory.plan import InstanceMemory, MemoryPlan
    from configs.schema import ClusterConfig

COLUMNS = (
    "instance", "model", "role", "GPUs", "of a GPU", "weights", "overhead", "KV pool",
    "pool tokens", "shadow cap", "host tier", "",
)  # fmt: skip


def memory_json(plan: MemoryPlan) -> dict[str, Any]:
    return {
        "instances": {
            one.instance: {key: value for key, value in asdict(one).items() if key != "instance"}
            for one in plan.known
        },
        "unknown": {one.instance: one.why for one in plan.unknown},
        "host_tier_bytes": plan.host_tier_bytes(),
        "problems": list(plan.problems),
    }


def memory_table(config: ClusterConfig, plan: MemoryPlan) -> Table:
    title = f"GB on each GPU (1e9 bytes), profile {config.profile}; tokens of the whole instance"
    table = Table(title=title, title_justify="left")
    for name in COLUMNS:
        left = name in ("instance", "model", "role", "")
        table.add_column(name, justify="left" if left else "right")
    for one in plan.known:
        instance = config.instances[one.instance]
        table.add_row(one.instance, instance.model, instance.role.value, *_cells(one))
    for missing in plan.unknown:
        instance = config.instances[missing.instance]
        cells = ["-"] * (len(COLUMNS) - 4)
        table.add_row(missing.instance, instance.model, instance.role.value, *cells, "not known")
    return table


def _cells(one: InstanceMemory) -> list[str]:
    return [
        str(one.gpus),
        "-" if one.limit_bytes is None else _gb(one.limit_bytes),
        _gb(one.weight_bytes),
        _gb(one.overhead_bytes),
        _gb(max(0, one.pool_bytes)),
        f"{one.pool_tokens:,}",
        f"{one.shadow_tokens:,}",
        f"{_gb(one.host_tier_bytes)} ({one.host_tier_tokens:,})" if one.host_tier_bytes else "-",
        "does not fit" if one.problems else "",
    ]


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / GB:.1f}"
