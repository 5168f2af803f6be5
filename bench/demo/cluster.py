"""The cluster that the demo plays on: started and stopped here, or somebody else's by URL."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator import progress as start_progress
from coordinator.local_cluster import COORDINATOR, LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.demo.options import Options
    from bench.demo.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A coordinator that answers, and its process if we started it."""

    url: str
    coordinator_pid: int | None


@contextmanager
def running_cluster(options: Options, progress: Progress) -> Iterator[Place]:
    """Ready inside the block; what was started is gone after it, however the block ends."""
    if options.base_url is not None:
        yield Place(url=options.base_url, coordinator_pid=None)
        return
    shown = start_progress.Progress(progress.console)
    cluster = LocalCluster(options.config, options.out / "run", on_change=shown.update)
    with progress.phase("start", "starting the cluster", live=False), shown:
        cluster.start()
    try:
        yield Place(url=cluster.url, coordinator_pid=cluster.pid(COORDINATOR))
    finally:
        with progress.phase("stop", "stopping everything"):
            cluster.stop()
