"""Buffers between guards: memory that a program has no business in, and that shows when it has been there.

A schedule that loses the guard of a remainder writes past its output. Every element may be right all the same, and what is
damaged belongs to somebody else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tuner.measure.check import size_bytes
from tuner.measure.cuda_driver import Cuda
from tuner.schedule.tensor_type import TensorType
from tuner.tvm_compat import tensor_in, tvm

GUARD_BYTES = 1 << 18
"""On either side of a tensor: more than a tile of rows. A multiple of every alignment."""
_PATTERN = 0xA5


class Guards:
    """Allocates tensors on the host, and keeps the memory around them."""

    def __init__(self) -> None:
        self._guards: list[np.ndarray[Any, Any]] = []

    def allocate(self, found: TensorType) -> Any:
        """A tensor of TVM's of that type, its elements undefined."""
        if (size := size_bytes(found)) == 0:
            return tvm.runtime.empty(found.shape, found.dtype)
        memory: np.ndarray[Any, Any] = np.from_dlpack(tvm.runtime.empty((size + 2 * GUARD_BYTES,), "uint8"))
        for guard in (memory[:GUARD_BYTES], memory[GUARD_BYTES + size :]):
            guard.fill(_PATTERN)
            self._guards.append(guard)
        return tensor_in(memory[GUARD_BYTES : GUARD_BYTES + size], found.shape, found.dtype)

    @property
    def intact(self) -> bool:
        """Whether nobody has written beside the tensors."""
        return all(bool((guard == _PATTERN).all()) for guard in self._guards)


class DeviceGuards:
    """Allocates buffers on a GPU, and keeps the memory around them."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._guards: list[int] = []
        self._blocks: list[int] = []
        self._seen: np.ndarray[Any, Any] = np.empty(GUARD_BYTES, np.uint8)

    def allocate(self, size: int) -> int:
        """The device address of `size` new bytes. Raises CudaError."""
        self._blocks.append(self._cuda.allocate(size + 2 * GUARD_BYTES))
        start = self._blocks[-1] + GUARD_BYTES
        self._guards += [self._blocks[-1], start + size]
        return start

    def set_up(self) -> None:
        """Fills the guards, in stream order. Done before each run that is checked."""
        for guard in self._guards:
            self._cuda.fill(guard, GUARD_BYTES, bytes([_PATTERN]))

    @property
    def intact(self) -> bool:
        """Whether nobody has written beside the buffers since `set_up`. Waits for the device."""
        for guard in self._guards:
            self._cuda.read(guard, self._seen)
            if not (self._seen == _PATTERN).all():
                return False
        return True

    def close(self) -> None:
        """Frees the buffers."""
        for block in self._blocks:
            self._cuda.free(block)
