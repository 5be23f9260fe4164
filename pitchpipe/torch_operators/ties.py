"""PyTorch with equal elements in the order of their places. Needs torch.

Without `stable=True`, PyTorch promises no order of equal elements: which places sort, argsort, topk, kthvalue and mode give
for them depends on the extent, the type, the processor's vector unit and the C++ library. Compiled models take the order of
places (of a mode the last, as PyTorch does for up to sixteen elements), which is one that PyTorch may give. So does the
framework's side of a comparison under this mode; values are the same in either order, and everything else is untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class TiesByPlace(TorchDispatchMode):  # type: ignore[misc]  # torch is not looked into
    """A context in which operators that leave the order of equal elements open are run by stable sorts."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return ORDERED.get(function, function)(*args, **(kwargs or {}))


def _sort(x: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


def _topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not x.dim():
        return aten.topk.default(x, k, dim, largest, sorted)
    return tuple(each.narrow(dim, 0, k).contiguous() for each in _sort(x, dim, largest))


def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    value, place = aten.kthvalue.default(x, k, dim, keepdim)
    if x.dim():
        place = _sort(x, dim)[1].select(dim, k - 1).reshape(place.shape)
    return value, place


def _mode(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    value, place = aten.mode.default(x, dim, keepdim)
    if x.dim():
        equal = x == (value if keepdim else value.unsqueeze(dim))
        last = x.size(dim) - 1 - equal.to(torch.int8).flip(dim).argmax(dim, keepdim)
        place = torch.where(equal.any(dim, keepdim), last, place)  # a value that is no number equals nothing
    return value, place


ORDERED: dict[Any, Callable[..., Any]] = {
    aten.sort.default: _sort,
    aten.sort.stable: _sort,
    aten.topk.default: _topk,
    aten.kthvalue.default: _kthvalue,
    aten.mode.default: _mode,
}
"""Operator -> one with the same results, equal elements in the order of their places."""
