"""A range of batches: which sizes are tuned, and examples of each. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pitchpipe.errors import InvalidInput

MOST_SIZES = 8
"""Tuned sizes of one model: each is a job."""


def batch_sizes(batch: range | tuple[int, int]) -> list[int]:
    """The powers of two within the range, and its ends. Raises InvalidInput for a range that is none."""
    low, high = (batch[0], batch[-1]) if len(batch) else (0, 0)
    if not 1 <= low <= high:
        raise InvalidInput(f"a range of batches goes from 1 or more upwards, not from {low} to {high}")
    sizes = {low, high} | {1 << bit for bit in range(high.bit_length()) if low <= 1 << bit <= high}
    if len(sizes) > MOST_SIZES:
        raise InvalidInput(f"{len(sizes)} sizes would be tuned for batches from {low} to {high}: {MOST_SIZES} at most")
    return sorted(sizes)


def resized(arguments: Sequence[Any], keywords: Mapping[str, Any], size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with so many rows in each tensor whose first axis has the extent of the first tensor's: theirs, again
    and again. Raises InvalidInput where there is no such axis."""
    leaves, spec = pytree.tree_flatten((tuple(arguments), dict(keywords)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors or not tensors[0].dim() or not tensors[0].shape[0]:
        raise InvalidInput("the first example input has no rows that a range of batches could be of")
    rows = tensors[0].shape[0]
    grown = [leaf[torch.arange(size, device=leaf.device) % rows] if has_rows(leaf, rows) else leaf for leaf in leaves]
    found: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(grown, spec)
    return found


def has_rows(leaf: Any, rows: int) -> bool:
    """Whether a leaf is a tensor with so many rows."""
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and bool(leaf.shape[0] == rows)
