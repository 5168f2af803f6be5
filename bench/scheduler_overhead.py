"""What the scheduler plug-in costs per iteration: vLLM's own scheduler beside ours, the same
requests in both, in alternating turns so that noise of the machine hits both alike.

    python -m bench.scheduler_overhead --save-result --result-dir out/bench [--smoke]

An iteration is `schedule` + `update_from_output` + its share of `add_request` (of requests that
give OUTPUT_TOKENS tokens each). Each step of the plug-in is compared with the same step of stock
vLLM, a turn apart. A shadow chunk in the step also costs vLLM itself one more request of so many:
the rows `refused` show the plug-in without it."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.scheduler_side import Case, Totals, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS_IN_TURN = 16
"""Of BLOCK tokens: each running request needs one new block in a turn."""
GATE_US = 100
"""Most that the plug-in may add at 256 running requests and 64 jobs of 60,000 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Case):
    """Times of a whole iteration."""

    steps: int
    plain_us_p50: float
    plugin_us_p50: float
    added_us_p50: float
    """Median of the differences step by step, and so the next two."""
    added_us_quartiles: tuple[float, float]
    added_share_p50: float
    """Of the plain step: depends little on how fast the machine is."""
    plain_us_p99: float
    plugin_us_p99: float
    plain_add_request_us: float
    """Of these, the iteration's share of `add_request`."""
    plugin_add_request_us: float
    plain_message_bytes: int
    plugin_message_bytes: int
    shadow_tokens: int


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    steps = 32 if options.smoke else 192
    plain, plugin = (SideProcess(options.model, plugin=plugin) for plugin in (False, True))
    rows = []
    for case in cases(smoke=options.smoke):
        rows.append(measure(case, plain, plugin, steps))
        print(_line(rows[-1]), flush=True)  # noqa: T201 (a command's output)
        if options.save_result:  # each time: a run that is stopped keeps what it has
            _save(rows, Path(options.result_dir))
    for side in (plain, plugin):
        side.close()


def _save(rows: list[Row], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    load = [round(average, 2) for average in os.getloadavg()]
    result = {
        "load_average": load,
        "gate_added_us_p50": GATE_US,
        "rows": [asdict(row) for row in rows],
    }
    (folder / "scheduler_overhead.json").write_text(json.dumps(result, indent=2) + "\n")


def cases(*, smoke: bool) -> list[Case]:
    """In both modes of scheduling at the size of the gate, the largest; else in sync."""
    sizes = (8, 1) if smoke else (256, 64, 1)
    few, many = (1, 4) if smoke else (1, 64)
    short, long = (1_000, 2_000) if smoke else (8_000, 60_000)
    kinds = [
        (0, 0, "none"),
        (few, long, "granted"),
        (many, short, "granted"),
        (many, long, "granted"),
        (many, long, "tight"),
        (many, long, "refused"),
        (many, long, "arrivals"),
    ]
    found = [
        Case(
            running=size,
            shadow_jobs=jobs,
            prefix_tokens=prefix,
            asynchronous=asynchronous,
            chunk=chunk,
        )
        for asynchronous in (False, True)
        for size in (sizes[:1] if asynchronous else sizes)
        for jobs, prefix, chunk in kinds
    ]
    at_the_gate = next(c for c in found if (c.shadow_jobs, c.prefix_tokens) == (many, long))
    return [*found, replace(at_the_gate, spare_blocks=1_000 if smoke else 500_000)]


class SideProcess:
    """A `bench.scheduler_side` and the pipe to it."""

    def __init__(self, model: str, *, plugin: bool) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, model, plugin), daemon=True)
        self._process.start()
        theirs.close()  # or its end would never be noticed

    def begin(self, case: Case, steps: int) -> None:
        self._ask("begin", case, steps)

    def turn(self) -> list[float]:
        steps_s: list[float] = self._ask("turn", None, STEPS_IN_TURN)
        return steps_s

    def totals(self) -> Totals:
        totals: Totals = self._ask("end", None, 0)
        return totals

    def close(self) -> None:
        self._connection.close()
        self._process.join()

    def _ask(self, *message: Any) -> Any:
        self._connection.send(message)
        return self._connection.recv()


def measure(case: Case, plain: SideProcess, plugin: SideProcess, steps: int) -> Row:
    for side in (plain, plugin):
        side.begin(case, steps)
    plain_s: list[float] = []
    plugin_s: list[float] = []
    for _ in range(steps // STEPS_IN_TURN):
        plain_s += plain.turn()
        plugin_s += plugin.turn()
    plain_totals, plugin_totals = plain.totals(), plugin.totals()
    plain_s = [step_s + plain_totals.add_request_s for step_s in plain_s]
    plugin_s = [step_s + plugin_totals.add_request_s for step_s in plugin_s]
    added_s = [ours - theirs for ours, theirs in zip(plugin_s, plain_s, strict=True)]
    shares = [ours / theirs - 1 for ours, theirs in zip(plugin_s, plain_s, strict=True)]
    lower_s, _, upper_s = statistics.quantiles(added_s, n=4)
    return Row(
        **asdict(case),
        steps=len(plain_s),
        plain_us_p50=_us(statistics.median(plain_s)),
        plugin_us_p50=_us(statistics.median(plugin_s)),
        added_us_p50=_us(statistics.median(added_s)),
        added_us_quartiles=(_us(lower_s), _us(upper_s)),
        added_share_p50=round(statistics.median(shares), 4),
        plain_us_p99=_us(_p99(plain_s)),
        plugin_us_p99=_us(_p99(plugin_s)),
        plain_add_request_us=_us(plain_totals.add_request_s),
        plugin_add_request_us=_us(plugin_totals.add_request_s),
        plain_message_bytes=plain_totals.message_bytes,
        plugin_message_bytes=plugin_totals.message_bytes,
        shadow_tokens=plugin_totals.shadow_tokens,
    )


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 1)


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def _line(row: Row) -> str:
    lower_us, upper_us = row.added_us_quartiles
    return (
        f"{'async' if row.asynchronous else 'sync':5} running {row.running:3}  "
        f"jobs {row.shadow_jobs:2} x {row.prefix_tokens:5}  {row.chunk:8}  "
        f"plain {row.plain_us_p50:7.1f} us  plug-in {row.plugin_us_p50:7.1f} us  "
        f"added {row.added_us_p50:6.1f} us ({lower_us:.0f} to {upper_us:.0f}) "
        f"= {100 * row.added_share_p50:4.1f}%  p99 {row.plain_us_p99:.0f} {row.plugin_us_p99:.0f}  "
        f"message {row.plain_message_bytes} {row.plugin_message_bytes} B"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default=".models/tiny-a", help="a folder with a config.json")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--save-result", action="store_true")
    parser.add_argument("--result-dir", default="out/bench")
    return parser


if __name__ == "__main__":
    main()
