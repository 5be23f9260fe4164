"""What half precision means: tensors are stored in it, and everything is computed in float32 (decision 0042).

Before this pass a graph has operators on tensors of float16 and bfloat16 as on any other type, so that all passes of this
folder see one graph for every type. Here each operator becomes what PyTorch computes:

* A product or a convolution multiplies half precision and sums in float32; its sum is rounded once.
* A norm, a softmax, a pooling or another reduction is one tensor function that reads and writes half precision, and
  computes in float32 in between.
* An element-wise operator is computed in float32 and rounded. Between it and the product or the element-wise operator whose
  only use it is, nothing is rounded: both are one kernel, which holds the value in a register. Only where a graph itself
  casts to half precision and back at once, which a model may do to quantise, both casts stay. Of the products whose sum is
  taken one can be that kernel; what another one gives is stored, and so rounded.

What only moves or compares elements, or finds their places, stays as it is. A bias of a product becomes a weight of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls
from tuner.graph.epilogue import BINARY, UNARY
from tuner.graph.legalise import legalise
from tuner.graph.one_function import HALF, SUMS
from tuner.tvm_compat import IRModule, PrimFunc, PyExprMutator, Schedule, ir, mutator, relax, tirx, with_function

WHOLE = "whole"
"""A function of one operator and its casts."""
PRODUCTS = frozenset(
    f"relax.{name}"
    for name in (
        *("matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d"),
        *("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
    )
)
"""Operators with an `out_dtype`, in which they sum."""
EINSUM = "relax.einsum"
ELEMENTWISE = (
    UNARY
    | BINARY
    | frozenset(
        f"relax.{name}"
        for name in (
            *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "ewise_fma", "floor_divide"),
            *("floor_mod", "log_add_exp", "mod", "nn.prelu", "nn.selu", "nn.softplus", "sinh", "tan", "trunc", "where"),
            *("cumprod", "cumsum"),  # not element by element, but lowered to scans that no function here holds
        )
    )
) - {"relax.astype"}
STAGES = frozenset(
    f"relax.{name}"
    for name in (
        *(
            "max",
            "mean",
            "min",
            "prod",
            "std",
            "sum",
            "variance",
            "image.grid_sample",
            "image.resize2d",
            "image.resize3d",
        ),
        *("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d", "nn.attention"),
        *("nn.attention_bias", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d", "nn.group_norm", "nn.instance_norm"),
        *("nn.layer_norm", "nn.log_softmax", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "nn.rms_norm"),
        "nn.softmax",
    )
)
"""Operators of several stages, or of a reduction."""
COMPUTED = PRODUCTS | ELEMENTWISE | {EINSUM}
"""Operators whose result an element-wise operator takes as it was before it is rounded."""


def is_half(expr: Any) -> bool:
    """Whether an expression is a tensor of half precision."""
    return str(getattr(expr.ty, "dtype", "")) in HALF


def fold_casts(mod: Any) -> Any:
    """The module with a softmax between casts from half precision and back, as models write it, of half precision itself,
    which computes the same. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for name in ("relax.nn.softmax", "relax.nn.log_softmax"):
        for variable, call in def_use.calls(name):
            widened = def_use.definition(call.args[0])
            narrowed: Any = def_use.definition(def_use.users[variable][-1]) if def_use.has_one_use(variable) else None
            if op_name(widened) != "relax.astype" or op_name(narrowed) != "relax.astype":
                continue
            if is_half(narrowed) and str(narrowed.ty.dtype) == str(widened.args[0].ty.dtype):
                replacements[narrowed] = _without_widening(call, widened.args[0])
    return replace_calls(mod, replacements)


def _without_widening(call: Any, x: Any) -> Replacement:
    def replacement(_builder: Any, current: Callable[[Any], Any]) -> Any:
        return relax.Call(call.op, [current(x)], call.attrs, call.ty_args)

    return replacement


def compute_in_float32(mod: Any) -> Any:
    """The module with main's operators on half precision computed in float32. Bindings must be canonical.

    No pass that shares common subexpressions may follow: a tensor that two kernels read is cast by each.
    """
    main = mod["main"]
    widen = _Widen(mod, DefUse(main))
    main = widen.visit_expr(main)
    return with_function(widen.builder_.get(), "main", main)


