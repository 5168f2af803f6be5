"""`shadowprefill plan split`, `plan links` and `plan memory`: the options, and what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from bench.study.command import (
    AsJson,
    ResultDir,
    Workers,
    errors_console,
    output_console,
    print_json,
)

if TYPE_CHECKING:
    from bench.plan.inputs import Question
    from bench.plan.links import LinkPlan
    from bench.plan.split import SplitPlan, SplitPoint

DEFAULT_DIR = Path("out/plan")

Models = Annotated[str, typer.Option(help="Names of the table of architectures, with commas.")]
Trace = Annotated[
    str,
    typer.Option(help="conversation or code (Azure 2024), or FORMAT:FILE, such as azure:x.csv."),
]
Gpus = Annotated[int, typer.Option(min=2, max=512, help="H100s for each model.")]
Rho = Annotated[float, typer.Option(min=0.05, max=1.5, help="Normal load, a share of capacity.")]
Benchmark = Annotated[str, typer.Option(help="Kind of sessions that a router sends around.")]
PerS = Annotated[float, typer.Option("--sessions-per-s", min=0.0001, max=100.0)]
Measured = Annotated[float, typer.Option("--measured-s", min=10, help="Seconds after warm-up.")]
Seeds = Annotated[int, typer.Option(min=1, max=100, help="Runs of each point.")]


def split(
    models: Models,
    gpus: Gpus,
    trace: Trace = "conversation",
    rho: Rho = 0.7,
    benchmark: Benchmark = "FusionBench",
    sessions_per_s: PerS = 0.2,
    measured_s: Measured = 300.0,
    seeds: Seeds = 1,
    result_dir: ResultDir = DEFAULT_DIR,
    workers: Workers = 1,
    as_json: AsJson = False,
) -> None:
    """The best split of each model's GPUs into prefill and decode, with and without shadow."""
    # Here, because no other `shadowprefill` command needs numpy or matplotlib.
    from bench.plan.pictures import write_split
    from bench.plan.split import plan_split
    from bench.study.jobs import Folder

    question = _question(models, gpus, trace, rho, benchmark, sessions_per_s, measured_s, seeds)
    plan = plan_split(question, Folder(result_dir / "cells"), workers, errors_console())
    picture = result_dir / "split.png"
    write_split(plan, f"{gpus} H100s per model, {_setting(question)}", picture)
    if as_json:
        print_json(plan.to_json())
        return
    console = output_console()
    console.print(_split_table(plan, question))
    console.print(f"picture: {picture}", soft_wrap=True)


def links(
    models: Models,
    gpus: Gpus,
    decode: Annotated[int, typer.Option(min=1, help="Decode instances of each model.")] = 1,
    trace: Trace = "conversation",
    rho: Rho = 0.7,
    benchmark: Benchmark = "FusionBench",
    sessions_per_s: PerS = 0.2,
    measured_s: Measured = 300.0,
    seeds: Seeds = 1,
    result_dir: ResultDir = DEFAULT_DIR,
    workers: Workers = 1,
    as_json: AsJson = False,
) -> None:
    """How much KV bandwidth is enough: 10 to 160 GB/s per GPU at the same load."""
    from bench.plan.links import plan_links
    from bench.plan.pictures import write_links
    from bench.study.jobs import Folder

    question = _question(models, gpus, trace, rho, benchmark, sessions_per_s, measured_s, seeds)
    for model in question.models:
        if decode >= question.instances(model):
            typer.echo(
                f"--decode: {model} has {question.instances(model)} instances on {gpus} GPUs; at "
                f"least one must prefill, got {decode} that decode",
                err=True,
            )
            raise typer.Exit(2)
    plan = plan_links(question, decode, Folder(result_dir / "cells"), workers, errors_console())
    picture = result_dir / "links.png"
    write_links(plan, f"{gpus} H100s per model, {_setting(question)}", picture)
    if as_json:
        print_json(plan.to_json())
        return
    console = output_console()
    console.print(_links_table(plan))
    console.print(f"picture: {picture}", soft_wrap=True)


