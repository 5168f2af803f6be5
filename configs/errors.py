"""The one error of this room: the file is wrong, and here is everything that is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ConfigError(ValueError):
    """A cluster configuration that cannot be used; change the file.

    Each problem reads `FILE: YAML.PATH: what is wrong, the limit, the value`."""

    def __init__(self, problems: Sequence[str]) -> None:
        assert problems
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