@mutator
class _Widen(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def __init__(self, mod: Any, def_use: DefUse) -> None:
        super().__init__(mod)
        self.def_use = def_use
        self._position = {variable: at for at, variable in enumerate(def_use.values)}

    def visit_call_(self, call: Any) -> Any:
        name = op_name(call)
        if name == "relax.astype" and is_half(call.args[0]) and str(call.ty.dtype) == SUMS:
            return self._float32(call.args[0], COMPUTED)
        if not is_half(call) or name not in COMPUTED | STAGES:
            return self.visit_expr_post_order(call)
        dtype = str(call.ty.dtype)
        if name in STAGES:
            return self._function(call, dtype)
        if name == EINSUM:
            found = self._function(call, SUMS)
        elif name in PRODUCTS:
            found = summing_in_float32(call, [self.visit_expr(each) for each in call.args])
        else:
            stored = self._stored(call)
            wide: dict[Any, Any] = {}
            for each in call.args:
                if each not in wide and each not in stored:
                    wide[each] = self._float32(each, COMPUTED | {"relax.astype"})
            if stored:
                found = self._reading_half(call, wide)
            else:
                found = relax.Call(call.op, [wide[each] for each in call.args], call.attrs, call.ty_args)
        return relax.op.astype(self.builder_.emit(found), dtype)

    def _stored(self, call: Any) -> list[Any]:
        """The operands of an element-wise operator that come from products of which it is not the epilogue: fusion makes
        it that of the product whose operand is bound first."""
        produced = [each for each in dict.fromkeys(call.args) if is_half(each) and self._has_product(each)]
        produced.sort(key=self._position.__getitem__)
        return produced[1:]

    def _has_product(self, expr: Any) -> bool:
        """Whether a tensor would be one kernel with a product before it, up to whoever reads it."""
        if not self.def_use.has_one_use(expr):
            return False
        definition = self.def_use.definition(expr)
        if op_name(definition) in ELEMENTWISE | {"relax.astype"}:
            return any(self._has_product(each) for each in definition.args)
        return op_name(definition) in PRODUCTS or self._origin(expr) == EINSUM

    def _reading_half(self, call: Any, wide: dict[Any, Any]) -> Any:
        """An element-wise operator that itself reads the operands that are not in `wide` in half precision."""
        given = [wide[each] if each in wide else self.visit_expr(each) for each in call.args]
        function = _tensor_function(call, given, given, SUMS, inlined=False)  # as casts and an operator that were fused
        name = op_name(call).rpartition(".")[2]
        return relax.call_tir(self.builder_.add_func(function, name), given, relax.TensorType(call.ty.shape, SUMS))

    def _float32(self, expr: Any, unrounded: Collection[str]) -> Any:
        """An operand in float32: as it was before it was rounded, where this is its only use and one of the operators
        `unrounded` gives it. Others as they are. A number becomes another one, which a tensor function can hold."""
        new = self.visit_expr(expr)
        if not is_half(new):
            return new
        if isinstance(new, ir.GenericConst) and not new.ty.shape.values:
            return relax.const(float(new.value.numpy()), SUMS)
        if self.def_use.has_one_use(expr) and self._origin(expr) in unrounded:
            rounding = self.lookup_binding(new)
            if op_name(rounding) == "relax.astype" and str(rounding.args[0].ty.dtype) == SUMS:
                return rounding.args[0]
        return self.builder_.emit(relax.op.astype(new, SUMS))

    def _origin(self, expr: Any) -> str:
        """The operator that gives a tensor; of a tensor function's sums in float32, which were rounded, an einsum."""
        definition = self.def_use.definition(expr)
        if op_name(definition) == "relax.astype":
            sums = self.def_use.definition(definition.args[0])
            return EINSUM if op_name(sums) == "relax.call_tir" else "relax.astype"
        return op_name(definition)

    def _function(self, call: Any, dtype: str) -> Any:
        """A call of one tensor function that computes the operator in float32 and gives the type `dtype`."""
        arguments = [self.visit_expr(each) for each in call.args]
        tensors = [each for argument in arguments for each in getattr(argument, "fields", (argument,))]
        tensors = [each for each in tensors if isinstance(getattr(each, "ty", None), relax.TensorType)]
        function = _tensor_function(call, arguments, tensors, dtype)
        name = op_name(call).rpartition(".")[2]
        ty = relax.TensorType(call.ty.shape, dtype)
        return relax.call_tir(self.builder_.add_func(function, name), tensors, ty)


def summing_in_float32(call: Any, arguments: Sequence[Any]) -> Any:
    """A product, or a convolution, of such arguments that gives its sums in float32."""
    name = op_name(call).removeprefix("relax.")
    if name == "matmul":
        return relax.op.matmul(*arguments, out_dtype=SUMS)
    fields = ["strides", "padding", "dilation", "groups", "data_layout", "kernel_layout", "out_layout"]
    if name.endswith("_transpose"):
        fields.append("output_padding")
    given = {field: getattr(call.attrs, field) for field in fields}
    return getattr(relax.op.nn, name.removeprefix("nn."))(*arguments, **given, out_dtype=SUMS)


def _tensor_function(
    call: Any, arguments: Sequence[Any], tensors: Sequence[Any], dtype: str, *, inlined: bool = True
) -> Any:
    """The operator as a tensor function of `tensors`, which are those among its arguments, that gives the type `dtype`.

    TVM's own of float32, with the casts of half precision where it reads and writes.
    """
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"a{at}", each.ty) for at, each in enumerate(tensors)]
    with builder.function(WHOLE, variables):
        with builder.dataflow():
            wide = [builder.emit(relax.op.astype(each, SUMS)) if is_half(each) else each for each in variables]
            given = iter(wide)
            operands = [
                relax.Tuple([next(given) for _ in argument.fields])
                if isinstance(argument, relax.Tuple)
                else next(given)
                if isinstance(getattr(argument, "ty", None), relax.TensorType)
                else argument
                for argument in arguments
            ]
            found = builder.emit(relax.Call(call.op, operands, call.attrs, call.ty_args))
            result = builder.emit_output(found if dtype == SUMS else relax.op.astype(found, dtype))
        builder.emit_func_output(result)
    lowered = legalise(builder.get())
    fused = _fused(lowered, variables)
    return _without_casts(fused) if inlined else fused


