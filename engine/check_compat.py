"""Whether a published vLLM still has what the plug-in uses: `python -m engine.check_compat`.

Downloads the newest vLLM, or `--vllm VERSION`, with pip, keeps its few source files in a cache and
reads them without importing any. No GPU, no account; standard library and pip only. Exit code 1: a
name is missing or has changed, 2: there was nothing to look at."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from engine.compat import SUPPORTED, is_supported
from engine.vllm_names import Finding, Status, findings, read_table
from engine.vllm_source import SourceTree

if TYPE_CHECKING:
    from collections.abc import Sequence

CACHE = Path(__file__).resolve().parents[1] / "out" / "compat"


class NothingToCheck(RuntimeError):
    """No vLLM sources could be had: check the network, the version or the path."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.check_compat", description=__doc__)
    parser.add_argument("--vllm", metavar="VERSION", help="instead of the newest published one")
    parser.add_argument("--path", type=Path, help="an unpacked tree that holds a folder vllm/")
    parser.add_argument("--cache", type=Path, default=CACHE, help="default: %(default)s")
    options = parser.parse_args(argv)
    try:
        name, root = chosen(options.vllm, options.path, options.cache)
        found = check(root)
    except NothingToCheck as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    say("\n".join(report(found)))
    say(summary(found, name))
    return int(any(item.status is not Status.PRESENT for item in found))


def chosen(version: str | None, path: Path | None, cache: Path) -> tuple[str, Path]:
    """What to look at, and where it is."""
    if path is not None:
        return str(path), path
    version = version or newest_published()
    return version, sources_of(version, cache)


def check(root: Path) -> list[Finding]:
    tree = SourceTree(root)
    if tree.module("vllm") is None:
        raise NothingToCheck(f"{root} holds no vllm/__init__.py")
    return findings(tree, read_table())


def report(found: Sequence[Finding]) -> list[str]:
    """One line per name, by the class that it belongs to."""
    lines: list[str] = []
    holder = ("", "")
    for item in found:
        if (item.use.module, item.use.owner) != holder:
            holder = (item.use.module, item.use.owner)
            lines += ["", f"{item.use.module} {item.use.owner}".rstrip()]
        line = f"  {item.status.value:8} {item.use.line()}"
        lines.append(f"{line}: {item.detail}" if item.detail else line)
    return lines


def summary(found: Sequence[Finding], name: str) -> str:
    counts = Counter(item.status for item in found)
    numbers = ", ".join(f"{counts[status]} {status.value}" for status in Status)
    text = f"\nvLLM {name}: {len(found)} names, {numbers}"
    if name[0].isdigit():
        where = "inside" if is_supported(name) else "outside"
        text += f"; {where} the supported range {SUPPORTED}"
    return text


def newest_published() -> str:
    say("asking the package index for the newest vLLM")
    answer = pip("install", "--dry-run", "--ignore-installed", "--report=-", "vllm")
    version: str = json.loads(answer)["install"][0]["metadata"]["version"]
    return version


def sources_of(version: str, cache: Path) -> Path:
    """A folder with the source files of that version."""
    folder = cache / f"vllm-{version}"
    if folder.is_dir():
        say(f"vLLM {version}: sources are in {folder}")
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        making = Path(name)
        say(f"vLLM {version}: downloading the wheel (several hundred MB, removed afterwards)")
        pip("download", "--only-binary=:all:", f"--dest={making}", f"vllm=={version}")
        (wheel,) = making.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            parts = wanted_parts()
            names = [name for name in archive.namelist() if is_wanted(name, parts)]
            archive.extractall(making / "new", names)
        # By one rename: an interrupted run leaves nothing that looks finished.
        shutil.move(making / "new", folder)
    say(f"vLLM {version}: {len(names)} source files are in {folder}")
    return folder


def wanted_parts() -> set[str]:
    """Of the package: where our names and their base classes are."""
    modules = [use.module.split(".")[:2] for use in read_table()]
    return {"vllm/__init__", *("/".join(parts) for parts in modules)}


def is_wanted(name: str, parts: set[str]) -> bool:
    return name.endswith(".py") and "/".join(name[:-3].split("/")[:2]) in parts


def pip(command: str, *arguments: str) -> str:
    argv = [sys.executable, "-m", "pip", command, "--no-deps", "--quiet", *arguments]
    run = subprocess.run(argv, capture_output=True, text=True, check=False)
    if run.returncode:
        last = (run.stderr.strip() or run.stdout.strip() or "no output").splitlines()[-1]
        raise NothingToCheck(f"`pip {command}` failed with exit code {run.returncode}: {last}")
    return run.stdout


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
