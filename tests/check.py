"""Everything that must hold before a change lands: `python -m tests.check`, by hand and in CI.

Steps run in order and the first failure ends the run with its exit code. `--only lint types` runs
some of them; arguments after `--` go to pytest."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
REAL = "vllm_cpu or nixl or smollm2"
"""Marks of tests that need more than Python: a real vLLM, real NIXL, real weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    name: str
    about: str
    command: tuple[str, ...]


def python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, *arguments)


STEPS = (
    Step(
        name="format", about="ruff format", command=python("-m", "ruff", "format", "--check", ".")
    ),
    Step(name="lint", about="ruff check", command=python("-m", "ruff", "check", ".")),
    Step(name="types", about="mypy --strict", command=python("-m", "mypy")),
    Step(
        name="imports",
        about="import-linter: the layers of pyproject.toml",
        command=python(
            "-c", "from importlinter.cli import lint_imports_command as main; main(['--no-cache'])"
        ),
    ),
    Step(
        name="unit",
        about="tests without an engine; every branch of policy/",
        command=python(
            *("-m", "pytest", "-q", "-m", f"not ({REAL} or gpu)"),
            *("--cov", "--cov-branch", "--cov-report=term-missing:skip-covered"),
        ),
    ),
    Step(
        name="engines",
        about="tests on real vLLM engines and NIXL",
        command=python("-m", "pytest", "-q", "-m", f"({REAL}) and not gpu"),
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    names = [step.name for step in STEPS]
    about = "\n".join(f"  {step.name:8} {step.about}" for step in STEPS)
    parser = argparse.ArgumentParser(
        prog="python -m tests.check",
        description=f"{__doc__}\n\nsteps:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="STEP")
    parser.add_argument("--skip", nargs="+", choices=names, default=[], metavar="STEP")
    parser.add_argument("pytest", nargs="*", metavar="-- PYTEST-ARGUMENT")
    options = parser.parse_args(argv)
    chosen = [s for s in STEPS if s.name in options.only and s.name not in options.skip]
    return run(chosen, options.pytest)


def run(steps: Sequence[Step], pytest_arguments: Sequence[str]) -> int:
    """The exit code of the first step that fails, else 0."""
    summary: list[str] = []
    code = 0
    for step in steps:
        say(f"\n== {step.name}: {step.about}")
        extra = pytest_arguments if "pytest" in step.command else ()
        started = time.monotonic()
        code = subprocess.run([*step.command, *extra], cwd=ROOT, check=False).returncode
        word = "ok" if code == 0 else f"FAILED (exit code {code})"
        summary.append(f"{step.name:8} {time.monotonic() - started:7.1f} s  {word}")
        if code:
            break
    summary += [f"{step.name:8} not run" for step in steps[len(summary) :]]
    say("\n== summary\n" + "\n".join(summary))
    return code


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
