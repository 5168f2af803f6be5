"""The commands about sessions and instances of a running coordinator: sessions, session, quote,
drain. Only translate between a terminal and the control API."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from coordinator import run_state
from coordinator.api_client import ApiClient, ApiError, in_path, shape_of
from coordinator.cli_options import (
    AllTenants,
    Json,
    KeyFile,
    Tenant,
    Url,
    answered,
    client_of,
    complain,
)
from coordinator.control_shapes import InstanceRow, SessionDetail, SessionList, SessionQuote
from coordinator.exit_codes import ExitCode
from coordinator.progress import output_console, say
from coordinator.session_tables import (
    Room,
    call_table,
    headlines,
    quote_table,
    session_tables,
    shadow_table,
    warmth_table,
)

app = typer.Typer()
_POLL_S: Final = 0.5


def _known_sessions(prefix: str) -> list[str]:
    """For the shell's completion: nothing to say is as good as an error."""
    try:
        answer = client_of(None, None).get("/v1/sessions", {"limit": 100})
        rows = shape_of(SessionList, answer).data
    except (ApiError, typer.BadParameter):
        return []
    return [row.session_id for row in rows if row.session_id.startswith(prefix)]


def known_instances(prefix: str) -> list[str]:
    """Of the local cluster, for the shell's completion."""
    state = run_state.read_state(run_state.default_run_dir())
    return [name for name in (state.instances if state else ()) if name.startswith(prefix)]


SessionId = Annotated[
    str, typer.Argument(metavar="ID", help="Of the session.", autocompletion=_known_sessions)
]


@app.command()
def sessions(
    url: Url = None,
    key_file: KeyFile = None,
    all_tenants: AllTenants = False,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 50,
    offset: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Json = False,
) -> None:
    """List sessions, the most recently used first, with how warm each model is for them."""
    asked = {"limit": limit, "offset": offset, "all_tenants": all_tenants}
    with answered():
        answer = client_of(url, key_file).get("/v1/sessions", asked)
        page = shape_of(SessionList, answer)
    if as_json:
        typer.echo(answer)
        return
    console = output_console()
    for table in session_tables(page.data, by_tenant=all_tenants):
        console.print(table)
    if not page.data:
        whose = "" if all_tenants else " of this key; --all-tenants shows everybody's"
        say(console, f"no sessions{whose}")
    elif len(page.data) < page.total:
        say(console, f"{offset + 1:,} to {offset + len(page.data):,} of {page.total:,} sessions")


@app.command()
def session(
    session_id: SessionId,
    url: Url = None,
    key_file: KeyFile = None,
    tenant: Tenant = None,
    calls: Annotated[
        int, typer.Option(min=1, max=1000, help="So many, and as much shadow work: the newest.")
    ] = 20,
    as_json: Json = False,
) -> None:
    """Show one session: how warm each model is, its calls, and the shadow work beside them."""
    with answered():
        path = f"/v1/sessions/{in_path(session_id)}"
        answer = client_of(url, key_file).get(path, {"tenant": tenant})
        detail = shape_of(SessionDetail, answer)
    if as_json:
        typer.echo(answer)
        return
    console = output_console()
    room = Room.of(console)
    for line in headlines(detail.summary):
        say(console, line)
    say(console, "")
    console.print(warmth_table(detail.summary, room))
    if detail.calls:
        say(console, "")
        console.print(call_table(detail, calls, room))
    if detail.shadow_work:
        say(console, "")
        console.print(shadow_table(detail, calls))


@app.command()
def quote(
    session_id: SessionId,
    new_tokens: Annotated[
        int, typer.Option(min=0, help="What the next prompt adds to the history.")
    ] = 0,
    url: Url = None,
    key_file: KeyFile = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> None:
    """Show what a session's next call would cost on each model now."""
    with answered():
        path = f"/v1/sessions/{in_path(session_id)}/quote"
        asked = {"new_tokens": new_tokens, "tenant": tenant}
        answer = client_of(url, key_file).get(path, asked)
        quoted = shape_of(SessionQuote, answer)
    if as_json:
        typer.echo(answer)
        return
    console = output_console()
    console.print(quote_table(quoted, Room.of(console)))


@app.command()
def drain(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=known_instances)],
    url: Url = None,
    key_file: KeyFile = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds for its calls to end.")
    ] = 600.0,
    undo: Annotated[bool, typer.Option("--undo", help="It takes calls again.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also if its model cannot do without it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Give an instance no new calls, and wait until those that run have ended."""
    with answered():
        client = client_of(url, key_file)
        path = f"/v1/instances/{in_path(name)}"
        answer = client.post(f"{path}/drain", {"draining": not undo, "force": force})
        if not undo:
            answer = _drained(client, path, answer, timeout_s, not as_json)
    row = shape_of(InstanceRow, answer)
    typer.echo(answer if as_json else f"{name}: {row.state}")
    if row.state == "draining":
        complain(f"after {timeout_s:g} s {_running(row)}; it stays draining (--undo ends that)")
        raise typer.Exit(ExitCode.TIMED_OUT)


def _drained(client: ApiClient, path: str, answer: bytes, timeout_s: float, show: bool) -> bytes:
    """The last answer: of a drained instance, or of one that was not in time."""
    console = output_console(stderr=True)
    deadline_s = time.monotonic() + timeout_s
    told = -1
    # Where there is no terminal, rich leaves the status line out.
    with console.status("") as status:
        while (row := shape_of(InstanceRow, answer)).state == "draining":
            if show and row.inflight_calls != told:
                told = row.inflight_calls
                status.update(_running(row))
                if not console.is_terminal:
                    say(console, _running(row))
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(_POLL_S, left_s))
            answer = client.get(path)
    return answer


def _running(row: InstanceRow) -> str:
    return f"{row.name}: {row.inflight_calls:,} calls are running"
