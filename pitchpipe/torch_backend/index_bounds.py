"""Which of a graph's arguments are indices, and the numbers that they may hold.

PyTorch raises for an index out of range where compiled code reads the first or the last element. So an operator that
indexes is compiled where its indices are an argument's numbers, moved about but not computed with: who runs it looks at that
argument first, and leaves a run with an index out of range to PyTorch, which raises. It is compiled, too, where they are
right whatever the graph is given, such as places of extrema (index_intervals.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

from pitchpipe.torch_backend.index_intervals import WHOLE, Interval, extremes, interval, moved
from pitchpipe.torch_backend.partition import name_of

Bounds = dict[str, Interval]
"""Placeholder -> the least and the largest number that it may hold."""
_ALONG_AN_AXIS = frozenset(
    {
        *("gather", "index_select", "index_add", "index_copy", "index_fill", "index_reduce"),
        *("scatter", "scatter_add", "scatter_reduce"),
    }
)
"""Operators that take a tensor, an axis of it, and indices along that axis."""


def bounds(graph: Any, proved: Collection[str]) -> Bounds:
    """Those of the placeholders of a graph that is compiled, for whatever is indexed in it.

    proved: names of operators whose indices are right whatever the placeholders hold.
    """
    found: Bounds = {}
    for node in graph.nodes:
        for source, low, high in () if node.name in proved else _indices(node):
            for root in _roots(source) or ():
                if root.op == "placeholder":
                    before = found.get(root.name, (low, high))
                    found[root.name] = max(low, before[0]), min(high, before[1])
    return found


def is_proved(node: Any) -> bool:
    """Whether all indices that an operator takes are right, whatever the graph is given."""
    indices = list(_indices(node))
    return bool(indices) and all(_lies_within(interval(index), low, high) for index, low, high in indices)


def can_be_checked(node: Any, readable: Collection[str] | None) -> bool:
    """Whether all indices that an operator takes can be looked at before a run, or are right whatever the graph is given.

    readable: the placeholders whose numbers can be read then; None: all of them.
    """
    indices = list(_indices(node))
    return bool(indices) and all(_is_right(*each, readable) for each in indices)


def _is_right(index: Any, low: int, high: int, readable: Collection[str] | None) -> bool:
    if index.meta["val"].dtype not in WHOLE:
        return False
    return _lies_within(interval(index), low, high) or all(
        _can_be_looked_at(root, low, high, readable) for root in _roots(index) or (None,)
    )


def _can_be_looked_at(root: Any, low: int, high: int, readable: Collection[str] | None) -> bool:
    if root is None:
        return False
    if root.op == "placeholder":
        return readable is None or root.name in readable
    if root.op == "get_attr":
        return True
    return _lies_within(extremes(root), low, high)


def _lies_within(found: Interval | None, low: int, high: int) -> bool:
    return found is not None and low <= found[0] and found[1] <= high


def _indices(node: Any) -> Iterator[tuple[Any, int, int]]:
    """(the node of the indices, the least, the largest that is right) of each axis that an operator indexes."""
    if node.op != "call_function":
        return
    match name_of(node):
        case "embedding":
            yield node.args[1], 0, node.args[0].meta["val"].shape[0] - 1
        case name if name in _ALONG_AN_AXIS:
            yield node.args[2], 0, _extent(node) - 1
        case "max_unpool2d" | "max_unpool3d":
            yield node.args[1], 0, math.prod(node.args[2]) - 1
        case "index" | "index_put":
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
    if (source := moved(node)) is not None:
        return _roots(source)
    name = name_of(node)
    if name in ("cat", "stack"):
        found = [_roots(each) for each in node.args[0]]
        return None if None in found else [root for roots in found for root in roots or ()]
    if name == "_to_copy":
        return _roots(node.args[0]) if _keeps_numbers(node) else None
    return [node] if name in ("arange", "full") and not node.all_input_nodes else None


def _keeps_numbers(node: Any) -> bool:
    before, after = node.args[0].meta["val"].dtype, node.meta["val"].dtype
    return before in WHOLE and after in WHOLE and before.itemsize <= after.itemsize
