"""StableHLO's slices, updates, paddings and gathers as Relax; see the StableHLO specification for what each means.

An index that leaves its tensor is clamped, so that the whole slice lies inside: that is StableHLO's meaning, which every
method here gives by itself. What a user's framework means by such an index (JAX wraps negative ones, and fills or drops
others by its mode) is in the graph, around the operator.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxlib.mlir.dialects import stablehlo

from pitchpipe.errors import UnsupportedOperator
from tuner.ingest.stablehlo_values import Emitter, Patched, shape_of
from tuner.tvm_compat import relax

op = relax.op


class Indexing(Emitter):
    """The operators that take elements out or put them in; each raises UnsupportedOperator for what it does not know."""

    def _concatenate(self, operation: Any, operands: list[Any]) -> Any:
        axis = int(operation.attributes["dimension"].value)
        return self._emit(op.concat([self.whole(value) for value in operands], axis))

    def _slice(self, operation: Any, operands: list[Any]) -> Any:
        begin, end, strides = (
            list(operation.attributes[f"{name}"]) for name in ("start_indices", "limit_indices", "strides")
        )
        return self._emit(op.strided_slice(self.whole(operands[0]), list(range(len(begin))), begin, end, strides))

    def _reverse(self, operation: Any, operands: list[Any]) -> Any:
        value = self.whole(operands[0])
        for axis in operation.attributes["dimensions"]:
            value = self._emit(op.flip(value, int(axis)))
        return value

    def _pad(self, operation: Any, operands: list[Any]) -> Any:
        low, high, interior = (
            list(operation.attributes[f"{name}"])
            for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
        )
        fill = self._scalar(operands[1])
        if fill is None:
            raise UnsupportedOperator("operator stablehlo.pad is supported by a constant")
        value = self._dilated(self.whole(operands[0]), [width + 1 for width in interior], fill)
        return self._padded(value, low, high, fill)

    def _padded(self, value: Any, low: list[int], high: list[int], fill: float) -> Any:
        """Elements put around a tensor, or taken off where a width is negative."""
        if min(*low, *high) < 0:
            shape = shape_of(value)
            begin = [max(0, -width) for width in low]
            end = [extent - max(0, -width) for extent, width in zip(shape, high, strict=True)]
            value = self._emit(op.strided_slice(value, list(range(len(shape))), begin, end))
            low, high = [max(0, width) for width in low], [max(0, width) for width in high]
        widths = [width for pair in zip(low, high, strict=True) for width in pair]
        return self._emit(op.nn.pad(value, widths, "constant", fill)) if any(widths) else value

    def _dilated(self, value: Any, times: list[int], fill: float) -> Any:
        """Every axis with `times - 1` elements put between two of its own."""
        for axis, factor in enumerate(times):
            shape = list(shape_of(value))
            if factor == 1 or shape[axis] <= 1:
                continue
            parted = self._reshaped(value, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
            widths = [0] * (2 * len(shape) + 2)
            widths[2 * (axis + 1) + 1] = factor - 1
            joined = [*shape[:axis], shape[axis] * factor, *shape[axis + 1 :]]
            value = self._reshaped(self._emit(op.nn.pad(parted, widths, "constant", fill)), joined)
            end = [*joined[:axis], (shape[axis] - 1) * factor + 1, *joined[axis + 1 :]]
            value = self._emit(op.strided_slice(value, list(range(len(end))), [0] * len(end), end))
        return value

    # At indices that the graph computes

    def _dynamic_slice(self, operation: Any, operands: list[Any]) -> Any:
        value, *starts = operands
        sizes, shape = [int(size) for size in operation.attributes["slice_sizes"]], shape_of(value)
        known = [self._start(start, n, size) for start, n, size in zip(starts, shape, sizes, strict=True)]
        if isinstance(value, Patched):
            cut = [axis for axis, extent in enumerate(shape) if sizes[axis] != extent]
            begin = known[value.axis]
            if cut == [value.axis] and begin is not None and (piece := value.at(begin, sizes[value.axis])) is not None:
                return piece
        value = self.whole(value)
        if any(begin is not None for begin in known):
            fixed = [0 if begin is None else begin for begin in known]
            end = [n if start is None else start + size for n, start, size in zip(shape, known, sizes, strict=True)]
            if list(fixed) != [0] * len(shape) or tuple(end) != shape:
                value = self._emit(op.strided_slice(value, list(range(len(shape))), fixed, end))
        for axis, begin in enumerate(known):
            if begin is None:
                first = self._clamped(self._reshaped(self.whole(starts[axis]), [1]), shape[axis] - sizes[axis])
                places = self._emit(op.add(first, self._counted(sizes[axis])))
                value = self._emit(op.take(value, places, axis, mode="clip"))
        return value

    def _dynamic_update_slice(self, _operation: Any, operands: list[Any]) -> Any:
        value, update, *starts = operands
        shape, sizes = shape_of(value), shape_of(update)
        known = [self._start(start, n, size) for start, n, size in zip(starts, shape, sizes, strict=True)]
        cut = [axis for axis, extent in enumerate(shape) if sizes[axis] != extent]
        if not cut:
            return update
        if len(cut) == 1 and (begin := known[cut[0]]) is not None:
            return self._patched(value, update, cut[0], begin)
        # Everywhere at once: the update's element at each place, and the tensor's own where there is none.
        value, update, inside = self.whole(value), self.whole(update), None
        for axis in cut:
            begin = known[axis]
            first = (
                relax.const([begin], "int32")
                if begin is not None
                else self._clamped(self._reshaped(self.whole(starts[axis]), [1]), shape[axis] - sizes[axis])
            )
            place = self._emit(op.subtract(self._counted(shape[axis]), first))
            covered = self._emit(
                op.logical_and(
                    self._emit(op.greater_equal(place, relax.const(0, "int32"))),
                    self._emit(op.less(place, relax.const(sizes[axis], "int32"))),
                )
            )
            covered = self._reshaped(covered, [shape[axis] if at == axis else 1 for at in range(len(shape))])
            inside = covered if inside is None else self._emit(op.logical_and(inside, covered))
            update = self._emit(op.take(update, self._clamped(place, sizes[axis] - 1), axis, mode="clip"))
        return self._emit(op.where(inside, update, value))

    def _patched(self, value: Any, update: Any, axis: int, begin: int) -> Any:
        size = shape_of(update)[axis]
        if isinstance(value, Patched) and value.axis == axis and not value.cuts(begin, size):
            return Patched(value.base, axis, {**value.pieces, begin: update})
        return Patched(self.whole(value) if isinstance(value, Patched) else value, axis, {begin: update})

    def _start(self, start: Any, extent: int, size: int) -> int | None:
        """Where a slice begins, clamped, if that is known now."""
        if size == extent:
            return 0
        number = self._scalar(start)
        return None if number is None else min(max(int(number), 0), extent - size)

    def _clamped(self, places: Any, last: int) -> Any:
        """Indices of any type as int32 between 0 and `last`."""
        dtype = str(places.ty.dtype)
        bounds = relax.const(0, dtype), relax.const(min(last, np.iinfo(dtype).max), dtype)
        places = self._emit(op.minimum(self._emit(op.maximum(places, bounds[0])), bounds[1]))
        return places if dtype == "int32" else self._emit(op.astype(places, "int32"))

    def _counted(self, extent: int) -> Any:
        return relax.const(np.arange(extent, dtype=np.int32), "int32")

    # Gathers

    def _gather(self, operation: Any, operands: list[Any]) -> Any:
        """Whole slices along one axis, which is what indexing an embedding table is, are one `take`; so is the rest, of
        rows at places that are computed."""
        numbers = stablehlo.GatherDimensionNumbers(operation.attributes["dimension_numbers"])
        data, indices = (self.whole(value) for value in operands)
        shape, sizes = shape_of(data), [int(size) for size in operation.attributes["slice_sizes"]]
        collapsed, index_shape = list(numbers.collapsed_slice_dims), shape_of(indices)
        axis = collapsed[0] if len(collapsed) == 1 else -1
        batch = len(index_shape) - 1
        offsets = [*range(axis), *range(axis + batch, axis + batch + len(shape) - 1 - axis)]
        taken = [*shape[:axis], 1, *shape[axis + 1 :]]
        if (
            axis >= 0
            and list(numbers.start_index_map) == [axis]
            and int(numbers.index_vector_dim) == batch
            and index_shape[-1] == 1
            and list(numbers.offset_dims) == offsets
            and not list(numbers.operand_batching_dims)
            and sizes == taken
        ):
            return self._emit(op.take(data, self._emit(op.reshape(indices, index_shape[:-1])), axis, mode="clip"))
        return self._gathered(numbers, data, indices, sizes, len(operation.results[0].type.shape))

    def _gathered(self, numbers: Any, data: Any, indices: Any, sizes: list[int], rank: int) -> Any:
        """Any gather. Axes that are indexed are made the first one, in which each element has a place, the rest is rows:

        place = sum over indexed axes of stride * (start clamped + offset within the slice)
        """
        shape, index_shape = shape_of(data), list(shape_of(indices))
        vector = int(numbers.index_vector_dim)
        if vector == len(index_shape):
            index_shape.append(1)
        else:
            order = [axis for axis in range(len(index_shape)) if axis != vector] + [vector]
            indices = self._permuted(indices, order)
            index_shape = [index_shape[axis] for axis in order]
        *batch, _ = index_shape
        indices = self._reshaped(indices, index_shape)
        mapped, batching = list(numbers.start_index_map), list(numbers.operand_batching_dims)
        # Batching dimensions are counted among those of the indices with the vector's taken out.
        sides = [axis - (axis > vector) for axis in numbers.start_indices_batching_dims]
        indexed = [axis for axis, size in enumerate(sizes) if axis in mapped or axis in batching or size != shape[axis]]
        rows = [axis for axis in range(len(shape)) if axis not in indexed]
        kept = [axis for axis in range(len(shape)) if axis not in (*numbers.collapsed_slice_dims, *batching)]
        inner = [axis for axis in indexed if axis in kept]
        wide = len(batch) + len(inner)
        place = relax.const(np.zeros([1] * max(wide, 1), np.int32), "int32")
        for at, axis in enumerate(indexed):
            stride = math.prod(shape[other] for other in indexed[at + 1 :])
            if axis in mapped:
                column = mapped.index(axis)
                ends = [0] * len(batch) + [column], [*batch, column + 1]
                start = self._emit(op.strided_slice(indices, list(range(len(index_shape))), *ends))
                start = self._clamped(
                    self._reshaped(start, [*batch, *([1] * len(inner))] or [1]), shape[axis] - sizes[axis]
                )
                place = self._emit(op.add(place, self._emit(op.multiply(start, relax.const(stride, "int32")))))
            if axis in batching:
                place = self._emit(op.add(place, self._steps(shape[axis], stride, sides[batching.index(axis)], wide)))
            if axis in inner:
                side = len(batch) + inner.index(axis)
                place = self._emit(op.add(place, self._steps(sizes[axis], stride, side, wide)))
        full = [*batch, *(sizes[axis] for axis in inner)]
        place = self._emit(op.broadcast_to(place, full or [1]))
        flat = self._reshaped(
            self._permuted(data, [*indexed, *rows]),
            [math.prod(shape[axis] for axis in indexed), *(shape[axis] for axis in rows)],
        )
        found = self._emit(op.take(flat, place, 0, mode="clip"))
        found = self._reshaped(found, [*full, *(shape[axis] for axis in rows)])
        # Found: batch, then what is kept, indexed axes first; asked for: what is kept in its order at the offsets.
        made: list[int] = [0] * rank
        offsets = [int(axis) for axis in numbers.offset_dims]
        for position, axis in zip(offsets, kept, strict=True):
            made[position] = len(batch) + (inner + rows).index(axis)
        for position, at in zip((axis for axis in range(rank) if axis not in offsets), range(len(batch)), strict=True):
            made[position] = at
        return self._permuted(found, made)

    def _steps(self, extent: int, stride: int, side: int, rank: int) -> Any:
        """0, stride, 2 stride, ... along axis `side` of a tensor of that rank."""
        values = (np.arange(extent, dtype=np.int32) * stride).reshape(
            [extent if at == side else 1 for at in range(rank)]
        )
        return relax.const(values, "int32")
