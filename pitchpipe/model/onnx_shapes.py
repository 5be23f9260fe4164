"""Shapes for an ONNX file whose inputs leave some open: those of example inputs. Needs onnx, imported on first use.

An exporter writes a name (`batch`) or nothing where an extent was not fixed. Example inputs, in the order of the graph's
inputs, give each open extent a number; one name is one number wherever the file says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pitchpipe.errors import InvalidInput
from pitchpipe.model.onnx_params import param_names


def fix_shapes(model: Any, examples: Sequence[Any]) -> None:
    """Gives a ModelProto the shapes of `examples`, arrays or tensors, in place of open ones.

    Raises InvalidInput where they are not as many as the graph's inputs, or of another type or shape than the file says.
    """
    stored = {tensor.name for tensor in model.graph.initializer} | set(param_names(model))
    inputs = [value for value in model.graph.input if value.name not in stored]
    if len(examples) != len(inputs):
        names = ", ".join(value.name for value in inputs)
        raise InvalidInput(f"{len(examples)} example inputs are given; the model takes {len(inputs)}: {names[:300]}")
    extents: dict[str, int] = {}
    for value, example in zip(inputs, examples, strict=True):
        _fix_input(value, example, extents)
    for value in _declared(model.graph):
        for dim in _dims(value):
            if dim.dim_param in extents:
                dim.dim_value = extents[dim.dim_param]


def _fix_input(value: Any, example: Any, extents: dict[str, int]) -> None:
    """Gives an input the example's shape, and notes what each name of an extent is."""
    if not value.type.HasField("tensor_type"):
        return
    tensor, shape = value.type.tensor_type, tuple(map(int, example.shape))
    given, wanted = str(example.dtype).removeprefix("torch."), _dtype(tensor.elem_type)
    if wanted is not None and given != wanted:
        raise InvalidInput(f"the example of input {value.name!r} is of type {given}; the model takes {wanted}")
    if not tensor.HasField("shape"):
        for extent in shape:
            tensor.shape.dim.add(dim_value=extent)
        return
    told = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim]
    if len(told) != len(shape):
        raise InvalidInput(f"the example of input {value.name!r} has shape {list(shape)}; the model takes {told}")
    for dim, extent in zip(tensor.shape.dim, shape, strict=True):
        known = dim.dim_value if dim.HasField("dim_value") else extents.get(dim.dim_param, extent)
        if extent != known:
            raise InvalidInput(
                f"the example of input {value.name!r} has shape {list(shape)}; the model takes {told}"
                + (f", where {dim.dim_param} is {known}" if dim.dim_param else "")
            )
        if dim.dim_param:
            extents[dim.dim_param] = extent
        dim.dim_value = extent


def _dtype(element: int) -> str | None:
    """NumPy's name of ONNX's number of a type; None for a number that is none."""
    import onnx

    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(element).name)
    except (KeyError, TypeError, ValueError):
        return None


def _declared(graph: Any) -> Iterator[Any]:
    """Every value whose type a graph and its subgraphs declare."""
    yield from (*graph.input, *graph.output, *graph.value_info)
    for node in graph.node:
        for entry in node.attribute:
            for inner in (*([entry.g] if entry.HasField("g") else []), *entry.graphs):
                yield from _declared(inner)


def _dims(value: Any) -> Sequence[Any]:
    found: Sequence[Any] = value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ()
    return found
