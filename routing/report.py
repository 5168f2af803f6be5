"""The figures of a cross-validation as a table or as JSON. Host: routing.cli."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from routing.bilinear import sigmoid
from routing.figures import auc, policy_rows
from routing.training import outcomes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from routing.samples import Sample
    from routing.training import Trained


def report(
    trained: Trained,
    samples: Sequence[Sample],
    prices: tuple[float, float],
    min_probability: float,
) -> dict[str, Any]:
    """Of predictions for tasks that were held out, and nothing else."""
    uses_large = sigmoid(trained.held_out) < min_probability
    rows = policy_rows(outcomes_of(samples, prices), uses_large)
    fold_aucs = trained.fold_aucs()
    header = trained.router.header
    return {
        "small": header.models[0],
        "large": header.models[1],
        "samples": header.samples,
        "tasks": header.tasks,
        "folds": len(trained.router.folds),
        "small_suffices_share": float(trained.labels.mean()),
        "auc": auc(trained.labels, trained.held_out) if header.auc is not None else None,
        "fold_aucs": fold_aucs,
        "min_probability": min_probability,
        "policies": [asdict(row) | {"accuracy_per_cost": row.accuracy_per_cost} for row in rows],
    }


def table_of(figures: dict[str, Any]) -> Table:
    title = (
        f"{figures['small']} or {figures['large']}: {figures['samples']} samples of "
        f"{figures['tasks']} tasks, {figures['folds']} folds by task"
    )
    table = Table(title=title, caption=_caption(figures), title_justify="left")
    table.add_column("policy")
    for name in ("accuracy", "cost", "accuracy per cost", "large model"):
        table.add_column(name, justify="right")
    for row in figures["policies"]:
        table.add_row(
            row["policy"],
            f"{row['accuracy']:.1%}",
            f"{row['cost_share']:.3f}",
            f"{row['accuracy_per_cost']:.3f}",
            f"{row['large_share']:.1%}",
        )
    return table


def _caption(figures: dict[str, Any]) -> str:
    folds = ", ".join(f"{value:.3f}" for value in figures["fold_aucs"])
    whole = "none" if figures["auc"] is None else f"{figures['auc']:.3f}"
    return (
        f"AUC of held-out tasks {whole} (folds: {folds}); the small model suffices for "
        f"{figures['small_suffices_share']:.1%}; cost 1 = always large; small model from "
        f"{figures['min_probability']:g} on"
    )
