"""A command line's side of the coordinator's HTTP API: one blocking request after the other.

* ApiError            has the exit code of the command that met it
  - Unreachable       nobody answers there: start a cluster, or name another address
  - Refused           an error object of the API: its message says what to change
  - AnswerUnreadable  that is no coordinator, or one of another version

Standard library only, so that a command starts quickly. Hosts: the commands of coordinator.cli."""

from __future__ import annotations

import http.client
import ipaddress
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from pydantic import ValidationError

from coordinator.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from coordinator.control_shapes import Shape

TIMEOUT_S: Final = 10.0
_EXIT_CODES: Final = {
    400: ExitCode.USAGE,
    401: ExitCode.DENIED,
    403: ExitCode.DENIED,
    404: ExitCode.NOT_FOUND,
}

ShapeT = TypeVar("ShapeT", bound="Shape")


class ApiError(Exception):
    """Root of the tree."""

    exit_code = ExitCode.FAILED


class Unreachable(ApiError):
    """No connection, or one that ended before an answer."""

    exit_code = ExitCode.UNREACHABLE


class Refused(ApiError):
    """The coordinator's own words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.exit_code = _EXIT_CODES.get(status, ExitCode.FAILED)


class AnswerUnreadable(ApiError):
    """Not what this version of the API answers."""


class UrlInvalid(ValueError):
    """Not the address of a coordinator."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A coordinator sends nobody elsewhere, and urllib would take the key along."""

    def redirect_request(self, *args: object) -> None:
        return None


class _ErrorObject(msgspec.Struct):
    message: str


class _ErrorAnswer(msgspec.Struct):
    error: _ErrorObject


@dataclass(frozen=True, slots=True)
class ApiClient:
    """Of one coordinator, as one client."""

    url: str
    key: str | None = field(default=None, repr=False)

    def get(self, path: str, parameters: Mapping[str, object] | None = None) -> bytes:
        """Raises ApiError."""
        given = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in (parameters or {}).items()
            if value is not None
        }
        return self._whole("GET", path + (f"?{urlencode(given)}" if given else ""), None)

    def post(self, path: str, body: object) -> bytes:
        """Raises ApiError."""
        return self._whole("POST", path, msgspec.json.encode(body))

    @contextmanager
    def stream(
        self, path: str, body: object, headers: Mapping[str, str], timeout_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer that is read as it comes; `timeout_s`: longest silence. Raises ApiError, also
        for what breaks while it is read."""
        with self._answer("POST", path, msgspec.json.encode(body), headers, timeout_s) as answer:
            yield answer

    def _whole(self, method: str, path: str, body: bytes | None) -> bytes:
        with self._answer(method, path, body, {}, TIMEOUT_S) as answer:
            return answer.read()

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> Iterator[http.client.HTTPResponse]:
        own = {"accept": "application/json", "content-type": "application/json", **headers}
        if self.key is not None:
            own["authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(self.url + path, body, own, method=method)
        try:
            with _opener(self.url).open(request, timeout=timeout_s) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            raise Refused(error.code, _message_of(error)) from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            raise Unreachable(f"{self.url} cannot be reached: {reason}") from None


def shape_of(kind: type[ShapeT], answer: bytes) -> ShapeT:
    """Raises AnswerUnreadable. A newer coordinator may say more than we know."""
    try:
        return kind.model_validate_json(answer, extra="ignore")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        text = f"an answer that is no {kind.__name__}: {where}: {first['msg']}"
        raise AnswerUnreadable(f"{text}; is this a coordinator of this version?") from None


def in_path(name: str) -> str:
    """One part of a path, whatever is in it."""
    return quote(name, safe="")


def checked_url(url: str) -> str:
    """Without what people paste along with it. Raises UrlInvalid."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_plain = parts.username is None and not parts.query and parts.port != 0
    except ValueError as error:  # a port that is none
        raise UrlInvalid(f"{url!r}: {error}") from None
    if not is_address or not is_plain:
        raise UrlInvalid(f"must be http(s)://host[:port], got {url!r}")
    return url.rstrip("/").removesuffix("/v1")


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Through the proxies of the environment, but never to this machine."""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if _is_loopback(urlsplit(url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _message_of(error: urllib.error.HTTPError) -> str:
    body = error.read(65_536)
    try:
        return msgspec.json.decode(body, type=_ErrorAnswer).error.message
    except msgspec.MsgspecError:
        shown = body[:200].decode(errors="replace").strip()
        return f"status {error.code}" + (f": {shown}" if shown else "")
