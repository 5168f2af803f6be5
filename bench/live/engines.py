"""The engines of a run stay up from cell to cell; every cell gets a coordinator of its own.

A coordinator started with `shadow.controller: off` does no shadow flow at all: that is what a user
who turns it off has, and it is the same process with the same marks otherwise. (Rejected: one
coordinator and the header `x-shadowprefill-shadow: off`; that also makes routed calls normal ones.)
A new coordinator has also forgotten the sessions and the switch probabilities of the cell before.

Engines of the configuration that have `attach_url` are used and never started or stopped."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import aiohttp

from bench.live.engine_admin import change, reset_cache
from bench.live.errors import EngineUnwilling
from configs.load import effective_yaml, load_config
from coordinator.local_cluster import COORDINATOR, LocalCluster
from policy.vocabulary import Controller, Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from bench.live.records import Calibration
    from configs.schema import ClusterConfig

TELL_TIMES = "enable_per_request_metrics"
DEV_MODE = "VLLM_SERVER_DEV_MODE"
"""vLLM offers /reset_prefix_cache only with it."""


class Engines:
    """A context manager: all answer inside the block, nothing of ours is left after it."""

    def __init__(
        self,
        config_path: Path,
        run_dir: Path,
        prefill_budget_tokens: int,
        deltas: Mapping[Controller, float],
    ) -> None:
        """`deltas`: each controller has a credit of its own (configs.load.ONE_CREDIT_DELTA)."""
        self._source = config_path
        self._run_dir = run_dir
        self._deltas = deltas
        self._prefill_budget_tokens = prefill_budget_tokens
        self._cluster: LocalCluster | None = None
        self._controller: Controller | None = None
        self._takes_control = True
        self._traces: dict[str, Path] = {}
        self.config = load_config(config_path)

    def __enter__(self) -> Self:
        self._start(Controller.HARVEST_SLO)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def models(self) -> list[str]:
        return list(self.config.models)

    @property
    def is_pd(self) -> bool:
        """Whether P and D are apart."""
        return any(one.role is Role.DECODE for one in self.config.instances.values())

    def prepare(self, controller: Controller, name: str) -> None:
        """Empty caches and this controller on every engine, and a new trace called `name`; raises
        EngineUnwilling.

        An engine that cannot change its controller while it runs is started again with it."""
        if self._takes_control:
            self._traces = {
                instance: (self._run_dir / "traces" / f"{name}-{instance}.jsonl").resolve()
                for instance in self.config.instances
            }
            self._takes_control = asyncio.run(self._control(controller))
        if not self._takes_control and controller is not self._controller:
            self._restart(controller)
        self._controller = controller
        self.empty()

    def empty(self) -> None:
        """No prefix of anything that ran before is cached; raises EngineUnwilling."""
        asyncio.run(self._reset())

    def close_traces(self) -> list[Path]:
        """The files of the cell that ended, complete; none if the engines write none."""
        if not self._takes_control:
            return []
        paths, self._traces = list(self._traces.values()), {}
        assert self._controller is not None, "prepare comes first"
        asyncio.run(self._control(self._controller))
        return [path for path in paths if path.exists()]

    @contextmanager
    def coordinator(
        self,
        controller: Controller,
        calibration: Calibration | None,
        more: Sequence[str] = (),
    ) -> Iterator[tuple[str, int]]:
        """Its URL and pid. The SLOs that it marks calls with are the calibrated ones. `more`:
        changes of its configuration."""
        path = self._run_dir / "coordinator.yaml"
        changes = [*_changes(self.config, controller, calibration), *more]
        path.write_text(effective_yaml(load_config(self._run_dir / "engines.yaml", changes)))
        with LocalCluster(path, self._run_dir / "coordinator") as cluster:
            yield cluster.url, cluster.pid(COORDINATOR)

    def _start(self, controller: Controller) -> None:
        self._run_dir.mkdir(parents=True, exist_ok=True)
        path = self._run_dir / "engines.yaml"
        changes = [
            f"shadow.controller={controller.value}",
            f"shadow.delta={self._deltas[controller]}",
        ]
        for model in self.config.models:
            budget = f"engine_args.max_num_batched_tokens={self._prefill_budget_tokens}"
            changes += [f'models.{model}.env.{DEV_MODE}="1"', f"models.{model}.{budget}"]
            if self.is_pd:
                changes.append(f"models.{model}.engine_args.{TELL_TIMES}=true")
        path.write_text(effective_yaml(load_config(self._source, changes)))
        self._cluster = LocalCluster(path, self._run_dir / "engines", coordinator=False)
        self._cluster.start()
        self._controller = controller

    def _stop(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()

    def check(self) -> None:
        """Raises EngineUnwilling if an engine of ours has exited."""
        assert self._cluster is not None, "the engines are not started"
        for name, state in self._cluster.state.instances.items():
            if state.status == "exited":
                raise EngineUnwilling(f"{name}: {state.exit_text}; its log: {state.log}")

    def restart(self) -> None:
        """Raises EngineUnwilling for engines that are not ours."""
        self._restart(self._controller or Controller.HARVEST_SLO)

    @property
    def attached(self) -> list[str]:
        """Instances that somebody else started."""
        return [name for name, one in self.config.instances.items() if one.attach_url]

    def _restart(self, controller: Controller) -> None:
        if self.attached:
            raise EngineUnwilling(
                f"{self.attached} must be started again with shadow.controller={controller.value}, "
                "and are not ours to start"
            )
        self._stop()
        self._start(controller)

    async def _control(self, controller: Controller) -> bool:
        # The file that the engines were started with: its secret is theirs.
        secret = load_config(self._run_dir / "engines.yaml").coordinator.engine_secret
        async with aiohttp.ClientSession() as http:
            taken = [
                await change(
                    http,
                    name,
                    one,
                    {
                        "controller": controller.value,
                        "delta": self._deltas[controller],
                        "trace_path": str(self._traces.get(name, "")),
                    },
                    secret,
                )
                for name, one in self.config.instances.items()
            ]
        return all(taken)

    async def _reset(self) -> None:
        async with aiohttp.ClientSession() as http:
            for one in self.config.instances.values():
                await reset_cache(http, one.url)


def _changes(
    config: ClusterConfig, controller: Controller, calibration: Calibration | None
) -> Sequence[str]:
    changes = [f"shadow.controller={controller.value}"]
    changes += [f"instances.{name}.attach_url={one.url}" for name, one in config.instances.items()]
    for name, model in (calibration.models if calibration else {}).items():
        # Of calls that bring none of their own: the stricter end, that of short prompts.
        changes.append(f"models.{name}.slo.ttft_s={model.ttft_slo_s(0):.4f}")
        changes.append(f"models.{name}.slo.tpot_s={model.tpot_slo_s:.4f}")
    return changes
