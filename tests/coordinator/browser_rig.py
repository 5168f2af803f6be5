"""A real Chromium, spoken to over its own protocol (CDP): no driver, no package.

One browser for a module; each tab is a new profile, so that nothing is left of the test before."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import subprocess
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_S = 120.0
DEADLINE_S = 60.0
ARGUMENTS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-port=0",
    # A page that asks for anything from anywhere else gets nothing, here and on any machine.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
KEYS = {"Tab": 9, "Enter": 13}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running browser."""
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        pytest.skip("no Chromium is installed: apt-get install --no-install-recommends chromium")
    with browser(binary, tmp_path_factory.mktemp("chromium")) as address:
        yield address


class browser:
    """Its process, ended on exit."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._folder = folder
        argv = [binary, *ARGUMENTS, f"--user-data-dir={folder}"]
        if os.geteuid() == 0:
            argv.append("--no-sandbox")  # Chromium refuses to run as root with one
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> str:
        told = self._folder / "DevToolsActivePort"
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            assert self._process.poll() is None, "Chromium ended"
            lines = told.read_text().splitlines() if told.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            time.sleep(0.05)
        self.__exit__()
        raise AssertionError(f"Chromium did not listen within {START_S} s")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Tab:
    """One page, and what it said and asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        """Errors of its console, scripts that threw, what its policy blocked."""
        self.requests: list[str] = []
        self._socket = socket
        self._session: str | None = None
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def tell(self, method: str, **params: object) -> dict[str, Any]:
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        async with asyncio.timeout(DEADLINE_S):
            return await answer

    async def open(self, width: int = 1280, height: int = 900) -> None:
        context = await self.tell("Target.createBrowserContext")
        whose = context["browserContextId"]
        target = await self.tell(
            "Target.createTarget", url="about:blank", browserContextId=whose, width=width
        )
        found = await self.tell("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            await self.tell(f"{domain}.enable")
        await self.resize(width, height)

    async def resize(self, width: int, height: int, scale: float = 1) -> None:
        await self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    async def prefer(self, **features: str) -> None:
        """Media features, with _ for -."""
        named = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        await self.tell("Emulation.setEmulatedMedia", features=named)

    async def cut_off(self, is_offline: bool) -> None:
        await self.tell(
            "Network.emulateNetworkConditions",
            offline=is_offline,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )

    async def go(self, url: str) -> None:
        await self.tell("Page.navigate", url=url)
        await self.until(f"location.href === {url!r} && document.readyState === 'complete'")

    async def value(self, expression: str) -> Any:
        answer = await self.tell(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Polls until it is true; gives what it was then."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + DEADLINE_S
        while not (found := await self.value(expression)):
            assert loop.time() < deadline_s, f"never true: {expression}; {self.problems}"
            await asyncio.sleep(0.05)
        return found

    async def text(self, selector: str) -> str:
        found = await self.value(f"document.querySelector({selector!r})?.innerText ?? ''")
        assert isinstance(found, str)
        return found

    async def press(self, key: str) -> None:
        code = KEYS[key]
        named: dict[str, object] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        if key == "Enter":
            named["text"] = "\r"
        await self.tell("Input.dispatchKeyEvent", type="keyDown", **named)
        await self.tell("Input.dispatchKeyEvent", type="keyUp", **named)

    async def type(self, text: str) -> None:
        await self.tell("Input.insertText", text=text)

    async def accessible(self) -> list[tuple[str, str]]:
        """Role and name of all that a screen reader is told."""
        tree = await self.tell("Accessibility.getFullAXTree")
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in tree["nodes"]
            if not node.get("ignored")
        ]

    async def picture(self, path: Path, top: int = 0, height: int | None = None) -> None:
        """Of the page from `top` on, to its end unless told otherwise."""
        width = await self.value("innerWidth")
        height = height or await self.value("document.documentElement.scrollHeight") - top
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        shot = await self.tell("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))

    async def listen(self) -> None:
        async for message in self._socket:
            self._heard(message.json())

    def _heard(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case None:
                answer = self._answers.pop(message["id"])
                if "error" in message:
                    answer.set_exception(AssertionError(str(message["error"])))
                elif not answer.done():
                    answer.set_result(message["result"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.problems.append(str(params["entry"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(str(params["args"]))


@asynccontextmanager
async def a_tab(address: str, **size: int) -> AsyncIterator[Tab]:
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(address, max_msg_size=0) as socket,
    ):
        tab = Tab(socket)
        listening = asyncio.create_task(tab.listen())
        try:
            await tab.open(**size)
            yield tab
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
