"""Which model serves the next call of a session that asked for `auto`.

A client that names a model gets it; a router is asked for `auto` only. A router that fails, is late
or names a model that does not exist never fails the call: the session stays on its current model
(at its first call: the first model of the configuration), counted and logged."""

from __future__ import annotations

import importlib
import json
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from configs.schema import (
    ExplicitRouter,
    HttpRouter,
    LearnedRouter,
    MarkovRouter,
    PythonRouter,
    RouterConfig,
    ScriptRouter,
)
from coordinator.connection import WireError
from coordinator.errors import ModelUnknown
from coordinator.learned_router import learned_router
from coordinator.off_loop import OffLoop
from coordinator.router_port import Choice, Router, RouterFailed, SessionView
from policy.hints import PROBABILITY_TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coordinator.wire import Wire

__all__ = ["Choice", "Router", "RouterFailed", "Routing", "SessionView", "build_router"]

AUTO: Final = "auto"
"""The virtual model name: the router decides."""

SELECTED_MODEL_HEADERS: Final = (b"x-vsr-selected-model", b"x-selected-model")
"""vLLM Semantic Router writes its choice into the first on answers and into the second on requests
to what is behind it. Either counts for `auto` before our own router."""

_Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]

_log = logging.getLogger(__name__)


class _Explicit:
    def __init__(self, models: Sequence[str]) -> None:
        self._first = models[0]

    async def choose(self, view: SessionView) -> Choice:
        return Choice(self._first)


class _Script:
    def __init__(self, script: Sequence[str]) -> None:
        self._script = script

    async def choose(self, view: SessionView) -> Choice:
        return Choice(self._script[(view.call - 1) % len(self._script)])


class _Markov:
    """The choice depends on (seed, session, call) alone, so a run can be repeated."""

    def __init__(self, config: MarkovRouter, models: Sequence[str]) -> None:
        self._config = config
        self._models = models

    async def choose(self, view: SessionView) -> Choice:
        # Not a secret, but a string seed is the same in every process, unlike hash().
        chance = random.Random(f"{self._config.seed}/{view.session_id}/{view.call}")
        current = view.current_model
        if current is None:
            return Choice(self._models[0])
        others = [model for model in self._models if model != current]
        if not others or chance.random() >= self._config.switch_probability:
            return Choice(current)
        return Choice(chance.choice(others))


class _Python:
    """A user's class: `choose(view, models)` gives a model's name or a Choice."""

    def __init__(self, config: PythonRouter, models: Sequence[str]) -> None:
        module, _, name = config.path.partition(":")
        self._path = config.path
        self._models = models
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"router.path: cannot load {config.path!r}: {error}") from error
        self._router = found(**config.options)
        if not callable(getattr(self._router, "choose", None)):
            raise ValueError(f"router.path: {config.path!r} has no method choose(view, models)")
        limit_s = config.timeout_s
        self._off_loop = None if limit_s is None else OffLoop("python-router", limit_s)

    async def choose(self, view: SessionView) -> Choice:
        try:
            if self._off_loop is None:
                found = self._router.choose(view, self._models)
            else:
                found = await self._off_loop.run(lambda: self._router.choose(view, self._models))
            return found if isinstance(found, Choice) else Choice(str(found))
        except RouterFailed:
            raise
        except Exception as error:  # a user's code: whatever it raises must not fail the call
            _log.exception("the router %s failed", self._path)
            raise RouterFailed(f"{self._path} raised {type(error).__name__}: {error}") from error


class _Http:
    """POSTs the view as JSON; the answer is `{"model": name}`, and `next_probabilities` if it knows
    them."""

    def __init__(self, config: HttpRouter, models: Sequence[str], wire: Wire) -> None:
        self._config = config
        self._models = models
        self._wire = wire

    async def choose(self, view: SessionView) -> Choice:
        question = {
            "session_id": view.session_id,
            "call": view.call,
            "current_model": view.current_model,
            "models": self._models,
            "prompt": msgspec.Raw(view.prompt_json),
        }
        limit_s = self._config.timeout_s
        try:
            reply = await self._wire.send(
                "POST", self._config.url, "", msgspec.json.encode(question), limit_s
            )
            try:
                answer = json.loads(await reply.read_all(limit_s))
            finally:
                reply.release()
        except TimeoutError:
            raise RouterFailed(f"{self._config.url} did not answer in {limit_s:g} s") from None
        except (WireError, ValueError) as error:
            raise RouterFailed(f"{self._config.url}: {error}") from error
        if reply.status != 200 or not isinstance(answer, dict):
            raise RouterFailed(f"{self._config.url} answered {reply.status}, not a choice")
        return Choice(str(answer.get("model")), answer.get("next_probabilities") or {})


@dataclass(slots=True, kw_only=True)
class Routing:
    """The configured router, and what happens around it."""

    models: Sequence[str]
    router: Router
    on_failure: Callable[[], None] = lambda: None

    def named(self, model: str, headers: Mapping[bytes, bytes]) -> str | None:
        """The model that the client (or a router in front of us) names; None: `auto`. Raises
        ModelUnknown."""
        if model == AUTO:
            selected = [headers[name] for name in SELECTED_MODEL_HEADERS if headers.get(name)]
            if not selected:
                return None
            model = selected[0].decode("latin-1")
        if model not in self.models:
            raise ModelUnknown(model, [*self.models, AUTO])
        return model

    async def choose(self, view: SessionView) -> Choice:
        """The router's model, or where the session stays."""
        try:
            choice = await self.router.choose(view)
            self._check(choice)
        except RouterFailed as error:
            choice = Choice(view.current_model or self.models[0])
            self.on_failure()
            _log.warning("router: %s; session %s stays on %s", error, view.session_id, choice.model)
        return choice

    def _check(self, choice: Choice) -> None:
        """Raises RouterFailed."""
        if choice.model not in self.models:
            raise RouterFailed(f"chose {choice.model!r}; known models are {list(self.models)}")
        try:
            said = msgspec.convert(choice.next_probabilities, dict[str, _Probability])
        except msgspec.ValidationError as error:
            raise RouterFailed(f"next_probabilities: {error}") from None
        if not set(said) <= set(self.models) or sum(said.values()) > 1 + PROBABILITY_TOLERANCE:
            raise RouterFailed(
                f"said {said} of the next call; they must be models of {list(self.models)} and sum "
                "to at most 1"
            )


def build_router(config: RouterConfig, models: Sequence[str], wire: Wire) -> Router:
    """Raises ValueError, naming the configuration's field."""
    match config:
        case ExplicitRouter():
            return _Explicit(models)
        case ScriptRouter():
            unknown = [model for model in config.models if model not in models]
            if unknown:
                raise ValueError(f"router.models: unknown {unknown}; known are {list(models)}")
            return _Script(config.models)
        case MarkovRouter():
            return _Markov(config, models)
        case PythonRouter():
            return _Python(config, models)
        case HttpRouter():
            return _Http(config, models, wire)
        case LearnedRouter():
            return learned_router(config, models)
