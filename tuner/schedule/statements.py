"""What functions of TIR that are written without a schedule are made of: loops, buffers, and parts of buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tuner.tvm_compat import ir, tirx

INDEX_TYPE = "int64"


def loop(name: str, extent: int, body: Callable[[Any], Any], kind: Any = tirx.ForKind.SERIAL) -> Any:
    """A loop over a body, which is told the iteration; the body alone where there is one."""
    if extent == 1:
        return body(integer(0))
    variable = ir.Var(name, INDEX_TYPE)
    return tirx.For(variable, integer(0), integer(extent), kind, body(variable))


def bound_to_threads(axes: dict[str, int], body: Callable[..., Any]) -> Any:
    """The body in loops that are bound to axes of threads (name -> extent, outermost first), whose variables it is told."""
    variables = {name: ir.Var(name.replace(".", "_"), INDEX_TYPE) for name in axes}
    nest = body(*variables.values())
    for name, extent in reversed(axes.items()):
        axis = tirx.IterVar(None, ir.Var(name, INDEX_TYPE), tirx.IterVar.ThreadIndex, name)
        nest = tirx.For(variables[name], integer(0), integer(extent), tirx.ForKind.THREAD_BINDING, nest, axis)
    return nest


def whole(buffer: Any) -> Any:
    """All of a buffer."""
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(integer(0), extent) for extent in buffer.shape])


def point(buffer: Any, indices: Sequence[Any]) -> Any:
    """One element of a buffer."""
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(index, integer(1)) for index in indices])


def buffer(name: str, shape: Sequence[int], dtype: str, scope: str = "global") -> Any:
    """A new buffer."""
    return tirx.decl_buffer([integer(extent) for extent in shape], dtype, name, scope=scope)


def integer(value: int) -> Any:
    """An index."""
    return tirx.const(value, INDEX_TYPE)
