"""Pools of images whose channels come first: reductions over small windows that move with the innermost axis.

A vector along the innermost axis reads neighbours of its own window's elements, with a stride or beyond the image's end, so
no load of a schedule's is a vector. LLVM makes one of each element of the window, masked at the ends and taken apart where
there is a stride, of a plain loop over the innermost axis around a window that is unrolled:

    parallel over all other axes
      for the innermost axis
        for the window (unrolled)
          y[.., x] = max(y[.., x], a[.., x * stride + k])
"""

from __future__ import annotations

import math
from typing import Any

from pitchpipe.wire.target import Target
from tuner.space.access import element_bits, spatial_axes, vector_lanes
from tuner.space.processor import VectorUnit
from tuner.tvm_compat import tirx, uses

MAX_UNROLLED = 64
"""Elements of the largest window that is unrolled."""


def is_window(definition: Any, target: Target) -> bool:
    """Whether a block reduces small windows that a schedule's own vectors along the last spatial axis, at least half a
    register long, do not fit."""
    spatial = spatial_axes(definition)
    reduced = [axis for axis in definition.iter_vars if int(axis.iter_type) == tirx.IterVar.CommReduce]
    if not reduced or not spatial or math.prod(int(axis.dom.extent) for axis in reduced) > MAX_UNROLLED:
        return False
    last = spatial[-1].var
    windows = [
        read
        for read in definition.reads
        if any(_moves(dim.min, spatial, reduced) for dim in read.region) and uses(read.region[-1].min, last)
    ]
    along = any(_moves(read.region[-1].min, spatial[-1:], reduced) for read in windows)
    lanes = VectorUnit.of(target, element_bits(definition)).lanes
    return bool(windows) and (along or vector_lanes(definition, lanes) < lanes // 2)


def _moves(index: Any, spatial: list[Any], reduced: list[Any]) -> bool:
    return any(uses(index, axis.var) for axis in spatial) and any(uses(index, axis.var) for axis in reduced)
