"""Indices of gathering operators: negative ones wrapped as the model's source means them, then clamped to the bounds.

An index i along an extent n means element i + n where it is negative, in PyTorch, in ONNX and in NumPy. TVM's operators
differ: `take` and `gather_elements` read whatever lies at i, which may be foreign memory. So before anything else is
rewritten every gathering operator of main gets indices within [0, n): constants when the graph is prepared, others by
operators of the graph, which cost a comparison and fuse with what reads. What is out of bounds on either side reads the
first or the last element: PyTorch and ONNX raise an error there, which compiled code cannot.

Where the source has no negative indices (embeddings, StableHLO's and TFLite's gathers) the reader of its format says so
by `take`'s mode "clip", and indices are only clamped. Mode "fast", which TVM's frontends give, promises nothing.
Scattering operators are decomposed by tuner/graph/scatters.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tuner.graph.def_use import DefUse, Emit, Replacement, replace_calls, static_shape
from tuner.graph.fold_constants import constant_value
from tuner.tvm_compat import relax


def guard_indices(mod: Any) -> Any:
    """The module with the indices of main's gathering operators wrapped and clamped. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for name, guarded in _GUARDS.items():
        for _, call in def_use.calls(name):
            if static_shape(call.args[0]) is not None and (replacement := guarded(def_use, call)) is not None:
                replacements[call] = replacement
    return replace_calls(mod, replacements)


def _take(def_use: DefUse, call: Any) -> Replacement | None:
    """A `take` of mode "fast" becomes one of mode "clip" on wrapped indices. Other modes check bounds by themselves."""
    if call.attrs.mode != "fast" or not isinstance(call.args[1].ty, relax.TensorType):
        return None
    shape = static_shape(call.args[0]) or []
    extent = math.prod(shape) if call.attrs.axis is None else shape[int(call.attrs.axis)]

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        indices = wrapped(builder.emit, current(call.args[1]), def_use.definition(call.args[1]), [extent])
        return relax.op.take(current(call.args[0]), indices, axis=call.attrs.axis, mode="clip")

    return replacement


def _gather_elements(def_use: DefUse, call: Any) -> Replacement:
    extent = (static_shape(call.args[0]) or [])[int(call.attrs.axis)]

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        indices = _bounded(builder.emit, current(call.args[1]), def_use.definition(call.args[1]), [extent])
        return relax.op.gather_elements(current(call.args[0]), indices, axis=int(call.attrs.axis))

    return replacement


def _gather_nd(def_use: DefUse, call: Any) -> Replacement | None:
    shape, indexed = static_shape(call.args[0]) or [], static_shape(call.args[1])
    if indexed is None:
        return None
    batch = int(call.attrs.batch_dims)

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        extents = shape[batch : batch + indexed[-1]]
        indices = _bounded(builder.emit, current(call.args[1]), def_use.definition(call.args[1]), extents)
        return relax.op.gather_nd(current(call.args[0]), indices, batch_dims=batch)

    return replacement


def _index_tensor(def_use: DefUse, call: Any) -> Replacement | None:
    given = def_use.definition(call.args[1])
    shape = static_shape(call.args[0]) or []
    if not isinstance(given, relax.Tuple) or any(str(index.ty.dtype) == "bool" for index in given.fields):
        return None

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        indices = [
            _bounded(builder.emit, current(index), def_use.definition(index), [extent])
            for index, extent in zip(given.fields, shape, strict=False)
        ]
        return relax.op.index_tensor(current(call.args[0]), indices)

    return replacement


_GUARDS: dict[str, Callable[[DefUse, Any], Replacement | None]] = {
    "relax.take": _take,
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.index_tensor": _index_tensor,
}


def wrapped(emit: Emit, indices: Any, definition: Any, extents: Sequence[int]) -> Any:
    """`indices` with negative ones counted from the end.

    definition: what the indices are bound to; constants are wrapped here and now, others by operators.
    extents: of the dimension that is indexed; or several, one for each position of the last axis of the indices.
    """
    values = constant_value(definition)
    if values is not None:
        wide = values.astype(np.int64)
        found = np.where(wide < 0, wide + _counts(extents), wide)
        return indices if np.array_equal(found, wide) else relax.const(found, "int64")
    if str(indices.ty.dtype).startswith("uint"):
        return indices
    indices = _wide_enough(emit, indices, extents)
    dtype = str(indices.ty.dtype)
    is_negative = emit(relax.op.less(indices, relax.const(0, dtype)))
    return emit(
        relax.op.where(
            is_negative, emit(relax.op.add(indices, relax.const(_counts(extents).astype(dtype), dtype))), indices
        )
    )


def _bounded(emit: Emit, indices: Any, definition: Any, extents: Sequence[int]) -> Any:
    """The same, then clamped to [0, extent)."""
    last = _counts(extents) - 1
    values = constant_value(definition)
    if values is not None:
        wide = values.astype(np.int64)
        found = np.clip(np.where(wide < 0, wide + _counts(extents), wide), 0, last)
        return indices if np.array_equal(found, wide) else relax.const(found, "int64")
    indices = wrapped(emit, _wide_enough(emit, indices, extents), definition, extents)
    dtype = str(indices.ty.dtype)
    positive = emit(relax.op.maximum(indices, relax.const(0, dtype)))
    return emit(relax.op.minimum(positive, relax.const(last.astype(dtype), dtype)))


def _wide_enough(emit: Emit, indices: Any, extents: Sequence[int]) -> Any:
    """Indices in a type that can hold the extents too, so that adding an extent does not overflow."""
    dtype = np.dtype(str(indices.ty.dtype))
    return indices if max(extents) <= np.iinfo(dtype).max else emit(relax.op.astype(indices, "int64"))


def _counts(extents: Sequence[int]) -> np.ndarray:
    return np.array(extents[0] if len(extents) == 1 else extents)
