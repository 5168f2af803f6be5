"""* DemoError        the demo cannot go on; it prints the message, stops everything and exits 1
- CallFailed       a call to the coordinator or to an engine failed or was refused
- ScriptInvalid    the configuration does not hold what the script needs"""

from __future__ import annotations


class DemoError(Exception):
    """The message names what failed and what was seen instead."""


class CallFailed(DemoError):
    pass


class ScriptInvalid(DemoError):
    pass
