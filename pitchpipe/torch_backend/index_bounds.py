"""Which of a graph's arguments are indices, and the numbers that they may hold.

PyTorch raises for an index out of range where compiled code reads memory of others. So an operator that indexes is compiled
where its indices are an argument's numbers, moved about but not computed with, or constants: who runs it looks at that
argument first, and leaves a run with an index out of range to PyTorch, which raises.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch

from pitchpipe.torch_backend.partition import name_of

Bounds = dict[str, tuple[int, int]]
"""Placeholder -> the least and the largest number that it may hold."""
MOVING = frozenset(
    {
        *("view", "reshape", "_unsafe_view", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "flatten"),
        *("slice", "select", "narrow", "split", "split_with_sizes", "unbind", "alias", "detach", "clone", "contiguous"),
        *("flip", "repeat", "roll", "lift_fresh_copy", "gather", "index", "index_select", "embedding"),
    }
)
"""Operators whose results hold numbers of their first argument and no others."""
WHOLE = (torch.int32, torch.int64)


def bounds(graph: Any) -> Bounds:
    """Those of the placeholders of a graph that is compiled, for whatever is indexed in it."""
    found: Bounds = {}
    for node in graph.nodes:
        for source, low, high in _indices(node):
            for root in _roots(source) or ():
                if root.op == "placeholder":
                    before = found.get(root.name, (low, high))
                    found[root.name] = max(low, before[0]), min(high, before[1])
    return found


def can_be_checked(node: Any, readable: Collection[str] | None) -> bool:
    """Whether all indices that an operator takes can be looked at before a run, and those that are constants are right.

    readable: the placeholders whose numbers can be read then; None: all of them.
    """
    indices = list(_indices(node))
    return bool(indices) and all(_is_right(*each, readable) for each in indices)


def _is_right(index: Any, low: int, high: int, readable: Collection[str] | None) -> bool:
    roots = _roots(index)
    if roots is None or index.meta["val"].dtype not in WHOLE:
        return False
    for root in roots:
        if root.op == "placeholder":
            if readable is not None and root.name not in readable:
                return False
        elif root.op != "get_attr" and not all(low <= number <= high for number in _extremes(root)):
            return False
    return True


def _indices(node: Any) -> Iterator[tuple[Any, int, int]]:
    """(the node of the indices, the least, the largest that is right) of each axis that an operator indexes."""
    if node.op != "call_function":
        return
    match name_of(node):
        case "embedding":
            yield node.args[1], 0, node.args[0].meta["val"].shape[0] - 1
        case "gather" | "index_select":
            yield node.args[2], 0, _extent(node) - 1
        case "index":
            for index, extent in zip(node.args[1], node.args[0].meta["val"].shape, strict=False):
                if index is not None:
                    yield index, -extent, extent - 1


def _extent(node: Any) -> int:
    """Of the axis that is the operator's second argument; a number alone has one of one element."""
    value = node.args[0].meta["val"]
    return int(value.shape[node.args[1]]) if value.dim() else 1


def _roots(node: Any) -> list[Any] | None:
    """The placeholders, tensors of the graph's own and constants whose numbers a node holds; None where some were
    computed."""
    if node.op in ("placeholder", "get_attr"):
        return [node]
    if node.target is operator.getitem:
        return _roots(node.args[0])
    name = name_of(node)
    if name in ("cat", "stack"):
        found = [_roots(each) for each in node.args[0]]
        return None if None in found else [root for roots in found for root in roots or ()]
    if name == "_to_copy":
        return _roots(node.args[0]) if _keeps_numbers(node) else None
    if name in MOVING:
        return _roots(node.args[0])
    return [node] if name in ("arange", "full") and not node.all_input_nodes else None


def _keeps_numbers(node: Any) -> bool:
    before, after = node.args[0].meta["val"].dtype, node.meta["val"].dtype
    return before in WHOLE and after in WHOLE and before.itemsize <= after.itemsize


def _extremes(node: Any) -> tuple[int, int]:
    """The least and the largest number of a constant that is not empty."""
    keywords = {key: value for key, value in node.kwargs.items() if key != "device"}
    low, high = torch.aminmax(node.target(*node.args, **keywords))
    return int(low), int(high)
