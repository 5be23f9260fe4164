"""What runners ask of torch's tensors: whether weights are as they were, and how results are to lie."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch

_VERSION = attrgetter("_version")


def stamps(weights: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Addresses and versions; what has no version (made in inference mode) never compares equal. Some hundred tensors in
    every call: this is all that a call costs beside the compiled code."""
    try:
        return list(map(torch.Tensor.data_ptr, weights)), list(map(_VERSION, weights))
    except RuntimeError:
        return list(map(torch.Tensor.data_ptr, weights)), [object()]


def unusual_stride(result: Any) -> tuple[int, ...] | None:
    """The stride that a result must have, if it is dense and not the usual one."""
    if result.is_contiguous():
        return None
    expected = 1
    for stride, extent in sorted(zip(result.stride(), result.shape, strict=True)):
        if extent != 1 and stride != expected:
            return None
        expected *= extent
    return tuple(result.stride())


def in_stride(result: Any, stride: tuple[int, ...] | None) -> Any:
    """A result with the stride that it must have, if it is an unusual one."""
    if stride is None:
        return result
    return torch.empty_strided(result.shape, stride, dtype=result.dtype, device=result.device).copy_(result)
