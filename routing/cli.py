"""`shadowprefill router train|eval`: steps with known scores in, figures and a router file out."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from routing.embedders import EmbedderFailed, EmbedderSpec, open_embedder
from routing.minilm import EmbedderUnavailable
from routing.report import report, table_of
from routing.router_file import write_router
from routing.samples import SamplesInvalid, read_samples
from routing.training import train_router, vectors_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from routing.embedders import Embedder
    from routing.training import Trained

EMBED_TIMEOUT_S = 60.0

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
router_app = typer.Typer(no_args_is_help=True, help="Train a router on calls with known scores.")
app.add_typer(router_app, name="router")

Data = Annotated[
    list[Path], typer.Argument(help="Logged calls or score matrices: .jsonl, .json, .csv.")
]
PairText = Annotated[str, typer.Option("--pair", help="Its two models: SMALL,LARGE.")]
ScoresFile = Annotated[
    Path | None, typer.Option("--scores", help="JSONL: session_id, call, scores of a call log.")
]
EmbedderName = Annotated[
    str, typer.Option("--embedder", help="minilm, none, or the URL of an embeddings API (.../v1).")
]
EmbedderModel = Annotated[str, typer.Option(help="Model of that API.")]
ApiKey = Annotated[
    str | None,
    typer.Option(envvar="SHADOWPREFILL_EMBEDDER_API_KEY", help="Key of that API."),
]
Folds = Annotated[int, typer.Option(min=2, max=100, help="No task is in two of them.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the folds and of the first factors.")]
Prices = Annotated[str, typer.Option(help="Of a token on SMALL,LARGE; their ratio counts.")]
MinProbability = Annotated[
    float, typer.Option(min=0, max=1, help="Of the small model doing as well, to be chosen.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Figures as JSON.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Study:
    data: list[Path]
    pair: str
    scores: Path | None
    embedder: str
    embedder_model: str
    embedder_api_key: str | None
    folds: int
    seed: int
    prices: str
    min_probability: float
    as_json: bool


@router_app.command("eval")
def evaluate(
    data: Data,
    pair: PairText,
    scores: ScoresFile = None,
    embedder: EmbedderName = "minilm",
    embedder_model: EmbedderModel = "",
    embedder_api_key: ApiKey = None,
    folds: Folds = 3,
    seed: Seed = 0,
    prices: Prices = "1,1",
    min_probability: MinProbability = 0.5,
    as_json: AsJson = False,
) -> None:
    """Cross-validate by task: AUC, accuracy and cost beside always small, always large, random and
    an oracle."""
    _run(
        _Study(
            data=data,
            pair=pair,
            scores=scores,
            embedder=embedder,
            embedder_model=embedder_model,
            embedder_api_key=embedder_api_key,
            folds=folds,
            seed=seed,
            prices=prices,
            min_probability=min_probability,
            as_json=as_json,
        )
    )


@router_app.command()
def train(
    data: Data,
    pair: PairText,
    out: Annotated[Path, typer.Option(help="The router file (.npz).")],
    scores: ScoresFile = None,
    embedder: EmbedderName = "minilm",
    embedder_model: EmbedderModel = "",
    embedder_api_key: ApiKey = None,
    folds: Folds = 3,
    seed: Seed = 0,
    prices: Prices = "1,1",
    min_probability: MinProbability = 0.5,
    as_json: AsJson = False,
) -> None:
    """The same, and keep the ensemble of the folds in a file for `router: {kind: learned}`."""
    study = _Study(
        data=data,
        pair=pair,
        scores=scores,
        embedder=embedder,
        embedder_model=embedder_model,
        embedder_api_key=embedder_api_key,
        folds=folds,
        seed=seed,
        prices=prices,
        min_probability=min_probability,
        as_json=as_json,
    )
    trained = _run(study)
    try:
        write_router(out, trained.router)
    except OSError as error:
        typer.echo(f"{out}: cannot be written: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"wrote {out}", err=True)


def _run(study: _Study) -> Trained:
    """Prints the figures."""
    with _told():
        pair, prices = _pair(study.pair), _prices(study.prices)
        read = read_samples(study.data, pair, study.scores)
        if read.unscored:
            typer.echo(f"{read.unscored} rows have no scores of both models: left out", err=True)
        embedder = _embedder(study)
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("embedding", total=len(read.rows))
            vectors = vectors_of(
                read.rows, embedder, lambda done: progress.update(task, completed=done)
            )
        trained = train_router(
            read.rows, vectors, pair, embedder, folds=study.folds, seed=study.seed
        )
    figures = report(trained, read.rows, prices, study.min_probability)
    if study.as_json:
        typer.echo(json.dumps(figures, indent=1))
    else:
        Console().print(table_of(figures))
    return trained


def _embedder(study: _Study) -> Embedder:
    name = study.embedder
    if name in ("none", "minilm"):
        spec = EmbedderSpec(name)  # type: ignore[arg-type]  # one of the two
        return open_embedder(spec, None, None, EMBED_TIMEOUT_S)
    if not name.startswith(("http://", "https://")):
        raise EmbedderUnavailable(f"--embedder must be minilm, none or a URL, got {name!r}")
    if not study.embedder_model:
        raise EmbedderUnavailable("--embedder-model is missing: which model of the API?")
    spec = EmbedderSpec("http", study.embedder_model)
    return open_embedder(spec, name.rstrip("/"), study.embedder_api_key, EMBED_TIMEOUT_S)


def _pair(text: str) -> tuple[str, str]:
    small, _, large = text.partition(",")
    if not small or not large or small == large or "," in large:
        raise SamplesInvalid(f"--pair must be two models, SMALL,LARGE, got {text!r}")
    return small, large


def _prices(text: str) -> tuple[float, float]:
    try:
        small, large = (float(part) for part in text.split(","))
    except ValueError:
        small = large = 0.0
    if not 0 < small < float("inf") or not 0 < large < float("inf"):
        raise SamplesInvalid(f"--prices must be two numbers > 0, SMALL,LARGE, got {text!r}")
    return small, large


@contextmanager
def _told() -> Iterator[None]:
    """What is wrong with the input ends the command without a traceback."""
    try:
        yield
    except (SamplesInvalid, EmbedderUnavailable, EmbedderFailed) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