def _fused(mod: Any, variables: Sequence[Any]) -> Any:
    """The one tensor function of all that the function WHOLE of a lowered module calls."""
    whole = mod[WHOLE].with_attr("Primitive", 1)
    mod = with_function(mod, WHOLE, whole)
    given = [relax.Var(each.name, each.ty) for each in variables]
    called = mod.get_global_var(WHOLE)
    builder = relax.BlockBuilder(mod)
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(called, given))
        builder.emit_func_output(result)
    fused = relax.transform.FuseTIR()(builder.get())
    (function,) = (each for each in fused.functions.values() if isinstance(each, PrimFunc))
    return function.without_attr("global_symbol")


def _without_casts(function: Any) -> Any:
    """The tensor function with casts of its arguments where they are read, and of its result where it is written.

    TVM moves no block into one without loops, so the cast of a single number stays a block.
    """
    schedule = Schedule(IRModule({"main": function.with_attr("global_symbol", "main")}))
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        body = schedule.get(block).body
        if not isinstance(getattr(body, "value", None), tirx.Cast) or not hasattr(body.value.value, "source"):
            continue
        reads = body.value.value.source
        if any(reads.same_as(parameter) for parameter in schedule.mod["main"].params):
            schedule.compute_inline(block)
        elif schedule.get_loops(block) and not _is_reduction(schedule, schedule.get_producers(block)):
            schedule.reverse_compute_inline(block)
    return schedule.mod["main"].without_attr("global_symbol")


def _is_reduction(schedule: Any, blocks: Sequence[Any]) -> bool:
    return any(each.iter_type == each.CommReduce for block in blocks for each in schedule.get(block).iter_vars)
