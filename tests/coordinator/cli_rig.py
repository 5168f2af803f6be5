"""The command line against a coordinator over fake engines, both in the test's own process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from coordinator.cli import app
from coordinator.cli_options import KEY_VARIABLE, URL_VARIABLE

if TYPE_CHECKING:
    from click.testing import Result

    from tests.coordinator.call_rig import Rig


async def run(
    rig: Rig, *arguments: str, key: str | None = None, stdin: str | None = None, **more: Any
) -> Result:
    """One command, pointed to the rig's coordinator by the environment."""
    environment = {URL_VARIABLE: rig.url, KEY_VARIABLE: key, **more}
    return await asyncio.to_thread(
        CliRunner().invoke, app, list(arguments), input=stdin, env=environment
    )
