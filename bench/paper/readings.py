"""What the ladder depends on: readings of what the paper leaves open, and two changes that it does
not have, on the four setups of the sensitivities in their median hour.

The first reading is what the engines of this project do. Nothing else differs between the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bench.paper.experiments import ClusterKind, Planned, config_of, setups
from bench.paper.tables import BASE, Ran, against_base, over_runs
from bench.sim.approach import Evicts, Predicts
from bench.study.approaches import ApproachName
from bench.study.compare import BY_KEY
from bench.study.schema import HourWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.paper.experiments import Scale
    from bench.sim.hardware import LatencyMode
    from bench.study.compare import Estimate
    from bench.study.schema import SimConfig

SHOWN = (
    ApproachName.HARVEST,
    ApproachName.HARVEST_SLO,
    ApproachName.HARVEST_SLO_HOST,
    ApproachName.ORACLE_HOST,
)
METRICS = (
    "switch_latency_reduction",
    "llm_latency_reduction",
    "unused_shadow_pct",
    "slo_attainment_points",
)


class Reading(NamedTuple):
    label: str
    shadow: dict[str, Any]
    keeps_finished: bool = True

    def of(self, config: SimConfig) -> SimConfig:
        return config.model_copy(
            update={
                "keeps_finished": self.keeps_finished,
                "shadow": config.shadow.model_copy(update={**AS_ENGINES, **self.shadow}),
            }
        )


AS_ENGINES = {"predicts": Predicts.CONTEXT, "evicts": Evicts.SHADOW_FIRST}
TOKENS, COLD = {"predicts": Predicts.TOKENS}, {"evicts": Evicts.COLD_FIRST}
READINGS = (
    Reading("as the engines", {}),
    Reading("n is found before the context is known", TOKENS),
    Reading("finished requests are not kept", {}, keeps_finished=False),
    Reading("finished not kept, n before the context", TOKENS, keeps_finished=False),
    Reading("cold entries go before shadows", COLD),
    Reading("cold entries first, n before the context", {**COLD, **TOKENS}),
    Reading("cold entries first, n_min 16", {**COLD, "n_min_tokens": 16}),
)


class ReadingCell(NamedTuple):
    reading: Reading
    plan: Planned


class ReadingRow(NamedTuple):
    reading: str
    approach: str
    values: tuple[Estimate | None, ...]
    """In the order of `METRICS`."""


def reading_cells(scale: Scale, latency: LatencyMode) -> list[ReadingCell]:
    cells = []
    for reading in READINGS:
        for pair in setups():
            config = reading.of(config_of(ClusterKind.COLOCATED, pair, scale, latency))
            assert config.normal is not None
            normal = config.normal.model_copy(update={"window": HourWindow.MEDIAN})
            median = config.model_copy(update={"normal": normal})
            cells.append(
                ReadingCell(reading, Planned(ClusterKind.COLOCATED, pair, median, (BASE, *SHOWN)))
            )
    return cells


def reading_rows(cells: Sequence[tuple[ReadingCell, Ran]]) -> list[ReadingRow]:
    """The mean over the setups; their spread is no error of it, so none is given."""
    by_reading = {
        reading.label: [ran for cell, ran in cells if cell.reading is reading]
        for reading in READINGS
    }
    return [
        ReadingRow(label, str(name), tuple(_mean(members, name, metric) for metric in METRICS))
        for label, members in by_reading.items()
        for name in SHOWN
    ]


def _mean(rans: Sequence[Ran], name: ApproachName, metric: str) -> Estimate | None:
    return over_runs(rans, lambda results: against_base(results, name, BY_KEY[metric]))
