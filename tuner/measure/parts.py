"""Arithmetic of NumPy on large arrays, part by part: what is between its operations stays in the cache, and parts run on all
cores where there are many, since NumPy lets go of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pitchpipe.processes.cores import usable_cores

_T = TypeVar("_T")
_SMALL, _LARGE = 1 << 15, 1 << 18
"""Elements of a part for one thread, and for one of several: the interpreter's lock changes hands less often there."""
_MANY = 1 << 22
"""Elements from which threads are worth starting."""


def over_parts(function: Callable[[slice], _T], size: int) -> list[_T]:
    """The results of `function` for slices that cover `size` elements, in order; one empty slice where there are none.

    Threads that it starts have ended when it returns, so a process that forks may call it.
    """
    many = size >= _MANY and usable_cores() > 1
    step = _LARGE if many else _SMALL
    parts = [slice(start, start + step) for start in range(0, max(1, size), step)]
    if not many:
        return [function(part) for part in parts]
    with ThreadPoolExecutor(usable_cores()) as threads:
        return list(threads.map(function, parts))
