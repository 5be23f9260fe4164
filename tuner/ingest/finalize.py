"""The last step of every reader: one function, inputs before parameters, everything static and within limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pitchpipe.errors import InvalidModel, TooLarge, UnsupportedShape
from tuner.ingest import IngestedModel, IngestLimits, TensorSpec
from tuner.tvm_compat import ir, relax, save_ir, tirx, with_function


def check_static(name: str, shape: Sequence[int] | None, limits: IngestLimits, *, empty: bool = False) -> None:
    """Raises UnsupportedShape, naming the tensor, for a dynamic or absurd shape, and for an empty one unless it may be."""
    if shape is None:
        raise UnsupportedShape(f"tensor {name!r} has a dynamic shape: shapes are static")
    if any(extent < 0 or (extent == 0 and not empty) for extent in shape):
        raise UnsupportedShape(f"tensor {name!r} of shape {list(shape)} has an empty or negative dimension")
    if math.prod(shape) > limits.elements:
        raise UnsupportedShape(f"tensor {name!r} of shape {list(shape)} has more than {limits.elements} elements")


def check_shapes(name: str, ty: Any, limits: IngestLimits) -> None:
    """check_static for every tensor in a Relax type."""
    if isinstance(ty, relax.TensorType):
        check_static(name, _static_shape(ty), limits)
    elif isinstance(ty, ir.TupleType):
        for field in ty.fields:
            check_shapes(name, field, limits)


def _static_shape(ty: Any) -> list[int] | None:
    extents: list[Any] = list(ty.shape.values) if isinstance(ty.shape, relax.ShapeExpr) else [None]
    return [int(extent) for extent in extents] if all(isinstance(extent, tirx.IntImm) for extent in extents) else None


def finalize(
    module: Any, variables: Sequence[Any], specs: Sequence[TensorSpec], num_input: int, limits: IngestLimits
) -> IngestedModel:
    """The ingested model of `module`, whose main takes `variables`, which `specs` describe one by one.

    The first `num_input` are inputs, the rest parameters; main is rewritten to take them in this order. Raises
    InvalidModel when main disagrees.
    """
    main = module["main"]
    if len({spec.name for spec in specs}) < len(specs):
        raise InvalidModel("two tensors that the model takes have the same name")
    if len(variables) != len(specs) or {hash(variable) for variable in variables} != set(map(hash, main.params)):
        raise InvalidModel(f"main takes {len(main.params)} tensors, the model names {len(specs)}")
    for spec, variable in zip(specs, variables, strict=True):
        _check_agrees(spec, variable, limits)
    function = relax.Function(variables, main.body, main.ret_ty, main.is_pure, main.attrs)
    function = function.without_attr("params").with_attr("num_input", num_input).with_attr("global_symbol", "main")
    _check_constants(function, limits)
    finalized = with_function(module, "main", function)
    return IngestedModel(ir=save_ir(finalized), inputs=tuple(specs[:num_input]), params=tuple(specs[num_input:]))


def _check_agrees(spec: TensorSpec, param: Any, limits: IngestLimits) -> None:
    check_static(spec.name, spec.shape, limits, empty=True)
    if not isinstance(param.ty, relax.TensorType):
        raise InvalidModel(f"main takes {spec.name!r}, which is not a tensor")
    if _static_shape(param.ty) != list(spec.shape):
        raise InvalidModel(f"main takes tensor {spec.name!r} in another shape than {list(spec.shape)}")
    if str(param.ty.dtype) != spec.dtype:
        raise InvalidModel(f"main takes tensor {spec.name!r} as {param.ty.dtype}, not {spec.dtype}")


def _check_constants(function: Any, limits: IngestLimits) -> None:
    total = 0

    def visit(expr: Any) -> None:
        nonlocal total
        if isinstance(expr, ir.GenericConst) and hasattr(expr.value, "numpy"):
            total += int(expr.value.numpy().nbytes)

    relax.analysis.post_order_visit(function.body, visit)
    if total > limits.constant_bytes:
        raise TooLarge(f"the graph holds {total} bytes of constants; the limit is {limits.constant_bytes}")
