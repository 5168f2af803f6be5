"""New parameters for engines that run: sends them, and reads what each engine made of them.

Host: coordinator.cli (`tune`), bench."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from configs.load import load_profile
from configs.strict_yaml import NotYaml, read_yaml
from engine.control import APPLIED, REFUSED, ControlRefused, control_xargs, each_checked
from engine.params import EngineParams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from configs.schema import ClusterConfig

TIMEOUT_S = 30.0
"""An engine answers when the iteration in progress ends."""
INSTANCE_IN_PATH = "{instance}"
# Never through a proxy of the environment: engines listen on this machine or nearby.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one instance."""

    instance: str
    applied: bool
    text: str


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    stop_reason: Any = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]


def changes_of(texts: Sequence[str]) -> dict[str, object]:
    """From `controller=off`: a field and a YAML value; raises ControlRefused."""
    changes: dict[str, object] = {}
    for text in texts:
        name, equals, value_text = text.partition("=")
        if not equals:
            raise ControlRefused(f"{text!r} must be FIELD=VALUE")
        try:
            value, problems = read_yaml(value_text)
        except NotYaml as error:
            raise ControlRefused(f"{text!r}: the value is not YAML: {error}") from None
        if problems:
            raise ControlRefused(f"{text!r}: {problems[0]}")
        changes[name.strip()] = "" if value is None else value
    return changes


def tune(
    config: ClusterConfig, changes: Mapping[str, object], names: Sequence[str] = ()
) -> list[Answer]:
    """Asks the named instances, or all. Raises ControlRefused before anything is sent."""
    names = tuple(names) or tuple(config.instances)
    for_each = {name: _changes_for(config, name, changes) for name in names}
    paths = [one["trace_path"] for one in for_each.values() if one.get("trace_path")]
    if len(set(paths)) < len(paths):
        raise ControlRefused(f"trace_path must contain {INSTANCE_IN_PATH} for several instances")
    with ThreadPoolExecutor(max_workers=len(names)) as pool:
        return list(pool.map(lambda name: _ask(config, name, for_each[name]), names))


def _changes_for(
    config: ClusterConfig, name: str, changes: Mapping[str, object]
) -> dict[str, object]:
    instance = config.instances.get(name)
    if instance is None:
        raise ControlRefused(f"no instance {name!r}; instances are {sorted(config.instances)}")
    own = dict(changes)
    path = own.get("trace_path")
    if isinstance(path, str) and path:
        # The engine has a working directory of its own.
        own["trace_path"] = str(Path(path.replace(INSTANCE_IN_PATH, name)).absolute())
    step_time = load_profile(config.profile).step_time_of(config.models[instance.model].dtype)
    each_checked(EngineParams.from_cluster(config, name, step_time), own)
    return own


def _ask(config: ClusterConfig, name: str, changes: Mapping[str, object]) -> Answer:
    instance = config.instances[name]
    body = {
        "model": instance.model,
        "prompt": [1],
        "max_tokens": 1,
        "vllm_xargs": control_xargs(name, changes, config.coordinator.engine_secret),
    }
    request = urllib.request.Request(
        instance.url + "/v1/completions",
        msgspec.json.encode(body),
        {"content-type": "application/json"},
    )
    try:
        with _DIRECT.open(request, timeout=TIMEOUT_S) as reply:
            return _read(name, reply.read())
    except urllib.error.HTTPError as error:
        return Answer(name, False, f"HTTP {error.code} {error.read(300).decode(errors='replace')}")
    except (OSError, http.client.HTTPException) as error:
        return Answer(name, False, str(getattr(error, "reason", error)) or type(error).__name__)


def _read(name: str, body: bytes) -> Answer:
    try:
        choice = msgspec.json.decode(body, type=_Reply).choices[0]
    except (msgspec.MsgspecError, IndexError) as error:
        return Answer(name, False, f"unreadable answer: {error}")
    text = str(choice.stop_reason)
    if text.startswith((APPLIED, REFUSED)):
        return Answer(name, text.startswith(APPLIED), text)
    return Answer(name, False, "took it for a completion: this engine has none of our schedulers")
