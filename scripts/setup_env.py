"""Creates `.venv` with everything that the demo and the tests need: `python3 scripts/setup_env.py`.

Standard library only. The packages are those of constraints.txt, no more and no less. A stamp is
written last: with it a second run does nothing; without it (interrupted, another list) a run checks
what is there, file by file, and installs what is missing or broken.

`SHADOWPREFILL_VENV=DIR` names another environment to take the packages from. It is used only if it
holds exactly this list; CI in a fresh clone saves the big installation that way."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

OLDEST_PYTHON = (3, 11)
THIS_PYTHON = sys.version_info[:3]
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "shadowprefill-setup.json"
CONSTRAINTS = ROOT / "constraints.txt"
CHECK = ROOT / "scripts" / "check_env.py"
REUSE_VARIABLE = "SHADOWPREFILL_VENV"
REUSE_FILE = "shadowprefill-reuse.pth"
TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""The one place outside the configured package index: where PyTorch publishes its CPU wheels."""


def main() -> None:
    if THIS_PYTHON < OLDEST_PYTHON:
        found = ".".join(map(str, THIS_PYTHON))
        _fail(f"Python 3.11 or newer is needed, this is {found}: run it with another python3")
    key = _key()
    if _is_done(key):
        _say("the environment is ready")
        return
    STAMP.unlink(missing_ok=True)
    source = _reusable()
    if source is None:
        _fill()
    else:
        _link(source)
    _install_project()
    STAMP.write_text(json.dumps({"key": key}))
    _say(f"ready: {VENV.name}/bin/python")


def _key() -> str:
    """A digest of everything that decides what is installed."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = [json.dumps([project["project"], project["tool"]["setuptools"]], sort_keys=True)]
    parts += [path.read_text() for path in (CONSTRAINTS, CHECK, Path(__file__))]
    parts += [str(ROOT), sys.version]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _is_done(key: str) -> bool:
    try:
        done = json.loads(STAMP.read_text())["key"] == key
    except (OSError, ValueError, KeyError):
        return False
    return done and _python(VENV).exists() and _link_is_whole()


def _link_is_whole() -> bool:
    return all(Path(line).is_dir() for file in _links() for line in file.read_text().splitlines())


def _links() -> list[Path]:
    return list(VENV.glob(f"lib/python*/site-packages/{REUSE_FILE}"))


def _reusable() -> Path | None:
    """The other environment, if one is named and it holds exactly what we need."""
    named = os.environ.get(REUSE_VARIABLE)
    if not named:
        return None
    source = Path(named).resolve()
    if source == VENV.resolve() or (not _links() and _is_complete(_check(VENV))):
        return None  # never replaces a whole environment by a link
    report = _check(source)
    if report is None:
        _say(f"{REUSE_VARIABLE} names {source}, which is no pip environment; installing")
        return None
    mine = f"{THIS_PYTHON[0]}.{THIS_PYTHON[1]}"
    if report["python"] != mine or report["wrong"] or report["broken"]:
        differ = report["wrong"] + report["broken"]
        why = f"{len(differ)} packages differ: {differ[:5]}" if differ else report["python"]
        _say(f"{REUSE_VARIABLE} does not match constraints.txt ({why}); installing")
        return None
    return source


def _link(source: Path) -> None:
    """An environment of our own that finds the packages of the other one.

    Not a symbolic link: the project is installed in ours; theirs may point to another checkout."""
    with _step(f"using the packages of {source}"):
        venv.create(VENV, clear=True, with_pip=True)
        theirs = next(source.glob("lib/python*/site-packages"))
        ours = next(VENV.glob("lib/python*/site-packages"))
        (ours / REUSE_FILE).write_text(f"{theirs}\n")
        # venv puts an old setuptools of its own in front of the pinned one.
        uninstall = [str(_python(VENV)), "-m", "pip", "uninstall", "-qq", "-y", "setuptools"]
        subprocess.run(uninstall, check=True)


def _fill() -> None:
    if _links() or not _has_pip():
        with _step(f"creating {VENV.name}"):
            venv.create(VENV, clear=bool(_links()), with_pip=True)
    with _step("checking what is installed"):
        report = _check(VENV)
        assert report is not None
    if report["wrong"] or report["broken"]:
        for folder in report["broken"]:
            # Without its metadata pip takes the package for absent, and writes all its files again.
            shutil.rmtree(folder)
        _install_torch()
        count = len({*report["wrong"], *report["broken"]})
        with _step(f"installing {count} packages"):
            # Without dependencies: the list is complete, and four packages ask for others that we
            # leave out on purpose (check_env.LEFT_OUT).
            _pip("--no-deps", "--requirement", str(CONSTRAINTS))
    report = _check(VENV)
    if not _is_complete(report):
        _fail(f"the environment is not as it should be: {json.dumps(report, indent=1)}")


def _install_torch() -> None:
    with _step(f"installing {TORCH}"):
        plain = _pip("--no-deps", TORCH, may_fail=True)
        if plain:
            _say(f"{TORCH} is not on the package index; taking it from {TORCH_INDEX}")
            _pip("--no-deps", "--extra-index-url", TORCH_INDEX, TORCH)


def _install_project() -> None:
    with _step("installing this checkout (editable)"):
        _pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    smoke = "import torch, nixl_cu12, configs.load, coordinator, policy"
    if subprocess.run([_python(VENV), "-c", smoke], cwd=VENV, check=False).returncode:
        _fail(f"`{smoke}` fails in {VENV}; remove that folder and run this again")


def _check(environment: Path) -> dict[str, Any] | None:
    """What the environment lacks; None if it is no pip environment."""
    if not _python(environment).exists():
        return None
    command = [str(_python(environment)), "-I", str(CHECK), str(CONSTRAINTS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(result.stdout) if result.returncode == 0 else None


def _is_complete(report: dict[str, Any] | None) -> bool:
    return report is not None and not (report["wrong"] or report["broken"] or report["unmet"])


def _has_pip() -> bool:
    python = _python(VENV)
    if not python.exists():
        return False
    command = [str(python), "-I", "-m", "pip", "--version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _pip(*arguments: str, may_fail: bool = False) -> bool:
    """Whether it failed."""
    command = [str(_python(VENV)), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    output = subprocess.DEVNULL if may_fail else None
    result = subprocess.run([*command, *arguments], stderr=output, cwd=ROOT, check=False)
    if result.returncode and not may_fail:
        _fail(f"pip install {' '.join(arguments)} failed, see above; run this again to go on")
    return result.returncode != 0


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


@contextlib.contextmanager
def _step(text: str) -> Iterator[None]:
    started = time.monotonic()
    _say(f"{text} ...")
    yield
    _say(f"  done after {time.monotonic() - started:.0f} s")


def _say(text: str) -> None:
    sys.stdout.write(f"setup: {text}\n")
    sys.stdout.flush()


def _fail(text: str) -> NoReturn:
    sys.stderr.write(f"setup: {text}\n")
    raise SystemExit(1)


if __name__ == "__main__":
    main()
