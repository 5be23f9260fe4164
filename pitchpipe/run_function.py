"""The function of a compiled model on a CPU that calls all its kernels, and the memory that they work in.

tuner/deploy/run_function.py writes it and says what it takes. Who calls it brings inputs and room for results: NumPy's
arrays for `pitchpipe.load` (vm.py), torch's tensors for `torch.compile` (torch_backend/run.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pitchpipe.processes.lost_threads import with_threads

RUN, MEMORY = "main_run", "main_memory"
"""Names of the function, and of the one that tells what memory it needs."""
ALIGNMENT = 64
"""Bytes; what compiled code relies on."""


class RunFunction:
    """One thread at a time may call it: every call works in the same scratch memory."""

    def __init__(self, call: Callable[..., int], described: str, constants: Sequence[Any]) -> None:
        """described, constants: what the library's other function told."""
        from tvm_ffi import from_dlpack

        told = json.loads(described)
        scratch = aligned(max((offset + size for offset, size in told["pieces"]), default=0))
        self.call = with_threads(call)
        """(inputs, results, memory) -> 0, or something else where the virtual machine has to be asked. Inputs and results
        are TVM's tensors, contiguous and aligned; no result shares memory with anything else."""
        self.results: list[tuple[tuple[int, ...], str]] = [(tuple(shape), dtype) for shape, dtype in told["results"]]
        """Shape and NumPy dtype name of each."""
        self.in_tuple: bool = told["in_tuple"]
        """Whether the model gives a tuple."""
        self._constants = constants
        self._pieces = [from_dlpack(scratch[offset : offset + size]) for offset, size in told["pieces"]]

    @staticmethod
    def of(machine: Any) -> RunFunction | None:
        """Of the library that a virtual machine runs; None where it has none."""
        try:
            described, *constants = machine[MEMORY]()
        except (AttributeError, ValueError):
            return None
        return RunFunction(machine.module.get_function(RUN, query_imports=True), described, constants)

    def memory(self, params: Sequence[Any]) -> list[Any]:
        """What `call` takes behind the results. params: weights as main takes them."""
        return [*params, *self._constants, *self._pieces]


def aligned(size_bytes: int) -> Any:
    """So many bytes of memory that begins where compiled code relies on it."""
    import numpy as np

    memory = np.empty(size_bytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size_bytes]
