"""Normal traffic and agent sessions against a live cluster, under several controllers.

    python -m bench.live --save-result --result-dir out/bench

Finished cells stay in RESULT_DIR/live and are not run again; the same command goes on where it was
stopped. --smoke runs a few short cells, each time anew. --topology pd compares shadow off, on P
only and with D's pulls, and splits the time to the first token."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.demo.errors import CallFailed
from bench.live.calibrate import NotSaturated
from bench.live.cells import (
    FilterInvalid,
    chosen,
    full_matrix,
    pd_matrix,
    pd_smoke_matrix,
    smoke_matrix,
)
from bench.live.errors import LiveError
from bench.live.options import Options, Topology
from bench.live.settings import FULL, SMOKE
from bench.live.store import ResultsMixed
from bench.terminal import unwind_on_sigterm, wide_console
from configs.errors import ConfigError
from coordinator.run_state import RunDirBusy
from coordinator.start_errors import ClusterStartError

if TYPE_CHECKING:
    from rich.console import Console

CONFIGS: dict[Topology, Path] = {
    "colocated": Path("configs/local_colocated.yaml"),
    "pd": Path("configs/local_pd.yaml"),
}
MATRICES = {"colocated": (full_matrix, smoke_matrix), "pd": (pd_matrix, pd_smoke_matrix)}


def main() -> int:
    arguments = _arguments()
    unwind_on_sigterm()
    console = wide_console(190)
    try:
        return _run(arguments, console)
    except (
        *(LiveError, CallFailed, NotSaturated, ResultsMixed, FilterInvalid),
        *(ClusterStartError, RunDirBusy, ConfigError),
    ) as error:
        console.print(f"bench.live failed: {error}", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; the engines are stopped, finished cells are kept")
        return 130


def _run(arguments: argparse.Namespace, console: Console) -> int:
    # Here: --help needs no matplotlib and no cluster.
    from bench.live.plot import write_png
    from bench.live.story import run_live

    options = _options(arguments)
    if arguments.cells:
        _list(options, console)
        return 0
    result = run_live(options, console)
    if result is not None and arguments.save_result:
        path = arguments.result_dir / f"live_{options.topology}.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        console.print(f"written to {path}", soft_wrap=True)
        if options.topology == "colocated":
            write_png(result["cells"], _title(result), path.with_suffix(".png"))
            console.print(f"written to {path.with_suffix('.png')}", soft_wrap=True)
    failed = [one for one in (result or {}).get("verdicts", ()) if one["outcome"] == "failed"]
    return 1 if arguments.gate and (failed or result is None) else 0


def _options(arguments: argparse.Namespace) -> Options:
    """Raises FilterInvalid."""
    topology: Topology = arguments.topology
    full, short = MATRICES[topology]
    wanted = short() if arguments.smoke else full()
    picked = [] if arguments.report else chosen(wanted, arguments.only)
    return Options(
        config=arguments.config or CONFIGS[topology],
        folder=arguments.result_dir / _folder(topology, smoke=arguments.smoke),
        topology=topology,
        settings=SMOKE if arguments.smoke else FULL,
        wanted=wanted,
        chosen=picked,
        max_s=60 * arguments.max_minutes,
        fresh=arguments.fresh or (arguments.smoke and not arguments.report),
    )


def _folder(topology: Topology, *, smoke: bool) -> str:
    parts = ("live", "" if topology == "colocated" else topology, "smoke" if smoke else "")
    return "-".join(part for part in parts if part)


def _list(options: Options, console: Console) -> None:
    for cell in options.chosen:
        done = (options.folder / f"{cell.name}.jsonl").exists()
        console.print(f"{cell.name} {'done' if done else ''}".rstrip())


def _title(result: dict[str, Any]) -> str:
    models = ", ".join(f"{name}: {text}" for name, text in result["conditions"]["models"].items())
    shown = models if len(models) < 120 else f"{len(result['conditions']['models'])} models"
    return (
        f"Live colocated cluster, {shown}; bars: mean over all repeats, whiskers: 95% interval "
        f"({result['cells_done']} of {result['cells_wanted']} cells)"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--topology", choices=tuple(CONFIGS), default="colocated")
    parser.add_argument("--config", type=Path, help="the cluster to start; its shape must be that")
    parser.add_argument("--save-result", action="store_true", help="write JSON and picture")
    parser.add_argument("--result-dir", type=Path, default=Path("out/bench"))
    parser.add_argument("--smoke", action="store_true", help="a few short cells")
    parser.add_argument("--cells", action="store_true", help="list the cells and do nothing")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="only these cells: load=0.3,controller=off,repeat=1 (a key given twice: either)",
    )
    parser.add_argument(
        "--max-minutes", type=float, default=float("inf"), help="begin no cell that ends later"
    )
    parser.add_argument("--report", action="store_true", help="only report what is on disk")
    parser.add_argument("--gate", action="store_true", help="exit 1 if an aim is missed")
    parser.add_argument("--fresh", action="store_true", help="forget the cells that are on disk")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
