"""Which cells a run has and in which order: load, controller, repeat.

The order keeps what is compared close in time: within a repeat the controllers of one load follow
each other directly, and every other repeat turns them round. A run that is cut short has whole
repeats, not whole controllers.

Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from policy.vocabulary import Controller

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAIN_LOADS = (0.3, 0.7)
MIDDLE_LOAD = 0.5
REPEATS = 5
MIDDLE_REPEATS = 3
OTHERS_REPEAT = 2
"""The baselines run once, beside the cells that they are compared with."""
COMPARED = (Controller.OFF, Controller.HARVEST_SLO)
OTHERS = (Controller.HARVEST, Controller.REQUEST, Controller.EAGER)
ON_P_ONLY = "-on-p-only"
PD_LOAD = 0.3
PD_REPEATS = 3
FILTER_KEYS = ("load", "controller", "repeat")


class FilterInvalid(ValueError):
    """The text after --only names no cells: correct it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One stretch of traffic under one controller."""

    load: float
    """Rate of the normal requests, as a share of the measured capacity."""
    controller: Controller
    repeat: int
    pushes: bool = True
    """Whether D pulls shadow KV ahead of a switch, where P and D are apart."""

    @property
    def name(self) -> str:
        system = system_name(self.controller.value, pushes=self.pushes)
        return f"load{self.load:g}-{system}-r{self.repeat}"


def system_name(controller: str, *, pushes: bool) -> str:
    return controller if pushes else f"{controller}{ON_P_ONLY}"


def full_matrix() -> list[Cell]:
    cells: list[Cell] = []
    for repeat in range(1, REPEATS + 1):
        for load in MAIN_LOADS:
            cells += _block(load, COMPARED, repeat)
        if repeat <= MIDDLE_REPEATS:
            cells += _block(MIDDLE_LOAD, COMPARED, repeat)
        if repeat == OTHERS_REPEAT:
            cells += _block(MIDDLE_LOAD, OTHERS, repeat)
            cells += _block(MAIN_LOADS[-1], OTHERS, repeat)
    return cells


def smoke_matrix() -> list[Cell]:
    return _block(MIDDLE_LOAD, COMPARED, 1)


def pd_matrix() -> list[Cell]:
    """Shadow off, on P only, and with D's pulls."""
    return [cell for repeat in range(1, PD_REPEATS + 1) for cell in _pd_block(PD_LOAD, repeat)]


def pd_smoke_matrix() -> list[Cell]:
    return _pd_block(PD_LOAD, 1)


def _pd_block(load: float, repeat: int) -> list[Cell]:
    systems = (
        (Controller.OFF, True),
        (Controller.HARVEST_SLO, False),
        (Controller.HARVEST_SLO, True),
    )
    ordered = systems if repeat % 2 else systems[::-1]
    return [
        Cell(load=load, controller=controller, repeat=repeat, pushes=pushes)
        for controller, pushes in ordered
    ]


def _block(load: float, controllers: Sequence[Controller], repeat: int) -> list[Cell]:
    ordered = controllers if repeat % 2 else tuple(reversed(controllers))
    return [Cell(load=load, controller=controller, repeat=repeat) for controller in ordered]


def chosen(cells: Iterable[Cell], filters: Sequence[str]) -> list[Cell]:
    """Those that every filter (`load=0.3,controller=off`) lets through; raises FilterInvalid.

    Several values of one key are alternatives."""
    wanted: dict[str, set[str]] = {}
    for part in ",".join(filters).split(","):
        key, _, value = part.strip().partition("=")
        if not part.strip():
            continue
        if key not in FILTER_KEYS or not value:
            raise FilterInvalid(f"--only {part!r}: must be KEY=VALUE with a key of {FILTER_KEYS}")
        wanted.setdefault(key, set()).add(value)
    return [cell for cell in cells if all(_of(cell, key) in wanted[key] for key in wanted)]


def _of(cell: Cell, key: str) -> str:
    values = {
        "load": f"{cell.load:g}",
        "controller": system_name(cell.controller.value, pushes=cell.pushes),
        "repeat": str(cell.repeat),
    }
    return values[key]
