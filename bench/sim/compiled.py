"""Compiles plain functions of numbers with numba as they are; without numba they stay Python.

The policies and the operators import no numba, and a compiled function may call compiled functions
only. So a copy of the function is made whose globals hold the compiled copies of what it calls: the
same code object, read from the same file. `compiled(f).py_func.__code__ is f.__code__`."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

try:
    import numba
except ModuleNotFoundError:
    numba = None

if TYPE_CHECKING:
    from collections.abc import Callable

HAS_NUMBA = numba is not None

F = TypeVar("F", bound="Callable[..., Any]")

_done: dict[FunctionType, Any] = {}


def compiled(function: F) -> F:
    """Every function has one compiled copy, however many others call it."""
    if numba is None:
        return function
    return cast("F", _compiled(cast("FunctionType", function)))


def _compiled(function: FunctionType) -> Any:
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
        # Exact sums: with fastmath the same seed could give other bytes on another machine.
        _done[function] = numba.njit(copy, fastmath=False)
    return _done[function]
