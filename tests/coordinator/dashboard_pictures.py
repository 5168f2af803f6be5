"""The pictures of `/dashboard` in docs/: `python -m tests.coordinator.dashboard_pictures docs`.

Everything on them is real but the engines: those are fake, and so is what their series say."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from configs.keys import KeyFile
from engine.counts import EngineCounts
from engine.exporter import Exporter
from policy.kv_class import KvPool
from tests.coordinator.browser_rig import NAMES, a_tab, browser
from tests.coordinator.call_rig import TWO_PD, Rig, a_chat, a_coordinator, a_turn, until
from tests.engine.readings import a_link, a_reading
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.exporter import Reading
    from tests.coordinator.browser_rig import Tab

KEYS = {"ops": "operations", "agents-key": "agents", "research-key": "research"}
SESSIONS = {
    "swe-bench/django-11099": ("agents-key", "small small large large small large"),
    "refactor-auth-7f3a": ("agents-key", "large small small large"),
    "triage-4412": ("research-key", "small large small"),
    "release-notes": ("research-key", "small small"),
}
COLOURS = 128
NORMAL, DARK, NARROW = "dashboard_light.png", "dashboard_dark.png", "dashboard_narrow.png"


class MovingEngine:
    """What the series of one instance say: shadow work and pulls that go on."""

    def __init__(self, at: int, is_decode: bool) -> None:
        self._at = at
        self._is_decode = is_decode
        self._began_s = time.monotonic()

    def reading(self) -> Reading:
        gone_s = time.monotonic() - self._began_s + 60
        blocks = 4096
        shadow_used, shadow_cached = 160 + 40 * self._at, 410 + 70 * self._at
        used, cached = 700 + 260 * self._at, 1100 - 140 * self._at
        pool = KvPool(
            total_blocks=blocks,
            shadow_blocks=shadow_used + shadow_cached,
            uncached_blocks=blocks - shadow_used - shadow_cached - used - cached,
            cached_shadow_blocks=shadow_cached,
            idle_shadow_blocks=shadow_cached // 2,
            cached_normal_blocks=cached,
            idle_normal_blocks=cached // 2,
        )
        counts = EngineCounts(shadow_tokens=int(gone_s * (1900 + 600 * self._at)))
        counts.shadow_step_s.add(gone_s * (0.21 + 0.06 * self._at))
        counts.plain_step_s.add(gone_s * 0.6)
        changes: dict[str, Any] = {
            "pool": pool,
            "cap_blocks": blocks // 4,
            "counts": counts,
            "requests": {"running": 3 + self._at, "waiting": self._at % 2},
            "queued_jobs": 2 - self._at % 2,
            "missing_tokens": 5200,
        }
        if self._is_decode:
            link = a_link(
                size_bytes={"normal": int(gone_s * 21e6), "shadow": int(gone_s * 9e6)},
                bytes_in_flight={"normal": 31_000_000, "shadow": 0},
            )
            changes |= {"controls": None, "link": link, "queued_jobs": 0}
        return a_reading(**changes)


@contextmanager
def moving_engines() -> Iterator[dict[str, int]]:
    """Ports of their series."""
    ports = dict(zip(TWO_PD, free_ports(len(TWO_PD)), strict=True))
    with ExitStack() as stack:
        for at, (name, port) in enumerate(ports.items()):
            engine = MovingEngine(at, TWO_PD[name][1] == "decode")
            stack.callback(Exporter("127.0.0.1", port, engine.reading).close)
        yield ports


def a_key_file() -> KeyFile:
    entries = [
        {
            "name": name,
            "sha256": sha256(name.encode()).hexdigest(),
            "tenant": tenant,
            "operator": name == "ops",
        }
        for name, tenant in KEYS.items()
    ]
    return KeyFile.model_validate({"keys": entries})


async def work(rig: Rig) -> None:
    """The sessions, side by side."""
    await asyncio.gather(*(_session(rig, name) for name in SESSIONS))
    shadow = rig.app.state.shadow
    await until(lambda: not shadow.running, "nothing runs any more")


async def _session(rig: Rig, name: str) -> None:
    key, models = SESSIONS[name]
    texts = ["Look into it. " + "context " * (500 + 40 * len(name))]
    for at, model in enumerate(models.split()):
        body = a_chat(model=model, messages=a_turn(*texts), max_tokens=24, stream=True)
        headers = {"x_session_id": name, "authorization": f"Bearer {key}"}
        await rig.chat(body, **headers)
        await asyncio.sleep(0.3)
        texts += ["done", f"step {at}: " + "result " * (150 + 60 * at)]


async def pictures(address: str, folder: Path) -> None:
    engine = {"prefill_s_per_token": 0.0008, "chunk_delay_s": 0.01, "output_tokens": 24}
    with moving_engines() as ports:
        async with a_coordinator(
            TWO_PD,
            shadow=True,
            metrics_ports=ports,
            keys=a_key_file(),
            engine=engine,
            limits={"connect_timeout_s": 30.0, "probe_interval_s": 2.0},
        ) as rig:
            await work(rig)
            async with a_tab(address, width=1360, height=900) as tab:
                await _open(tab, rig.url)
                await tab.picture(folder / NORMAL)
                await tab.prefer(prefers_color_scheme="dark")
                rig.engines["large-d"].faults.kill()
                await tab.until("document.querySelector('.state.unhealthy') !== null")
                await tab.picture(folder / DARK)
                await tab.prefer(prefers_color_scheme="light")
                await tab.resize(400, 900)
                top = await tab.value("document.getElementById('sessions').offsetTop")
                await tab.picture(folder / NARROW, top - 12, 1700)
    for name in (NORMAL, DARK, NARROW):
        _shrink(folder / name)


def _shrink(path: Path) -> None:
    """The page has few colours: a palette of them is a third of the size."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


async def _open(tab: Tab, url: str) -> None:
    await tab.go(url + "/dashboard")
    await tab.until("!document.getElementById('key-form').hidden")
    await tab.value("document.getElementById('key').focus()")
    await tab.type("ops")
    await tab.press("Enter")
    await tab.until("document.querySelectorAll('#sessions-table button').length === 4")
    await tab.value("document.querySelector('button[title^=swe-bench]').click()")
    await tab.until("document.querySelector('#timeline svg') !== null")
    await tab.value("document.activeElement.blur()")
    await tab.until("document.querySelector('#instances-table').innerText.includes('/s now')")


def main() -> None:
    folder = Path(sys.argv[1])
    binary = next(filter(None, map(shutil.which, NAMES)))
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        browser(binary, Path(profile)) as address,
    ):
        asyncio.run(pictures(address, folder))


if __name__ == "__main__":
    main()
