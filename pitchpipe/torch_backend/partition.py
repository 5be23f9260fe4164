"""Cutting an ATen graph into what is compiled and what stays with PyTorch.

A partition is a connected or unconnected set of operators, without a path that leaves it and comes back. One without a
product, a convolution or a few operators to fuse is not worth crossing over for, nor is one of weights alone. Views that
are wanted outside a partition are made outside: there PyTorch makes them for nothing, with the strides that the program
expects and in the memory that it expects them to share.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from pitchpipe.torch_operators.decompositions import qualified_name

PREFIX = "pitchpipe_"
FEWEST = 4
"""Operators that compute in a partition without a heavy one."""
HEAVY = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "matmul", "pitchpipe::recurrent_layer"})


@dataclass(kw_only=True)
class Split:
    """A graph with its partitions as submodules."""

    module: Any
    """A GraphModule; the partitions are its submodules named in `weights`."""
    weights: dict[str, frozenset[str]] = field(default_factory=dict)
    """Partition -> those of its placeholders that hold weights."""
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Partition -> the names that its nodes had in the graph, in order."""
    operators: int = 0
    """That compute, in the whole graph."""
    left: dict[str, int] = field(default_factory=dict)
    """Reason -> operators that stay with PyTorch for it."""


def split(module: Any, weights: Collection[str], unsupported: Callable[[Any], str | None]) -> Split:
    """Moves what can be compiled into submodules of the graph module, which is changed.

    weights: names of the placeholders that hold weights. unsupported: why a node cannot be compiled, or None.
    """
    found = Split(module=module)
    reasons: dict[Any, str | None] = {}
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "output"):
            reasons[node] = unsupported(node)
            found.operators += computes(node)
    chosen = []
    for partition in _proposed(module, reasons):
        nodes = _without_last_views(partition.nodes)
        if not _takes_inputs(nodes, weights):
            reasons.update(dict.fromkeys(nodes, "it depends on weights alone"))
        elif _worth_it(nodes):
            chosen.append(nodes)
    inside = {node for nodes in chosen for node in nodes}
    for node, reason in reasons.items():
        if node not in inside and computes(node):
            why = reason or "too little beside it to compile"
            found.left[why] = found.left.get(why, 0) + 1
    names = [tuple(node.name for node in nodes) for nodes in chosen]
    fuse(module, names)
    for at, inner in enumerate(names):
        name = f"{PREFIX}{at}"
        (node,) = [one for one in module.graph.find_nodes(op="call_module") if one.target == name]
        pairs = zip(module.get_submodule(name).graph.find_nodes(op="placeholder"), node.args, strict=True)
        found.nodes[name] = inner
        found.weights[name] = frozenset(mine.name for mine, given in pairs if _stays(given, weights))
    return found


def _proposed(module: Any, reasons: dict[Any, str | None]) -> list[Any]:
    """Partitions that neither take nor give complex numbers. `reasons` gets why others stay with PyTorch."""
    while True:
        partitioner = CapabilityBasedPartitioner(module, _Known(reasons), allows_single_node_partition=True)
        proposed = list(partitioner.propose_partitions())
        of = {node: at for at, partition in enumerate(proposed) for node in partition.nodes}
        crossed = [
            node
            for node in module.graph.nodes
            if _is_complex(node)
            and any(of.get(node) != of.get(user) for user in node.users if node in of or user in of)
        ]
        ends = {end for node in crossed for end in (node, *node.users) if end in of}
        if not ends:
            return proposed
        reasons.update(dict.fromkeys(ends, "complex numbers would leave what is compiled"))


def fuse(module: Any, partitions: Sequence[Sequence[str]]) -> None:
    """Moves the nodes of each partition, by name, into a submodule of the graph module: PREFIX and its number."""
    torchs = fx.passes.utils.fuser_utils
    nodes = {node.name: node for node in module.graph.nodes}
    for at, names in enumerate(partitions):
        inside = dict.fromkeys(nodes[name] for name in names)
        _make_views_outside(module.graph, inside)
        # In the graph's order, which decides what the sum of two convolutions is fused with. Before torch 2.13, torch's own
        # sort gives another.
        order = [node for node in module.graph.nodes if node in inside]
        inner, given, results = torchs.fuse_as_graphmodule(module, order, f"{PREFIX}{at}", inside)
        module.add_submodule(f"{PREFIX}{at}", inner)
        _call_instead(module.graph, f"{PREFIX}{at}", given, results, behind=order[-1])
        torchs.erase_nodes(module, order)
    if partitions:
        fx.passes.tools_common.stable_topological_sort(module)
        module.recompile()


