"""The demo's tools really look at files and really run tests, and stay inside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.demo.script import STEPS
from bench.demo.tools import Action, Toolbox

REPOSITORY = Path(__file__).parents[2]


def a_repository(folder: Path) -> Toolbox:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "a.py").write_text("def first():\n    return 1\n\nlast = 2\n")
    (folder / "pkg" / "b.md").write_text("first line\n")
    (folder / "out").mkdir()
    (folder / "out" / "c.py").write_text("first = 3\n")
    (folder / ".hidden.py").write_text("first = 4\n")
    (folder / "test_ok.py").write_text("def test_ok():\n    assert True\n")
    (folder / "test_slow.py").write_text("import time\n\ndef test_slow():\n    time.sleep(60)\n")
    return Toolbox(folder, test_timeout_s=30.0)


def an_action(text: str) -> Action:
    tool, *arguments = text.split()
    return Action(tool=tool, arguments=tuple(arguments))


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("list_files pkg", "pkg/a.py (36 bytes)\npkg/b.md (11 bytes)"),
        ("list_files nowhere", "error: no such folder: nowhere"),
        ("read_file pkg/a.py 2 4", "   2      return 1\n   3  \n   4  last = 2"),
        ("read_file pkg/a.py 9 12", "error: pkg/a.py has 4 lines, asked for 9 to 12"),
        ("read_file ../secret.txt 1 2", "error: no such file: ../secret.txt"),
        ("grep first .", "pkg/a.py:1: def first():\npkg/b.md:1: first line"),
        ("grep last pkg/a.py", "pkg/a.py:4: last = 2"),
        ("grep nothing_here .", "no match for nothing_here in ."),
        ("run_test nowhere.py", "error: no such test file: nowhere.py"),
    ],
)
async def test_a_tool_answers_with_what_the_files_say(
    tmp_path: Path, action: str, expected: str
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret.txt").write_text("outside\n")
    assert await a_repository(tmp_path / "root").run(an_action(action)) == expected


async def test_run_test_really_runs_pytest(tmp_path: Path) -> None:
    result = await a_repository(tmp_path).run(an_action("run_test test_ok.py"))
    assert result.startswith("exit code 0\n")
    assert "1 passed" in result


async def test_a_test_that_hangs_is_stopped_and_said_so(tmp_path: Path) -> None:
    a_repository(tmp_path)
    result = await Toolbox(tmp_path, test_timeout_s=0.5).run(an_action("run_test test_slow.py"))
    assert result == "error: test_slow.py did not finish within 0.5 s and was stopped"


async def test_an_unknown_tool_is_an_error_of_the_script(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="delete_file pkg"):
        await Toolbox(tmp_path).run(an_action("delete_file pkg"))


def test_every_path_of_the_script_exists_in_this_repository() -> None:
    named = [argument for step in STEPS if step.action for argument in step.action.arguments]
    paths = [name for name in named if "/" in name or name in (".", "engine", "coordinator")]
    assert len(paths) >= 10
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []
