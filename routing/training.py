"""Cross-validation by task, and the router that comes of it.

No task is on both sides of a fold: its calls share most of their prompt, and a router that saw one
of them in training would look better than it is. The router that is kept is the ensemble of the
folds, as in the paper (Appendix D.2). Host: routing.cli."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from routing.bilinear import fit
from routing.figures import Outcomes, auc
from routing.router_file import Drift, Header, TrainedRouter
from routing.samples import SamplesInvalid
from routing.step_vectors import step_vector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from routing.bilinear import Array
    from routing.embedders import Embedder
    from routing.samples import Pair, Sample

MIN_SPREAD = 0.05
"""In logits: nobody knows the next call's logit better than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    router: TrainedRouter
    labels: Array
    held_out: Array
    """Logit of each sample, by the fold that did not see its task."""
    fold_of: NDArray[np.intp]

    def fold_aucs(self) -> list[float]:
        """Folds where one of the labels does not occur have none."""
        each = [
            auc(self.labels[self.fold_of == fold], self.held_out[self.fold_of == fold])
            for fold in range(len(self.router.folds))
        ]
        return [value for value in each if not np.isnan(value)]


def outcomes_of(samples: Sequence[Sample], prices: tuple[float, float]) -> Outcomes:
    """`prices`: of a token on the small and on the large model."""
    tokens = np.array([sample.tokens for sample in samples])
    return Outcomes(
        small_scores=np.array([sample.small_score for sample in samples]),
        large_scores=np.array([sample.large_score for sample in samples]),
        small_costs=tokens * prices[0],
        large_costs=tokens * prices[1],
    )


def vectors_of(
    samples: Sequence[Sample], embedder: Embedder, told: Callable[[int], None] = lambda done: None
) -> Array:
    """Raises EmbedderFailed, SamplesInvalid."""
    rows = []
    for at, sample in enumerate(samples):
        if embedder.spec.dimension and not sample.has_prompt:
            raise SamplesInvalid(
                f"sample {at + 1} (task {sample.task!r}) has no prompt to embed: write the call "
                "log with `prompts: true`, or train with `--embedder none`"
            )
        rows.append(step_vector(sample.view, embedder))
        told(at + 1)
    return np.stack(rows)


def train_router(
    samples: Sequence[Sample],
    vectors: Array,
    pair: Pair,
    embedder: Embedder,
    *,
    folds: int,
    seed: int,
) -> Trained:
    """Raises SamplesInvalid."""
    fold_of = folds_by_task([sample.task for sample in samples], folds, seed)
    labels = outcomes_of(samples, (1.0, 1.0)).small_suffices
    if labels.min() == labels.max():
        raise SamplesInvalid(
            f"all {len(samples)} samples have the same answer: there is nothing to learn"
        )
    fitted = []
    held_out = np.empty(len(samples))
    for fold in range(folds):
        out = fold_of == fold
        one = fit(vectors[~out], labels[~out], seed + fold)
        held_out[out] = one.logits(vectors[out])
        fitted.append(one)
    whole = auc(labels, held_out)
    header = Header(
        models=pair,
        embedder=embedder.spec,
        drift=drift_of(samples, held_out),
        samples=len(samples),
        tasks=len({sample.task for sample in samples}),
        seed=seed,
        auc=None if np.isnan(whole) else whole,
    )
    router = TrainedRouter(header=header, folds=tuple(fitted))
    return Trained(router=router, labels=labels, held_out=held_out, fold_of=fold_of)


def folds_by_task(tasks: Sequence[str], folds: int, seed: int) -> NDArray[np.intp]:
    """The fold that each sample is held out in. The largest task goes first, each to the fold that
    holds the fewest samples."""
    sizes = Counter(tasks)
    if len(sizes) < folds:
        raise SamplesInvalid(f"{folds} folds need as many tasks, there are {len(sizes)}")
    names = sorted(sizes)
    np.random.default_rng(seed).shuffle(names)
    names.sort(key=lambda name: -sizes[name])
    held = [0] * folds
    fold_of: dict[str, int] = {}
    for name in names:
        fold = held.index(min(held))
        fold_of[name] = fold
        held[fold] += sizes[name]
    return np.array([fold_of[task] for task in tasks])


def drift_of(samples: Sequence[Sample], logits: Array) -> Drift:
    """From calls that follow each other in a session; without any, the next step is a draw from
    all of them."""
    order = sorted(
        range(len(samples)), key=lambda at: (samples[at].session or "", samples[at].call)
    )
    follows = [
        (one, two)
        for one, two in pairwise(order)
        if samples[one].session is not None
        and samples[one].session == samples[two].session
        and samples[one].call + 1 == samples[two].call
    ]
    now = np.array([logits[one] for one, _ in follows])
    then = np.array([logits[two] for _, two in follows])
    if len(follows) < 3 or now.std() == 0:
        return Drift(float(logits.mean()), 0.0, max(float(logits.std()), MIN_SPREAD))
    share = float(np.mean((now - now.mean()) * (then - then.mean())) / now.var())
    start = float(then.mean() - share * now.mean())
    return Drift(start, share, max(float((then - start - share * now).std()), MIN_SPREAD))
