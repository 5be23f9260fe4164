"""Several calls of a graph as one tensor function, whose schedule may then make one kernel of them.

FuseOps fuses what is element-wise around one reduction. What reduces more than once (attention, a norm that the model
spells out) is written here by the pass that found it: the pass says which operators the function is made of, TVM lowers
and joins them, and what is left over of the joining is cleaned away:

* a stage that only moves elements (a permutation, a reshape, a slice, a mask that follows from the indices), or casts those
  of an operand, is done where they are read; but a stage that joins tensors stays before a product that copies them;
* of element-wise stages one behind the other, of which nothing else reads the first ones, the last one is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tuner.graph.def_use import op_name, static_shape
from tuner.graph.fold_constants import constant_value
from tuner.graph.legalise import legalise
from tuner.tvm_compat import IRModule, Schedule, ir, relax, sym, tirx, tvm, tvm_ffi

OUT_ELEMWISE_FUSABLE = 4
"""TVM's OpPatternKind kOutEWiseFusable: element-wise consumers may be fused behind the function."""
HALF = frozenset(("float16", "bfloat16"))
SUMS = "float32"
"""The type in which half precision is computed."""
_GROUP = "group"


def again(builder: Any, call: Any, arguments: Sequence[Any]) -> Any:
    """A call of a graph, written again on other arguments, in float32 where it has half precision.

    A cast between the two is none: such a function rounds in its result alone.
    """
    wide = [cast(builder, each, SUMS) if dtype_of(each) in HALF else each for each in arguments]
    rounds = op_name(call) == "relax.astype" and {dtype_of(call), dtype_of(call.args[0])} & HALF
    if rounds and {dtype_of(call), dtype_of(wide[0])} <= {SUMS, *HALF}:
        return wide[0]
    return builder.emit(relax.Call(call.op, wide, call.attrs, call.ty_args))


def cast(builder: Any, x: Any, dtype: str) -> Any:
    """x in that type. A constant stays one: TVM writes numbers into a function, and has no place for a tensor there."""
    if dtype_of(x) == dtype:
        return x
    values = constant_value(x)
    return builder.emit(relax.op.astype(x, dtype)) if values is None else relax.const(values.astype(dtype), dtype)


def dtype_of(expr: Any) -> str:
    """The type of a tensor's elements; empty for any other expression."""
    return str(expr.ty.dtype) if isinstance(getattr(expr, "ty", None), relax.TensorType) else ""


def call_of(
    builder: Any,
    name: str,
    operands: Sequence[Any],
    write: Callable[[Any, Sequence[Any]], Any],
    *,
    copies_joined: bool = False,
) -> Any:
    """A call of one tensor function on `operands`, tensors of known shapes, none of them twice.

    name: of the function.
    write: (builder, variables that stand for the operands) -> the result, whose parts it has emitted. The shapes of all
        that it emits must be known.
    copies_joined: the tensors of half precision that a product reads are copied by its schedule, so that what they are
        joined of is a stage before it.
    """
    variables = [
        relax.Var(f"a{index}", relax.TensorType(static_shape(each), each.ty.dtype))
        for index, each in enumerate(operands)
    ]
    inner = relax.BlockBuilder()
    with inner.function(_GROUP, variables, attrs={"Primitive": 1}, private=True):
        with inner.dataflow():
            result = inner.emit_output(write(inner, variables))
        inner.emit_func_output(result)
    group = inner.get().get_global_var(_GROUP)
    with inner.function("main", variables_of := [relax.Var(each.name, each.ty) for each in variables]):
        with inner.dataflow():
            called = inner.emit_output(relax.Call(group, variables_of))
        inner.emit_func_output(called)
    passes = (relax.transform.CanonicalizeBindings(), relax.transform.FuseTIR())
    module = tvm.transform.Sequential(passes)(legalise(inner.get()))
    (function,) = (each for each in module.functions.values() if isinstance(each, tirx.PrimFunc))
    function = cleaned(function, copies_joined=copies_joined).with_attr("op_pattern", OUT_ELEMWISE_FUSABLE)
    return relax.call_tir(builder.add_func(function, name), tuple(operands), result.ty)


def cleaned(function: Any, *, copies_joined: bool = False) -> Any:
    """The tensor function without stages that only move elements, and without chains of element-wise stages."""
    schedule = Schedule(IRModule({"main": function}), error_render_level="none")
    root = schedule.get_sblock("root", "main")
    while any(_inlined(schedule, block, copies_joined) for block in schedule.get_child_blocks(root)):
        pass
    found = schedule.mod["main"].without_attr("global_symbol")
    body = tvm_ffi.structural_map(found.body, (tvm.s_tir.SBlock, with_short_indices))
    return tirx.PrimFunc(found.params, body, found.ret_type, attrs=found.attrs)


def _inlined(schedule: Any, block: Any, copies_joined: bool) -> bool:
    """Whether a stage was inlined into those that read it."""
    stage, readers = schedule.get(block), schedule.get_consumers(block)
    if not readers or not _is_injective(stage):
        return False
    if copies_joined and _joins_halves(stage) and all(_is_copied(schedule.get(reader)) for reader in readers):
        return False
    only_reader = schedule.get(readers[0]) if len(readers) == 1 else None
    if not _moves_only(stage, schedule.mod["main"].params) and (only_reader is None or not _is_injective(only_reader)):
        return False
    try:
        schedule.compute_inline(block)
    except tvm.s_tir.ScheduleError:
        return False
    return True


def _is_injective(stage: Any) -> bool:
    return all(axis.iter_type == tirx.IterVar.DataPar for axis in stage.iter_vars) and stage.init is None


def _moves_only(stage: Any, operands: Sequence[Any]) -> bool:
    """Whether the value of a stage is one element, or an operand's after a cast, or follows from the indices alone."""
    return isinstance(stage.body, tirx.BufferStore) and _is_element(stage.body.value, operands)


def _joins_halves(stage: Any) -> bool:
    """Whether a stage joins tensors of half precision."""
    value = stage.body.value if isinstance(stage.body, tirx.BufferStore) else None
    return value is not None and _is_joined(value) and str(value.ty.dtype) in HALF


def _is_copied(reader: Any) -> bool:
    """Whether a stage reads what may be copied for it: it reduces, or only moves what is then read by another."""
    return not _is_injective(reader) or isinstance(getattr(reader.body, "value", None), ir.TensorLoad)


def _is_joined(value: Any) -> bool:
    """Whether a value is of one of the tensors that were joined."""
    return isinstance(value, ir.Call) and str(getattr(value.op, "name", "")) == "prim.if_then_else"


def _is_element(value: Any, operands: Sequence[Any]) -> bool:
    if _is_joined(value):
        condition, *branches = value.args
        return not _loads(condition) and all(_is_element(each, operands) for each in branches)
    if isinstance(value, tirx.Cast) and isinstance(value.value, ir.TensorLoad):
        return any(value.value.source.same_as(operand) for operand in operands)
    return isinstance(value, ir.TensorLoad) or not _loads(value)


def _loads(value: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (ir.TensorLoad, found.append))
    return bool(found)


def with_short_indices(stage: Any) -> Any:
    """The stage with its divisions and remainders simplified, by the extents of its axes."""
    analyzer = sym.Analyzer()
    for axis in stage.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    divisions = [(kind, analyzer.simplify) for kind in (tirx.FloorDiv, tirx.FloorMod)]
    return stage if stage.name_hint == "root" else tvm_ffi.structural_map(stage, *divisions)
