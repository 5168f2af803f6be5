"""The version of the installed package. Hosts: coordinator.cli, coordinator.cluster_view."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def own_version() -> str:
    try:
        return version("shadowprefill")
    except PackageNotFoundError:
        return "(not installed)"
