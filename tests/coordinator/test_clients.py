"""Keys let their holders in, as the tenant that they belong to, and nobody else."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from configs.keys import KeyFile
from tests.coordinator.call_rig import COLOCATED, a_chat, a_coordinator

CHAT = "/v1/chat/completions"


def some_keys(**limits: Any) -> KeyFile:
    """alice and bob of team a, carol of team b, oscar the operator; a key is its name, doubled."""
    people = {"alice": "a", "bob": "a", "carol": "b", "oscar": "ops"}
    return KeyFile.model_validate(
        {
            "keys": [
                {
                    "name": name,
                    "tenant": tenant,
                    "sha256": sha256((name * 2).encode()).hexdigest(),
                    "operator": name == "oscar",
                    "limits": limits or None,
                }
                for name, tenant in people.items()
            ],
        }
    )


def of(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name * 2}"}


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic x"}, {"x-api-key": "wrong"}],
    ids=["none", "wrong", "scheme", "other_header"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT),
        ("GET", "/v1/models"),
        ("GET", "/v1/sessions"),
        ("GET", "/v1/sessions/s/quote"),
        ("GET", "/v1/usage"),
        ("GET", "/v1/instances"),
        ("GET", "/v1/cluster"),
        ("GET", "/metrics"),
    ],
)
async def test_without_a_key_nothing_is_answered(
    method: str, path: str, headers: dict[str, str]
) -> None:
    async with a_coordinator(COLOCATED, keys=some_keys()) as rig:
        body = a_chat() if method == "POST" else None
        reply = await rig.client.request(method, path, json=body, headers=headers)
        assert reply.status_code == 401
        assert reply.json()["error"]["code"] == "invalid_api_key"
        assert not rig.all_calls()


async def test_keys_of_one_tenant_share_sessions_and_those_of_two_nothing() -> None:
    async with a_coordinator(COLOCATED, keys=some_keys()) as rig:
        body = a_chat("hello " * 100, session_id="s")
        for name in ("alice", "bob", "carol"):
            assert (await rig.client.post(CHAT, json=body, headers=of(name))).status_code == 200
        shown = {
            name: (await rig.client.get("/v1/sessions/s", headers=of(name))).json()
            for name in ("alice", "bob", "carol")
        }
        assert [call["call"] for call in shown["alice"]["calls"]] == [1, 2]
        assert shown["bob"]["calls"][1]["cached_tokens"] > 0
        assert [call["cached_tokens"] for call in shown["carol"]["calls"]] == [0]
        salts = {call.body["cache_salt"] for call in rig.calls("small-1")}
        assert len(salts) == 2


async def test_a_key_may_come_as_anthropics_clients_send_it() -> None:
    async with a_coordinator(COLOCATED, keys=some_keys()) as rig:
        reply = await rig.client.get("/v1/models", headers={"x-api-key": "alicealice"})
        assert reply.status_code == 200


OPERATORS = ("/v1/instances", "/v1/instances/small-1", "/v1/cluster", "/metrics")


@pytest.mark.parametrize(
    "path", [*OPERATORS, "/v1/sessions?all_tenants=true", "/v1/usage?all_tenants=true"]
)
async def test_what_is_about_everybody_is_for_operators(path: str) -> None:
    async with a_coordinator(COLOCATED, keys=some_keys()) as rig:
        refused = await rig.client.get(path, headers=of("alice"))
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "operator_required"
        assert (await rig.client.get(path, headers=of("oscar"))).status_code == 200


async def test_an_operator_finds_a_tenants_session_by_the_tenants_id() -> None:
    async with a_coordinator(COLOCATED, keys=some_keys()) as rig:
        await rig.client.post(CHAT, json=a_chat(session_id="s"), headers=of("alice"))
        listed = await rig.client.get("/v1/sessions?all_tenants=true", headers=of("oscar"))
        (row,) = listed.json()["data"]
        path = f"/v1/sessions/s?tenant={row['tenant']}"
        assert (await rig.client.get(path, headers=of("oscar"))).status_code == 200
        assert (await rig.client.get(path, headers=of("alice"))).status_code == 200, "her own"
        assert (await rig.client.get(path, headers=of("carol"))).status_code == 403
        assert (await rig.client.get("/v1/sessions/s", headers=of("oscar"))).status_code == 404


async def test_a_coordinator_without_keys_that_others_can_reach_has_no_operators() -> None:
    async with a_coordinator(COLOCATED, limits={"host": "0.0.0.0"}) as rig:
        assert (await rig.client.get("/v1/instances")).status_code == 403
        assert (await rig.client.get("/v1/sessions?all_tenants=true")).status_code == 403
        assert (await rig.client.get("/v1/sessions")).status_code == 200


async def test_a_page_of_another_site_is_no_operator() -> None:
    async with a_coordinator(COLOCATED) as rig:
        own = {"origin": rig.url}
        assert (await rig.client.get("/v1/instances", headers=own)).status_code == 200
        other = {"origin": "http://elsewhere.example"}
        assert (await rig.client.get("/v1/instances", headers=other)).status_code == 403


async def test_usage_counts_calls_tokens_and_savings_per_key() -> None:
    price = {"input_per_million_tokens": 1e6, "cached_input_share": 0.5}
    models = {"small": {"price": price}}
    async with a_coordinator(COLOCATED, keys=some_keys(), models=models) as rig:
        body = a_chat("hello " * 100, session_id="s")
        await rig.client.post(CHAT, json=body, headers=of("alice"))
        (session,), _ = await rig.app.state.sessions.page(None, 0, 1)
        warmth = session.warmth_of("small")
        warmth.own_tokens, warmth.shadow_tokens = 0, 96  # as if a shadow had put it there
        await rig.client.post(CHAT, json=body, headers=of("bob"))
        await rig.client.post(CHAT, json=a_chat(max_tokens=4), headers=of("carol"))
        usage = (await rig.client.get("/v1/usage", headers=of("alice"))).json()
        rows = {row["key"]: row for row in usage["keys"]}
        assert rows.keys() == {"alice", "bob"}
        assert rows["alice"]["calls"] == 1
        assert rows["alice"]["prompt_tokens"] > 100
        assert rows["bob"]["shadow_tokens_used"] == 96
        assert rows["bob"]["saved_input_price"] == pytest.approx(48)
        everybody = (await rig.client.get("/v1/usage?all_tenants=true", headers=of("oscar"))).json()
        assert {row["key"] for row in everybody["keys"]} == {"alice", "bob", "carol"}


async def test_secrets_are_nowhere_in_what_operators_see(caplog: pytest.LogCaptureFixture) -> None:
    limits = {"engine_secret": "between-us"}
    async with a_coordinator(COLOCATED, keys=some_keys(), limits=limits) as rig:
        await rig.client.post(CHAT, json=a_chat(session_id="s"), headers=of("alice"))
        await rig.client.post(CHAT, json=a_chat(), headers={"authorization": "Bearer sesame"})
        seen = caplog.text
        for path in (*OPERATORS, "/v1/sessions?all_tenants=true", "/v1/usage?all_tenants=true"):
            seen += (await rig.client.get(path, headers=of("oscar"))).text
        for secret in ("between-us", "alicealice", "sesame"):
            assert secret not in seen
