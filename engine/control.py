"""Parameters of a running engine change by a control request: a marked ordinary completion.

The scheduler runs in vLLM's EngineCore process, which no side API reaches, so a change travels as
every mark does (engine.marks): `vllm_xargs` with a JSON object of a version, the instance that is
meant and the fields to change. An engine of another name refuses: two clusters of one machine have
the same ports, one after the other. It is answered at once, without computing anything, and takes
effect between two steps. All of it or nothing: the new parameters are built and checked as those
of the command line are.

Imports neither vLLM nor torch: the coordinator writes what the plug-in reads.

* ControlRefused     nothing was changed; the text names field, value and limit

Hosts: engine.visible, coordinator.engine_control."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from engine.marks import SECRET_KEY, carries_secret
from engine.params import EngineParams, EngineParamsInvalid
from policy.vocabulary import Controller, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTROL_KEY = "shadowprefill_control"
CONTROL_VERSION = 1
APPLIED = "control_applied"
REFUSED = "control_refused"
CHANGEABLE = (
    "controller",
    "beta",
    "delta",
    "margin",
    "n_min_tokens",
    "iteration_cap_s",
    "max_chunk_tokens",
    "kv_cap_share",
    "idle_age_s",
    "trace_path",
)
"""Fields of EngineParams. The others decide how an engine is built: start it again with them."""
_OF_COMPUTING = frozenset(CHANGEABLE) - {"controller", "kv_cap_share", "idle_age_s", "trace_path"}
"""Without effect where no shadow tokens are computed. Taken and kept all the same: one change is
for all instances of a cluster, and each says what it made of it."""
_RULES = {
    "controller": f"must be one of {[controller.value for controller in Controller]}",
    "n_min_tokens": "must be an integer >= 1 or 'auto'",
    "trace_path": "must be an absolute path that ends in .jsonl, or empty",
}
_FIELD = re.compile(r" - at `\$\.(\w+).*`$")


class ControlRefused(ValueError):
    """A change that we cannot make: nothing was changed."""


def control_xargs(instance: str, changes: Mapping[str, object], secret: str = "") -> dict[str, str]:
    """The `vllm_xargs` of a request that asks `instance` for these changes."""
    meant = {"version": CONTROL_VERSION, "instance": instance}
    message = msgspec.json.encode(meant | dict(changes)).decode()
    return {CONTROL_KEY: message, **({SECRET_KEY: secret} if secret else {})}


def is_control(xargs: Mapping[str, Any] | None) -> bool:
    return xargs is not None and CONTROL_KEY in xargs


def changed_params(params: EngineParams, xargs: Mapping[str, Any]) -> EngineParams:
    """The parameters after a control request; raises ControlRefused."""
    if not carries_secret(xargs, params.secret):
        raise ControlRefused(f"{SECRET_KEY} does not match this engine's shared secret")
    message = _read(xargs[CONTROL_KEY])
    meant = message.pop("instance", None)
    if meant != params.instance:
        raise ControlRefused(
            f"this engine is instance {params.instance!r}, the change is for {meant!r}"
        )
    return with_changes(params, message)


def with_changes(params: EngineParams, changes: Mapping[str, object]) -> EngineParams:
    """Raises ControlRefused."""
    changed = each_checked(params, changes)
    try:
        changed.slack_params()
    except ValueError as error:
        raise ControlRefused(str(error)) from None
    return changed


def each_checked(params: EngineParams, changes: Mapping[str, object]) -> EngineParams:
    """Each field by itself; what must fit together, only the engine knows, which may have been
    changed before. Raises ControlRefused."""
    unknown = sorted(changes.keys() - set(CHANGEABLE))
    if unknown:
        raise ControlRefused(f"{unknown} cannot be changed; what can is {list(CHANGEABLE)}")
    try:
        return EngineParams.from_object(params.to_object() | dict(changes))
    except EngineParamsInvalid as error:
        raise ControlRefused(_limit_text(error, changes)) from None


def applied_text(params: EngineParams, before: EngineParams) -> str:
    """The answer to a control request that was carried out."""
    changed = differences(params, before)
    idle = [name for name in changed if params.role is Role.DECODE and name in _OF_COMPUTING]
    return f"{APPLIED}: without effect on a decode instance: {', '.join(idle)}" if idle else APPLIED


def refused_text(error: ControlRefused) -> str:
    return f"{REFUSED}: {error}; nothing was changed"


def differences(params: EngineParams, before: EngineParams) -> dict[str, Any]:
    """The fields that a change has changed, with their new values."""
    new, old = params.to_object(), before.to_object()
    return {name: new[name] for name in CHANGEABLE if new[name] != old[name]}


def _read(message: object) -> dict[str, object]:
    if not isinstance(message, str):
        raise ControlRefused(f"{CONTROL_KEY} must be JSON in a string, got {message!r}")
    try:
        read = msgspec.json.decode(message, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ControlRefused(f"{CONTROL_KEY}: {error}") from None
    version = read.pop("version", None)
    if type(version) is not int or version != CONTROL_VERSION:
        raise ControlRefused(f"version must be {CONTROL_VERSION}, got {version!r}")
    return read


def _limit_text(error: EngineParamsInvalid, changes: Mapping[str, object]) -> str:
    text = str(error).partition(": ")[2]
    found = _FIELD.search(text)
    if found is None or found[1] not in changes:
        return text
    name = found[1]
    limit = text[: found.start()].partition(", got")[0].replace("Expected", "must be")
    return f"{name} {_RULES.get(name, limit)}, got {changes[name]!r}"
