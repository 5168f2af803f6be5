"""* LiveError           the run cannot go on; everything is stopped, finished cells are kept
- EngineUnwilling     an engine did not take the controller or kept its cache: look at its log"""

from __future__ import annotations


class LiveError(Exception):
    """The message names what failed and what was seen instead."""


class EngineUnwilling(LiveError):
    pass
