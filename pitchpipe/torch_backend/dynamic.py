"""Symbolic sizes: one compiled graph per bucket, behind the one graph that Dynamo keeps.

Compiled code has fixed shapes. A graph with symbolic dimensions is fixed to sizes when they first occur. Sizes along which
the graph is batch-independent (batch_independence.py proves it, operator by operator) go up to the next power of
two: arguments are padded with zeros, results cut. Others are taken as they are. So a new batch size costs a build once per
bucket, and Dynamo, whose guards allow every size, never captures again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from pitchpipe.torch_backend.batch_independence import is_batch_independent

SMALLEST = 2
"""Size from which a graph with a symbol there is compiled: it was traced for sizes that are not 0, and with a size of 1
what is broadcast would be another axis. Smaller ones run as they are."""


def bucket(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()


class Sizes:
    """The symbols of a graph whose flat arguments have symbolic sizes, or are such sizes. Changes nothing of the graph."""

    def __init__(self, module: Any) -> None:
        """Raises ValueError for a symbol that no argument tells."""
        self._module = module
        self._arguments = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
        (output,) = module.graph.find_nodes(op="output")
        self._one = not isinstance(output.args[0], (tuple, list))
        results = (output.args[0],) if self._one else output.args[0]
        self._results = [node.meta.get("val") if isinstance(node, fx.Node) else node for node in results]
        places = symbols(self._arguments)
        self.places = {str(symbol): place for symbol, place in places.items()}
        """Symbol -> the argument, and its axis, that tells its size."""
        rows = {symbol for one in self._arguments if isinstance(one, torch.Tensor) for symbol in _symbols_in(one.shape)}
        self.padded = frozenset(str(each) for each in places if each in rows and is_batch_independent(module, each))
        """Symbols along which rows may be added. A symbol that is no tensor's size is a stride."""
        if any(_is_size(one) for one in self._results):
            self.padded = frozenset()  # a result that is a size would be the bucket's
        self._growing = [(at, one) for at, one in enumerate(self._arguments) if _varies(one)]
        self._cutting = [(at, one) for at, one in enumerate(self._results) if _varies(one)]

    def of(self, arguments: Sequence[Any]) -> dict[str, int]:
        """What the symbols are in a call."""
        return read(self.places, arguments)

    def rounded(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Of all symbols of the program, those of this graph, as the graph is fixed to them."""
        return {name: bucket(sizes[name]) if name in self.padded else sizes[name] for name in self.places}

    def run(self, compiled: Callable[..., Any], arguments: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        """What the graph gives for the arguments, by what was compiled for the sizes rounded."""
        rounded = self.rounded(sizes)
        if all(sizes[name] == extent for name, extent in rounded.items()):
            return compiled(*arguments)
        grown = list(arguments)
        for at, wanted in self._growing:
            grown[at] = grown_to(grown[at], wanted, rounded)
        found = compiled(*grown)
        results = [found] if self._one else list(found)
        for at, wanted in self._cutting:
            results[at] = cut_to(results[at], wanted, sizes)
        return results[0] if self._one else results

    def fixed(self, rounded: Mapping[str, int]) -> Any:
        """A copy of the graph in which the symbols are these sizes and all shapes are known. Takes milliseconds an
        operator. Raises whatever an operator raises for such sizes."""
        graph = fx.Graph()
        values: dict[fx.Node, Any] = {}
        copies: dict[fx.Node, Any] = {}
        shapes = iter(self._arguments)
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            for node in self._module.graph.nodes:
                if node.op == "placeholder":
                    values[node] = _of_size(next(shapes), rounded)
                elif node.op == "get_attr":
                    values[node] = _attribute(self._module, node.target)
                elif node.op == "call_function":
                    given = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                    values[node] = node.target(*given[0], **given[1])
                value = values.get(node)
                if node.op in ("call_function", "get_attr") and isinstance(value, (int, float, torch.SymInt)):
                    copies[node] = int(value) if isinstance(value, torch.SymInt) else value
                    continue
                copies[node] = graph.node_copy(node, lambda one: _constant(one, values, copies))
                copies[node].meta = {"val": value}
        return fx.GraphModule(self._module, graph)


def copy_of(module: Any) -> Any:
    """A copy of a graph module that can be cut without changing it; attributes are shared."""
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].meta = {"val": node.meta.get("val")}
    return fx.GraphModule(module, graph)


def symbols(arguments: Sequence[Any]) -> dict[Any, tuple[int, int | None]]:
    """Symbol -> the argument, and its axis, whose size it is (no axis: the argument is the size). Raises ValueError."""
    found: dict[Any, tuple[int, int | None]] = {}
    free: set[Any] = set()
    for at, one in enumerate(arguments):
        extents = (
            [(None, one)] if _is_size(one) else list(enumerate(one.shape)) if isinstance(one, torch.Tensor) else []
        )
        for axis, extent in extents:
            if _is_size(extent):
                expression = extent.node.expr
                free |= expression.free_symbols
                if expression.is_Symbol:
                    found.setdefault(expression, (at, axis))
    if lost := free - set(found):
        raise ValueError(f"no argument has the size {sorted(map(str, lost))[0]}")
    return found


def read(places: Mapping[str, tuple[int, int | None]], arguments: Sequence[Any]) -> dict[str, int]:
    """What the symbols are in a call."""
    return {
        name: int(arguments[at] if axis is None else arguments[at].shape[axis]) for name, (at, axis) in places.items()
    }


def size(extent: Any, sizes: Mapping[str, int]) -> int:
    """What a symbolic extent is."""
    if not _is_size(extent):
        return int(extent)
    expression = extent.node.expr
    return sizes[expression.name] if expression.is_Symbol else _value(expression, tuple(sorted(sizes.items())))


@lru_cache(maxsize=4096)
def _value(expression: Any, sizes: tuple[tuple[str, int], ...]) -> int:
    """To evaluate one takes 20 us, and some are evaluated in every call."""
    known = dict(sizes)
    return int(expression.subs({symbol: known[str(symbol)] for symbol in expression.free_symbols}))


def _symbols_in(extents: Sequence[Any]) -> set[Any]:
    return {symbol for extent in extents if _is_size(extent) for symbol in extent.node.expr.free_symbols}


def _varies(one: Any) -> bool:
    """Whether it is a size, or a tensor that has one."""
    return _is_size(one) or (isinstance(one, torch.Tensor) and bool(_symbols_in((*one.shape, *one.stride()))))


def _is_size(one: Any) -> bool:
    return isinstance(one, torch.SymInt)


def _constant(node: fx.Node, values: Mapping[fx.Node, Any], copies: Mapping[fx.Node, Any]) -> Any:
    """What a user of the node is given: the size that it is, or its copy."""
    value = values[node]
    return value if isinstance(value, int) and not isinstance(value, bool) else copies[node]


def _attribute(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def _of_size(one: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(one, torch.Tensor):
        shape = [size(extent, sizes) for extent in one.shape]
        stride = [size(extent, sizes) for extent in one.stride()]
        return torch.empty_strided(shape, stride, dtype=one.dtype, device=one.device)
    return size(one, sizes) if _is_size(one) else one


def grown_to(one: Any, wanted: Any, sizes: Mapping[str, int]) -> Any:
    """The argument with rows of zeros behind its own; `wanted` is what it was traced as, with symbols of these sizes."""
    if not isinstance(wanted, torch.Tensor):
        return size(wanted, sizes) if _is_size(wanted) else one
    shape = [size(extent, sizes) for extent in wanted.shape]
    if list(one.shape) == shape:
        return one
    grown = one.new_zeros(shape)
    grown[tuple(slice(0, extent) for extent in one.shape)] = one
    return grown


def cut_to(one: Any, wanted: Any, sizes: Mapping[str, int]) -> Any:
    """The first rows of a result, in the strides that the graph was traced with, for these sizes."""
    if not isinstance(wanted, torch.Tensor):
        return one
    shape = [size(extent, sizes) for extent in wanted.shape]
    if list(one.shape) == shape:
        return one
    stride = [size(extent, sizes) for extent in wanted.stride()]
    rows = one[tuple(slice(0, extent) for extent in shape)]
    if 0 in stride:
        return rows.contiguous()
    return torch.empty_strided(shape, stride, dtype=one.dtype, device=one.device).copy_(rows)
