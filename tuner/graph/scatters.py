"""Scatters decomposed: a copy of the data, into which updates are written one after another, at indices that are checked.

    out = data;  for every update u: out[target(u)] = f(out[target(u)], value(u)), where target(u) lies within out

A negative index counts from the end; an update that is out of bounds is dropped, where TVM's own functions write over
foreign memory. Updates keep their order: the last of several to one element wins, as in PyTorch on a CPU, and sums
are the same in every run (TVM's index_put adds in parallel and loses updates). As in PyTorch, the tensor of indices may
be smaller than the data in every dimension. Where indices select by the first dimensions only, or are the same along
others, an update is a slice. Along dimensions where updates stay where they are, threads divide them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import UnsupportedOperator
from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.tvm_compat import ir_builder, relax, te, tir_script, tirx

CHUNK = 32
"""Elements of a slice that a thread takes at a time: lines of the cache that no other thread writes to."""
LEAST_PARALLEL = 1 << 14
"""Updates of a scatter that threads divide among themselves."""
Target = Callable[[Sequence[Any], Sequence[Any]], list[Any]]
"""(buffers of indices, position of an update) -> the indices of the element it goes to, signed."""


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """A scattering operator of a Relax function."""

    call: Any
    operands: list[Any]
    """Tensors of indices."""
    grid: list[int]
    """Positions of updates; in the order of positions updates follow one another."""
    selecting: list[int]
    """Axes of the grid that indices change along, or that are the data's in no dimension."""
    staying: dict[int, int]
    """Axis of the grid -> axis of the data along which an update stays where it is."""
    target: Target

    @property
    def reduction(self) -> str:
        if op_name(self.call) == "relax.index_put":
            return "add" if self.call.attrs.accumulate else "update"
        return str(self.call.attrs.reduction)

    @property
    def inputs(self) -> list[Any]:
        """Data, indices, values."""
        return [self.call.args[0], *self.operands, self.call.args[2]]


def scatters(mod: Any) -> Iterator[Scatter]:
    """Those of the module's main whose shapes are known. Raises UnsupportedOperator for a reduction other than update,
    add, mul, min and max."""
    def_use = DefUse(mod["main"])
    for name, read in _READ.items():
        for _, call in def_use.calls(name):
            definition = def_use.definition(call.args[1])
            operands = definition.fields if isinstance(definition, relax.Tuple) else [call.args[1]]
            if all(static_shape(each) is not None for each in (call.args[0], *operands, call.args[2])):
                found = read(call, list(operands), def_use)
                if found.reduction not in COMBINED:
                    raise UnsupportedOperator(
                        f"operator {name} with reduction {found.reduction!r} has no implementation"
                    )
                yield found


def decompose_scatters(mod: Any) -> Any:
    """The module with the scattering operators of main as tensor functions for a CPU; bindings canonical.

    Raises UnsupportedOperator for a reduction other than update, add, mul, min and max.
    """
    return replace_calls(mod, {each.call: _replacement(each) for each in scatters(mod)})


def _elements(call: Any, operands: list[Any], def_use: DefUse) -> Scatter:
    """One index for each update; those that are the same along an axis are read once."""
    grid = static_shape(operands[0]) or []
    axis = int(call.attrs.axis) % len(grid or [1])
    repeated = def_use.definition(operands[0])
    if op_name(repeated) == "relax.broadcast_to" and len(static_shape(repeated.args[0]) or []) == len(grid):
        operands = [repeated.args[0]]
    own = static_shape(operands[0]) or []

    def target(indices: Sequence[Any], at: Sequence[Any]) -> list[Any]:
        return [*at[:axis], element_of(indices[0], own, at), *at[axis + 1 :]]

    return Scatter(
        call=call,
        operands=operands,
        grid=grid,
        selecting=[each for each, extent in enumerate(own) if extent > 1 or each == axis],
        staying={each: each for each in range(len(grid)) if each != axis},
        target=target,
    )


def _nd(call: Any, operands: list[Any], _: DefUse) -> Scatter:
    *batch, depth = static_shape(operands[0]) or [0]

    def target(indices: Sequence[Any], at: Sequence[Any]) -> list[Any]:
        where = tuple(at[: len(batch)])
        return [*(indices[0][(*where, place)] for place in range(depth)), *at[len(batch) :]]

    return _of_slices(call, operands, batch, depth, target)


def _put(call: Any, operands: list[Any], _: DefUse) -> Scatter:
    shapes = [static_shape(each) or [] for each in operands]
    rank = max(map(len, shapes))
    wide = [[1] * (rank - len(shape)) + shape for shape in shapes]
    batch = [max(extents) for extents in zip(*wide, strict=True)]

    def target(indices: Sequence[Any], at: Sequence[Any]) -> list[Any]:
        found = [element_of(index, shape, at[:rank]) for index, shape in zip(indices, shapes, strict=True)]
        return [*found, *at[rank:]]

    return _of_slices(call, operands, batch, len(operands), target)


