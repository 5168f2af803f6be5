"""The files of `/dashboard`: who may have them, and what they may not hold. Without a browser."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from coordinator.dashboard_api import FOLDER
from tests.coordinator.call_rig import COLOCATED, a_coordinator
from tests.coordinator.dashboard_pictures import a_key_file

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path.name for path in FOLDER.iterdir())
KNOWN_ADDRESSES = {"http://www.w3.org/2000/svg"}
"""The name of a namespace: nobody asks for it."""


async def test_the_page_and_its_files_come_with_a_policy_that_lets_nothing_else_in() -> None:
    async with a_coordinator(COLOCATED, keys=a_key_file(), ready=False) as rig:
        for path in ("/dashboard", *(f"/dashboard/{name}" for name in FILES)):
            reply = await rig.client.get(path)
            assert reply.status_code == 200, path
            policy = dict(
                part.strip().split(" ", 1)
                for part in reply.headers["content-security-policy"].split(";")
            )
            assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert reply.headers["x-content-type-options"] == "nosniff"
        assert (await rig.client.get("/dashboard")).headers["content-type"].startswith("text/html")
        script = await rig.client.get("/dashboard/app.js")
        assert script.headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2e%2e%2fapp.py", "..%5Capp.py"])
async def test_no_other_file_can_be_asked_for(name: str) -> None:
    async with a_coordinator(COLOCATED, ready=False) as rig:
        reply = await rig.client.get(f"/dashboard/{name}")
        assert reply.status_code == 404
        assert "error" in reply.json()


async def test_the_page_is_no_part_of_the_api() -> None:
    async with a_coordinator(COLOCATED, ready=False) as rig:
        paths = (await rig.client.get("/openapi.json")).json()["paths"]
        assert not [path for path in paths if "dashboard" in path]


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_host(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'<]*", text)) <= KNOWN_ADDRESSES
    assert "@import" not in text
    assert "url(" not in text


def test_nothing_is_written_inline_and_nothing_from_outside_becomes_markup() -> None:
    page = (FOLDER / "index.html").read_text()
    assert not re.findall(r"\s(?:style|on\w+)=", page)
    assert not re.findall(r"<script(?![^>]*\ssrc=)", page)
    for name in FILES:
        if name.endswith(".js"):
            script = (FOLDER / name).read_text()
            assert not re.findall(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", script)


def test_every_file_is_package_data() -> None:
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = tree["tool"]["setuptools"]["package-data"]["coordinator"]
    for name in FILES:
        assert any(fnmatch(f"dashboard/{name}", pattern) for pattern in patterns), name


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_a_module_imports_only_what_is_there(name: str) -> None:
    for imported in re.findall(r'from "\./([^"]+)"', (FOLDER / name).read_text()):
        assert imported in FILES
