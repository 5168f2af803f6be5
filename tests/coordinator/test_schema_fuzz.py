"""Whatever fits the schema of a path, or just does not, no answer of the coordinator is a 5xx.

Over real sockets, to a coordinator with (fake) engines behind it, so that a request that is sound
goes all the way. `SHADOWPREFILL_FUZZ_EXAMPLES` sets how many are made up per operation."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from coordinator.calls import NoShadow
from tests.coordinator.call_rig import COLOCATED, PD, a_cluster, in_a_thread
from tests.coordinator.test_api_fuzz import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemathesis import APIOperation, Case

    from tests.coordinator.call_rig import Rig

pytestmark = pytest.mark.fuzz

EXAMPLES = int(os.environ.get("SHADOWPREFILL_FUZZ_EXAMPLES", "12"))
MIXED = {name: COLOCATED[name] for name in ("large-1",)} | PD
BREAKS_WHAT_OTHERS_NEED = ("/v1/instances",)
"""A removed instance is a 503 for whoever asks next, and rightly so."""


@cache
def operations() -> list[APIOperation[Any, Any, Any, Any]]:
    from coordinator.app import create_app

    document = create_app(a_cluster(LAYOUT), shadow=NoShadow()).openapi()
    schema = schemathesis.openapi.from_dict(document)
    return [found.ok() for found in schema.get_all_operations()]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with in_a_thread(MIXED, shadow=True, limits={"upstreams": ["127.0.0.1"]}) as rig:
        yield rig


def test_the_schema_knows_every_call_and_the_control_api() -> None:
    labels = {operation.label for operation in operations()}
    assert {"POST /v1/responses", "POST /v1/messages", "POST /v1/chat/completions"} <= labels
    assert {"GET /v1/sessions/{session_id}/quote", "PATCH /v1/config/shadow"} <= labels


@pytest.mark.parametrize("label", sorted(operation.label for operation in operations()))
def test_no_request_by_the_schema_is_answered_with_a_5xx(rig: Rig, label: str) -> None:
    (operation,) = (one for one in operations() if one.label == label)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=EXAMPLES < 100,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def asked(case: Case) -> None:
        answer = case.call(base_url=rig.url)
        said = f"{answer.status_code} {answer.content[:300]!r} to {case.as_curl_command()}"
        assert answer.status_code < 500, said

    asked()
