"""Which session a call belongs to."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from coordinator.call_body import ClientBody, read_body
from coordinator.calls import CallKind
from coordinator.errors import BodyInvalid
from coordinator.session_identity import ANONYMOUS, history_digests, named_session, tenant_of
from tests.coordinator.call_rig import COLOCATED, PD, a_chat, a_coordinator, a_turn

HEADERS_IN_ORDER = [
    b"x-session-id",
    b"x-claude-code-session-id",
    b"session-id",
    b"x-session-affinity",
    b"x-litellm-session-id",
]
FIELDS_IN_ORDER: list[dict[str, Any]] = [
    {"session_id": "b1"},
    {"prompt_cache_key": "b2"},
    {"metadata": {"session_id": "b3"}},
]


def read(**fields: Any) -> ClientBody:
    return read_body(CallKind.CHAT, json.dumps(a_chat(**fields)).encode())


@pytest.mark.parametrize("first", range(len(HEADERS_IN_ORDER)))
def test_the_first_header_present_names_the_session_before_any_field(first: int) -> None:
    headers = {name: name.upper() for name in HEADERS_IN_ORDER[first:]}
    body = read(**FIELDS_IN_ORDER[0], **FIELDS_IN_ORDER[1], **FIELDS_IN_ORDER[2])
    assert named_session(headers, body) == HEADERS_IN_ORDER[first].decode().upper()


@pytest.mark.parametrize(("first", "name"), [(0, "b1"), (1, "b2"), (2, "b3"), (3, None)])
def test_without_a_header_the_first_field_present_names_it(first: int, name: str | None) -> None:
    fields: dict[str, Any] = {}
    for one in FIELDS_IN_ORDER[first:]:
        fields |= one
    assert named_session({}, read(**fields)) == name


@pytest.mark.parametrize("value", ["x" * 257, "tab\there", "caf\u00e9"])
def test_a_name_that_cannot_be_a_header_is_refused(value: str) -> None:
    with pytest.raises(BodyInvalid):
        named_session({}, read(session_id=value))


@pytest.mark.parametrize(
    ("header", "is_anonymous"),
    [
        (b"", True),
        (b"Bearer ", True),
        (b"Basic abc", True),
        (b"Bearer k", False),
        (b"bearer  k", False),
    ],
)
def test_the_tenant_is_who_presents_the_token(header: bytes, is_anonymous: bool) -> None:
    tenant = tenant_of({b"authorization": header})
    assert (tenant == ANONYMOUS) is is_anonymous
    if not is_anonymous:
        assert tenant == tenant_of({b"authorization": b"Bearer k"})
        assert "k" not in tenant.replace("k", "") or len(tenant) == 32


def test_digests_chain_over_whole_messages() -> None:
    three = history_digests(CallKind.CHAT, msgspec.Raw(b'[{"a":1}, {"b":2},{"c":3}]'))
    two = history_digests(CallKind.CHAT, msgspec.Raw(b'[{"a":1},{"b":2}]'))
    assert three[:2] == two, "blanks between messages do not count"
    moved = history_digests(CallKind.CHAT, msgspec.Raw(b'[{"a":1,"b":2}]'))
    assert moved[0] not in three


async def sessions_of(turns: list[list[dict[str, str]]]) -> list[str]:
    """Session ids of unnamed calls, made one after the other."""
    async with a_coordinator(PD) as rig:
        ids = []
        for messages in turns:
            reply = await rig.chat(a_chat(messages=messages))
            ids.append(reply.headers["x-shadowprefill-session-id"])
        return ids


async def test_a_call_that_extends_the_last_history_stays_in_its_session() -> None:
    ids = await sessions_of([a_turn("a"), a_turn("a", "b", "c"), a_turn("a", "b", "c", "d", "e")])
    assert len(set(ids)) == 1


async def test_a_call_that_does_not_extend_it_starts_a_new_session() -> None:
    ids = await sessions_of(
        [
            a_turn("a"),
            a_turn("a", "b", "c"),
            a_turn("a", "X", "c", "d", "e"),  # another past
            a_turn("a", "b"),  # shorter
            a_turn("other"),
        ]
    )
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4


async def test_parallel_runs_of_one_task_do_not_collide() -> None:
    ids = await sessions_of(
        [a_turn("task"), a_turn("task"), a_turn("task", "one", "x"), a_turn("task", "two", "x")]
    )
    assert ids[0] != ids[1]
    assert {ids[2], ids[3]} == {ids[0], ids[1]}


async def test_a_session_is_its_tenants_own() -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.chat(a_chat(), x_session_id="s", authorization="Bearer one")
        mine = {"authorization": "Bearer one"}
        other = {"authorization": "Bearer two"}
        assert (await rig.client.get("/v1/sessions/s", headers=mine)).status_code == 200
        assert (await rig.client.get("/v1/sessions/s", headers=other)).status_code == 404
        assert (await rig.client.get("/v1/sessions", headers=other)).json()["data"] == []
        finish = "/finish_session?session_id=s"
        assert (await rig.client.post(finish, headers=other)).status_code == 404
        await rig.chat(a_chat(messages=a_turn("a")), authorization="Bearer one")
        unnamed = await rig.chat(a_chat(messages=a_turn("a", "b", "c")), authorization="Bearer two")
        seen = (await rig.client.get("/v1/sessions", headers=other)).json()["data"]
        assert [one["calls"] for one in seen] == [1]
        assert seen[0]["session_id"] == unnamed.headers["x-shadowprefill-session-id"]


async def test_finish_session_ends_it() -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.chat(a_chat(), x_session_id="s")
        done = await rig.client.post("/finish_session", params={"session_id": "s"})
        assert done.json() == {"session_id": "s", "calls": 1, "finished": True}
        assert ("finished", "s", "") in rig.hooks.events
        assert (await rig.client.get("/v1/sessions/s")).status_code == 404
        again = await rig.chat(a_chat(), x_session_id="s")
        assert again.status_code == 200
