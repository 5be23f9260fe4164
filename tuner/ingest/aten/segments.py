"""Reductions of segments that follow each other along an axis; how long they are is data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tuner.ingest.aten.emitter import Emitter, converter, shape_of, wide
from tuner.ingest.aten.iteration import Iteration, iterated_at
from tuner.tvm_compat import relax, tirx

op = relax.op

FIRST = {"max": -math.inf, "min": math.inf, "sum": 0.0, "mean": 0.0, "prod": 1.0}
"""What an empty segment gives without an initial value; a mean gives no number."""


@converter("segment_reduce.default")
def segment_reduce(
    to: Emitter,
    x: Any,
    reduce: str,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    initial: Any = None,
    **_: Any,
) -> Any:
    """The axis is the last one of `lengths`, [..., segments], or of `offsets`, [..., segments + 1]; axes before it are a
    batch. An initial value takes part, and is not counted in a mean."""
    del indices
    if lengths is None and offsets is None:
        raise NotImplementedError("segments by indices")
    given = lengths if offsets is None else offsets
    axis = len(shape_of(given)) - 1
    if offsets is None:
        counted = to.cast(lengths, "int64")
        ends = to.emit(op.cumsum(counted, axis))
        starts = to.emit(op.subtract(ends, counted))
    else:
        offsets = to.cast(offsets, "int64")
        count = shape_of(offsets)[axis] - 1
        starts, ends = (to.emit(op.strided_slice(offsets, [axis], [first], [first + count])) for first in (0, 1))
    dtype = wide(to.dtype)
    last = shape_of(x)[axis] - 1

    def number(value: float) -> Any:
        return tirx.const(value, dtype)

    def body(at: Sequence[Any], x: Any, starts: Any, ends: Any) -> Iteration:
        start, end = (one(*at[: axis + 1]) for one in (starts, ends))
        length = end - start

        def step(k: Any, found: Any) -> tuple[Any]:
            place = tirx.max(tirx.min(start + k, tirx.const(last, "int64")), tirx.const(0, "int64"))
            return (_combined(reduce, found, x(*at[:axis], place, *at[axis + 1 :])),)

        def result(found: Any) -> Any:
            if reduce != "mean":
                return found
            nothing = number(math.nan if initial is None else float(initial))
            return tirx.if_then_else(length > tirx.const(0, "int64"), found / tirx.Cast(dtype, length), nothing)

        first = number(FIRST[reduce] if initial is None else float(initial))
        return Iteration(states=(first,), steps=length, step=step, result=result)

    x = to.cast(x, dtype)
    return iterated_at(to, "segment_reduce", body, to.shape, to.dtype, x, starts, ends)


def _combined(reduce: str, found: Any, value: Any) -> Any:
    """An extremum is no number once a value is none; PyTorch's begins anew with the next one that is."""
    if reduce in ("sum", "mean"):
        return found + value
    if reduce == "prod":
        return found * value
    better = found < value if reduce == "max" else value < found
    return tirx.if_then_else(tirx.any(tirx.isnan(value), better), value, found)
