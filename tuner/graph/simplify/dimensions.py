"""Simplification rules for reshapes, permutations, softmax, norms, reductions, concatenations, products, convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.graph.convolutions import padded
from tuner.graph.def_use import op_name, static_shape
from tuner.graph.simplify.rewriter import Rewriter
from tuner.tvm_compat import relax


class DimensionRules(Rewriter):
    """Every public method is a rule: it takes a call and returns its replacement, or None."""

    def reshape(self, call: Any) -> Any:
        shape = static_shape(call)
        if shape is None:
            return None
        definition = self.definition(call.args[0])
        if static_shape(call.args[0]) == shape or op_name(definition) == "relax.reshape":
            return self.moved(self.reshaped(call.args[0], shape))
        return self.moved(call)

    def as_reshape(self, call: Any) -> Any:
        shape = static_shape(call)
        return None if shape is None else self.reshaped(call.args[0], shape)

    def broadcast(self, call: Any) -> Any:
        return call.args[0] if static_shape(call.args[0]) == static_shape(call) else None

    def permute(self, call: Any) -> Any:
        rank = len(static_shape(call.args[0]) or ())
        axes = [int(axis) for axis in call.attrs.axes] if call.attrs.axes else list(range(rank))[::-1]
        if axes == list(range(rank)):
            return call.args[0]
        definition = self.definition(call.args[0])
        if op_name(definition) == "relax.permute_dims" and definition.attrs.axes:
            inner = [int(axis) for axis in definition.attrs.axes]
            return self.permuted(definition.args[0], [inner[axis] for axis in axes])
        if axes == [0, 2, 3, 1] and _resizes_a_pixel(definition):
            return self._resized_channels_last(definition)
        moved = self.moved(call)
        if moved is not call:
            return moved
        x, count = self.squeezed(call.args[0])
        if count == 0 or axes[:count] != list(range(count)):
            return None
        return self.reshaped(self.permuted(x, [axis - count for axis in axes[count:]]), static_shape(call) or ())

    def _resized_channels_last(self, resize: Any) -> Any:
        """A pixel's resize with its channels last; before it they are turned by a reshape."""
        batch, channels = (static_shape(resize.args[0]) or [0, 0])[:2]
        attrs = resize.attrs
        y = relax.op.image.resize2d(
            self.reshaped(resize.args[0], [batch, 1, 1, channels]),
            resize.args[1],
            roi=[float(edge) for edge in attrs.roi],
            layout="NHWC",
            method=str(attrs.method),
            coordinate_transformation_mode=str(attrs.coordinate_transformation_mode),
            rounding_method=str(attrs.rounding_method),
            cubic_alpha=float(attrs.cubic_alpha),
            cubic_exclude=int(attrs.cubic_exclude),
            extrapolation_value=float(attrs.extrapolation_value),
            out_dtype=str(resize.ty.dtype),
        )
        return self.emit(y)

    def softmax(self, call: Any) -> Any:
        x, count = self.squeezed(call.args[0])
        axis = int(call.attrs.axis)
        rank = len(static_shape(call.args[0]) or ())
        axis = axis + rank if axis < 0 else axis
        if count == 0 or axis < count:
            return None
        make = {"relax.nn.softmax": relax.op.nn.softmax, "relax.nn.log_softmax": relax.op.nn.log_softmax}[op_name(call)]
        return self.reshaped(self.emit(make(x, axis - count)), static_shape(call) or ())

    def layer_norm(self, call: Any) -> Any:
        x, count = self.squeezed(call.args[0])
        rank = len(static_shape(call.args[0]) or ())
        axes = [int(axis) + rank if int(axis) < 0 else int(axis) for axis in call.attrs.axes]
        if count == 0 or any(axis < count for axis in axes):
            return None
        attrs = call.attrs
        y = relax.op.nn.layer_norm(
            x,
            *call.args[1:],
            axes=[axis - count for axis in axes],
            epsilon=attrs.epsilon,
            center=attrs.center,
            scale=attrs.scale,
        )
        return self.reshaped(self.emit(y), static_shape(call) or ())

    def reduction(self, call: Any) -> Any:
        x, count = self.squeezed(call.args[0])
        rank = len(static_shape(call.args[0]) or ())
        axes = [int(axis) % rank for axis in call.attrs.axis] if call.attrs.axis is not None else []
        if count == 0 or not axes or min(axes) < count:
            return None
        make = getattr(relax.op, op_name(call).removeprefix("relax."))
        y = make(x, [axis - count for axis in axes], keepdims=bool(call.attrs.keepdims))
        return self.reshaped(self.emit(y), static_shape(call) or ())

    def concatenate(self, call: Any) -> Any:
        parts = list(getattr(self.definition(call.args[0]), "fields", ()))
        shapes = [static_shape(part) for part in parts]
        if call.attrs.axis is None or not all(shapes):
            return None
        rank = len(shapes[0] or ())
        axis = int(call.attrs.axis) % rank
        count = min(axis, max(self.squeezed(part)[1] for part in parts))
        # Operands agree in every dimension but the concatenated one.
        if count == 0 or (shapes[0] or [])[:count] != [1] * count:
            return None
        y = relax.op.concat([self.without_units(part, rank - count) for part in parts], axis - count)
        return self.reshaped(self.emit(y), static_shape(call) or ())

    def matmul(self, call: Any) -> Any:
        """Removes leading unit dimensions of both operands: [1, 128, 768] x [768, 64] becomes a product of matrices."""
        left, right = (static_shape(argument) or [] for argument in call.args)
        out = static_shape(call)
        if out is None or min(len(left), len(right)) < 2 or max(len(left), len(right)) < 3:
            return None
        # The batch dimensions that stay are those of the operand that needs more of them.
        rank = max(2 + self._batch_rank(left), 2 + self._batch_rank(right))
        if rank >= max(len(left), len(right)):
            return self._batched(call, out)
        x, y = (self.without_units(argument, rank) for argument in call.args)
        return self.reshaped(self.emit(relax.op.matmul(x, y, out_dtype=call.attrs.out_dtype)), out)

    def _batched(self, call: Any, out: list[int]) -> Any:
        """The product of operands reshaped from [images, heads, ...] to [images * heads, ...], without that reshape. One of
        them may have had the one dimension before, too."""
        batches = []
        for argument in call.args:
            definition, shape = self.definition(argument), static_shape(argument) or []
            source = static_shape(definition.args[0]) if op_name(definition) == "relax.reshape" else None
            if source is None or source[-2:] != shape[-2:] or len(shape) != 3:
                return None
            batches.append([extent for extent in source[:-2] if extent != 1])
        batch = max(batches, key=len)
        if len(batch) < 2 or any(len(each) > 1 and each != batch for each in batches):
            return None
        x, y = (self.reshaped(each, [*batch, *(static_shape(each) or [])[-2:]]) for each in call.args)
        return self.reshaped(self.emit(relax.op.matmul(x, y, out_dtype=call.attrs.out_dtype)), out)

    @staticmethod
    def _batch_rank(shape: Sequence[int]) -> int:
        batch = shape[:-2]
        return len(batch) - next((index for index, extent in enumerate(batch) if extent != 1), len(batch))

    def conv1d(self, call: Any) -> Any:
        """Folds zero padding into a convolution that reads it."""
        return self._padded(call, "NCW")

    def conv2d(self, call: Any) -> Any:
        """The same along two axes."""
        return self._padded(call, "NCHW")

    def conv3d(self, call: Any) -> Any:
        """The same along three axes."""
        return self._padded(call, "NCDHW")

    def _padded(self, call: Any, layout: str) -> Any:
        definition = self.definition(call.args[0])
        attrs = call.attrs
        if (
            op_name(definition) != "relax.nn.pad"
            or attrs.data_layout != layout
            or definition.attrs.pad_mode != "constant"
        ):
            return None
        width = [int(extent) for extent in definition.attrs.pad_width]
        value = definition.attrs.pad_value
        if any(width[:4]) or min(width) < 0 or float(getattr(value, "value", value)) != 0.0:
            return None
        extra = [*width[4::2], *width[5::2]]  # before and behind each axis => before each axis, then behind each
        padding = [int(old) + new for old, new in zip(attrs.padding, extra, strict=True)]
        return padded(call, [definition.args[0], call.args[1]], padding)


def _resizes_a_pixel(call: Any) -> bool:
    """Whether it is a resize, channels first, of an image of one pixel, such as a global average that joins a pyramid."""
    if op_name(call) != "relax.image.resize2d" or str(call.attrs.layout) != "NCHW":
        return False
    return (static_shape(call.args[0]) or [])[2:] == [1, 1]
