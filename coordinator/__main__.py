"""`python -m coordinator --config F`: one process, one event loop."""

from __future__ import annotations

import argparse
import functools
import gc
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from configs.keys import load_keys
from configs.load import ConfigError, load_config
from coordinator.app import create_app
from coordinator.hot_protocol import HotProtocol
from coordinator.json_log import JsonLines
from coordinator.tls import tls_options

if TYPE_CHECKING:
    import asyncio


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m coordinator", description=__doc__)
    parser.add_argument("--config", required=True, type=Path, metavar="F")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning"])
    options = parser.parse_args(argv)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        config = load_config(options.config)
        app = create_app(config, keys=load_keys(config.coordinator))
        tls = tls_options(config.coordinator.tls)
    except (ConfigError, ValueError) as error:
        parser.exit(2, f"{error}\n")
    log_options = _log_options(config.coordinator.log_format)
    # uvicorn calls what it takes for a class.
    hot = cast("type[asyncio.Protocol]", functools.partial(HotProtocol, app.hot))
    _calm_garbage_collection()
    uvicorn.run(
        app,
        host=config.coordinator.host,
        port=config.coordinator.port,
        loop="uvloop",
        http=hot,
        ws="none",
        access_log=False,
        proxy_headers=False,
        log_level=options.log_level,
        **log_options,
        timeout_keep_alive=75,
        # A call that is not at its end by then is told so (coordinator.hot_protocol).
        timeout_graceful_shutdown=math.ceil(config.coordinator.drain_s),
        **tls,
    )


def _log_options(log_format: str) -> dict[str, Any]:
    """For uvicorn, which has formats of its own."""
    if log_format == "text":
        return {}
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())
    return {"log_config": None}


def _calm_garbage_collection() -> None:
    """Ten thousand sessions are long-lived objects: the default thresholds would walk all of them
    every few hundred calls, which is tens of milliseconds in the middle of somebody's stream."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


if __name__ == "__main__":
    main()
