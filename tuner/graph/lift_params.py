"""What depends on parameters alone moves into `main_transform_params`, which runs once, when weights are bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import definition
from tuner.tvm_compat import relax, with_function


def lift_params(mod: Any) -> Any:
    """The module after TVM's LiftTransformParams, with all that main returns.

    That pass drops what no binding left in main reads, even where main returns it. So the results are read once more, by
    an operator that the pass neither lifts nor leaves behind. Bindings must be canonical, and in one dataflow block.
    """
    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    bound = {binding.var: binding.value for binding in bindings}

    def emit(value: Any, of_type: Any) -> Any:
        bindings.append(relax.VarBinding(variable := relax.DataflowVar("result", of_type), value))
        return variable

    result = _read(main.body.body, bound.get, emit)
    returned = relax.Var("results", main.ret_ty)
    block = relax.DataflowBlock([*bindings, relax.VarBinding(returned, result)])
    body = relax.BlockBuilder().normalize(relax.SeqExpr([block], returned))
    read = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return relax.transform.LiftTransformParams()(with_function(mod, "main", read))


def _read(result: Any, bound: Callable[[Any], Any], emit: Callable[[Any, Any], Any]) -> Any:
    """A tensor, read; a tuple of what is read of each of its parts."""
    if isinstance(result.ty, relax.TensorType):
        return emit(relax.op.builtin.stop_lift_params(result), result.ty)
    defined = definition(result, bound)
    parts = (
        defined.fields
        if isinstance(defined, relax.Tuple)
        else [emit(relax.TupleGetItem(result, index), field) for index, field in enumerate(result.ty.fields)]
    )
    return relax.Tuple([_read(part, bound, emit) for part in parts])
