"""Scatters decomposed: a copy of the data, into which updates are written one after another, at indices that are checked.

    out = data;  for every update u: out[target(u)] = f(out[target(u)], value(u)), where target(u) lies within out

A negative index counts from the end; an update that is out of bounds is dropped, where TVM's own functions write over
foreign memory. Updates keep their order: the last of several to one element wins, as in PyTorch on a CPU, and sums
are the same in every run (TVM's index_put adds in parallel and loses updates). As in PyTorch, the tensor of indices may
be smaller than the data in every dimension. Where indices select by the first dimensions only, an update is a slice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pitchpipe.errors import UnsupportedOperator
from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.tvm_compat import ir_builder, relax, te, tir_script, tirx

Target = Callable[[Sequence[Any], Sequence[Any]], list[Any]]
"""(buffers of indices, position of an update) -> the indices of the element it goes to, signed."""


def decompose_scatters(mod: Any) -> Any:
    """The module with the scattering operators of main as tensor functions for a CPU; bindings canonical.

    Raises UnsupportedOperator for a reduction other than update, add, mul, min and max.
    """
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for name, written_out in _SCATTERS.items():
        for _, call in def_use.calls(name):
            definition = def_use.definition(call.args[1])
            operands = definition.fields if isinstance(definition, relax.Tuple) else [call.args[1]]
            if all(static_shape(each) is not None for each in (call.args[0], *operands, call.args[2])):
                replacements[call] = written_out(call, list(operands))
    return replace_calls(mod, replacements)


def _elements(call: Any, operands: list[Any]) -> Replacement:
    axis = int(call.attrs.axis) % len(static_shape(call.args[0]) or [1])

    def target(indices: Sequence[Any], at: Sequence[Any]) -> list[Any]:
        return [*at[:axis], indices[0][tuple(at)], *at[axis + 1 :]]

    return _replacement(call, operands, static_shape(operands[0]) or [], target, str(call.attrs.reduction))


def _nd(call: Any, operands: list[Any]) -> Replacement:
    *batch, depth = static_shape(operands[0]) or [0]

    def target(indices: Sequence[Any], at: Sequence[Any]) -> list[Any]:
        where = tuple(at[: len(batch)])
        return [*(indices[0][(*where, place)] for place in range(depth)), *at[len(batch) :]]

    grid = [*batch, *(static_shape(call.args[0]) or [])[depth:]]
    return _replacement(call, operands, grid, target, str(call.attrs.reduction))


def _put(call: Any, operands: list[Any]) -> Replacement:
    shapes = [static_shape(each) or [] for each in operands]
    rank = max(map(len, shapes))
    wide = [[1] * (rank - len(shape)) + shape for shape in shapes]
    batch = [max(extents) for extents in zip(*wide, strict=True)]

    def target(indices: Sequence[Any], at: Sequence[Any]) -> list[Any]:
        found = [_broadcast(index, shape, at[:rank]) for index, shape in zip(indices, shapes, strict=True)]
        return [*found, *at[rank:]]

    grid = [*batch, *(static_shape(call.args[0]) or [])[len(operands) :]]
    return _replacement(call, operands, grid, target, "add" if call.attrs.accumulate else "update")


_SCATTERS: dict[str, Callable[[Any, list[Any]], Replacement]] = {
    "relax.scatter_elements": _elements,
    "relax.scatter_nd": _nd,
    "relax.index_put": _put,
}


def _replacement(call: Any, operands: list[Any], grid: list[int], target: Target, reduction: str) -> Replacement:
    if reduction not in _COMBINED:
        raise UnsupportedOperator(f"operator {op_name(call)} with reduction {reduction!r} has no implementation")

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        arguments = [current(each) for each in (call.args[0], *operands, call.args[2])]
        tensors = [te.placeholder(static_shape(each), str(each.ty.dtype)) for each in arguments]
        shape, dtype = static_shape(call.args[0]) or [], str(call.ty.dtype)
        out = tirx.decl_buffer(shape, dtype, "out")
        result = te.extern(
            [shape],
            tensors,
            lambda ins, outs: _kernel(ins[0], ins[1:-1], ins[-1], outs[0], grid, target, reduction),
            dtype=dtype,
            out_buffers=[out],
            name="scatter",
        )
        function = te.create_prim_func([*tensors, result], index_dtype_override="int64")
        name = op_name(call).removeprefix("relax.")
        return relax.call_tir(builder.add_func(function.without_attr("global_symbol"), name), tuple(arguments), call.ty)

    return replacement


def _kernel(
    data: Any, indices: Sequence[Any], values: Any, out: Any, grid: list[int], target: Target, reduction: str
) -> Any:
    shape, given = [int(extent) for extent in data.shape], [int(extent) for extent in values.shape]
    with ir_builder.IRBuilder() as builder:
        with tir_script.seq_scope():
            with _loops(shape) as at:
                tir_script.buffer_store(out, data[at], list(at))
            with _loops(grid) as at:
                counted = [tirx.Cast("int64", index) for index in target(indices, at)]
                found = [
                    index if isinstance(index, tirx.Var) else tirx.Select(index < 0, index + extent, index)
                    for index, extent in zip(counted, shape, strict=True)
                ]
                inside = [tirx.all(index >= 0, index < extent) for index, extent in zip(found, shape, strict=True)]
                with tir_script.If(tirx.all(*inside)), tir_script.Then():
                    value = _broadcast(values, given, at)
                    tir_script.buffer_store(out, _COMBINED[reduction](out[tuple(found)], value), found)
        return builder.get()


@contextlib.contextmanager
def _loops(extents: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """Serial loops, and the position that they are at."""
    with contextlib.ExitStack() as stack:
        yield tuple(stack.enter_context(tir_script.serial(0, extent)) for extent in extents)


def _broadcast(tensor: Any, shape: Sequence[int], at: Sequence[Any]) -> Any:
    """The element of a tensor that a position of what it broadcasts to reads."""
    own = at[len(at) - len(shape) :]
    return tensor[tuple(0 if extent == 1 else place for place, extent in zip(own, shape, strict=True))]


def _larger(old: Any, new: Any) -> Any:
    return tirx.Select(new > old, new, _nan_of(new, old))


def _smaller(old: Any, new: Any) -> Any:
    return tirx.Select(new < old, new, _nan_of(new, old))


def _nan_of(new: Any, old: Any) -> Any:
    """`new` where it is no number, else `old`: NaN spreads."""
    return tirx.Select(tirx.isnan(new), new, old) if str(new.ty.dtype).startswith(("float", "bfloat")) else old


_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda _, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": _smaller,
    "max": _larger,
}
