"""Compiled code computes on the threads that PyTorch computes with.

TVM has threads of its own. Beside an operator of PyTorch's on the same cores both kinds wait for work by spinning, for
milliseconds, where the other kind has work: a graph of one millisecond that PyTorch ran in part took nine. So a library that
is loaded into a process with PyTorch runs its parallel loops on PyTorch's threads (tuner/target_kinds/cpu/launch.c).
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

BORROW = "main_threads"
"""Name of a library's function that takes the addresses of `_FUNCTIONS`, and how many threads a loop has at most."""
_FUNCTIONS = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")


def share_threads(library: Any) -> None:
    """From now on a library's loops run on PyTorch's threads: as many as `torch.set_num_threads` says, and at most
    TVM_NUM_THREADS. They stay TVM's where PyTorch is not loaded, has no OpenMP with an entry for others' code, or the
    library was built by an older version."""
    torch = sys.modules.get("torch")
    if torch is None or (addresses := _openmp(torch._C.__file__)) is None:
        return
    try:
        borrow = library.get_function(BORROW, query_imports=True)
    except AttributeError:
        return
    borrow(*addresses, int(os.environ["TVM_NUM_THREADS"]))


@cache
def _openmp(path: str) -> tuple[int, ...] | None:
    """The addresses of functions of the OpenMP that a library uses."""
    try:
        loaded = ctypes.CDLL(path)
        return tuple(ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS)
    except (OSError, AttributeError):
        return None
