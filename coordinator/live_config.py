"""The configuration in force: the one of the start, with what was changed while it runs.

Changes live as long as the process; the file is the truth of the next start.
Hosts: coordinator.cluster_api, coordinator.config_api."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from configs import checks
from configs.messages import dotted, problems_of
from configs.schema import ClusterConfig
from coordinator.errors import BodyInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping


class LiveConfig:
    def __init__(self, config: ClusterConfig) -> None:
        self.current = config
        self.shadow_off: frozenset[str] = frozenset()
        """Models that are no targets of shadow jobs for now."""

    def with_shadow(self, changes: Mapping[str, object]) -> ClusterConfig:
        """As it would be after these changes of the section `shadow`. Raises BodyInvalid."""
        tree = self.current.model_dump(mode="json")
        tree["shadow"] |= changes
        return self._checked(tree, "shadow")

    def with_instance(self, name: str, instance: Mapping[str, object]) -> ClusterConfig:
        """As it would be with another instance. Raises BodyInvalid."""
        tree = self.current.model_dump(mode="json")
        tree["instances"][name] = dict(instance)
        return self._checked(tree, f"instances.{name}")

    def without_instance(self, name: str) -> ClusterConfig:
        instances = dict(self.current.instances)
        del instances[name]
        return self.current.model_copy(update={"instances": instances})

    def _checked(self, tree: dict[str, Any], section: str) -> ClusterConfig:
        try:
            config = ClusterConfig.model_validate_json(json.dumps(tree), strict=True)
        except ValidationError as error:
            problems = problems_of(error, ClusterConfig)
        else:
            problems = checks.check(checks.Parts.of(config))
            if not problems:
                return config
        text = "; ".join(f"{dotted(path)}: {problem}" for path, problem in problems)
        raise BodyInvalid(text, section)
