"""One fake engine as a process: `python -m bench.fake_engine --model small --role prefill`."""

from __future__ import annotations

import argparse
import asyncio

import uvloop

from bench.fake_engine import create_app, running
from bench.fake_engine.wire import listening
from policy.vocabulary import Role


def main() -> None:
    arguments = _arguments()
    uvloop.run(_serve_fast(arguments) if arguments.fast else _serve_whole(arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.fake_engine", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", required=True)
    parser.add_argument("--role", type=Role, default=Role.COLOCATED, choices=list(Role))
    parser.add_argument("--output-tokens", type=int, default=8)
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--chunk-delay-s", type=float, default=0.0)
    parser.add_argument("--prefill-s-per-token", type=float, default=0.0)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--vocabulary", choices=["words", "bytes"], default="words")
    parser.add_argument(
        "--fast", action="store_true", help="prepared bytes only: no delays, no cache, no checks"
    )
    return parser.parse_args()


async def _serve_fast(arguments: argparse.Namespace) -> None:
    role, tokens = arguments.role, arguments.output_tokens
    async with listening(arguments.model, role, tokens, arguments.port) as engine:
        _say(arguments, engine.url)
        await asyncio.Event().wait()


async def _serve_whole(arguments: argparse.Namespace) -> None:
    app = create_app(
        model=arguments.model,
        role=arguments.role,
        output_tokens=arguments.output_tokens,
        delay_s=arguments.delay_s,
        chunk_delay_s=arguments.chunk_delay_s,
        prefill_s_per_token=arguments.prefill_s_per_token,
        max_model_len=arguments.max_model_len,
        block_size=arguments.block_size,
        vocabulary=arguments.vocabulary,
        records=False,
    )
    async with running(app, arguments.port) as url:
        _say(arguments, url)
        await asyncio.Event().wait()


def _say(arguments: argparse.Namespace, url: str) -> None:
    # (printed: the only output of this command)
    print(f"fake engine {arguments.model} ({arguments.role}) on {url}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
