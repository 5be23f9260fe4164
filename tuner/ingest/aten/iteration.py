"""Functions of elements that take as many steps as the data say: recurrences and series, as loops in a tensor function.

For every element, with values a, b, ... of the arguments there:

    states = first(a, b, ...);  for k in range(steps): if goes_on(states): states = step(k, states);  result(states)

The loop's extent is an expression. A model may hold loops and no conditional statements (tuner/ingest/relax_reader.py), so
the condition is a loop of one step or of none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.ingest.aten.emitter import Emitter, at_broadcast, shape_of
from tuner.tvm_compat import ir, relax, tirx, tvm

INDEX = "int64"


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """What becomes of one element. All expressions; `step` and `goes_on` are given the states, which are variables."""

    states: Sequence[Any]
    """Their first values; each state keeps its type."""
    steps: Any
    """At most so many steps are made; int64, none where it is negative."""
    step: Callable[..., Sequence[Any]]
    """(k, *states) -> the next states, all computed from the states before; k = 0, 1, ... is int64."""
    result: Callable[..., Any]
    """(*states) -> the element."""
    goes_on: Callable[..., Any] | None = None
    """(*states) -> whether another step is made; None where only `steps` decides."""


def iterated(to: Emitter, name: str, body: Callable[..., Iteration], dtype: str, *arguments: Any) -> Any:
    """A tensor of the node's shape and type with body(a, b, ...) at every element.

    Arguments are tensors and numbers; they are read in type `dtype` and broadcast.
    """
    tensors = [to.tensor(argument, dtype) for argument in arguments]
    function = _function([shape_of(x) for x in tensors], dtype, to.shape, to.dtype, body)
    call = relax.call_tir(to.builder.add_func(function, name), tensors, relax.TensorType(to.shape, to.dtype))
    return to.emit(call)


def _function(
    shapes: Sequence[Sequence[int]], dtype: str, shape: Sequence[int], out: str, body: Callable[..., Iteration]
) -> Any:
    """One opaque stage, as sorts and scans are: its loops are no schedule's to move."""
    given = [_buffer(f"x{at}", extents, dtype) for at, extents in enumerate(shapes)]
    result = _buffer("result", shape, out)
    at = [ir.Var(f"i{axis}", INDEX) for axis in range(len(shape))]
    loads = [at_broadcast(_Loads(buffer), at) for buffer in given]
    arguments = [tirx.Var(f"a{place}", dtype) for place in range(len(given))]
    rule = body(*arguments)
    states = [_buffer(f"state{place}", [1], _dtype(first)) for place, first in enumerate(rule.states)]
    nexts = [_buffer(f"next{place}", [1], _dtype(first)) for place, first in enumerate(rule.states)]
    now = [state[_int(0)] for state in states]
    k = ir.Var("k", INDEX)
    moved = [
        *(tirx.BufferStore(new, value, [_int(0)]) for new, value in zip(nexts, rule.step(k, *now), strict=True)),
        *(tirx.BufferStore(old, new[_int(0)], [_int(0)]) for old, new in zip(states, nexts, strict=True)),
    ]
    step: Any = tirx.SeqStmt(moved)
    if rule.goes_on is not None:
        step = _loop(ir.Var("once", INDEX), tirx.Cast(INDEX, rule.goes_on(*now)), step)
    found = rule.result(*now)
    statements = [
        *(tirx.BufferStore(state, first, [_int(0)]) for state, first in zip(states, rule.states, strict=True)),
        _loop(k, tirx.max(rule.steps, _int(0)), step),
        tirx.BufferStore(result, found if _dtype(found) == out else tirx.Cast(out, found), at),
    ]
    nest: Any = tirx.SeqStmt([*(tirx.Bind(a, load) for a, load in zip(arguments, loads, strict=True)), *statements])
    for variable, extent in reversed(list(zip(at, shape, strict=True))):
        nest = _loop(variable, _int(extent), nest)
    stage = tvm.s_tir.SBlock(
        [], [*map(_whole, given)], [_whole(result)], "iteration", nest, None, [*states, *nexts], [], {}
    )
    root = tvm.s_tir.SBlock([], [], [], "root", tvm.s_tir.SBlockRealize([], True, stage), None, [], [], {})
    function = tirx.PrimFunc([*given, result], tvm.s_tir.SBlockRealize([], True, root))
    return function.with_attrs({"tirx.noalias": True})


class _Loads:
    """A buffer as `at_broadcast` reads tensors."""

    def __init__(self, buffer: Any) -> None:
        self.buffer, self.shape = buffer, buffer.shape

    def __call__(self, *at: Any) -> Any:
        return self.buffer[tuple(at)]


def _dtype(expr: Any) -> str:
    return str(expr.ty.dtype)


def _int(value: int) -> Any:
    return tirx.const(value, INDEX)


def _buffer(name: str, shape: Sequence[int], dtype: str) -> Any:
    return tirx.decl_buffer([_int(extent) for extent in shape], dtype, name)


def _whole(buffer: Any) -> Any:
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(_int(0), extent) for extent in buffer.shape])


def _loop(variable: Any, extent: Any, body: Any) -> Any:
    return tirx.For(variable, _int(0), extent, tirx.ForKind.SERIAL, body)
