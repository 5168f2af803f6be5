"""`--scheduler-cls` of a decode instance: shadow requests are pulled while the link is idle."""

from __future__ import annotations

from engine.connector import PullScheduler
from policy.vocabulary import Role


class DecodeScheduler(PullScheduler):
    """Named on the command line; vLLM builds it inside the EngineCore process."""

    role = Role.DECODE
