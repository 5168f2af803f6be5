"""Why somebody is turned away at the door, whatever is asked.

* ClientError               (coordinator.errors)
  - KeyUnknown              401
  - NotOperator             403
  - RateExceeded            429: the key's rate; come again after the time that it names
  - TooManyCalls            429: slots and queue are full"""

from __future__ import annotations

from math import ceil

from coordinator.errors import ClientError


class KeyUnknown(ClientError):
    """No key, or none of ours: which of both is nobody's business."""

    status = 401
    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("a valid API key is required: Authorization: Bearer KEY, or x-api-key")


class NotOperator(ClientError):
    """Something that is not for every client."""

    status = 403
    code = "operator_required"

    def __init__(self, keys_are_known: bool) -> None:
        super().__init__(
            "this needs the key of an operator (operator: true in coordinator.keys_path)"
            if keys_are_known
            else "this needs coordinator.keys_path and an operator's key, because the coordinator "
            "can be reached from other machines, or from another site's page"
        )


class RateExceeded(ClientError):
    """More requests than the key's rate allows."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, key: str, requests_per_minute: float, wait_s: float) -> None:
        super().__init__(
            f"key {key}: more than {requests_per_minute:g} requests per minute; "
            f"the next one may come in {wait_s:.2f} s"
        )
        self._wait_s = wait_s

    @property
    def retry_after_s(self) -> int | None:
        return max(1, ceil(self._wait_s))


class TooManyCalls(ClientError):
    """Every slot is taken, and so is every place in the queue or the time to wait in it."""

    status = 429
    type = "rate_limit_error"
    code = "too_many_calls"

    def __init__(
        self, what: str, most: int | None, queued: int, waited_s: float | None = None
    ) -> None:
        waited = "" if waited_s is None else f", this one for {waited_s:g} s"
        super().__init__(f"all {most} calls {what} are running and {queued} wait{waited}")

    @property
    def retry_after_s(self) -> int | None:
        return 1
