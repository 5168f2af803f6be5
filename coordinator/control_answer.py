"""How the control API answers: shapes as JSON, errors as OpenAI error objects.

Hosts: coordinator.control_api, coordinator.sessions_api, coordinator.cluster_api."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi import Response
from pydantic import BaseModel

if TYPE_CHECKING:
    from coordinator.control_shapes import Shape


class ErrorObject(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    error: ErrorObject


Responses = dict[int | str, dict[str, Any]]
INVALID: Final[Responses] = {400: {"model": ErrorAnswer}}
REFUSED: Final[Responses] = INVALID | {
    401: {"model": ErrorAnswer, "description": "No such API key"},
    403: {"model": ErrorAnswer, "description": "For operators"},
}
NOT_FOUND: Final[Responses] = REFUSED | {404: {"model": ErrorAnswer}}
CONFLICT: Final[Responses] = NOT_FOUND | {409: {"model": ErrorAnswer}}


def shown(shape: Shape, status: int = 200) -> Response:
    # FastAPI would validate and copy what was just built and checked.
    return Response(shape.model_dump_json(), status, media_type="application/json")
