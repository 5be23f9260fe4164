"""Batch independence: a proof that no row of a graph's results depends on another row of its arguments.

A graph may be padded along a symbolic size where that is proved: with zeros in the new rows, the old rows of every result
are what they were. A row is one index along the axis of that size, which is mostly the batch.

Every tensor has at most one axis whose extent is the symbol (times a constant: heads folded into the batch, the symbol
outermost). The axis is followed through the graph; each operator must carry it from its operands to its result without
mixing rows. The answer is no where an operator is not listed here, or is used in a form that no rule covers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from pitchpipe.torch_backend.partition import name_of

SAME = frozenset({"clone", "alias", "detach", "_to_copy", "relu", "contiguous", "where"})
"""Element-wise operators that torch does not tag as pointwise."""
MADE = frozenset({"full", "zeros", "ones", "empty", "expand"})
"""Operators whose result has the same value in every row when no operand has rows."""
SHAPED = frozenset({*MADE, "view", "reshape", "_unsafe_view"})
"""Operators that take sizes as the shape of their result, and do not compute with their values."""


def is_batch_independent(module: Any, symbol: Any) -> bool:
    """Whether rows along the symbol are proved independent, and every result has them as one axis or not at all."""
    try:
        for node in module.graph.nodes:
            if node.op == "call_function":
                _check(node, symbol)
            elif node.op not in ("placeholder", "output"):
                return False
        results = _leaves(module.graph.output_node().args[0])
        return all(_axis(result, symbol) is not _MIXED for result in results)
    except _NotProved:
        return False


class _NotProved(Exception):
    pass


class _Mixed:
    pass


_MIXED = _Mixed()


def _leaves(found: Any) -> list[Any]:
    return [one for one in (found if isinstance(found, (tuple, list)) else [found]) if isinstance(one, torch.fx.Node)]


def _axis(node: Any, symbol: Any) -> int | _Mixed | None:
    """The axis of a tensor that is the symbol, or a multiple of it; None where there is none."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return None
    if not isinstance(value, torch.Tensor):
        return (
            _MIXED
            if symbol in getattr(getattr(getattr(value, "node", None), "expr", None), "free_symbols", ())
            else None
        )
    found: list[int] = []
    for axis, extent in enumerate(value.shape):
        expression = getattr(getattr(extent, "node", None), "expr", None)
        if expression is None or symbol not in expression.free_symbols:
            continue
        factor = expression / symbol
        if not factor.is_Integer:
            return _MIXED
        found.append(axis)
    return found[0] if len(found) == 1 else _MIXED if found else None


def _row_axis(node: Any, symbol: Any) -> int | None:
    axis = _axis(node, symbol)
    if isinstance(axis, _Mixed):
        raise _NotProved
    return axis


