"""What runners ask of torch's tensors: whether weights are as they were, and how results are to lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch

Range = tuple[int, int]
"""The least and the largest number that indices may hold."""
_VERSION = attrgetter("_version")


class OutOfRange(Exception):
    """An index that PyTorch raises for."""


def by_life(bounds: Mapping[int, Range], is_weight: Sequence[bool]) -> tuple[dict[int, Range], dict[int, Range]]:
    """Those of what every call brings, and those of weights."""
    return (
        {at: each for at, each in bounds.items() if not is_weight[at]},
        {at: each for at, each in bounds.items() if is_weight[at]},
    )


def check_indices(tensors: Sequence[Any], bounds: Mapping[int, Range]) -> None:
    """Raises OutOfRange. bounds: place of a tensor -> the least and the largest number that it may hold."""
    for at, (least, largest) in bounds.items():
        low, high = torch.aminmax(tensors[at])
        if low.item() < least or high.item() > largest:
            raise OutOfRange


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
