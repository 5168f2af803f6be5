"""`--scheduler-cls` of a prefill instance: shadow requests are computed in its slack."""

from __future__ import annotations

from engine.scheduler import ShadowScheduler
from policy.vocabulary import Role


class PrefillScheduler(ShadowScheduler):
    """Named on the command line; vLLM builds it inside the EngineCore process."""

    role = Role.PREFILL
