"""`python -m engine.check_compat`, with a package index that is played."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING

import pytest

from engine import check_compat, vllm_names

if TYPE_CHECKING:
    from pathlib import Path

TABLE = "vllm.v1.sched Scheduler\n    running\n    schedule(throttle)\n"
SCHEDULER = "class Scheduler:\n    running = ()\n    def schedule(self, throttle): ...\n"


@pytest.fixture(autouse=True)
def two_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "names.txt"
    table.write_text(TABLE)
    monkeypatch.setattr(vllm_names, "TABLE", table)


def an_index(monkeypatch: pytest.MonkeyPatch, newest: str, scheduler: str) -> list[str]:
    """Answers like pip, and notes what was asked for."""
    asked: list[str] = []

    def pip(command: str, *arguments: str) -> str:
        asked.append(command)
        if command == "install":
            return json.dumps({"install": [{"metadata": {"version": newest}}]})
        folder = next(a.split("=", 1)[1] for a in arguments if a.startswith("--dest="))
        with zipfile.ZipFile(f"{folder}/vllm-{newest}-cp38-abi3-manylinux.whl", "w") as wheel:
            wheel.writestr("vllm/__init__.py", "")
            wheel.writestr("vllm/v1/sched.py", scheduler)
            wheel.writestr("vllm/v1/_C.so", "binary")
            wheel.writestr("vllm/models/llama.py", "not needed")
        return ""

    monkeypatch.setattr(check_compat, "pip", pip)
    return asked


def test_the_newest_version_is_downloaded_once_and_only_its_few_sources_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = an_index(monkeypatch, "0.33.0", SCHEDULER)
    cache = tmp_path / "cache"
    for _ in range(2):
        assert check_compat.main(["--cache", str(cache)]) == 0
    assert asked == ["install", "download", "install"]
    kept = sorted(str(file.relative_to(cache)) for file in cache.rglob("*") if file.is_file())
    assert kept == ["vllm-0.33.0/vllm/__init__.py", "vllm-0.33.0/vllm/v1/sched.py"]
    out = capsys.readouterr().out
    assert "  present  schedule(throttle)\n" in out
    assert "2 names, 2 present, 0 changed, 0 missing; inside the supported range" in out


def test_a_name_that_is_gone_or_changed_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    an_index(monkeypatch, "0.40.0", "class Scheduler:\n    def schedule(self, step): ...\n")
    assert check_compat.main(["--cache", str(tmp_path), "--vllm", "0.40.0"]) == 1
    out = capsys.readouterr().out
    assert "  missing  running\n" in out
    assert "  changed  schedule(throttle): takes (step), parameter 1 was throttle\n" in out
    assert "0 present, 1 changed, 1 missing; outside the supported range" in out


def test_an_unpacked_tree_is_read_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "vllm" / "v1").mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    (tmp_path / "vllm" / "v1" / "sched.py").write_text(SCHEDULER)
    assert check_compat.main(["--path", str(tmp_path)]) == 0


@pytest.mark.parametrize("arguments", [["--path", "/nowhere"], ["--vllm", "0.0.1"]])
def test_nothing_to_look_at_is_told_apart_from_a_failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    def no_network(command: str, *arguments: str) -> str:
        raise check_compat.NothingToCheck(f"`pip {command}` failed with exit code 1: no network")

    monkeypatch.setattr(check_compat, "pip", no_network)
    with pytest.raises(SystemExit, match="2"):
        check_compat.main([*arguments, "--cache", str(tmp_path / "cache")])
    assert capsys.readouterr().err.startswith("python -m engine.check_compat: ")
    assert not list((tmp_path / "cache").glob("*")), "an interrupted run leaves nothing behind"
