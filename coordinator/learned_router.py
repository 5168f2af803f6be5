"""The learned router: embeds the end of the prompt, asks the factors, says where it will go next.

Embedding takes milliseconds to seconds, so it runs in a thread of its own and within a limit.
Host: coordinator.routers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.off_loop import OffLoop
from coordinator.router_port import Choice, RouterFailed
from routing.choice import choose_step
from routing.embedders import Embedder, EmbedderFailed, open_embedder
from routing.router_file import TrainedRouter, read_router
from routing.step_vectors import step_vector
from routing.step_view import step_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from configs.schema import LearnedRouter
    from coordinator.router_port import SessionView


class LearnedChoices:
    """One trained pair."""

    def __init__(self, trained: TrainedRouter, embedder: Embedder, config: LearnedRouter) -> None:
        self._trained = trained
        self._embedder = embedder
        self._min_probability = config.min_probability
        self._off_loop = OffLoop("learned-router", config.timeout_s)

    async def choose(self, view: SessionView) -> Choice:
        try:
            logit = await self._off_loop.run(lambda: self._logit(view.prompt_json))
        except EmbedderFailed as error:
            raise RouterFailed(str(error)) from error
        header = self._trained.header
        chosen = choose_step(logit, self._min_probability, header.drift)
        small, large = header.models
        stays = chosen.next_small_probability
        return Choice(small if chosen.uses_small else large, {small: stays, large: 1 - stays})

    def _logit(self, prompt_json: bytes) -> float:
        return self._trained.logit(step_vector(step_view(prompt_json), self._embedder))


def learned_router(config: LearnedRouter, models: Sequence[str]) -> LearnedChoices:
    """Raises ValueError, naming the configuration's field."""
    try:
        trained = read_router(Path(config.path))
    except ValueError as error:
        raise ValueError(f"router.path: {error}") from error
    unknown = [model for model in trained.header.models if model not in models]
    if unknown:
        raise ValueError(
            f"router.path: {config.path} chooses between {list(trained.header.models)}, of which "
            f"{unknown} are no models of this configuration; known are {list(models)}"
        )
    try:
        embedder = open_embedder(
            trained.header.embedder, config.embedder_url, config.embedder_api_key, config.timeout_s
        )
    except ValueError as error:
        raise ValueError(f"router.embedder_url: {error}") from error
    return LearnedChoices(trained, embedder, config)
