"""Folding of batch norms, in inference, into the weights and the bias of the convolution before them.

With s = gamma / sqrt(variance + epsilon) and t = beta - mean * s, a batch norm is y = x * s + t along its channel axis.
If x is the result of a convolution (plus, perhaps, a bias b per channel) that has no other use, then
y = conv(x', w * s) + (b * s + t): the scale moves into the weights. All arithmetic on parameters is lifted out of the
model later (tuner/graph/prepare.py).

A batch norm of half precision is computed in float32, and so are s and t; w * s is rounded to the weights' type.
"""

from __future__ import annotations

from typing import Any

from tuner.graph.convolutions import CONVOLUTIONS
from tuner.graph.def_use import DefUse, op_name
from tuner.graph.half_precision import is_half
from tuner.graph.one_function import SUMS
from tuner.tvm_compat import PyExprMutator, mutator, relax, with_function


def fold_batch_norm(mod: Any) -> Any:
    """The module with every batch_norm of main folded, or written as a scale and a shift. Bindings must be canonical."""
    main = mod["main"]
    folded = _Fold(mod, DefUse(main)).visit_expr(main)
    return with_function(mod, "main", folded)


@mutator
class _Fold(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def __init__(self, mod: Any, def_use: DefUse) -> None:
        super().__init__(mod)
        self.def_use = def_use

    def visit_call_(self, call: Any) -> Any:
        if op_name(call) != "relax.nn.batch_norm":
            return self.visit_expr_post_order(call)
        data, given = call.args[0], [self.visit_expr(each) for each in call.args]
        emit = self.builder_.emit
        dtype = SUMS if is_half(call.args[0]) else str(data.ty.dtype)
        x, gamma, beta, mean, variance = (self._cast(each, dtype) for each in given)
        deviation = emit(relax.op.sqrt(emit(relax.op.add(variance, relax.const(float(call.attrs.epsilon), dtype)))))
        scale = emit(relax.op.divide(gamma if call.attrs.scale else relax.const(1.0, dtype), deviation))
        shift = emit(relax.op.negative(emit(relax.op.multiply(mean, scale))))
        if call.attrs.center:
            shift = emit(relax.op.add(beta, shift))
        found = self._scaled(data, x, call, scale, shift)
        return relax.Tuple([self._cast(found, str(data.ty.dtype)), *given[3:]])

    def _cast(self, x: Any, dtype: str) -> Any:
        return x if str(x.ty.dtype) == dtype else self.builder_.emit(relax.op.astype(x, dtype))

    def _scaled(self, data: Any, x: Any, call: Any, scale: Any, shift: Any) -> Any:
        """x * scale + shift, with the scale folded into the weights of a convolution where x is the result of one.

        `data` is what `call` reads, and x the same in the rewritten function, in the type of scale and shift.
        """
        emit = self.builder_.emit
        channels = int(call.args[1].ty.shape[0])
        rank = len(x.ty.shape)
        axis = int(call.attrs.axis) % rank
        along = [channels if index == axis else 1 for index in range(rank)]
        conv, bias = self._convolution(data, axis, along)
        if conv is None:
            x = emit(relax.op.multiply(x, emit(relax.op.reshape(scale, along))))
            return emit(relax.op.add(x, emit(relax.op.reshape(shift, along))))
        source, weight = (self.visit_expr(argument) for argument in conv.args)
        per_output = [channels] + [1] * (len(weight.ty.shape) - 1)
        stored, dtype = str(weight.ty.dtype), str(scale.ty.dtype)
        weight = emit(relax.op.multiply(self._cast(weight, dtype), emit(relax.op.reshape(scale, per_output))))
        weight = self._cast(weight, stored)
        y = self._cast(emit(relax.Call(conv.op, [source, weight], conv.attrs, conv.ty_args)), dtype)
        if bias is not None:
            bias = self._cast(self.visit_expr(bias), dtype)
            bias = emit(relax.op.multiply(emit(relax.op.reshape(bias, [channels])), scale))
            shift = emit(relax.op.add(bias, shift))
        return emit(relax.op.add(y, emit(relax.op.reshape(shift, along))))

    def _convolution(self, data: Any, axis: int, along: list[int]) -> tuple[Any, Any]:
        """The convolution whose only use is this batch norm, and its bias or None; (None, None) if x is no such result."""
        bias = None
        found = self._bound(data)
        if op_name(found) == "relax.astype" and is_half(found.args[0]):
            found = self._bound(found.args[0])
        if op_name(found) == "relax.add":
            left, right = found.args
            if [int(extent) for extent in right.ty.shape] != along:
                return None, None
            bias, found = right, self._bound(left)
        if op_name(found) not in CONVOLUTIONS or axis != 1:
            return None, None
        attrs, image = found.attrs, found.attrs.data_layout[2:]
        layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
        return (found, bias) if layouts == (f"NC{image}", f"OI{image}", f"NC{image}") else (None, None)

    def _bound(self, variable: Any) -> Any:
        """What a variable that has one use is bound to, in the function as it is rewritten so far; None for any other."""
        return self.lookup_binding(variable) if self.def_use.has_one_use(variable) else None