def _check(node: Any, symbol: Any) -> None:
    """Raises _NotProved unless the operator keeps rows apart."""
    name = name_of(node)
    if isinstance(node.meta.get("val"), (torch.SymInt, int)):
        return  # A size: results that are sizes are judged in the end, operators that take one below.
    if node.target is operator.getitem:
        _row_axis(node, symbol)
        return
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        raise _NotProved  # more rows draw other numbers
    tensors = [one for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
    sizes = [one for one in node.all_input_nodes if one not in tensors and _axis(one, symbol) is _MIXED]
    if sizes and (name not in SHAPED or (name == "full" and node.args[1] in sizes)):
        raise _NotProved
    if all(_row_axis(one, symbol) is None for one in tensors):
        if _row_axis(node, symbol) is not None and name not in MADE:  # the index of a row, say
            raise _NotProved
        return
    if torch.Tag.pointwise in getattr(node.target, "tags", ()) or name in SAME:
        _same_from_the_right(node, symbol, tensors)
        return
    rule = RULES.get(name)
    if rule is None or not rule(node, symbol):
        raise _NotProved


def _rank(node: Any) -> int:
    return len(node.meta["val"].shape)


def _same_from_the_right(node: Any, symbol: Any, tensors: list[Any]) -> None:
    """Broadcasting aligns axes from the right: wherever there is a row axis, it must be the result's."""
    axis = _row_axis(node, symbol)
    if axis is None:
        raise _NotProved
    for one in tensors:
        mine = _row_axis(one, symbol)
        if mine is not None and mine - _rank(one) != axis - _rank(node):
            raise _NotProved


def _given(node: Any, at: int, name: str, default: Any = None) -> Any:
    return node.args[at] if len(node.args) > at else node.kwargs.get(name, default)


def _axes(node: Any, given: Any) -> set[int]:
    rank = _rank(node.args[0])
    return {axis % rank for axis in ([given] if isinstance(given, int) else given or range(rank))}


def _product(left: int, right: int) -> Callable[[Any, Any], bool]:
    def rule(node: Any, symbol: Any) -> bool:
        """Rows of the left operand are rows of the result; those of a batched product may be the batch of both."""
        a, b = (_row_axis(node.args[at], symbol) for at in (left, right))
        result, rank = _row_axis(node, symbol), _rank(node)
        if rank == 3 and a == 0 and b == 0:
            return result == 0
        return b is None and a is not None and a == rank - 2 and result == a

    return rule


def _addmm(node: Any, symbol: Any) -> bool:
    return _row_axis(node.args[0], symbol) is None and _product(1, 2)(node, symbol)


def _batch_only(node: Any, symbol: Any) -> bool:
    """Images: rows are the first axis of the first operand, and no other operand has them."""
    others = [one for one in node.all_input_nodes if one is not node.args[0]]
    return _row_axis(node.args[0], symbol) == 0 and all(_row_axis(one, symbol) is None for one in others)


def _one_axis(at: int) -> Callable[[Any, Any], bool]:
    """Softmax and the like, along an axis that is not the rows'."""
    return lambda node, symbol: _row_axis(node.args[0], symbol) not in _axes(node, _given(node, at, "dim"))


def _reduced(node: Any, symbol: Any) -> bool:
    return _row_axis(node.args[0], symbol) not in _axes(node, _given(node, 1, "dim"))


def _layer_norm(node: Any, symbol: Any) -> bool:
    axis = _row_axis(node.args[0], symbol)
    return axis is not None and axis < _rank(node.args[0]) - len(node.args[1])


def _reshaped(node: Any, symbol: Any) -> bool:
    """Both sides have the rows outermost among what they are folded with: all axes before them are of extent 1."""
    before, after = _row_axis(node.args[0], symbol), _row_axis(node, symbol)
    if before is None or after is None:
        return False

    def elements_before(one: Any, axis: int) -> list[Any]:
        return [extent for extent in one.meta["val"].shape[:axis] if extent != 1]

    return not elements_before(node.args[0], before) and not elements_before(node, after)


def _carried(node: Any, symbol: Any) -> bool:
    """Permutations and the like: the result's row axis is the one there is."""
    return _row_axis(node, symbol) is not None


def _other_axis(node: Any, symbol: Any) -> bool:
    """Slices, selections, splits: along another axis than the rows'."""
    return _row_axis(node.args[0], symbol) not in _axes(node, _given(node, 1, "dim", 0))


def _joined(node: Any, symbol: Any) -> bool:
    """Concatenation: the rows of all operands, which all have them, along another axis."""
    rank = _rank(node)
    axes = {_row_axis(one, symbol) for one in node.args[0]}
    return len(axes) == 1 and axes == {_row_axis(node, symbol)} and _given(node, 1, "dim", 0) % rank not in axes


def _embedding(node: Any, symbol: Any) -> bool:
    return _row_axis(node.args[0], symbol) is None and _row_axis(node.args[1], symbol) == _row_axis(node, symbol)


def _recurrent_layer(node: Any, symbol: Any) -> bool:
    """Rows of the steps' inputs [T, N, I] and of the first states [N, H]."""
    x, *weights, h, c = node.args[:7]
    given = [one for one in weights if one is not None]
    return [_row_axis(one, symbol) for one in (x, h, c)] == [1, 0, 0] and all(
        _row_axis(one, symbol) is None for one in given
    )


RULES: dict[str, Callable[[Any, Any], bool]] = {
    "mm": _product(0, 1),
    "bmm": _product(0, 1),
    "addmm": _addmm,
    "convolution": _batch_only,
    "_native_batch_norm_legit_no_training": _batch_only,
    "max_pool2d_with_indices": _batch_only,
    "avg_pool2d": _batch_only,
    "_adaptive_avg_pool2d": _batch_only,
    "_softmax": _one_axis(1),
    "_log_softmax": _one_axis(1),
    "mean": _reduced,
    "sum": _reduced,
    "amax": _reduced,
    "amin": _reduced,
    "native_layer_norm": _layer_norm,
    "view": _reshaped,
    "reshape": _reshaped,
    "_unsafe_view": _reshaped,
    "permute": _carried,
    "transpose": _carried,
    "t": _carried,
    "unsqueeze": _carried,
    "squeeze": _carried,
    "expand": _carried,
    "slice": _other_axis,
    "select": _other_axis,
    "split_with_sizes": lambda node, symbol: (
        _row_axis(node.args[0], symbol) not in _axes(node, _given(node, 2, "dim", 0))
    ),
    "roll": lambda node, symbol: _row_axis(node.args[0], symbol) not in _axes(node, _given(node, 2, "dims")),
    "cat": _joined,
    "embedding": _embedding,
    "pitchpipe::recurrent_layer": _recurrent_layer,
}
