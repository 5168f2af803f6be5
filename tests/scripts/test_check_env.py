"""What the set-up takes for missing, broken or unmet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_env.py"


def install(packages: Path, name: str, version: str, *needs: str) -> Path:
    """One package of one file, the way pip leaves it."""
    info = packages / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
    (packages / f"{name}.py").write_text("12345")
    (info / "RECORD").write_text(
        f"{name}.py,,5\n__pycache__/{name}.pyc,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n"
    )
    return info


def report(packages: Path, constraints: str) -> dict[str, list[str]]:
    file = packages.parent / "constraints.txt"
    file.write_text(constraints)
    # A process of its own, as in the set-up: pip's private packages do not like company.
    command = [sys.executable, "-I", str(SCRIPT), str(file), str(packages)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, list[str]] = json.loads(result.stdout)
    del found["python"]
    return found


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    install(folder, "alpha", "1.0", "beta>=1", "torchvision", "gamma; extra == 'more'")
    install(folder, "Beta_x", "2.0+cpu")
    return folder


COMPLETE = """# pins
alpha==1.0
beta-x==2.0  # the local part does not matter
win==1; sys_platform == 'win32'
"""


def test_pins_hold_for_other_spellings_local_versions_and_markers(packages: Path) -> None:
    install(packages, "beta", "1.5")
    assert report(packages, COMPLETE) == {"wrong": [], "broken": [], "unmet": []}


def test_a_missing_and_an_old_package_are_wrong(packages: Path) -> None:
    found = report(packages, "alpha==1.1\nomega==1\n")
    assert found["wrong"] == ["alpha", "omega"]


def test_an_unmet_requirement_is_named_unless_it_is_left_out_on_purpose(packages: Path) -> None:
    assert report(packages, COMPLETE)["unmet"] == ["alpha needs beta>=1"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda packages, info: (packages / "alpha.py").unlink(),
        lambda packages, info: (packages / "alpha.py").write_text("123"),
        lambda packages, info: (info / "RECORD").unlink(),
    ],
    ids=["file_gone", "file_short", "no_record"],
)
def test_a_package_whose_files_are_not_all_there_is_broken(packages: Path, damage: Any) -> None:
    info = packages / "alpha-1.0.dist-info"
    damage(packages, info)
    assert report(packages, COMPLETE)["broken"] == [str(info)]


def test_a_package_without_metadata_is_broken_and_no_crash(packages: Path) -> None:
    info = packages / "alpha-1.0.dist-info"
    (info / "METADATA").unlink()
    found = report(packages, COMPLETE)
    assert found["broken"] == [str(info)]
    assert found["wrong"] == ["alpha"]
