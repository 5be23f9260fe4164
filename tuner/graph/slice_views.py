"""Contiguous slices as views: a slice along the first dimension is a view at an offset, and nothing is copied.

TVM's RewriteDataflowReshape makes views of reshapes inside of a dataflow block, but not of those that compute main's
outputs: `bind_outputs_in_dataflow` moves them into the block first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, item_bytes, op_name, replace_calls, static_shape
from tuner.tvm_compat import PyExprMutator, mutator, relax, with_function

ALIGNMENT = 64
"""Bytes. The runtime copies a view that starts elsewhere (kAllocAlignment in TVM's device API)."""


def slice_views(mod: Any) -> Any:
    """The module in which contiguous slices of tensors that main computes are views. Bindings must be canonical."""
    return _with_views(mod, of_inputs=False)


def slice_views_of_inputs(mod: Any) -> Any:
    """The same, with contiguous slices of inputs, too: a GPU's memory is aligned, whoever allocates it."""
    return _with_views(mod, of_inputs=True)


def _with_views(mod: Any, *, of_inputs: bool) -> Any:
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.calls("relax.strided_slice"):
        if not is_view(def_use, variable, of_inputs=of_inputs):
            continue
        user = def_use.users[variable][-1] if def_use.has_one_use(variable) else None
        is_reshaped = isinstance(user, relax.DataflowVar) and op_name(def_use.values[user]) == "relax.reshape"
        last = def_use.values[user] if is_reshaped else call
        replacements[last] = _view(call, _offset(def_use, call), static_shape(last))
    return replace_calls(mod, replacements)


def is_view(def_use: DefUse, variable: Any, *, of_inputs: bool) -> bool:
    """Whether a variable is bound to a slice that becomes a view; of inputs, too, if so."""
    call: Any = def_use.values.get(variable)
    if op_name(call) != "relax.strided_slice" or not isinstance(variable, relax.DataflowVar):
        return False
    if isinstance(def_use.definition(call.args[0]), relax.Var) and not (of_inputs and _stays_inside(def_use, variable)):
        return False
    return _offset(def_use, call) is not None


def _stays_inside(def_use: DefUse, variable: Any) -> bool:
    """Whether no result of main is a reshape of a variable: what is returned must not lie in an input."""
    return not any(
        op_name(value) == "relax.reshape"
        and value.args[0].same_as(variable)
        and not isinstance(other, relax.DataflowVar)
        for other, value in def_use.values.items()
    )


def _view(call: Any, offset: int | None, shape: list[int] | None) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        part = relax.op.memory.view(current(call.args[0]), shape, str(call.ty.dtype), relax.prim_value(offset))
        return relax.op.memory.ensure_zero_offset(builder.emit(part))

    return replacement


def _offset(def_use: DefUse, call: Any) -> int | None:
    """The offset in bytes of a contiguous, aligned slice of an input or a computed tensor; None for any other slice."""
    source = call.args[0]
    shape, out = static_shape(source), static_shape(call)
    if (
        shape is None
        or out is None
        or not isinstance(def_use.definition(source), (relax.Call, relax.Var))
        or def_use.from_weights(source)
    ):
        return None
    bounds = [[int(value.value) for value in argument.fields] for argument in call.args[1:]]
    axes, begins = bounds[0], bounds[1]
    if any(step != 1 for step in (bounds[3] if len(bounds) > 3 else [])):
        return None
    begin = dict(zip((axis % len(shape) for axis in axes), begins, strict=True))
    cut = [axis for axis in range(len(shape)) if out[axis] < shape[axis]]
    # The slice is contiguous where it has one index of every dimension before the last one that it cuts.
    if not cut or any(out[axis] != 1 for axis in range(cut[-1])):
        return None
    if any(not -shape[axis] <= begin[axis] < shape[axis] for axis in cut):
        return None
    elements = sum(begin[axis] % shape[axis] * math.prod(shape[axis + 1 :]) for axis in cut)
    offset = elements * item_bytes(call)
    return offset if offset % ALIGNMENT == 0 else None


def bind_outputs_in_dataflow(mod: Any) -> Any:
    """The module with the outputs of main bound inside of its dataflow block, where TVM turns reshapes into views."""
    return with_function(mod, "main", _Inner(mod).visit_expr(mod["main"]))


@mutator
class _Inner(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def visit_var_binding_(self, binding: Any) -> None:
        if isinstance(binding.var, relax.DataflowVar) or not isinstance(binding.value, relax.Call):
            super().visit_var_binding_(binding)
        else:
            inner = self.builder_.emit(self.visit_expr(binding.value))
            self.set_var_remap(binding.var, self.builder_.emit_output(inner))
