"""Weights of products in TF32: rounded to the nearest, and with the summed axes last in memory.

TF32 drops 13 bits of float32's fraction. Tensor cores do it by cutting them off, which makes every operand smaller, by
3.5e-4 on average (the mean of 2^-11 / m over fractions m from 1 to 2, which are as frequent as 1 / m says), and what a
network sums so in one layer after another drifts. So operands are rounded to the nearest before: those that are computed by
the kernel that reads them (tuner/templates), weights here, once, when they are bound. And the instruction that multiplies
from shared memory (wgmma) takes operands of 32 bits along the summed axes only ("Matrix multiply-accumulate" in the PTX
reference): weights that lie otherwise would have to be turned in every block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pitchpipe.errors import InvalidTrace
from tuner.graph.fold_constants import constant_value
from tuner.graph.precision import multiplies_tf32
from tuner.graph.turned_params import Order, reading_turned
from tuner.templates.contraction import Contraction, find_contraction
from tuner.tvm_compat import IRModule, ir, relax, structural_walk, te, tirx, with_function

HALF_STEP, MASK = 1 << 12, -(1 << 13)
"""Half of the last bit of a fraction that is kept, and all bits that are."""
SIGN_MASK, INFINITY = 0x7FFFFFFF, 0x7F800000
Array = NDArray[np.float32]
MAIN, TRANSFORM = "main", "main_transform_params"


def nearest_weights(mod: Any) -> Any:
    """A prepared module whose functions that may be computed by TF32 read weights that are rounded and lie well.

    mod: main(*inputs, *transformed), main_transform_params(params) -> transformed, and tensor functions, which are marked.
    """
    called, called_before = (_called(mod[name]) for name in (MAIN, TRANSFORM))
    wanted: dict[Any, dict[int, Order]] = {}
    for variable in called:
        function = mod[variable]
        if multiplies_tf32(function) and (orders := _wanted(function)):
            wanted[variable] = orders
    if not wanted:
        return mod
    others = {v: function for v, function in mod.functions.items() if v not in wanted or v in called_before}
    builder = relax.BlockBuilder(IRModule(others, attrs=mod.attrs))
    turned = {
        variable: builder.add_func(reading_turned(mod[variable], orders), variable.name_hint)
        for variable, orders in wanted.items()
    }
    return _bound(builder.get(), wanted, turned)


def _called(function: Any) -> list[Any]:
    """The tensor functions that a function calls, each once, in the order of first calls."""
    found = list[Any]()
    structural_walk(function.body, (ir.GlobalVar, found.append))
    return list(dict.fromkeys(found))


def _wanted(function: Any) -> dict[int, Order]:
    """Place of a parameter that holds weights which are multiplied -> the order of its axes that is wanted."""
    try:
        found = find_contraction(IRModule({MAIN: function.with_attr("global_symbol", MAIN)}))
    except InvalidTrace:
        return {}
    orders: dict[int, Order] = {}
    for operand in (found.a, found.b):
        if isinstance(operand, ir.TensorLoad):
            place = next((at for at in found.constant if found.params[at].same_as(operand.source)), None)
            if place is not None:
                orders[place] = _summed_last(found, operand)
    return orders


def _summed_last(found: Contraction, operand: Any) -> Order:
    """The axes of a weight, those that are summed last; as they are where an index is more than one axis of the product."""
    indices = list(operand.indices)
    if not all(isinstance(index, (ir.Var, tirx.IntImm)) for index in indices):
        return tuple(range(len(indices)))
    summed = [at for axis in found.k for at, index in enumerate(indices) if index.same_as(axis.variable)]
    return (*(at for at in range(len(indices)) if at not in summed), *summed)


def _bound(mod: Any, wanted: dict[Any, dict[int, Order]], turned: dict[Any, Any]) -> Any:
    """The module whose main calls what these functions were turned into, and gets, for each weight and order that they
    want, a parameter more, and none that it does not read."""
    main = mod[MAIN]
    count = int(main.attrs["num_input"])
    weights = list(main.params[count:])
    made: dict[tuple[int, Order], Any] = {}

    def converted(argument: Any, order: Order) -> Any:
        if (values := constant_value(argument)) is not None:
            return relax.const(nearest(values).transpose(order).copy())
        number = next(at for at, weight in enumerate(weights) if weight.same_as(argument))
        shape = [argument.ty.shape.values[axis] for axis in order]
        name = f"{argument.name}_{len(made)}"
        return made.setdefault((number, order), relax.Var(name, relax.TensorType(shape, argument.ty.dtype)))

    def rewritten(binding: Any) -> Any:
        call = binding.value
        if not isinstance(call, relax.Call) or not call.args or call.args[0] not in turned:
            return binding
        given = list(call.args[1].fields)
        for place, order in wanted[call.args[0]].items():
            given[place] = converted(given[place], order)
        arguments = [turned[call.args[0]], relax.Tuple(given), *call.args[2:]]
        return relax.VarBinding(binding.var, relax.Call(call.op, arguments, call.attrs, call.ty_args))

    blocks = [type(block)([rewritten(one) for one in block.bindings]) for block in main.body.blocks]
    body = relax.BlockBuilder().normalize(relax.SeqExpr(blocks, main.body.body))
    read = set(relax.analysis.free_vars(body))
    kept = [number for number, weight in enumerate(weights) if weight in read]
    params = [*main.params[:count], *(weights[number] for number in kept), *made.values()]
    mod = with_function(mod, MAIN, relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs))
    return _transforming(mod, kept, list(made))


def _transforming(mod: Any, kept: list[int], made: list[tuple[int, Order]]) -> Any:
    """The module whose main_transform_params gives those of its results as they are, and then these, converted."""
    first = mod[TRANSFORM]
    bindings = [binding for block in first.body.blocks for binding in block.bindings]
    bound = {binding.var: binding.value for binding in bindings}
    results = first.body.body
    while isinstance(results, relax.Var):
        results = bound[results]
    mod = IRModule(dict(mod.functions.items()), attrs=mod.attrs)
    builder = relax.BlockBuilder(mod)
    fields = [results.fields[number] for number in kept]
    for number, order in made:
        weight = results.fields[number]
        shape = [int(extent) for extent in weight.ty.shape.values]
        function = builder.add_func(_nearest(shape, order), "nearest")
        kind = relax.TensorType([shape[axis] for axis in order], "float32")
        fields.append(relax.DataflowVar(f"nearest_{len(fields)}", kind))
        bindings.append(relax.VarBinding(fields[-1], relax.call_tir(function, (weight,), kind)))
    returned = relax.Var("transformed", relax.TupleType([field.ty for field in fields]))
    block = relax.DataflowBlock([*bindings, relax.VarBinding(returned, relax.Tuple(fields))])
    mod = builder.get()
    body = relax.BlockBuilder(mod).normalize(relax.SeqExpr([block], returned))
    return with_function(mod, TRANSFORM, relax.Function(first.params, body, returned.ty, first.is_pure, first.attrs))


def nearest(values: Array) -> Array:
    """The float32 numbers that TF32 has nearest to these, halves rounded away from zero."""
    bits = values.view(np.int32)
    return np.where(np.isnan(values), values, ((bits + HALF_STEP) & MASK).view(np.float32))


def _nearest(shape: list[int], order: Order) -> Any:
    """The tensor function that rounds a tensor's elements, halves away from zero, and puts its axes into an order."""
    weight = te.placeholder(shape, "float32", "weight")

    def element(*axes: Any) -> Any:
        at = dict(zip(order, axes, strict=True))
        x = weight[tuple(at[axis] for axis in range(len(order)))]
        bits = tirx.reinterpret("int32", x)
        is_number = (bits & SIGN_MASK) <= INFINITY
        return tirx.Select(is_number, tirx.reinterpret("float32", (bits + HALF_STEP) & MASK), x)

    result = te.compute([shape[axis] for axis in order], element, "nearest")
    return te.create_prim_func([weight, result], index_dtype_override="int64").without_attr("global_symbol")
