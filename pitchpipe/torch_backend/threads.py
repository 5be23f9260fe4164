"""Small operators of PyTorch's beside compiled code run in the calling thread alone.

OpenMP's other threads spin for some milliseconds after their work, on cores that the next kernel wants: after the embeddings
of a BERT its first product took three times as long as the same product of the next layer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from pitchpipe.torch_backend.partition import computes

MOST_ELEMENTS = 1 << 18
"""Of an operator's result. What has fewer takes one thread less time than the others spin."""


def run_small_ones_alone(module: Any) -> None:
    """Changes a graph module on the CPU: its own small operators, not those of its submodules, take one thread."""
    openmp = _openmp()
    if openmp is None:
        return
    for node in module.graph.nodes:
        value = node.meta.get("val") if computes(node) else None
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel() <= MOST_ELEMENTS:
            node.target = _alone(node.target, *openmp)
    module.recompile()


def _alone(operator: Callable[..., Any], threads: Callable[[], int], set_threads: Callable[[int], None]) -> Any:
    def alone(*arguments: Any, **options: Any) -> Any:
        before = threads()
        set_threads(1)
        try:
            return operator(*arguments, **options)
        finally:
            set_threads(before)

    return alone


@cache
def _openmp() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Reads and sets how many threads the calling thread's regions have, in the OpenMP that torch has loaded; None where
    it has none. torch.set_num_threads would change other threads of the program, too."""
    try:
        loaded = ctypes.CDLL(torch._C.__file__)
        return loaded.omp_get_max_threads, loaded.omp_set_num_threads
    except (OSError, AttributeError):
        return None
