"""`shadowprefill chat`: talk to the models of a coordinator, and see what a switch of model costs.

Answers go to stdout; what is said about them goes to stderr, so that an answer can be piped on."""

from __future__ import annotations

import secrets
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from coordinator.api_client import AnswerUnreadable, ApiClient, ApiError, Refused, in_path, shape_of
from coordinator.cli_options import KeyFile, Url, answered, client_of, complain
from coordinator.control_shapes import SessionDetail, SessionQuote
from coordinator.conversation import Conversation, Turn
from coordinator.plain_text import printable
from coordinator.progress import output_console, say
from coordinator.session_tables import Room, headlines, quote_table, warmth_table

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer()
_HELP: Final = """/model NAME  the next turns go to that model (auto: the router decides)
/models      what there is
/session     what is warm on each model now
/quote       what the next turn would cost on each
/new         begin another session
/quit        as Ctrl-D does"""


class _ModelCard(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ModelCard]


@app.command()
def chat(
    message: Annotated[
        str | None, typer.Argument(help="One question; without it, a conversation.")
    ] = None,
    url: Url = None,
    key_file: KeyFile = None,
    model: Annotated[str, typer.Option(help="`auto`: the router decides.")] = "auto",
    session: Annotated[
        str | None, typer.Option(help="Id of the session; a new one if none.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of each answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0)] = None,
    lines: Annotated[
        bool,
        typer.Option("--lines", help="Each line of stdin is a turn, or a command such as /model."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One line of JSON per turn, for scripts.")
    ] = False,
) -> None:
    """Chat in one session; each answer says how many tokens were cached and when it began."""
    options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
    client = client_of(url, key_file)
    talk = Conversation(
        client=client,
        session_id=session or _new_session(),
        model=model,
        options={name: value for name, value in options.items() if value is not None},
    )
    with answered():
        _check_model(client, model)
    is_typed = message is None and sys.stdin.isatty()
    chat = _Chat(talk, as_json, goes_on=is_typed)
    for turn in _turns(message, lines, is_typed, chat):
        chat.take(turn)


class _Chat:
    """Turns and commands, as they are typed or piped."""

    def __init__(self, talk: Conversation, as_json: bool, goes_on: bool) -> None:
        self.talk = talk
        self._as_json = as_json
        self._goes_on = goes_on
        """After an error: somebody is there to see it."""
        self._aside = output_console(stderr=True)

    def prompt(self) -> str:
        return f"{printable(self.talk.model)}> "

    def note(self, text: str) -> None:
        say(self._aside, text)

    def take(self, text: str) -> None:
        """Raises typer.Exit: it is over."""
        word, _, rest = text.strip().partition(" ")
        if not word:
            return
        try:
            if word.startswith("/"):
                self._command(word, rest.strip())
            else:
                self._answer(text)
        except ApiError as error:
            self._failed(error)
        except KeyboardInterrupt:
            if not self._goes_on:
                raise
            self.note("\n(given up; the conversation is as it was before)")

    def _answer(self, text: str) -> None:
        turn = Turn(session_id=self.talk.session_id)
        try:
            for piece in self.talk.ask(text, turn):
                if not self._as_json:
                    typer.echo(printable(piece), nl=False)
        finally:
            if turn.text and not self._as_json and not turn.text.endswith("\n"):
                typer.echo()
        if self._as_json:
            typer.echo(msgspec.json.encode(asdict(turn)))
        else:
            self.note(_about(turn))

    def _command(self, word: str, rest: str) -> None:
        match word:
            case "/model" if rest:
                _check_model(self.talk.client, rest)
                self.talk.model = rest
            case "/models":
                self.note(" ".join(_models(self.talk.client)))
            case "/session":
                self._show_session()
            case "/quote":
                self._show_quote()
            case "/new":
                self.talk.session_id, self.talk.messages = _new_session(), []
                self.note(f"session {self.talk.session_id}")
            case "/quit" | "/exit":
                raise typer.Exit
            case _:
                self.note(_HELP)

    def _show_session(self) -> None:
        path = f"/v1/sessions/{in_path(self.talk.session_id)}"
        detail = shape_of(SessionDetail, self.talk.client.get(path))
        for line in headlines(detail.summary):
            self.note(line)
        self._aside.print(warmth_table(detail.summary, Room.of(self._aside)))

    def _show_quote(self) -> None:
        path = f"/v1/sessions/{in_path(self.talk.session_id)}/quote"
        quoted = shape_of(SessionQuote, self.talk.client.get(path))
        self._aside.print(quote_table(quoted, Room.of(self._aside)))

    def _failed(self, error: ApiError) -> None:
        complain(str(error))
        if not self._goes_on:
            raise typer.Exit(error.exit_code) from None


def _turns(message: str | None, lines: bool, is_typed: bool, chat: _Chat) -> Iterator[str]:
    """What is on the command line and what comes in on stdin, unless somebody types."""
    if is_typed:
        yield from _typed(chat)
    elif message is not None and sys.stdin.isatty():
        yield message
    elif lines:
        yield from ([message] if message is not None else [])
        yield from sys.stdin
    else:
        yield "\n\n".join(part for part in (message, sys.stdin.read().strip()) if part)


def _typed(chat: _Chat) -> Iterator[str]:
    import readline  # noqa: F401  gives `input` a history and keys

    chat.note(f"session {chat.talk.session_id}; /help shows the commands, Ctrl-D ends it")
    while True:
        try:
            yield input(chat.prompt())
        except EOFError:
            chat.note("")
            return
        except KeyboardInterrupt:
            chat.note("")  # what was typed is thrown away, as in a shell


def _about(turn: Turn) -> str:
    where = " -> ".join(dict.fromkeys(one for one in (turn.p_instance, turn.d_instance) if one))
    parts = []
    if turn.prompt_tokens is not None:
        cached_tokens = turn.cached_tokens or 0
        share = cached_tokens / max(1, turn.prompt_tokens)
        parts.append(f"{turn.prompt_tokens:,} prompt, {cached_tokens:,} cached ({share:.0%})")
        parts.append(f"{turn.output_tokens or 0:,} out")
    if turn.ttft_ms is not None:
        parts.append(f"TTFT {turn.ttft_ms:,.0f} ms")
    if turn.e2el_ms is not None:
        parts.append(f"total {turn.e2el_ms:,.0f} ms")
    if turn.finish_reason not in (None, "stop"):
        parts.append(f"ended by {turn.finish_reason}")
    return printable(f"[{turn.model} ({where}): {', '.join(parts)}]")


def _models(client: ApiClient) -> list[str]:
    try:
        answer = msgspec.json.decode(client.get("/v1/models"), type=_ModelList)
    except msgspec.MsgspecError as error:
        raise AnswerUnreadable(f"{client.url} lists no models: {error}") from None
    return [card.id for card in answer.data]


def _check_model(client: ApiClient, model: str) -> None:
    """Before anything is typed in vain. Raises ApiError."""
    known = _models(client)
    if model not in known:
        raise Refused(404, f"the model {model!r} does not exist; known models are {known}")


def _new_session() -> str:
    return f"chat-{secrets.token_hex(4)}"
