"""Transposes behind what works on single elements of one tensor: f(transpose(x)) becomes transpose(f(x)).

TVM's ConvertLayout transposes around every tensor function, since it does not know what one computes. Functions of single
elements (ELU, `log1p` in softplus and mish) are computed where their operand lies, and so are selections of elements along
an axis (padding by reflection, which PyTorch writes as one for each axis); the transposes then cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, definition, op_name, permutation, replace_calls, static_shape
from tuner.tvm_compat import ir, relax, structural_walk, te, tirx, tvm_ffi


def sink_transposes(mod: Any) -> Any:
    """The module with such functions of main before the transpose. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    moved: set[Any] = set()
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.values.items():
        if op_name(call) == "relax.take":
            operands = [call.args[0]]
        elif op_name(call) == "relax.call_tir" and isinstance(call.args[1], relax.Tuple):
            operands = list(call.args[1].fields)
        else:
            continue
        if len(operands) != 1 or def_use.from_weights(operands[0]) or static_shape(call) is None:
            continue
        if operands[0] not in moved and not permutation(def_use.definition(operands[0])):
            continue
        if (replacement := _take(call) if op_name(call) == "relax.take" else _function(mod, call)) is not None:
            moved.add(variable)
            replacements[call] = replacement
    return replace_calls(mod, replacements)


def _function(mod: Any, call: Any) -> Replacement | None:
    if static_shape(call) != static_shape(call.args[1].fields[0]):
        return None
    element = _element(mod[call.args[0]])
    return None if element is None else _sunk(call, element)


def _take(call: Any) -> Replacement | None:
    indices = static_shape(call.args[1])
    if call.attrs.axis is None or indices is None or len(indices) != 1:
        return None

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        transposed = definition(current(call.args[0]), builder.lookup_binding)
        axes = permutation(transposed)
        axis = axes[int(call.attrs.axis) % len(axes)]
        taken = relax.op.take(transposed.args[0], current(call.args[1]), axis=axis, mode=str(call.attrs.mode))
        return relax.op.permute_dims(builder.emit(taken), axes)

    return replacement


def _element(function: Any) -> Callable[[Any], Any] | None:
    """A result's element of the function from its operand's in the same place; None of any other function."""
    blocks: list[Any] = []
    structural_walk(function.body, (object, lambda node: blocks.append(node) if _is_block(node) else None))
    if len(function.params) != 2 or len(blocks) != 1:
        return None
    store, axes = blocks[0].body, blocks[0].iter_vars
    loads: list[Any] = []
    places: list[Any] = []
    structural_walk(store, (ir.TensorLoad, loads.append))
    structural_walk(store, (ir.Var, places.append))
    if type(store).__name__ != "BufferStore" or not loads:
        return None
    indices = [each.indices for each in (*loads, store)]
    if not all(map(partial(_is_place, axes), indices)):
        return None
    if any(not each.source.same_as(function.params[0]) for each in loads):
        return None
    # A place that is used beside the indices, as in the number of an element, would be another one after the transpose.
    used = sum(any(place.same_as(each.var) for each in axes) for place in places)
    if used != sum(isinstance(index, ir.Var) for each in indices for index in each):
        return None
    return lambda element: tvm_ffi.structural_map(store.value, (ir.TensorLoad, lambda _: element))


def _is_block(node: Any) -> bool:
    return type(node).__name__ == "SBlock" and node.name_hint != "root"


def _is_place(axes: Sequence[Any], indices: Sequence[Any]) -> bool:
    """Whether the indices are the axes' variables; that of an axis of one element may be a constant."""
    return len(indices) == len(axes) and all(
        index.same_as(axis.var) or (isinstance(index, tirx.IntImm) and int(axis.dom.extent) == 1)
        for index, axis in zip(indices, axes, strict=True)
    )


def _sunk(call: Any, element: Callable[[Any], Any]) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        transposed = definition(current(call.args[1].fields[0]), builder.lookup_binding)
        x, axes = transposed.args[0], permutation(transposed)
        shape = static_shape(x) or []
        source = te.placeholder(shape, str(x.ty.dtype), name="x")
        result = te.compute(shape, lambda *at: element(source(*at)), name="y")
        function = te.create_prim_func([source, result], index_dtype_override="int64").without_attr("global_symbol")
        name = str(call.args[0].name_hint)
        y = relax.call_tir(builder.add_func(function, name), (x,), relax.TensorType(shape, str(call.ty.dtype)))
        return relax.op.permute_dims(builder.emit(y), axes)

    return replacement
