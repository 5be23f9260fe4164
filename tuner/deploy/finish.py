"""From a prepared module, its tensor functions scheduled, to a module that can be compiled.

Layout changes that schedules made of weights move into `main_transform_params`, where what depends on parameters only is
already. That takes a second lifting, so what the first one made is set aside and called first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from tuner.graph.lift_params import lift_params
from tuner.graph.prepare import MAIN, TRANSFORM, call_counts, normalised, workload_module
from tuner.templates.kernels import template_of
from tuner.tvm_compat import IRModule, PrimFunc, ir, relax, tirx, tvm_ffi


def finish(prepared: Any, target: Target) -> Any:
    """A module ready for tvm.compile: main(*inputs, *transformed) and main_transform_params(params) -> transformed.

    `prepared` is what `prepare` made for `target`, any of its tensor functions replaced by a scheduled one with the same
    arguments. Where a schedule changed the layout of a weight, the change is made in main_transform_params. What that
    function calls gets its default schedule; on a GPU, where nothing runs unscheduled, so does what is left of main.
    """
    transform = relax.transform
    functions = {}
    for variable, function in prepared.functions.items():
        # Tensor functions are private, so that passes may rename them and drop those left without a caller.
        private = function.without_attr("global_symbol") if isinstance(function, PrimFunc) else function
        functions[variable] = private
    first = functions.pop(prepared.get_global_var(TRANSFORM))
    mod = transform.SplitLayoutRewritePreproc()(IRModule(functions))
    # Calls that lay out one weight in one way, as each step of an unrolled recurrence makes, share its copy.
    mod = lift_params(transform.EliminateCommonSubexpr()(mod))
    mod = transform.DeadCodeElimination([MAIN, TRANSFORM])(_chain(mod, first, functions))
    _schedule_rest(mod, target)
    return mod


def _schedule_rest(mod: Any, target: Target) -> None:
    in_main, kind = call_counts(mod), kind_of(target)
    for variable, function in list(mod.functions.items()):
        left_as_it_is = variable.name_hint in in_main and kind.runs_unscheduled
        if not isinstance(function, PrimFunc) or left_as_it_is or _is_scheduled(function):
            continue
        scheduled = kind.default_schedule(workload_module(normalised(function)), target)[MAIN]
        mod.update_func(variable, scheduled.without_attr("global_symbol"))


def _is_scheduled(function: Any) -> bool:
    """Whether a GPU schedule was applied to a tensor function, or a template computes it."""
    found = template_of(function) is not None

    def visit(loop: Any) -> None:
        nonlocal found
        found = found or loop.thread_binding is not None

    tvm_ffi.structural_walk(function.body, (tirx.For, visit))
    return found


def _chain(mod: Any, first: Any, functions: Mapping[Any, Any]) -> Any:
    """The module whose main_transform_params does what `first` does, then what it did.

    `first` calls tensor functions of `functions`, from before the second lifting, which may have changed them.
    """
    originals = {variable.name_hint: function for variable, function in functions.items()}
    second = mod[TRANSFORM]
    builder = relax.BlockBuilder(IRModule({v: f for v, f in mod.functions.items() if v.name_hint != TRANSFORM}))
    renamed: dict[str, Any] = {}

    def rename(variable: Any) -> Any:
        name = variable.name_hint
        if name not in renamed:
            renamed[name] = builder.add_func(originals[name], f"bind_{name}")
        return renamed[name]

    first = tvm_ffi.structural_map(first, (ir.GlobalVar, rename))
    callees = [builder.add_func(_private(first), "bind_params"), builder.add_func(_private(second), "lay_out_params")]
    params = relax.Var(first.params[0].name, first.params[0].ty)
    with builder.function(TRANSFORM, [params]):
        value = params
        for callee in callees:
            value = builder.emit(relax.Call(callee, [value]))
        builder.emit_func_output(value)
    return builder.get()


def _private(function: Any) -> Any:
    return function.without_attr("global_symbol").without_attr("num_input")
