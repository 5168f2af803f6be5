"""`/dashboard`: a page about the cluster that reads the control API; its files are this package's.

The files hold no data, so everybody may have them: what they show, the API gives or refuses. The
page loads nothing from anywhere else and runs nothing that is not in a file of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, HTTPException, Response

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER: Final = Path(__file__).parent / "dashboard"
_PAGE: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # A new coordinator's page never runs with an old one's scripts.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class DashboardApi:
    files: Mapping[str, bytes]

    @classmethod
    def read(cls) -> DashboardApi:
        """Once: a request can name one of these files, and no path."""
        files = (path for path in FOLDER.iterdir() if path.suffix in _TYPES)
        return cls({path.name: path.read_bytes() for path in files})

    def router(self) -> APIRouter:
        router = APIRouter(include_in_schema=False)
        router.add_api_route("/dashboard", self.page, methods=["GET"])
        router.add_api_route("/dashboard/{name}", self.file, methods=["GET"])
        return router

    async def page(self) -> Response:
        return await self.file(_PAGE)

    async def file(self, name: str) -> Response:
        body = self.files.get(name)
        if body is None:
            raise HTTPException(404, "no such file")
        return Response(body, headers=HEADERS, media_type=_TYPES[Path(name).suffix])
