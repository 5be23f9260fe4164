"""Numbers that a graph computes from nothing that it is given, as constants that a compiler sees: literals such as
`torch.tensor(0.0)`, positions, masks, buckets of distances.

PyTorch computes them in each call, operator by operator, some by operators that cannot be compiled (`cumsum`). Here it does
so once, on the CPU, and they are written into the graph as `full` or `arange` where they are one of these, else as a tensor
of its own, which counts as a weight. What a GPU computes by floating-point numbers stays: it may round them otherwise.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor

PREFIX = "_pitchpipe_constant"
MOST_ELEMENTS = 1 << 20
"""Of what is computed here."""
_HOST, _ATEN = torch.device("cpu"), torch.ops.aten
_STRIDED = _ATEN.as_strided.default
_FULL, _ARANGE, _FRESH = _ATEN.full.default, _ATEN.arange.start_step, _ATEN.lift_fresh_copy.default
_WHOLE = frozenset({torch.bool, torch.int32, torch.int64})
_TYPES = _WHOLE | {torch.float32, torch.float64, torch.float16, torch.bfloat16}


def write_out(module: Any) -> None:
    """Changes a graph module whose nodes have their values as meta["val"], all sizes known."""
    for node in module.graph.find_nodes(op="call_function", target=_FRESH):
        if (number := _literal(module, node)) is not None:
            _replace(node, _full(module.graph, node, number))
    known: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        value = _computed(node, known)
        if value is not None:
            known[node] = value
    for node in list(known):
        wanted = any(user not in known for user in node.users)
        if wanted and node.target not in (_FULL, _ARANGE) and not _is_read_by_strides(node):
            _replace(node, _written(module, node, known[node]))
    for node in reversed(list(module.graph.nodes)):
        if node in known and not node.users:
            module.graph.erase_node(node)


def _literal(module: Any, node: Any) -> Any:
    """The number of a tensor that only the graph can reach; None where it is something else."""
    if node.args[0].op != "get_attr":
        return None
    value = attrgetter(node.args[0].target)(module)
    if isinstance(value, FakeTensor) or value.numel() != 1 or value.is_complex():
        return None
    return value.item()


def _computed(node: Any, known: dict[fx.Node, Any]) -> Any:
    """The value of a node that follows from such nodes alone; None of any other."""
    expected = node.meta.get("val")
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    if not isinstance(expected, torch.Tensor) or not 0 < expected.numel() <= MOST_ELEMENTS:
        return None
    if expected.dtype not in (_TYPES if expected.device == _HOST else _WHOLE):
        return None
    target = node.target
    if torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable or target.namespace != "aten":
        return None
    if "empty" in target._opname:  # Whatever was in memory.
        return None
    if any(given not in known for given in node.all_input_nodes):
        return None
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
    try:
        found = target(*args, **{key: _HOST if key == "device" else kwargs[key] for key in kwargs})
    except Exception:  # noqa: BLE001 - what raises here raises when the program runs
        return None
    alike = isinstance(found, torch.Tensor) and (found.dtype, found.shape) == (expected.dtype, expected.shape)
    return found if alike else None


def _is_read_by_strides(node: Any) -> bool:
    """Whether somebody sees that its elements lie otherwise than in row-major order."""
    lies_otherwise = not node.meta["val"].is_contiguous()
    return lies_otherwise and any(user.op == "output" or user.target is _STRIDED for user in node.users)


def _written(module: Any, node: Any, value: Any) -> Any:
    """What stands for a node: `full`, `arange` in its shape, or a copy of a tensor that the module keeps."""
    graph, flat = module.graph, value.reshape(-1)
    if bool((flat == flat[0]).all()) and bool((flat.signbit() == flat[0].signbit()).all()):
        return _full(graph, node, flat[0].item())
    steps = flat.diff()
    if max(value.shape) == len(flat) and value.dtype in (torch.int32, torch.int64) and bool((steps == steps[0]).all()):
        start, step = flat[0].item(), steps[0].item()
        with graph.inserting_before(node):
            made = graph.call_function(_ARANGE, (start, start + step * len(flat), step), _how(node))
            made.meta = {"val": node.meta["val"].new_empty(len(flat))}
            found = graph.call_function(_ATEN.view.default, (made, list(value.shape)))
        found.meta = dict(node.meta)
        return found
    name = f"{PREFIX}{sum(one.op == 'get_attr' for one in graph.nodes)}"
    module.register_buffer(name, value.to(node.meta["val"].device), persistent=False)
    with graph.inserting_before(node):
        kept = graph.get_attr(name)
        kept.meta = dict(node.meta)
        found = graph.call_function(_FRESH, (kept,))
    found.meta = dict(node.meta)
    return found


def _full(graph: Any, node: Any, number: Any) -> Any:
    value = node.meta["val"]
    with graph.inserting_before(node):
        found = graph.call_function(_FULL, (list(value.shape), number), _how(node))
    found.meta = dict(node.meta)
    return found


def _how(node: Any) -> dict[str, Any]:
    value = node.meta["val"]
    return {"dtype": value.dtype, "layout": torch.strided, "device": value.device, "pin_memory": False}


def _replace(node: Any, other: Any) -> None:
    node.replace_all_uses_with(other)
    if not node.users:
        node.graph.erase_node(node)
