"""ATen graphs as JSON, for a child that judges them: the operators and types of a graph, and nothing of the program's.

No pickle, no source: an operator travels under its name, an argument as what it is, a tensor as its type, shape, strides
and device. What is no ATen operator with such arguments arrives as a node that nothing can be done with, under its name.
"""

from __future__ import annotations

import json
import operator
from typing import Any

import torch
from torch import fx
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from pitchpipe.torch_backend.partition import name_of

VERSION = 2
NAMESPACES = frozenset({"aten", "pitchpipe", "prims"})
"""Of operators that every process has that imports this package."""
_NAMED = (torch.dtype, torch.layout, torch.memory_format)


class _Untold(Exception):
    """An argument that has no form here."""


class Unknown:
    """Stands where a graph calls what this process does not have."""

    __name__ = __qualname__ = "unknown"  # as which it stands in generated code

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(self._text)

    def __str__(self) -> str:
        return self._text


def encode(module: Any) -> bytes:
    """A graph module whose nodes have their values as meta["val"], all sizes known. The same graph gives the same bytes."""
    nodes = []
    for node in module.graph.nodes:
        value = _told_value(node.meta.get("val"))
        try:
            target, given = _told_target(node), [_told(node.args), _told(dict(node.kwargs))]
        except _Untold:
            target, given = {"unknown": _text_of(node)}, [[{"node": one.name} for one in node.all_input_nodes], {}]
        op = node.op if node.op in ("placeholder", "get_attr", "output") else "call_function"
        nodes.append([node.name, op, target, *given, value])
    return json.dumps({"version": VERSION, "nodes": nodes}, separators=(",", ":")).encode()


def decode(data: bytes) -> Any:
    """The graph module, with tensors that have no memory. Raises ValueError for what `encode` did not write."""
    found = json.loads(data)
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']} of a graph, not {VERSION}")
    graph = fx.Graph()
    nodes: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    for name, op, target, args, kwargs, value in found["nodes"]:
        given = tuple(_read(one, nodes) for one in args), {key: _read(one, nodes) for key, one in kwargs.items()}
        node = graph.create_node(op, _target(target), *given, name=name)
        node.meta["val"] = _value(value)
        if node.meta["val"] is not None:
            node.meta["tensor_meta"] = torch.utils._pytree.tree_map_only(
                torch.Tensor, _extract_tensor_metadata, node.meta["val"]
            )
        nodes[name] = node
        if op == "get_attr":
            attributes[node.target] = node.meta["val"]
        if node.name != name:
            raise ValueError(f"two nodes are called {name}")
    return fx.GraphModule(attributes, graph)


def _text_of(node: Any) -> str:
    """The same in every process: a function's own text tells where it lies."""
    if node.op != "call_function":
        return str(node.op)
    return str(node.target if isinstance(node.target, torch._ops.OpOverload) else name_of(node))


def _told_target(node: Any) -> Any:
    if node.op in ("placeholder", "get_attr", "output"):
        return str(node.target)
    if node.op != "call_function":
        raise _Untold
    if node.target is operator.getitem:
        return {"getitem": True}
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace not in NAMESPACES:
        raise _Untold
    return {"operator": [node.target.namespace, node.target._opname, node.target._overloadname]}


def _target(told: Any) -> Any:
    if isinstance(told, str):
        return told
    if "unknown" in told:
        return Unknown(told["unknown"])
    if "getitem" in told:
        return operator.getitem
    namespace, name, overload = told["operator"]
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def _told(one: Any) -> Any:
    if one is None or isinstance(one, (bool, str)) or type(one) in (int, float):
        return one
    if isinstance(one, fx.Node):
        return {"node": one.name}
    if isinstance(one, (list, tuple)):
        return [_told(each) for each in one]
    if isinstance(one, dict):
        return {key: _told(each) for key, each in one.items()}
    if isinstance(one, _NAMED):
        return {"torch": str(one).removeprefix("torch.")}
    if isinstance(one, torch.device):
        return {"device": str(one)}
    if isinstance(one, complex):
        return {"complex": [one.real, one.imag]}
    raise _Untold


def _read(told: Any, nodes: dict[str, Any]) -> Any:
    if isinstance(told, list):
        return [_read(one, nodes) for one in told]
    if not isinstance(told, dict):
        return told
    ((kind, value),) = told.items()
    if kind == "node":
        return nodes[value]
    if kind == "torch":
        return getattr(torch, value)
    if kind == "device":
        return torch.device(value)
    return complex(*value)


def _told_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        shape, stride = [int(extent) for extent in value.shape], [int(extent) for extent in value.stride()]
        return [str(value.dtype).removeprefix("torch."), shape, stride, str(value.device)]
    if isinstance(value, (list, tuple)):
        return {"items": [_told_value(one) for one in value]}
    return None


def _value(told: Any) -> Any:
    """A tensor on no device; where it was is an attribute, `stays_on`."""
    if told is None:
        return None
    if isinstance(told, dict):
        return tuple(_value(one) for one in told["items"])
    dtype, shape, stride, device = told
    found = torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device="meta")
    found.stays_on = device
    return found
