"""Folds by task, and what is learned across them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from routing.samples import Samples, SamplesInvalid, read_samples
from routing.step_view import step_view
from routing.training import Trained, drift_of, folds_by_task, train_router, vectors_of
from tests.routing.routing_rig import PAIR, WordEmbedder, a_row, planted_rows, write_jsonl

if TYPE_CHECKING:
    from pathlib import Path


def read(tmp_path: Path, rows: list[dict]) -> Samples:
    return read_samples([write_jsonl(tmp_path / "rows.jsonl", rows)], PAIR)


def trained(tmp_path: Path, rows: list[dict], folds: int = 3) -> Trained:
    samples = read(tmp_path, rows).rows
    embedder = WordEmbedder()
    vectors = vectors_of(samples, embedder)
    return train_router(samples, vectors, PAIR, embedder, folds=folds, seed=0)


@pytest.mark.parametrize("seed", range(5))
def test_no_task_is_in_two_folds_and_folds_are_of_like_size(seed: int) -> None:
    tasks = [f"t{at % 17}" for at in range(170)] + ["big"] * 40
    fold_of = folds_by_task(tasks, 3, seed)
    for task in set(tasks):
        assert len({fold for fold, other in zip(fold_of, tasks, strict=True) if other == task}) == 1
    assert np.bincount(fold_of).tolist() == [70, 70, 70]


def test_more_folds_than_tasks_are_refused() -> None:
    with pytest.raises(SamplesInvalid, match="3 folds need as many tasks, there are 2"):
        folds_by_task(["a", "b", "a"], 3, 0)


def test_a_planted_pattern_is_found_on_tasks_that_were_held_out(tmp_path: Path) -> None:
    found = trained(tmp_path, planted_rows())
    assert found.router.header.auc is not None
    assert found.router.header.auc > 0.85
    assert len(found.fold_aucs()) == 3


def test_what_only_tells_tasks_apart_is_worth_nothing_on_others(tmp_path: Path) -> None:
    """A leak between the folds would show here: within a task the label is always the same."""
    chance = np.random.default_rng(3)
    rows = []
    for task in range(60):
        small = float(chance.integers(0, 2))
        rows += [a_row(f"t{task}", call, f"word{task}", small, 1.0) for call in range(1, 11)]
    found = trained(tmp_path, rows)
    assert found.router.header.auc is not None
    assert found.router.header.auc < 0.65


def test_samples_of_one_answer_are_refused(tmp_path: Path) -> None:
    rows = [a_row(f"t{task}", 1, "read", 1.0, 1.0) for task in range(6)]
    with pytest.raises(SamplesInvalid, match="all 6 samples have the same answer"):
        trained(tmp_path, rows)


def test_the_ensemble_votes_by_the_mean_logit(tmp_path: Path) -> None:
    router = trained(tmp_path, planted_rows()).router
    embedder = WordEmbedder()
    sample = read(tmp_path, planted_rows(1, 1)).rows[0]
    vector = vectors_of([sample], embedder)[0]
    each = [float(fold.logits(vector)) for fold in router.folds]
    assert router.logit(vector) == pytest.approx(np.mean(each))


def test_drift_is_learned_from_calls_that_follow_each_other(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    rows, logits = [], []
    for task in range(80):
        logit = 0.0
        for call in range(1, 21):
            logit = 0.3 + 0.6 * logit + 0.5 * chance.normal()
            rows.append(a_row(f"t{task}", call, "read", 1.0, 1.0))
            logits.append(logit)
    order = chance.permutation(len(rows))
    samples = read(tmp_path, [rows[at] for at in order]).rows
    drift = drift_of(samples, np.array(logits)[order])
    assert (drift.start, drift.share, drift.spread) == pytest.approx((0.3, 0.6, 0.5), abs=0.05)


def test_without_sessions_the_next_step_is_any_of_them(tmp_path: Path) -> None:
    rows = [row | {"session_id": None} for row in planted_rows(4, 5)]
    logits = np.linspace(-1, 2, 20)
    drift = drift_of(read(tmp_path, rows).rows, logits)
    assert (drift.start, drift.share) == (pytest.approx(0.5), 0.0)
    assert drift.spread == pytest.approx(logits.std())


def test_steps_without_prompts_are_refused_by_an_embedder(tmp_path: Path) -> None:
    numbers = step_view(b'"hello"').numbers
    named = {name: getattr(numbers, name) for name in numbers.__slots__}
    row = a_row("t", 1, "read", 1.0, 1.0) | {"numbers": named}
    del row["prompt"]
    samples = read(tmp_path, [row]).rows
    with pytest.raises(SamplesInvalid, match=r"sample 1 .*no prompt to embed"):
        vectors_of(samples, WordEmbedder())