def _of_slices(call: Any, operands: list[Any], batch: list[int], depth: int, target: Target) -> Scatter:
    """What selects by the first axes of the data: a slice of the others for each position of the batch."""
    rest = (static_shape(call.args[0]) or [])[depth:]
    return Scatter(
        call=call,
        operands=operands,
        grid=[*batch, *rest],
        selecting=list(range(len(batch))),
        staying={len(batch) + at: depth + at for at in range(len(rest))},
        target=target,
    )


_READ: dict[str, Callable[[Any, list[Any], DefUse], Scatter]] = {
    "relax.scatter_elements": _elements,
    "relax.scatter_nd": _nd,
    "relax.index_put": _put,
}


def _replacement(scatter: Scatter) -> Replacement:
    call = scatter.call

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        arguments = [current(each) for each in scatter.inputs]
        tensors = [te.placeholder(static_shape(each), str(each.ty.dtype)) for each in arguments]
        shape, dtype = static_shape(call.args[0]) or [], str(call.ty.dtype)
        out = tirx.decl_buffer(shape, dtype, "out")
        result = te.extern(
            [shape],
            tensors,
            lambda ins, outs: _kernel(scatter, ins[0], ins[1:-1], ins[-1], outs[0]),
            dtype=dtype,
            out_buffers=[out],
            name="scatter",
        )
        function = te.create_prim_func([*tensors, result], index_dtype_override="int64")
        name = op_name(call).removeprefix("relax.")
        return relax.call_tir(builder.add_func(function.without_attr("global_symbol"), name), tuple(arguments), call.ty)

    return replacement


def _kernel(scatter: Scatter, data: Any, indices: Sequence[Any], values: Any, out: Any) -> Any:
    shape, given = [int(extent) for extent in data.shape], [int(extent) for extent in values.shape]
    with ir_builder.IRBuilder() as builder:
        with tir_script.seq_scope():
            with contextlib.ExitStack() as nest:
                at = _loops(nest, shape, range(len(shape)), divided=_most(shape, range(len(shape))))
                tir_script.buffer_store(out, data[tuple(at.values())], list(at.values()))
            with contextlib.ExitStack() as nest:
                _update(nest, scatter, indices, values, given, out)
        return builder.get()


def _update(
    nest: contextlib.ExitStack, scatter: Scatter, indices: Sequence[Any], values: Any, given: list[int], out: Any
) -> None:
    grid, slices = scatter.grid, [axis for axis in range(len(scatter.grid)) if axis not in scatter.selecting]
    wide = next((axis for axis in reversed(slices) if grid[axis] > CHUNK), None)
    begin: Any = 0
    if wide is not None and math.prod(grid) >= LEAST_PARALLEL:
        begin = nest.enter_context(tir_script.parallel(0, -(-grid[wide] // CHUNK))) * CHUNK
        at = _loops(nest, grid, scatter.selecting)
    else:
        wide, at = None, _loops(nest, grid, scatter.selecting, divided=_most(grid, scatter.staying))
    found, inside = {}, []
    counted = scatter.target(indices, [at.get(axis, 0) for axis in range(len(grid))])
    for axis, (index, extent) in enumerate(zip(counted, out.shape, strict=True)):
        if axis not in scatter.staying.values():
            signed = tirx.Cast("int64", index)
            found[axis] = tirx.Select(signed < 0, signed + extent, signed)
            inside += [found[axis] >= 0, found[axis] < extent]
    nest.enter_context(tir_script.If(tirx.all(tirx.const(True, "bool"), *inside)))
    nest.enter_context(tir_script.Then())
    for axis in slices:
        if axis == wide:
            at[axis] = begin + nest.enter_context(tir_script.serial(0, tirx.min(CHUNK, grid[axis] - begin)))
        elif axis not in at:
            at[axis] = nest.enter_context(tir_script.serial(0, grid[axis]))
    found |= {axis: at[staying] for staying, axis in scatter.staying.items()}
    to = [found[axis] for axis in range(len(out.shape))]
    value = element_of(values, given, [at[axis] for axis in range(len(grid))])
    tir_script.buffer_store(out, COMBINED[scatter.reduction](out[tuple(to)], value), to)


def _most(extents: Sequence[int], axes: Iterable[int]) -> int | None:
    """The first axis that threads divide among themselves, if there is work for them."""
    longer = [axis for axis in axes if extents[axis] > 1]
    return longer[0] if longer and math.prod(extents) >= LEAST_PARALLEL else None


def _loops(
    nest: contextlib.ExitStack, extents: Sequence[int], axes: Iterable[int], *, divided: int | None = None
) -> dict[int, Any]:
    """Opens a loop over each axis, and over the one that threads divide, outside of the others; the position by axis."""
    at = {} if divided is None else {divided: nest.enter_context(tir_script.parallel(0, extents[divided]))}
    for axis in axes:
        if axis != divided:
            at[axis] = nest.enter_context(tir_script.serial(0, extents[axis]))
    return dict(sorted(at.items()))


def element_of(tensor: Any, shape: Sequence[int], at: Sequence[Any]) -> Any:
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


COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda _, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": _smaller,
    "max": _larger,
}
