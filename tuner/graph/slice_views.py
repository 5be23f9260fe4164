"""Views: what neighbours in memory make up is read where it lies, not copied.

A slice along the first dimension is a view at an offset. TVM's RewriteDataflowReshape makes views of reshapes, but not of
those that main ends with: they are taken into the dataflow first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, item_bytes, op_name, replace_calls, static_shape
from tuner.tvm_compat import PyExprMutator, mutator, relax, with_function

ALIGNMENT = 64
"""Bytes. The runtime copies a view that starts elsewhere (kAllocAlignment in TVM's device API)."""


def view_slices(mod: Any) -> Any:
    """The module with contiguous slices of what main computes as views of it; bindings canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.calls("relax.strided_slice"):
        offset = _offset(def_use, call)
        if offset is None or not isinstance(variable, relax.DataflowVar):
            continue
        user = def_use.last_users.get(variable) if def_use.has_one_use(variable) else None
        named_anew = isinstance(user, relax.DataflowVar) and op_name(def_use.values[user]) == "relax.reshape"
        last = def_use.values[user] if named_anew else call
        replacements[last] = _view(call, offset, static_shape(last))
    return replace_calls(mod, replacements)


def _view(call: Any, offset: int, shape: list[int] | None) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        part = relax.op.memory.view(current(call.args[0]), shape, str(call.ty.dtype), relax.prim_value(offset))
        return relax.op.memory.ensure_zero_offset(builder.emit(part))

    return replacement


def _offset(def_use: DefUse, call: Any) -> int | None:
    """Bytes before a slice that is contiguous and aligned, of a tensor that main computes; None for any other."""
    source = call.args[0]
    shape, out = static_shape(source), static_shape(call)
    if (
        shape is None
        or out is None
        or not isinstance(def_use.definition(source), relax.Call)
        or def_use.from_weights(source)
    ):
        return None
    bounds = [[int(value.value) for value in argument.fields] for argument in call.args[1:]]
    axes, begins = bounds[0], bounds[1]
    if any(step != 1 for step in (bounds[3] if len(bounds) > 3 else [])):
        return None
    begin = dict(zip((axis % len(shape) for axis in axes), begins, strict=True))
    cut = [axis for axis in range(len(shape)) if out[axis] < shape[axis]]
    # Before the last cut dimension, one index of each: what is kept is one stretch of memory.
    if not cut or any(out[axis] != 1 for axis in range(cut[-1])):
        return None
    if any(not -shape[axis] <= begin[axis] < shape[axis] for axis in cut):
        return None
    elements = sum(begin[axis] % shape[axis] * math.prod(shape[axis + 1 :]) for axis in cut)
    offset = elements * item_bytes(call)
    return offset if offset % ALIGNMENT == 0 else None


def inner_outputs(mod: Any) -> Any:
    """The module with what main ends with computed inside of its dataflow, where TVM sees reshapes as views."""
    return with_function(mod, "main", _Inner(mod).visit_expr(mod["main"]))


@mutator
class _Inner(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def visit_var_binding_(self, binding: Any) -> None:
        if isinstance(binding.var, relax.DataflowVar) or not isinstance(binding.value, relax.Call):
            super().visit_var_binding_(binding)
        else:
            inner = self.builder_.emit(self.visit_expr(binding.value))
            self.set_var_remap(binding.var, self.builder_.emit_output(inner))
