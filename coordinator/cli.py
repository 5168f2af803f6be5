"""The commands around a cluster: up, down, status, logs, tune, config check, engine-args,
coordinator. Those that ask a running one are in coordinator.cli_sessions and coordinator.cli_chat.

Only translates between a terminal and coordinator.local_cluster; imports neither vLLM nor
torch."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from configs.load import ConfigError, effective_yaml, load_config
from configs.memory.plan import plan_memory
from coordinator import run_state
from coordinator.api_client import shape_of
from coordinator.cli_chat import app as chat_app
from coordinator.cli_options import Json, KeyFile, RunDir, Url, answered, client_of, complain
from coordinator.cli_sessions import app as sessions_app
from coordinator.cli_sessions import known_instances
from coordinator.cluster_tables import cluster_lines, instance_table
from coordinator.control_shapes import ClusterSummary, InstanceList
from coordinator.doctor.command import doctor
from coordinator.engine_control import INSTANCE_IN_PATH, changes_of, tune
from coordinator.exit_codes import ExitCode
from coordinator.log_tail import LOG_POLL_S, LogTail, log_files
from coordinator.own_version import own_version
from coordinator.progress import output_console, say, state_table
from coordinator.supervise import DOWN_TIMEOUT_S, end_cluster, run_detached, run_in_foreground
from engine.control import CHANGEABLE, ControlRefused
from engine.launch import LaunchError, engine_command

if TYPE_CHECKING:
    from configs.schema import ClusterConfig

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
config_app = typer.Typer(no_args_is_help=True, help="Look at configuration files.")
app.add_typer(config_app, name="config")
app.command("doctor")(doctor)
app.add_typer(sessions_app)
app.add_typer(chat_app)

ConfigFile = Annotated[Path, typer.Option("--config", help="Cluster configuration (YAML).")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    """Keep the next model of an agent session warm."""
    if show_version:
        typer.echo(f"shadowprefill {own_version()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def up(
    config: Annotated[Path, typer.Argument(help="Cluster configuration (YAML).")],
    run_dir: RunDir = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when it is ready and leave it running.")
    ] = False,
    start_timeout: Annotated[
        float, typer.Option(help="Seconds until everything has to answer.")
    ] = 300.0,
) -> None:
    """Start all instances of a configuration and the coordinator; Ctrl-C stops them."""
    _fitting(config)
    start = run_detached if detach else run_in_foreground
    raise typer.Exit(start(config, run_dir or run_state.default_run_dir(), start_timeout))


@app.command()
def down(run_dir: RunDir = None) -> None:
    """Stop the cluster that runs in the run directory, and wait until nothing of it is left."""
    where = run_dir or run_state.default_run_dir()
    if not run_state.is_owned(where):
        typer.echo(f"nothing is running in {where}")
        raise typer.Exit
    if not end_cluster(where):
        typer.echo(f"{where} is still in use after {DOWN_TIMEOUT_S:.0f} s", err=True)
        raise typer.Exit(1)
    typer.echo(f"stopped; logs are in {where / 'logs'}")


@app.command()
def status(
    run_dir: RunDir = None, url: Url = None, key_file: KeyFile = None, as_json: Json = False
) -> None:
    """Show the instances of the local cluster, or with --url those of any; exit code 0 if all of
    them are ready."""
    if url is not None and run_dir is None:
        is_ready = _remote_status(url, key_file, as_json)
    else:
        is_ready = _local_status(run_dir or run_state.default_run_dir(), as_json)
    raise typer.Exit(ExitCode.OK if is_ready else ExitCode.FAILED)


def _local_status(where: Path, as_json: bool) -> bool:
    state = run_state.read_state(where)
    if state is None:
        typer.echo(f"no cluster was started in {where}", err=as_json)
        return False
    running = run_state.is_owned(where) and state.supervised()
    if as_json:
        typer.echo(msgspec.json.encode({**msgspec.to_builtins(state), "running": running}))
    else:
        ended = state.status in ("stopped", "failed")
        word = state.status if running or ended else "ended unexpectedly"
        console = output_console()
        say(console, f"{state.config}: {word}, pid {state.supervisor_pid}")
        if state.error:
            say(console, state.error)
        console.print(state_table(state))
    return running and all(instance.status == "ready" for instance in state.instances.values())


def _remote_status(url: str, key_file: Path | None, as_json: bool) -> bool:
    with answered():
        client = client_of(url, key_file)
        whole, listed = client.get("/v1/cluster"), client.get("/v1/instances")
        cluster, instances = shape_of(ClusterSummary, whole), shape_of(InstanceList, listed)
    if as_json:
        both = {"cluster": msgspec.Raw(whole), "instances": msgspec.Raw(listed)}
        typer.echo(msgspec.json.encode(both))
    else:
        console = output_console()
        say(console, client.url)
        for line in cluster_lines(cluster):
            say(console, line)
        console.print(instance_table(instances))
    return cluster.ready and cluster.healthy_instances == cluster.instances


@app.command()
def logs(
    name: Annotated[
        str | None,
        typer.Argument(help="Of an instance; all if not given.", autocompletion=known_instances),
    ] = None,
    run_dir: RunDir = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the cluster has ended.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Of each, to begin with.")
    ] = 20,
) -> None:
    """Show what the instances of the local cluster have written."""
    where = run_dir or run_state.default_run_dir()
    files = log_files(where)
    if not files or (name is not None and name not in files):
        complain(
            f"no log of {name!r} in {where}; there are {sorted(files)}"
            if files
            else f"no cluster was started in {where}"
        )
        raise typer.Exit(ExitCode.NOT_FOUND)
    with closing(LogTail(files if name is None else {name: files[name]})) as tail:
        for line in tail.last(lines):
            typer.echo(line)
        while follow:
            # Asked before the last look, so that nothing a cluster said at its end is missed.
            is_over = not run_state.is_owned(where)
            for line in tail.news():
                typer.echo(line)
            if is_over:
                break
            time.sleep(LOG_POLL_S)


@app.command("tune")
def tune_engines(
    config: Annotated[Path, typer.Argument(help="Configuration of the running cluster (YAML).")],
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=VALUE...",
            help=f"Such as controller=off; fields are {', '.join(CHANGEABLE)}. "
            f"In trace_path, {INSTANCE_IN_PATH} stands for the instance's name.",
        ),
    ],
    instance: Annotated[
        list[str] | None, typer.Option(help="Only this one; may be given several times.")
    ] = None,
) -> None:
    """Change parameters of running engines; exit code 0 if all of them took it."""
    try:
        answers = tune(_checked(config), changes_of(changes), instance or ())
    except ControlRefused as error:
        typer.echo(f"nothing was sent: {error}", err=True)
        raise typer.Exit(2) from None
    for answer in answers:
        typer.echo(f"{answer.instance}: {answer.text}")
    raise typer.Exit(0 if all(answer.applied for answer in answers) else 1)


@config_app.command("check")
def check(file: Annotated[Path, typer.Argument(help="Cluster configuration (YAML).")]) -> None:
    """Print the effective configuration, or every error at once."""
    typer.echo(effective_yaml(_fitting(file)), nl=False)


@app.command("engine-args")
def engine_args(
    config: ConfigFile,
    instance: Annotated[str, typer.Option(help="Name of the instance in the configuration.")],
) -> None:
    """Print the command line of one engine, to start it by hand and attach it by URL."""
    try:
        command = engine_command(_checked(config), instance)
    except LaunchError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    typer.echo(command.shell_text())


@app.command()
def coordinator(config: ConfigFile) -> None:
    """Run the coordinator alone, in front of engines that run already."""
    _checked(config)
    argv = [sys.executable, "-m", "coordinator", "--config", str(config)]
    os.execve(sys.executable, argv, os.environ)


def _checked(file: Path) -> ClusterConfig:
    """Or the command ends with every error of the file."""
    try:
        return load_config(file)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def _fitting(file: Path) -> ClusterConfig:
    """And of what cannot fit the hardware, where that and the models are known."""
    config = _checked(file)
    problems = plan_memory(config).problems
    if problems:
        typer.echo("\n".join(f"{file}: {problem}" for problem in problems), err=True)
        raise typer.Exit(1)
    return config
