"""Whatever is sent to the control API, no answer is a 5xx: every path of its OpenAPI."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.app import CoordinatorApp, create_app
from coordinator.calls import CallKind, NoShadow
from coordinator.openai_api import KINDS
from tests.coordinator.call_rig import a_cluster

LAYOUT = {
    "small-1": ("small", "colocated", "http://127.0.0.1:9"),
    "large-1": ("large", "colocated", "http://127.0.0.1:9"),
}
JSON_TYPE = {"content-type": "application/json"}
MEANT = {503}
"""Said on purpose: nobody is there to answer `/ready`."""

pytestmark = pytest.mark.fuzz

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(["s", "small-1", "large-1", "small", "large"]) | st.text(
    min_size=1, max_size=20
)


@cache
def the_app() -> CoordinatorApp:
    app = create_app(a_cluster(LAYOUT, {"upstreams": ["127.0.0.1"]}), shadow=NoShadow())
    asyncio.run(app.state.sessions.get_or_create("anonymous", "s", CallKind.CHAT))
    return app


@cache
def operations() -> list[tuple[str, str, tuple[str, ...]]]:
    """Method, path, and the fields that its body may have."""
    schema = the_app().openapi()
    found = []
    for path, methods in schema["paths"].items():
        if path in KINDS:
            continue
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
            shape = schema["components"]["schemas"].get(reference.rpartition("/")[2], {})
            found.append((method.upper(), path, tuple(shape.get("properties", ()))))
    return found


def status_of(method: str, url: str, body: bytes, headers: dict[str, str] = JSON_TYPE) -> int:
    transport = httpx.ASGITransport(the_app())  # raises what the application lets through

    async def asked() -> int:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.request(method, url, content=body, headers=headers)).status_code

    return asyncio.run(asked())


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(data=st.data())
def test_no_request_to_the_control_api_is_answered_with_a_5xx(data: st.DataObject) -> None:
    method, path, fields = data.draw(st.sampled_from(operations()))
    for name in ("session_id", "name"):
        path = path.replace(f"{{{name}}}", quote(data.draw(NAMES), safe=""))
    query = data.draw(
        st.dictionaries(
            st.sampled_from(["limit", "offset", "tenant", "all_tenants", "new_tokens"]),
            st.text(max_size=12) | st.integers().map(str),
            max_size=3,
        )
    )
    url = f"{path}?" + "&".join(f"{name}={quote(value)}" for name, value in query.items())
    body: Any = data.draw(
        JSON | st.dictionaries(st.sampled_from(fields or ("x",)), JSON | NAMES, max_size=4)
    )
    raw = data.draw(st.just(json.dumps(body).encode()) | st.binary(max_size=40))
    status = status_of(method, url, raw)
    assert status < 500 or status in MEANT, (method, url, raw, status)


@pytest.mark.parametrize("size", [1024 * 1024, 8 * 1024 * 1024])
def test_a_body_beyond_the_limit_is_refused(size: int) -> None:
    url = "/v1/sessions/s/hints"
    assert status_of("POST", url, b"[" + b" " * size, {}) in (400, 413)


SURROGATE = b"\\ud800"


@pytest.mark.parametrize(
    ("method", "url", "body"),
    [
        ("POST", "/v1/sessions/s/hints", b'{"%b": 1}'),
        ("POST", "/v1/sessions/s/hints", b'{"plan": ["%b"]}'),
        ("POST", "/v1/sessions/s/hints", b'{"probabilities": {"%b": 1}}'),
        ("PATCH", "/v1/config/shadow", b'{"changes": {"%b": 1}}'),
        ("PATCH", "/v1/config/shadow", b'{"changes": {"controller": "%b"}}'),
        ("POST", "/v1/instances/small-1/drain", b'{"%b": 1}'),
    ],
)
def test_text_that_is_no_unicode_is_a_mistake_of_the_client(
    method: str, url: str, body: bytes
) -> None:
    assert 400 <= status_of(method, url, body % SURROGATE) < 500


@pytest.mark.parametrize(
    "url", ["/v1/sessions/%ff%fe", "/v1/sessions/%ED%A0%80", "/v1/sessions/%00"]
)
def test_a_path_that_is_no_text_names_no_session(url: str) -> None:
    assert status_of("GET", url, b"") == 404
