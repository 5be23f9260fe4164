"""From a prepared module, its tensor functions scheduled, to a module that can be compiled.

Layout changes that schedules made of weights move into `main_transform_params`, where what depends on parameters only is
already. That takes a second lifting, so what the first one made is set aside and called first. TVM lifts what depends on
parameters and leaves what depends on constants alone, such as the matrices of a Fourier transform, which would be laid out
again in every run: for the second lifting such constants are parameters, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from tuner.graph.fold_constants import constant_value
from tuner.graph.lift_params import lift_params
from tuner.graph.prepare import MAIN, TRANSFORM, call_counts, normalised, workload_module
from tuner.templates.kernels import template_of
from tuner.tvm_compat import IRModule, PrimFunc, ir, relax, tirx, tvm_ffi, with_function


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
    mod, first = _with_constants_as_weights(mod, first, {variable.name_hint for variable in functions})
    # Calls that lay out one weight in one way, as each step of an unrolled recurrence makes, share its copy.
    mod = lift_params(transform.EliminateCommonSubexpr()(mod))
    mod = transform.DeadCodeElimination([MAIN, TRANSFORM])(_chain(mod, first, functions))
    _schedule_rest(mod, target)
    return mod


def _with_constants_as_weights(mod: Any, first: Any, known: set[str]) -> tuple[Any, Any]:
    """(main with a parameter in place of each constant that a call lays out, `first` with these constants behind its
    results). Such calls are those of functions that were not known before."""
    main, made = mod[MAIN], list[tuple[Any, Any]]()

    def as_weight(argument: Any) -> Any:
        if constant_value(argument) is None:
            return argument
        found = next((variable for constant, variable in made if constant.same_as(argument)), None)
        if found is None:
            found = relax.Var(f"constant_{len(made)}", argument.ty)
            made.append((argument, found))
        return found

    def rewritten(binding: Any) -> Any:
        call = binding.value
        lays_out = isinstance(call, relax.Call) and call.args and isinstance(call.args[0], ir.GlobalVar)
        if not lays_out or call.args[0].name_hint in known:
            return binding
        arguments = [call.args[0], relax.Tuple([as_weight(one) for one in call.args[1].fields]), *call.args[2:]]
        return relax.VarBinding(binding.var, relax.Call(call.op, arguments, call.attrs, call.ty_args))

    blocks = [type(block)([rewritten(one) for one in block.bindings]) for block in main.body.blocks]
    if not made:
        return mod, first
    params = [*main.params, *(variable for _, variable in made)]
    body = relax.BlockBuilder().normalize(relax.SeqExpr(blocks, main.body.body))
    mod = with_function(mod, MAIN, relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs))
    return mod, _also_giving(first, [constant for constant, _ in made])


def _also_giving(first: Any, constants: Sequence[Any]) -> Any:
    """The function, which gives a tuple, with constants behind its results."""
    bindings = [binding for block in first.body.blocks for binding in block.bindings]
    before = first.body.body
    fields = [relax.TupleGetItem(before, at) for at in range(len(first.ret_ty.fields))]
    given = relax.Tuple([*fields, *constants])
    returned = relax.Var("with_constants", relax.TupleType([*first.ret_ty.fields, *(one.ty for one in constants)]))
    block = relax.DataflowBlock([*bindings, relax.VarBinding(returned, given)])
    body = relax.BlockBuilder().normalize(relax.SeqExpr([block], returned))
    return relax.Function(first.params, body, returned.ty, first.is_pure, first.attrs)


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
