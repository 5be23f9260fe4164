"""The last step of every reader: one function, inputs before parameters, everything static and within limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pitchpipe.errors import InvalidModel, TooLarge, UnsupportedShape
from tuner.ingest import IngestedModel, IngestLimits, TensorSpec
from tuner.tvm_compat import ir, relax, save_ir, with_function


def check_static(name: str, shape: Sequence[int] | None, limits: IngestLimits) -> None:
    """Raises UnsupportedShape, naming the tensor, for a dynamic, empty or absurd shape."""
    if shape is None:
        raise UnsupportedShape(f"tensor {name!r} has a dynamic shape: shapes are static")
    if any(extent < 1 for extent in shape):
        raise UnsupportedShape(f"tensor {name!r} of shape {list(shape)} has an empty or negative dimension")
    if math.prod(shape) > limits.elements:
        raise UnsupportedShape(f"tensor {name!r} of shape {list(shape)} has more than {limits.elements} elements")


def settle(module: Any, specs: Sequence[TensorSpec], num_input: int, limits: IngestLimits) -> IngestedModel:
    """The ingested model of `module`, whose main takes, in any order, the tensors that `specs` names.

    `specs` holds the inputs, then the parameters, `num_input` of the former. Raises InvalidModel when main disagrees.
    """
    main = module["main"]
    by_name = {param.name: param for param in main.params}
    if len(by_name) < len(main.params) or set(by_name) != {spec.name for spec in specs}:
        raise InvalidModel("the tensors that main takes are not those that the model names")
    ordered = [by_name[spec.name] for spec in specs]
    for spec, param in zip(specs, ordered, strict=True):
        _check_agrees(spec, param, limits)
    function = relax.Function(ordered, main.body, main.ret_ty, main.is_pure, main.attrs)
    function = function.without_attr("params").with_attr("num_input", num_input).with_attr("global_symbol", "main")
    _check_constants(function, limits)
    settled = with_function(module, "main", function)
    return IngestedModel(ir=save_ir(settled), inputs=tuple(specs[:num_input]), params=tuple(specs[num_input:]))


def _check_agrees(spec: TensorSpec, param: Any, limits: IngestLimits) -> None:
    check_static(spec.name, spec.shape, limits)
    shape = getattr(getattr(param.ty, "shape", None), "values", None)
    if shape is None or [int(extent) for extent in shape] != list(spec.shape):
        raise InvalidModel(f"main takes tensor {spec.name!r} in another shape than {list(spec.shape)}")


def _check_constants(function: Any, limits: IngestLimits) -> None:
    total = 0

    def visit(expr: Any) -> None:
        nonlocal total
        if isinstance(expr, ir.GenericConst) and hasattr(expr.value, "numpy"):
            total += int(expr.value.numpy().nbytes)

    relax.analysis.post_order_visit(function.body, visit)
    if total > limits.constant_bytes:
        raise TooLarge(f"the graph holds {total} bytes of constants; the limit is {limits.constant_bytes}")
