"""`--scheduler-cls` of a prefill instance: shadow requests are computed in its slack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.nixl import NixlConnector
from engine.scheduler import ShadowScheduler
from policy.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm.v1.request import Request, RequestStatus


class PrefillScheduler(ShadowScheduler):
    """Named on the command line; vLLM builds it inside the EngineCore process."""

    role = Role.PREFILL

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """An abort that meets a finished request: the client left before the front end had its
        answer, so nobody will ever read the KV that it keeps."""
        given = (request_ids,) if isinstance(request_ids, str) else tuple(request_ids or ())
        for request_id in given:
            request = self.requests.get(request_id)
            if request is not None and request.is_finished():
                connector = self.connector
                assert isinstance(connector, NixlConnector)
                connector.give_up(request_id)
        return super().finish_requests(None if request_ids is None else given, finished_status)
