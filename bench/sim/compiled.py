"""Compiles plain functions of numbers with numba as they are; without numba they stay Python.

The policies and the operators import no numba, and a compiled function may call compiled functions
only. So a copy of the function is made whose globals hold the compiled copies of what it calls: the
same code object, read from the same file. `compiled(f).py_func.__code__ is f.__code__`.

Compiling the event loop takes half a minute, so the result is kept on disk. numba notices a change
of the file that a function is in, but not of the functions that it calls: hence the folder is named
after all the sources that may be compiled."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

# Imported where it compiles: a second to load, and vLLM starts no engine in a process that has it.
HAS_NUMBA = find_spec("numba") is not None

F = TypeVar("F", bound="Callable[..., Any]")

_done: dict[FunctionType, Any] = {}


def compiled(function: F) -> F:
    """Every function has one compiled copy, however many others call it."""
    if not HAS_NUMBA:
        return function
    return cast("F", _compiled(cast("FunctionType", function)))


def _compiled(function: FunctionType) -> Any:
    import numba

    if function not in _done:
        called = {
            name: _compiled(value)
            for name in function.__code__.co_names
            if isinstance(value := function.__globals__.get(name), FunctionType)
        }
        copy = FunctionType(
            function.__code__,
            {**function.__globals__, **called},
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(_cache_folder())
        try:
            # Exact sums: with fastmath the same seed could give other bytes on another machine.
            # Without numba's own counting of references to arrays (nothing here makes one, the
            # caller holds them all): it took five sixths of the time.
            _done[function] = numba.njit(copy, fastmath=False, cache=True, _nrt=False)
        finally:
            numba.config.CACHE_DIR = before
    return _done[function]


@cache
def _cache_folder() -> Path:
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256(version("numba").encode())
    for source in sorted([*root.glob("bench/sim/*.py"), *root.glob("policy/*.py")]):
        digest.update(source.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "shadowprefill" / f"numba-{digest.hexdigest()[:16]}"
