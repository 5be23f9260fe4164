"""Sequences and optionals, which exist only while a graph is read: lists of values, and values that may be missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import helper

from tuner.ingest.onnx.node import Node
from tuner.ingest.onnx.values import NOTHING, Sequence, common_type, shape_of
from tuner.tvm_compat import relax


def _construct(node: Node) -> list[Any]:
    return [Sequence(tuple(node.inputs), common_type(node.inputs))]


def _empty(node: Node) -> list[Any]:
    return [Sequence((), helper.make_tensor_type_proto(int(node.attribute("dtype", 1)), None))]


def _at(node: Node) -> list[Any]:
    items = _items(node)
    return [items[_position(node, 1, len(items))]]


def _insert(node: Node) -> list[Any]:
    items = list(_items(node))
    items.insert(_place(node, 2, len(items)) if node.given(2) else len(items), node.inputs[1])
    return [Sequence(tuple(items), common_type(items))]


def _erase(node: Node) -> list[Any]:
    items = list(_items(node))
    del items[_position(node, 1, len(items)) if node.given(1) else len(items) - 1]
    return [Sequence(tuple(items), common_type(items or _items(node)[:1]))]


def _length(node: Node) -> list[Any]:
    return [np.array(len(_items(node)), np.int64)]


def _split(node: Node) -> list[Any] | None:
    axis = node.axis(int(node.attribute("axis", 0)), len(node.shape(0)))
    extent = node.shape(0)[axis]
    keep = bool(node.attribute("keepdims", 1))
    if node.given(1):
        sizes = node.known(1)
        if sizes is None:
            node.refuse("its sizes are not constant")
        keep = True
        if sizes.ndim == 0:
            step = int(sizes)
            if step < 1:
                raise ValueError(f"parts of size {step}")
            lengths = [min(step, extent - begin) for begin in range(0, extent, step)]
        else:
            lengths = [int(size) for size in sizes]
    else:
        lengths = [1] * extent
    if min(lengths, default=0) < 0 or sum(lengths) != extent or len(lengths) > 4096:
        raise ValueError(f"parts of sizes {lengths[:20]} of an axis of {extent}")
    found, begin = [], 0
    for length in lengths:
        found.append(_part(node, axis, begin, length, keep))
        begin += length
    return [Sequence(tuple(found), common_type(found))]


def _part(node: Node, axis: int, begin: int, length: int, keep: bool) -> Any:
    value, shape = node.inputs[0], list(node.shape(0))
    shape[axis] = length
    if not keep:
        del shape[axis]
    if isinstance(value, np.ndarray):
        return np.take(value, range(begin, begin + length), axis).reshape(shape)
    if 0 in shape:
        return np.zeros(shape, node.dtype(0))
    part = node.emit(relax.op.strided_slice(value, [axis], [begin], [begin + length]))
    return node.reshape(part, shape)


def _join(node: Node) -> list[Any]:
    items, axis = _items(node), int(node.attribute("axis", 0))
    stacked = bool(node.attribute("new_axis", 0))
    if not items:
        raise ValueError("an empty sequence has no elements to join")
    rank = len(shape_of(items[0])) + stacked
    axis = node.axis(axis, rank)
    if all(isinstance(item, np.ndarray) for item in items):
        return [(np.stack if stacked else np.concatenate)(list(items), axis)]
    parts = []
    for item in items:
        if 0 in shape_of(item):
            continue
        part = node.constant(item) if isinstance(item, np.ndarray) else item
        shape = list(shape_of(item))
        parts.append(node.reshape(part, [*shape[:axis], 1, *shape[axis:]]) if stacked else part)
    return [node.emit(relax.op.concat(parts, axis)) if len(parts) > 1 else parts[0]]


def _optional(node: Node) -> list[Any]:
    return [node.inputs[0] if node.given(0) else NOTHING]


def _has_element(node: Node) -> list[Any]:
    return [np.array(node.given(0) and node.inputs[0] is not NOTHING)]


def _get_element(node: Node) -> list[Any]:
    if not node.given(0) or node.inputs[0] is NOTHING:
        raise ValueError("the optional holds no element")
    return [node.inputs[0]]


def _items(node: Node) -> tuple[Any, ...]:
    if not isinstance(node.inputs[0], Sequence):
        raise TypeError("operand 0 is no sequence")
    return node.inputs[0].items


def _position(node: Node, operand: int, count: int) -> int:
    """Of an element of a sequence of `count`."""
    found = _place(node, operand, count)
    if found == count:
        raise ValueError(f"position {found} of a sequence of {count}")
    return found


def _place(node: Node, operand: int, count: int) -> int:
    """Before an element of a sequence of `count`, counted from the end where it is negative, or behind the last."""
    found = node.integers(operand)
    if found is None or len(found) != 1:
        node.refuse("its position is not constant")
    if not -count <= found[0] <= count:
        raise ValueError(f"position {found[0]} of a sequence of {count}")
    return found[0] + count if found[0] < 0 else found[0]


OPERATORS: Mapping[str, Callable[[Node], list[Any] | None]] = {
    "ConcatFromSequence": _join,
    "Optional": _optional,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
