"""Symbolic sizes: one compiled graph per bucket, behind the one graph that Dynamo keeps.

Compiled code has fixed shapes. A graph with symbolic dimensions is fixed to sizes when they first occur. Sizes along which
the graph is independent row by row (a batch, mostly; `padded` proves it, operator by operator) go up to the next power of
two: arguments are padded with zeros, results cut. Others are taken as they are. So a new batch size costs a build once per
bucket, and Dynamo, whose guards allow every size, never captures again. Past MOST sets of sizes the rest runs eagerly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pitchpipe.torch_backend.rows import independent
from pitchpipe.torch_backend.warning import warn_once

MOST = 8
"""Sets of sizes of one graph that are compiled."""

Build = Callable[[Any, dict[str, int]], Any]
"""A graph module of fixed shapes, and what its symbols are -> what runs it."""


def bucket(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()


class Sizes:
    """Runs a graph with symbolic sizes. Thread-safe. Called with its flat arguments, sizes among them as integers."""

    def __init__(self, module: Any, build: Build) -> None:
        """Changes nothing of the module, which runs what is not compiled."""
        self._module, self._build = module, build
        self._arguments = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
        (output,) = module.graph.find_nodes(op="output")
        self._one = not isinstance(output.args[0], (tuple, list))
        results = (output.args[0],) if self._one else output.args[0]
        self._results = [node.meta.get("val") if isinstance(node, torch.fx.Node) else node for node in results]
        self._symbols = _symbols(self._arguments)
        self._padded = frozenset(str(symbol) for symbol in self._symbols if independent(module, symbol))
        if any(_is_size(one) for one in self._results):
            self._padded = frozenset()  # a result that is a size would be the bucket's
        self._runs: dict[tuple[tuple[str, int], ...], Any] = {}
        self._lock = threading.RLock()

    def __call__(self, *arguments: Any) -> Any:
        sizes = self._sizes_of(arguments)
        rounded = {name: bucket(size) if name in self._padded else size for name, size in sizes.items()}
        key = tuple(sorted(rounded.items()))
        run = self._runs.get(key)
        if run is None:
            with self._lock:
                run = self._runs.get(key) or self._runs.setdefault(key, self._made(rounded))
        if run is self._module:
            return run(*arguments)
        if rounded == sizes:
            return run(*arguments)
        found = run(*self._grown(arguments, rounded))
        results = [found] if self._one else list(found)
        cut = [_cut(one, wanted, sizes) for one, wanted in zip(results, self._results, strict=True)]
        return cut[0] if self._one else cut

    def _sizes_of(self, arguments: Sequence[Any]) -> dict[str, int]:
        found = {}
        for symbol, (at, axis) in self._symbols.items():
            found[str(symbol)] = int(arguments[at] if axis is None else arguments[at].shape[axis])
        return found

    def _made(self, sizes: dict[str, int]) -> Any:
        if len(self._runs) >= MOST:
            warn_once("sizes", f"more than {MOST} sizes of one graph: others run in eager mode")
            return self._module
        try:
            return self._build(self._fixed(sizes), sizes)
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
            warn_once("fixed", f"sizes {sizes} run in eager mode: {error}")
            return self._module

    def _fixed(self, sizes: dict[str, int]) -> Any:
        """The graph with these sizes, traced anew."""
        with FakeTensorMode(), torch.no_grad():
            given = [_of_size(one, sizes) for one in self._arguments]
            module = make_fx(self._module)(*given)
        for node, value in zip(module.graph.find_nodes(op="placeholder"), given, strict=True):
            node.meta.setdefault("val", value)  # sizes have none
        return module

    def _grown(self, arguments: Sequence[Any], sizes: dict[str, int]) -> list[Any]:
        return [_grown(one, wanted, sizes) for one, wanted in zip(arguments, self._arguments, strict=True)]


def _is_size(one: Any) -> bool:
    return isinstance(one, torch.SymInt)


def _symbols(arguments: Sequence[Any]) -> dict[Any, tuple[int, int | None]]:
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


def size(extent: Any, sizes: dict[str, int]) -> int:
    """What a symbolic extent is."""
    if not _is_size(extent):
        return int(extent)
    expression = extent.node.expr
    return int(expression.subs({symbol: sizes[str(symbol)] for symbol in expression.free_symbols}))


def _of_size(one: Any, sizes: dict[str, int]) -> Any:
    if isinstance(one, torch.Tensor):
        shape = [size(extent, sizes) for extent in one.shape]
        stride = [size(extent, sizes) for extent in one.stride()]
        return torch.empty_strided(shape, stride, dtype=one.dtype, device=one.device)
    return size(one, sizes) if _is_size(one) else one


def _grown(one: Any, wanted: Any, sizes: dict[str, int]) -> Any:
    if not isinstance(wanted, torch.Tensor):
        return size(wanted, sizes) if _is_size(wanted) else one
    shape = [size(extent, sizes) for extent in wanted.shape]
    if list(one.shape) == shape:
        return one
    grown = one.new_zeros(shape)
    grown[tuple(slice(0, extent) for extent in one.shape)] = one
    return grown


def _cut(one: Any, wanted: Any, sizes: dict[str, int]) -> Any:
    if not isinstance(wanted, torch.Tensor):
        return one
    shape = [size(extent, sizes) for extent in wanted.shape]
    if list(one.shape) == shape:
        return one
    return one[tuple(slice(0, extent) for extent in shape)].contiguous()
