"""The four tools of the demo's coding agent, really executed on a repository's own files.

Every result is text that a model could read. A tool that cannot do its work says so in that text: a
wrong path is something that an agent sees and goes on from, not a failure of the demo."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SKIPPED_FOLDERS = frozenset({"out", "build", "dist", "__pycache__"})
TEXT_SUFFIXES = frozenset({".py", ".md", ".yaml", ".toml", ".txt", ".cfg"})
MAX_MATCHES = 200
MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One tool call of the script: `read_file policy/slack.py 1 120`."""

    tool: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.tool, *self.arguments))


class Toolbox:
    """Tools confined to `root`; a path that leaves it is refused."""

    def __init__(self, root: Path, test_timeout_s: float = 30.0) -> None:
        self._root = root.resolve()
        self._test_timeout_s = test_timeout_s

    async def run(self, action: Action) -> str:
        """The tool's result as text; a script error (unknown tool, wrong arguments) is ours."""
        match action.tool, action.arguments:
            case "list_files", (folder,):
                return self._listed(folder)
            case "read_file", (path, first, last):
                return self._read(path, int(first), int(last))
            case "grep", (pattern, folder):
                return self._grep(pattern, folder)
            case "run_test", (path,):
                return await self._run_test(path)
        raise ValueError(f"action: no tool takes these arguments, got {str(action)!r}")

    def _inside(self, path: str) -> Path | None:
        target = (self._root / path).resolve()
        return target if target.is_relative_to(self._root) and target.exists() else None

    def _listed(self, folder: str) -> str:
        target = self._inside(folder)
        if target is None or not target.is_dir():
            return f"error: no such folder: {folder}"
        return "\n".join(
            f"{path.relative_to(self._root)} ({path.stat().st_size} bytes)"
            for path in self._files(target)
        )

    def _read(self, path: str, first: int, last: int) -> str:
        target = self._inside(path)
        if target is None or not target.is_file():
            return f"error: no such file: {path}"
        lines = target.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = lines[first - 1 : last]
        if not shown:
            return f"error: {path} has {len(lines)} lines, asked for {first} to {last}"
        return "\n".join(f"{first + offset:4d}  {line}" for offset, line in enumerate(shown))

    def _grep(self, pattern: str, folder: str) -> str:
        target = self._inside(folder)
        if target is None:
            return f"error: no such file or folder: {folder}"
        expression = re.compile(pattern)
        matches: list[str] = []
        for path in self._files(target) if target.is_dir() else iter((target,)):
            matches.extend(self._matches(path, expression))
            if len(matches) >= MAX_MATCHES:
                break
        return "\n".join(matches[:MAX_MATCHES]) or f"no match for {pattern} in {folder}"

    def _matches(self, path: Path, expression: re.Pattern[str]) -> Iterator[str]:
        name = path.relative_to(self._root)
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            if expression.search(line):
                yield f"{name}:{number}: {line.strip()}"

    def _files(self, folder: Path) -> Iterator[Path]:
        """Text files below `folder` in a fixed order: the prompts must not depend on the disk's."""
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or path.name in SKIPPED_FOLDERS or path.is_symlink():
                continue
            if path.is_dir():
                yield from self._files(path)
            elif path.suffix in TEXT_SUFFIXES and path.stat().st_size <= MAX_FILE_BYTES:
                yield path

    async def _run_test(self, path: str) -> str:
        if self._inside(path) is None:
            return f"error: no such test file: {path}"
        command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", path)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=self._root,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), self._test_timeout_s)
        except TimeoutError:
            return f"error: {path} did not finish within {self._test_timeout_s:g} s and was stopped"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = output.decode(errors="replace").strip()
        return f"exit code {process.returncode}\n{text}"
