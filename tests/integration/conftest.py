"""Real engines, started once per test session and shared: a start takes a minute on two cores."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from coordinator.local_cluster import LocalCluster
from tests.integration.real_cluster import MODELS, START_TIMEOUT_S, on_free_ports, plain_command

if TYPE_CHECKING:
    from collections.abc import Iterator

# A frozen P is given up after this long: short for the tests, long for two busy cores.
FIRST_BYTE_TIMEOUT_S = 20.0


@pytest.fixture(scope="session")
def needs_tiny() -> None:
    """Skips what needs a real engine where none is installed."""
    if find_spec("vllm") is None:
        pytest.skip("vllm is not installed: pip install shadowprefill[cpu]")
    if not (MODELS / "tiny-a").exists() or not (MODELS / "tiny-b").exists():
        pytest.skip(f"no tiny models: python -m engine.prepare_models {MODELS.name}")


@pytest.fixture(scope="session")
def needs_nixl() -> None:
    if find_spec("nixl") is None:
        pytest.skip("nixl is not installed: pip install shadowprefill[cpu]")


@pytest.fixture(scope="session")
def tiny_pd(
    needs_tiny: None, needs_nixl: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Two tiny models with different vocabularies, P and D apart, and the coordinator."""
    folder = tmp_path_factory.mktemp("tiny_pd")
    limits = {"first_byte_timeout_s": FIRST_BYTE_TIMEOUT_S}
    config = on_free_ports("tiny_pd", folder, coordinator=limits)
    with LocalCluster(config, folder / "run", start_timeout_s=START_TIMEOUT_S) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def tiny_plain(needs_tiny: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of one stock vLLM engine that serves `tiny-a`, without anything of ours in it."""
    folder = tmp_path_factory.mktemp("tiny_plain")
    config = on_free_ports("tiny_colocated", folder, only=("tiny-a-1",))
    with LocalCluster(
        config,
        folder / "run",
        coordinator=False,
        command=plain_command,
        start_timeout_s=START_TIMEOUT_S,
    ) as cluster:
        yield cluster.config.instances["tiny-a-1"].url
