"""What the commands that ask a coordinator share: whom, as whom, and how they end.

A key comes from a file or from the environment and never from an option: the command line of a
process is there for every user of the machine to read."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from configs.schema import CoordinatorConfig
from coordinator import run_state
from coordinator.api_client import ApiClient, ApiError, Unreachable, UrlInvalid, checked_url
from coordinator.plain_text import printable
from coordinator.progress import output_console, say

if TYPE_CHECKING:
    from collections.abc import Iterator

URL_VARIABLE: Final = "SHADOWPREFILL_URL"
KEY_VARIABLE: Final = "SHADOWPREFILL_API_KEY"

RunDir = Annotated[
    Path | None,
    typer.Option(
        help=f"Logs and state of the cluster; ${run_state.RUN_DIR_VARIABLE} or "
        f"{run_state.DEFAULT_RUN_DIR} if not given."
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        envvar=URL_VARIABLE,
        help="Of the coordinator; if not given, the cluster of the run directory, or port "
        f"{CoordinatorConfig().port} of this machine.",
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(help=f"A file that holds the API key; if not given, ${KEY_VARIABLE}."),
]
Json = Annotated[bool, typer.Option("--json", help="The API's own answer, for scripts.")]
AllTenants = Annotated[bool, typer.Option("--all-tenants", help="For operators.")]
Tenant = Annotated[
    str | None, typer.Option(help="Whose session it is, as --all-tenants shows it; for operators.")
]


def client_of(url: str | None, key_file: Path | None) -> ApiClient:
    """Raises typer.BadParameter."""
    try:
        chosen = checked_url(url or local_url())
    except UrlInvalid as error:
        raise typer.BadParameter(f"--url / {URL_VARIABLE} {error}") from None
    return ApiClient(chosen, _key(key_file))


def local_url() -> str:
    """Of the cluster that runs in the run directory, else where one would be by default."""
    where = run_state.default_run_dir()
    state = run_state.read_state(where) if run_state.is_owned(where) else None
    if state is not None and state.url is not None:
        return state.url
    default = CoordinatorConfig()
    return f"http://{default.host}:{default.port}"


@contextmanager
def answered() -> Iterator[None]:
    """What the API refuses, and nobody there, end the command with their message and code."""
    try:
        yield
    except ApiError as error:
        complain(str(error))
        if isinstance(error, Unreachable):
            complain(
                f"start a cluster with `shadowprefill up`, or say with --url or {URL_VARIABLE} "
                "where one is"
            )
        raise typer.Exit(error.exit_code) from None


def complain(text: str) -> None:
    say(output_console(stderr=True), printable(text))


def _key(file: Path | None) -> str | None:
    if file is None:
        where, key = KEY_VARIABLE, os.environ.get(KEY_VARIABLE, "").strip()
        if not key:
            return None
    else:
        where, key = f"--key-file {file}", _read(file).strip()
    if not key or not key.isascii() or not key.isprintable():
        raise typer.BadParameter(f"{where} must hold one line of ASCII: the key")
    return key


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--key-file {file} cannot be read: {error}") from None
