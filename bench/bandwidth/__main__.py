"""How fast KV moves between two processes: memcpy, raw UCX, raw NIXL, and pulls of real engines.

    python -m bench.bandwidth --save-result --result-dir out/bench

Options and columns are nixlbench's where it has them."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from bench.bandwidth.engine_pull import PullMissing
from bench.bandwidth.memory import segment_type
from bench.bandwidth.nixl_pair import WrongBytes
from bench.bandwidth.peer import PeerFailed
from bench.bandwidth.shapes import Grid
from bench.bandwidth.story import Pulls, engine_pulls, run_bandwidth
from bench.bandwidth.table import bandwidth_table, closing_lines
from bench.bandwidth.wide_pair import PROMPT_TOKENS, ModelMissing, free_ports, write_pair
from bench.terminal import unwind_on_sigterm, wide_console
from configs.load import load_config
from configs.profile import load_profile, profile_names
from coordinator.run_state import RunDirBusy
from coordinator.start_errors import ClusterStartError
from kv_transport.errors import KvTransportError

if TYPE_CHECKING:
    from rich.console import Console

MODELS = Path(".models")
RESULT = "bandwidth.json"
FULL = Grid(
    total_buffer_size=256 << 20,
    start_block_size=64 << 10,
    max_block_size=32 << 20,
    start_batch_size=1,
    max_batch_size=4096,
    num_iter=8,
    warmup_iter=2,
)
SMOKE = Grid(
    total_buffer_size=16 << 20,
    start_block_size=64 << 10,
    max_block_size=1 << 20,
    start_batch_size=1,
    max_batch_size=64,
    num_iter=2,
    warmup_iter=1,
)
FIRST_PULLS = 5
"""Until every block of D's pool was written once; the handshake is among them."""
PULLS = 12


def main() -> int:
    arguments = _arguments()
    unwind_on_sigterm()
    console = wide_console(190)
    try:
        return _run(arguments, console)
    except (
        *(PeerFailed, WrongBytes, PullMissing, ModelMissing, KvTransportError),
        *(ClusterStartError, RunDirBusy, aiohttp.ClientError),
    ) as error:
        console.print(f"bench.bandwidth failed: {error}", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; what was started is stopped")
        return 130


def _run(arguments: argparse.Namespace, console: Console) -> int:
    kind = arguments.initiator_seg_type or segment_type()
    profile = arguments.profile or ("h100" if kind == "VRAM" else "cpu")
    pulls = _pulls(arguments, kind, profile, console)
    _set_ucx(profile)
    result = run_bandwidth(_grid(arguments), kind, pulls, profile)
    console.print(bandwidth_table(result["rows"]))
    for line in closing_lines(result):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"engine pulls: {result['engine_pulls']}", markup=False, soft_wrap=True)
    if arguments.save_result:
        arguments.result_dir.mkdir(parents=True, exist_ok=True)
        path = arguments.result_dir / RESULT
        path.write_text(json.dumps(result, indent=2) + "\n")
        console.print(f"written to {path}", soft_wrap=True)
    return 0


def _pulls(arguments: argparse.Namespace, kind: str, profile: str, console: Console) -> Pulls:
    """Raises ModelMissing, ClusterStartError, PullMissing."""
    reason = ""
    if arguments.smoke:
        reason = "--smoke starts no engines"
    elif kind == "VRAM" and arguments.config is None:
        reason = "on GPUs, --config has to name a P/D pair of this machine"
    if arguments.no_engines or reason:
        return Pulls(skipped=reason or "--no-engines")
    with tempfile.TemporaryDirectory(prefix="bandwidth-") as directory:
        folder = Path(directory)
        path = arguments.config or write_pair(folder, MODELS, free_ports(4), profile)
        model = next(iter(load_config(path).models))
        console.print(f"starting P and D of {model}, for {arguments.pulls} pulls")
        return engine_pulls(
            path,
            folder / "run",
            prompt_tokens=arguments.prompt_tokens,
            first=FIRST_PULLS,
            count=arguments.pulls,
        )


def _set_ucx(profile: str) -> None:
    """The profile's, as its engines have them; what the environment says already is left."""
    for name, value in load_profile(profile).env.items():
        if name.startswith("UCX_"):
            os.environ.setdefault(name, value)


def _grid(arguments: argparse.Namespace) -> Grid:
    default = SMOKE if arguments.smoke else FULL
    given = {
        name: value for name in Grid.__slots__ if (value := getattr(arguments, name)) is not None
    }
    return Grid(**{name: getattr(default, name) for name in Grid.__slots__} | given)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.bandwidth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--save-result", action="store_true", help=f"write {RESULT}")
    parser.add_argument("--result-dir", type=Path, default=Path("out/bench"))
    parser.add_argument("--smoke", action="store_true", help="small, without engines")
    parser.add_argument("--no-engines", action="store_true", help="no engine_pull")
    parser.add_argument("--config", type=Path, help="P and D of its first model are measured")
    parser.add_argument("--prompt-tokens", type=int, default=PROMPT_TOKENS, help="of one pull")
    parser.add_argument("--pulls", type=int, default=PULLS, help="after the first ones")
    parser.add_argument("--profile", choices=profile_names(), help="whose UCX settings")
    parser.add_argument("--initiator-seg-type", choices=("DRAM", "VRAM"), help="of both ends")
    for name in Grid.__slots__:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N")
    arguments = parser.parse_args()
    try:
        _grid(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


if __name__ == "__main__":
    sys.exit(main())