def _make_views_outside(graph: Any, inside: Collection[Any]) -> None:
    """Views in a partition that are used outside it are made there once more, of what they are views of."""
    made: dict[Any, Any] = {}
    for node in [one for one in graph.nodes if one in inside and _is_view(one)]:
        arguments, keywords = fx.map_arg((node.args, node.kwargs), lambda one: made.get(one, one))
        with graph.inserting_after(node):
            made[node] = graph.create_node(node.op, node.target, arguments, keywords, name=f"outside_{node.name}")
        made[node].meta = dict(node.meta)
        for user in [one for one in node.users if one not in inside]:
            user.replace_input_with(node, made[node])
    for copied in reversed(made.values()):
        if not copied.users:
            graph.erase_node(copied)


def _call_instead(graph: Any, name: str, given: Sequence[Any], results: Sequence[Any], *, behind: Any) -> None:
    """What the submodule gives takes the place of the nodes `results`, and has what is known of them.

    torch's own function traces the access to one of several results. A program that is being captured in another thread
    meanwhile has all traced nodes get what is known of its own, and torch raises.
    """
    with graph.inserting_after(behind):
        call = graph.call_module(name, args=tuple(given))
    places = [call]
    if len(results) != 1:
        with graph.inserting_before(call.next):
            places = [graph.call_function(operator.getitem, (call, at)) for at in range(len(results))]
    for result, place in zip(results, places, strict=True):
        place.meta = dict(result.meta)
        result.replace_all_uses_with(place)
    if len(results) != 1:
        call.meta["val"] = tuple(result.meta.get("val") for result in results)


def name_of(node: Any) -> str:
    """An operator's name without its overload."""
    name = qualified_name(node.target)
    return name.partition(".")[0] if isinstance(node.target, torch._ops.OpOverload) else name


class _Known(OperatorSupportBase):  # type: ignore[misc]
    def __init__(self, reasons: dict[Any, str | None]) -> None:
        self._reasons = reasons

    def is_node_supported(self, _submodules: Any, node: Any) -> bool:
        return node in self._reasons and self._reasons[node] is None


def computes(node: Any) -> bool:
    """Whether it is more than a view."""
    return bool(node.op == "call_function" and node.target is not operator.getitem and not _is_view(node))


def _is_view(node: Any) -> bool:
    """Whether its value lies in the memory of its first argument; of a view that has several values, whether one does."""
    if node.target is operator.getitem:
        return _is_view(node.args[0])
    if any(map(_is_complex, node.all_input_nodes)):  # of what nobody has outside
        return False
    return node.op == "call_function" and (getattr(node.target, "is_view", False) or name_of(node) == "_unsafe_view")


def _is_complex(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _without_last_views(nodes: dict[Any, int | None]) -> dict[Any, int | None]:
    kept = dict(nodes)
    for node in reversed(list(nodes)):  # in the graph's order, so users come first
        if _is_view(node) and not any(user in kept for user in node.users):
            del kept[node]
    return kept


def _worth_it(nodes: Collection[Any]) -> bool:
    computing = [node for node in nodes if computes(node)]
    return len(computing) >= FEWEST or any(name_of(node) in HEAVY for node in computing)


def _takes_inputs(nodes: Collection[Any], weights: Collection[str]) -> bool:
    """Whether it depends on more than weights. What does not is no model: preparation moves all of it to where weights are
    laid out, and leaves no results."""
    given = {source for node in nodes for source in node.all_input_nodes} - set(nodes)
    return not all(_stays(one, weights) for one in given)


def _stays(node: Any, weights: Collection[str]) -> bool:
    """Whether it is the same in each run, unless somebody writes into it: a weight, or a tensor of the program's own."""
    return node.op == "get_attr" or (node.op == "placeholder" and node.name in weights)


def tensors_of(module: Any) -> tuple[list[Any], list[Any]]:
    """The fake tensors of a graph module's placeholders and of its outputs."""
    given = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    (output,) = module.graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    return given, [node.meta.get("val") if isinstance(node, fx.Node) else node for node in results]


def is_static(module: Any) -> bool:
    """Whether all that a graph module takes are tensors of known shapes."""
    given, _ = tensors_of(module)
    return all(isinstance(one, torch.Tensor) and all(isinstance(n, int) for n in one.shape) for one in given)