def memory(
    file: Annotated[Path, typer.Argument(help="Cluster configuration (YAML).")],
    as_json: AsJson = False,
) -> None:
    """Weights, KV pool, shadow cap and host tier of every instance; exit code 1 if one cannot
    fit."""
    from bench.plan.memory import memory_json, memory_table
    from configs.load import ConfigError, load_config
    from configs.memory.plan import plan_memory

    try:
        config = load_config(file)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    plan = plan_memory(config)
    if as_json:
        print_json(memory_json(plan))
    else:
        console = output_console()
        console.print(memory_table(config, plan))
        for host, size_bytes in plan.host_tier_bytes().items():
            if size_bytes:
                console.print(f"host memory for KV on {host}: {size_bytes / 1e9:.0f} GB")
        for one in plan.unknown:
            console.print(f"instances.{one.instance}: not planned: {one.why}", soft_wrap=True)
    for problem in plan.problems:
        typer.echo(f"{file}: {problem}", err=True)
    raise typer.Exit(1 if plan.problems else 0)


def _question(
    models: str,
    gpus: int,
    trace: str,
    rho: float,
    benchmark: str,
    sessions_per_s: float,
    measured_s: float,
    seeds: int,
) -> Question:
    """Or the command ends with what is wrong with it."""
    from bench.plan.inputs import PlanRefused, Question, traffic_of
    from bench.sim.hardware import LatencyMode
    from bench.workloads.trace import TraceInvalid

    try:
        return Question(
            models=tuple(name.strip() for name in models.split(",") if name.strip()),
            traffic=traffic_of(trace),
            gpus=gpus,
            rho=rho,
            benchmark=benchmark,
            sessions_per_s=sessions_per_s,
            latency=LatencyMode.VLLM_TESTBED,
            measured_s=measured_s,
            seeds=seeds,
        )
    except (PlanRefused, TraceInvalid) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


def _setting(question: Question) -> str:
    return f"load {question.rho:g} of capacity, peak hour, H100 as {question.latency}"


def _split_table(plan: SplitPlan, question: Question) -> Table:
    from bench.plan.split import WITH, WITHOUT

    table = Table(title=f"P:D split, {_setting(question)}", title_justify="left")
    for name in ("model", "split", "capacity 1/s", "call s, no shadow", "call s, harvest-slo"):
        table.add_column(name, justify="left" if name in ("model", "split") else "right")
    table.add_column("best")
    for model in question.models:
        for point in plan.of(model):
            table.add_row(
                model, point.name, f"{point.capacity_per_s:.1f}",
                _call(point, WITHOUT), _call(point, WITH), _best(plan, point),
            )  # fmt: skip
        table.add_section()
    return table


def _call(point: SplitPoint, approach: str) -> str:
    if approach not in point.call_s:
        return "-"
    return f"{point.call_s[approach].mean:.3f} ({point.attained_pct[approach].mean:.1f}% in SLO)"


def _best(plan: SplitPlan, point: SplitPoint) -> str:
    from bench.plan.split import WITH, WITHOUT

    told = ["capacity"] if plan.best_capacity(point.model) is point else []
    told += [
        f"calls, {name}" for name in (WITHOUT, WITH) if plan.best_calls(point.model, name) is point
    ]
    return ", ".join(told)


def _links_table(plan: LinkPlan) -> Table:
    from bench.plan.links import NAMES

    table = Table(title="KV link, GB/s per GPU", title_justify="left")
    table.add_column("GB/s", justify="right")
    for name in NAMES:
        for column in ("call s", "in SLO", "link busy"):
            table.add_column(f"{name}\n{column}", justify="right")
    for point in plan.points:
        cells = [f"{point.gb_per_s:g}"]
        for name in NAMES:
            if name in point.call_s:
                cells += [
                    f"{point.call_s[name].mean:.3f}",
                    f"{point.attained_pct[name].mean:.1f}%",
                    f"{point.busy_pct[name].mean:.1f}%",
                ]
            else:
                cells += ["-", "-", "-"]
        table.add_row(*cells)
    enough = [
        f"{name}: {limit:g}" for name in NAMES if (limit := plan.limit_gb_per_s(name)) is not None
    ]
    table.caption = f"enough (no loss against the fastest): {', '.join(enough)} GB/s"
    return table


app = typer.Typer(no_args_is_help=True, help="Ask before a cluster is bought or split again.")
app.command("split")(split)
app.command("links")(links)
app.command("memory")(memory)
