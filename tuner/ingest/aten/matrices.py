"""Calls of the tensor functions of tuner/ingest/matrices for tensors of matrices, [..., rows, columns].

They take one matrix after another: leading dimensions are flattened into a batch. What would take more than MOST_OPERATIONS
is refused: a nest of loops on one core is no match for a library there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pitchpipe.errors import UnsupportedShape
from tuner.ingest.aten.emitter import Emitter, shape_of
from tuner.tvm_compat import relax

MOST_OPERATIONS = 2e9
"""Of one call, about: some seconds on one core. A square matrix may have 1,200 rows for LU, 580 for eigenvalues, 460 for
singular values."""

Result = tuple[Sequence[int], str]
"""Shape and type, without the batch."""


def called(
    to: Emitter,
    make: Callable[[int], Any],
    given: Sequence[tuple[Any, int]],
    results: Sequence[Result],
    *,
    operations: float = 1,
) -> list[Any]:
    """The results, [*batch, *shape] each, of the tensor function make(batch) for the tensors given.

    With every tensor stands its rank without the batch; batches are broadcast.
    """
    shapes = [shape_of(x) for x, _ in given]
    own = [shape[len(shape) - rank :] for shape, (_, rank) in zip(shapes, given, strict=True)]
    leading = [shape[: len(shape) - rank] for shape, (_, rank) in zip(shapes, given, strict=True)]
    batch = [int(extent) for extent in np.broadcast_shapes(*map(tuple, leading))]
    count = math.prod(batch)
    work = operations * count * max(math.prod(shape) * min(shape, default=1) for shape in own)
    if work > MOST_OPERATIONS:
        name = to.node.target.__name__
        sizes = " and ".join(map(str, shapes))
        raise UnsupportedShape(f"operator {name} ({to.node.name}) of {sizes} is too large: it is left to libraries")
    flat = [
        to.reshape(to.broadcast(x, [*batch, *shape]), [count, *shape]) for (x, _), shape in zip(given, own, strict=True)
    ]
    function = make(count)
    variable = to.builder.add_func(function, str(function.body.block.body.block.name_hint))
    types = [relax.TensorType([count, *shape], dtype) for shape, dtype in results]
    found = to.emit(relax.call_tir(variable, flat, types if len(types) > 1 else types[0]))
    items = [found] if len(types) == 1 else [to.emit(relax.TupleGetItem(found, at)) for at in range(len(types))]
    return [to.reshape(item, [*batch, *shape]) for item, (shape, _) in zip(items, results, strict=True)]


def turned(to: Emitter, x: Any) -> Any:
    """Every matrix transposed."""
    rank = len(shape_of(x))
    return to.permute(x, [*range(rank - 2), rank - 1, rank - 2])
