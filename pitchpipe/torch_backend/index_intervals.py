"""Between which numbers a graph's whole numbers lie, whatever it is given: places of extrema, counts, what is clamped.

An interval is (least, largest). Those of sums, differences and products are those of interval arithmetic; one that a node's
type does not hold is unknown, since numbers wrap around there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import torch

from pitchpipe.torch_backend.partition import name_of

Interval = tuple[int, int]
MOVING = frozenset(
    {
        *("view", "reshape", "_unsafe_view", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "flatten"),
        *("slice", "select", "narrow", "split", "split_with_sizes", "unbind", "alias", "detach", "clone", "contiguous"),
        *("flip", "repeat", "roll", "lift_fresh_copy", "gather", "index", "index_select", "embedding"),
    }
)
"""Operators whose results hold numbers of their first argument and no others."""
WHOLE = (torch.int32, torch.int64)
_PLACES = frozenset({"argmax", "argmin", "argsort"})
_VALUES_AND_PLACES = frozenset({"max", "min", "topk", "sort", "kthvalue", "median", "mode"})
"""Operators that give numbers, and their places along an axis."""
_LAST = frozenset({"topk", "sort", "argsort", "kthvalue", "median", "mode"})
"""Those whose axis is the last one where none is named."""
_POOLS = {
    name.replace("#", str(axes)): axes
    for name in ("max_pool#d_with_indices", "adaptive_max_pool#d", "fractional_max_pool#d")
    for axes in (2, 3)
}
"""Operators that give maxima, and their places in an image, by the number of the image's axes."""
_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "minimum": min,
    "maximum": max,
}
"""Monotone in each argument, up or down: their extremes are among those of the arguments' extremes."""


@lru_cache(maxsize=4096)  # what is added to itself n times has 2^n ways to where it began
def interval(node: Any) -> Interval | None:
    """Of a node of whole numbers or truth values; None where it is unknown. The node's sizes must be known."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in (*WHOLE, torch.bool):
        return None
    if value.dtype is torch.bool:
        return 0, 1
    found = _found(node)
    held = torch.iinfo(value.dtype)
    return found if found is not None and held.min <= found[0] and found[1] <= held.max else None


def moved(node: Any) -> Any:
    """The node whose numbers a node holds in other places; None where it holds others."""
    if node.op != "call_function":
        return None
    made_by = node.args[0] if node.target is operator.getitem else node
    if name_of(made_by) not in MOVING:
        return None
    source = made_by.args[0]
    return source if source.meta["val"].dtype == node.meta["val"].dtype else None


def _found(node: Any) -> Interval | None:
    if node.op != "call_function":
        return None
    if (source := moved(node)) is not None:
        return interval(source)
    if node.target is operator.getitem:
        source, item = node.args
        if item == 1 and name_of(source) in _POOLS:
            return 0, source.args[0].meta["val"].shape[-_POOLS[name_of(source)] :].numel() - 1
        return _place(source) if name_of(source) in _VALUES_AND_PLACES and item == 1 else None
    name = name_of(node)
    if name in _PLACES:
        return _place(node)
    if name in _BINARY and not node.kwargs and len(node.args) == 2:
        return _among(_BINARY[name], [_of(one) for one in node.args])
    match name:
        case "arange" | "full":
            return extremes(node) if not node.all_input_nodes else None
        case "_to_copy":
            return _of(node.args[0])
        case "cat" | "stack":
            return _union([_of(one) for one in node.args[0]])
        case "where":
            return _union([_of(one) for one in node.args[1:]]) if len(node.args) == 3 else None
        case "clamp" | "clamp_min" | "clamp_max":
            return _clamped(node)
        case "remainder":
            divisor = node.args[1]
            return (0, divisor - 1) if type(divisor) is int and divisor > 0 else None
        case "cumsum":
            count = node.args[0].meta["val"].shape[node.args[1]] if node.args[0].meta["val"].dim() else 1
            return _among(operator.mul, [_of(node.args[0]), (1, count)])
        case _:
            return None


def _of(one: Any) -> Interval | None:
    """Of an argument: a node, or a number."""
    if type(one) in (int, bool):
        return int(one), int(one)
    return interval(one) if hasattr(one, "meta") else None


def _place(node: Any) -> Interval | None:
    """Of places along the axis of an operator, or among all elements."""
    shape = node.args[0].meta["val"].shape
    at = 2 if name_of(node) in ("topk", "kthvalue") else 1
    axis = node.args[at] if len(node.args) > at else node.kwargs.get("dim", -1 if name_of(node) in _LAST else None)
    if axis is not None and type(axis) is not int:
        return None
    count = shape.numel() if axis is None or not shape else shape[axis]
    return (0, int(count) - 1) if count else None


def _among(function: Callable[[int, int], int], given: Sequence[Interval | None]) -> Interval | None:
    if None in given:
        return None
    corners = [function(*pair) for pair in product(*[one for one in given if one is not None])]
    return min(corners), max(corners)


def _union(given: Sequence[Interval | None]) -> Interval | None:
    known = [one for one in given if one is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if len(known) == len(given) else None


def _clamped(node: Any) -> Interval | None:
    first, second = (*node.args[1:], None, None)[:2]
    least, largest = {
        "clamp": (node.kwargs.get("min", first), node.kwargs.get("max", second)),
        "clamp_min": (first, None),
        "clamp_max": (None, first),
    }[name_of(node)]
    if any(bound is not None and type(bound) is not int for bound in (least, largest)):
        return None
    low, high = _of(node.args[0]) or (least, largest)
    if low is None or high is None:
        return None
    for bound, nearer in ((least, max), (largest, min)):
        low, high = (low, high) if bound is None else (nearer(low, bound), nearer(high, bound))
    return low, high


def extremes(node: Any) -> Interval:
    """The least and the largest number of a constant that is not empty."""
    keywords = {key: value for key, value in node.kwargs.items() if key != "device"}
    low, high = torch.aminmax(node.target(*node.args, **keywords))
    return int(low), int(high)
