"""`shadowprefill router train|eval`, as it is typed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from routing.cli import app
from routing.router_file import read_router
from tests.routing.routing_rig import planted_rows, write_jsonl

if TYPE_CHECKING:
    from pathlib import Path

RUN = CliRunner()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Without texts that an embedder would be needed for: length gives the answer away."""
    rows = planted_rows(9, 6)
    for row in rows:
        hard = "prove" in row["prompt"][0]["content"]
        row["prompt"] = "word " * (500 if hard else 5)
    return write_jsonl(tmp_path / "rows.jsonl", rows)


def test_eval_prints_the_figures_and_train_keeps_the_router(rows: Path, tmp_path: Path) -> None:
    options = [str(rows), "--pair", "small,large", "--embedder", "none", "--prices", "1,4"]
    shown = RUN.invoke(app, ["router", "eval", *options, "--json"])
    assert shown.exit_code == 0, shown.output
    figures = json.loads(shown.stdout)
    assert figures["auc"] > 0.85
    assert [row["policy"] for row in figures["policies"]] == [
        *("always small", "always large", "random", "learned", "oracle")
    ]
    small, large, random, learned, oracle = figures["policies"]
    assert small["cost_share"] == pytest.approx(0.25)
    assert large["accuracy"] == 1.0
    assert random["accuracy"] < learned["accuracy"] <= oracle["accuracy"]
    assert learned["large_share"] == pytest.approx(random["large_share"])

    out = tmp_path / "router.npz"
    trained = RUN.invoke(app, ["router", "train", *options, "--out", str(out)])
    assert trained.exit_code == 0, trained.output
    assert "accuracy per cost" in trained.stdout
    assert read_router(out).header.auc == pytest.approx(figures["auc"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pair", "small"], "--pair must be two models, SMALL,LARGE, got 'small'"),
        (["--pair", "small,small"], "--pair must be two models"),
        (["--pair", "small,large", "--prices", "1,0"], "--prices must be two numbers > 0"),
        (["--pair", "small,huge"], "has scores of both 'small' and 'huge'"),
        (["--pair", "small,large", "--folds", "50"], "50 folds need as many tasks, there are 9"),
        (["--pair", "small,large", "--embedder", "magic"], "--embedder must be minilm, none or a"),
        (["--pair", "small,large", "--embedder", "http://h/v1"], "--embedder-model is missing"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(
    rows: Path, options: list[str], message: str
) -> None:
    shown = RUN.invoke(app, ["router", "eval", str(rows), "--embedder", "none", *options])
    assert shown.exit_code == 1
    assert message in shown.stderr
    assert "Traceback" not in shown.output
