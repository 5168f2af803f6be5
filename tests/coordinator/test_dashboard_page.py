"""`/dashboard` in a real Chromium, over fake engines: what it shows, to whom, how it is used."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from coordinator.calls import CallKind
from tests.coordinator.browser_rig import Tab, a_tab, chromium
from tests.coordinator.call_rig import TWO_PD, Rig, a_chat, a_coordinator, until
from tests.coordinator.dashboard_pictures import a_key_file, moving_engines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["chromium"]  # the fixture

PATIENT = {"connect_timeout_s": 30.0, "probe_interval_s": 0.5}
"""Browser, engines and coordinator may share one busy core."""
HOSTILE = "<img src=x onerror=document.title='taken'>"
ROWS = "document.querySelectorAll('#sessions-table tbody tr').length"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@asynccontextmanager
async def a_page(address: str, **options: Any) -> AsyncIterator[tuple[Rig, Tab]]:
    """Two sessions, of which the first has called both models; the page is not open yet."""
    with moving_engines() as ports:
        async with a_coordinator(
            TWO_PD, shadow=True, metrics_ports=ports, limits=PATIENT, **options
        ) as rig:
            bearer = {"authorization": "Bearer agents-key"} if "keys" in options else {}
            shadow = rig.app.state.shadow
            for model in ("small", "large"):
                await rig.chat(a_chat("words " * 400, model=model), x_session_id="s-1", **bearer)
                await until(lambda: shadow.counters.segments, "shadow work was done")
                await until(lambda: not shadow.running, "nothing runs any more")
            await rig.chat(a_chat(), x_session_id=HOSTILE, **bearer)
            async with a_tab(address) as tab:
                yield rig, tab


async def opened(rig: Rig, tab: Tab) -> None:
    await tab.go(f"{rig.url}/dashboard")
    await tab.until(f"{ROWS} === 2")


async def test_it_shows_instances_and_sessions_and_asks_nobody_else(chromium: str) -> None:
    async with a_page(chromium) as (rig, tab):
        await opened(rig, tab)
        # Of a busy machine's engines some answer late: the next refresh has them.
        for words in ("normal 44%, shadow 14% of at most 25%", "for shadows"):
            await tab.until(f"document.body.innerText.includes({words!r})")
        instances = await tab.text("#instances-table")
        for name in TWO_PD:
            assert name in instances
        assert "small: ready, prefill and decode apart" in instances
        sessions = await tab.text("#sessions-table")
        assert "1 switch" in sessions
        assert "on D" in sessions
        assert HOSTILE in sessions
        assert await tab.value("document.querySelectorAll('.warmth .part').length") > 0

        await tab.value("document.querySelector('button[title=s-1]').click()")
        await tab.until("document.querySelector('#timeline svg .switch-dot') !== null")
        assert await tab.value("document.querySelectorAll('.span.call').length") == 2
        assert await tab.value("document.querySelectorAll('.span.segment').length") > 0
        assert "small-p → small-d" in await tab.text("#calls-table")
        assert "segment" in await tab.text("#work-table")
        assert await tab.value("document.title") == "ShadowPrefill"
        assert tab.problems == []
        assert {urlsplit(url).netloc for url in tab.requests} == {urlsplit(rig.url).netloc}


async def test_an_instance_that_dies_turns_unhealthy_and_is_told_aloud(chromium: str) -> None:
    async with a_page(chromium) as (rig, tab):
        await opened(rig, tab)
        assert await tab.value("document.querySelector('.state.unhealthy')") is None
        rig.engines["large-d"].faults.kill()
        await tab.until("document.querySelector('.state.unhealthy') !== null")
        assert "large: not ready" in await tab.text("#instances-table")
        assert "large-d is unhealthy" in await tab.text("#event-list")
        told = "document.getElementById('event-list')"
        assert await tab.value(f"{told}.getAttribute('aria-live')") == "polite"


async def test_it_follows_the_systems_theme_until_it_is_told_another(chromium: str) -> None:
    async with a_page(chromium) as (rig, tab):
        await tab.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
        await opened(rig, tab)
        light = await tab.value(BACKGROUND)
        assert (
            await tab.value("getComputedStyle(document.querySelector('.part')).transitionDuration")
            == "0s"
        )
        await tab.prefer(prefers_color_scheme="dark", prefers_reduced_motion="no-preference")
        dark = await tab.value(BACKGROUND)
        assert dark != light
        assert (
            await tab.value("getComputedStyle(document.querySelector('.part')).transitionDuration")
            != "0s"
        )
        await tab.value("document.getElementById('theme').click()")
        assert await tab.text("#theme") == "Theme: light"
        assert await tab.value(BACKGROUND) == light
        await opened(rig, tab)
        assert await tab.value(BACKGROUND) == light, "it is remembered"


async def test_it_is_used_with_the_keyboard_alone(chromium: str) -> None:
    async with a_page(chromium) as (rig, tab):
        await opened(rig, tab)
        await tab.press("Tab")
        focused = "document.activeElement"
        assert await tab.value(f"{focused}.className") == "skip"
        await tab.press("Enter")
        await tab.until(f"{focused}.id === 'sessions-title'")
        await tab.press("Tab")
        assert await tab.value(f"{focused}.className") == "name"
        assert await tab.value(f"getComputedStyle({focused}).outlineStyle") == "solid"
        seen = len(tab.requests)
        await until(lambda: sum("v1/usage" in url for url in tab.requests[seen:]) > 1, "refreshed")
        assert await tab.value(f"{focused}.className") == "name", "a refresh takes no focus"
        assert await tab.value(f"{focused}.getAttribute('aria-expanded')") == "false"
        await tab.press("Enter")
        await tab.until(f"{focused}.id === 'session-title'")
        assert await tab.value("document.querySelector('button.name[aria-expanded=true]') !== null")


async def test_screen_readers_are_told_of_real_tables_also_on_a_narrow_screen(
    chromium: str,
) -> None:
    async with a_page(chromium) as (rig, tab):
        await tab.resize(360, 800)
        await opened(rig, tab)
        assert await tab.value("document.documentElement.scrollWidth") <= 360
        told = await tab.accessible()
        for role, name in (
            ("heading", "Instances"),
            ("table", "Sessions"),
            ("columnheader", "KV blocks by class"),
            ("rowheader", "large-d decode"),
            ("status", ""),
        ):
            assert any(role == one and name in its for one, its in told), (role, name)


async def test_a_key_is_asked_for_and_stays_in_the_tab(chromium: str) -> None:
    async with a_page(chromium, keys=a_key_file()) as (rig, tab):
        await tab.go(f"{rig.url}/dashboard")
        await tab.until("document.activeElement.id === 'key'")
        assert await tab.text("#sessions-table") == ""
        for key in ("wrong", "research-key"):
            await tab.type(key)
            await tab.press("Enter")
            if key == "wrong":
                await tab.until("document.getElementById('key-problem').innerText !== ''")
        await tab.until("document.getElementById('sessions-table').innerText !== ''")
        assert "No session yet" in await tab.text("#sessions-table"), "those of others are not ours"
        assert await tab.value("document.getElementById('instances').hidden")
        assert "agents" not in await tab.text("#usage")
        assert await tab.value("JSON.stringify(localStorage)") == "{}"
        assert await tab.value("document.cookie") == ""
        assert "research-key" not in "".join(tab.requests)

        await tab.value("document.getElementById('forget-key').click()")
        await tab.until("document.activeElement.id === 'key'")
        await tab.type("ops")
        await tab.press("Enter")
        await tab.until(f"{ROWS} === 2")
        assert "agents" in await tab.text("#usage")
        assert not await tab.value("document.getElementById('instances').hidden")


async def test_many_sessions_come_page_by_page_and_one_that_is_over_is_closed(
    chromium: str,
) -> None:
    async with a_page(chromium) as (rig, tab):
        for number in range(30):
            await rig.app.state.sessions.get_or_create("anonymous", f"n-{number}", CallKind.CHAT)
        await tab.go(f"{rig.url}/dashboard")
        await tab.until(f"{ROWS} === 25")
        assert await tab.text("#page") == "1 to 25 of 32"
        assert await tab.value("document.getElementById('newer').disabled")
        await tab.value("document.getElementById('older').click()")
        await tab.until(f"{ROWS} === 7")
        assert await tab.text("#page") == "26 to 32 of 32"
        assert await tab.value("document.getElementById('older').disabled")

        await tab.value("document.querySelector('button[title=s-1]').click()")
        await tab.until("!document.getElementById('session').hidden")
        await rig.client.delete("/v1/sessions/s-1")
        await tab.until("document.getElementById('session').hidden")
        assert "Session s-1 is over" in await tab.text("#event-list")


async def test_it_says_when_the_coordinator_is_gone_and_goes_on_when_it_is_back(
    chromium: str,
) -> None:
    async with a_page(chromium) as (rig, tab):
        await opened(rig, tab)
        assert await tab.text("#connection") == "Live"
        await tab.cut_off(True)
        await tab.until("document.getElementById('connection').innerText.includes('is old')")
        assert await tab.value(ROWS) == 2, "what was known stays"
        await tab.cut_off(False)
        await tab.until("document.getElementById('connection').innerText === 'Live'")
