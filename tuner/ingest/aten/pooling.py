"""Pools over windows of the last axes. Those of half precision are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tuner.ingest.aten.emitter import Emitter, converter, dtype_of, int64, is_float, lowest, shape_of, wide
from tuner.ingest.aten.reductions import arg_reducer
from tuner.tvm_compat import relax, te, tirx

op = relax.op
MAXIMA = {1: op.nn.max_pool1d, 2: op.nn.max_pool2d, 3: op.nn.max_pool3d}
MEANS = {1: op.nn.avg_pool1d, 2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d}
ADAPTIVE = {1: op.nn.adaptive_avg_pool1d, 2: op.nn.adaptive_avg_pool2d, 3: op.nn.adaptive_avg_pool3d}


def _each(value: Any, rank: int) -> list[int]:
    """An argument of the windows' axes, of which PyTorch takes one for all."""
    given = [value] if isinstance(value, int) else list(value)
    return given * rank if len(given) == 1 else given


def _batched(to: Emitter, x: Any, rank: int, make: Callable[[Any], Any]) -> Any:
    """make of x with a batch, which is taken off again if x has none."""
    shape = shape_of(x)
    if len(shape) == rank + 2:
        return to.emit(make(x))
    return to.emit(op.squeeze(to.emit(make(to.emit(op.expand_dims(x, axis=0)))), [0]))


class Windows:
    """Where the windows of a pool lie along each axis: they may reach over the input's ends."""

    def __init__(self, x: Any, rank: int, starts: Any, extents: Sequence[int], ends: Any = None) -> None:
        self.have, self.rank, self.extents = shape_of(x), rank, list(extents)
        self.spatial = self.have[-rank:]
        self.starts, self.ends = starts, ends
        """By axis: functions of the output's place. The ends, where windows differ in extent."""

    def axes(self) -> list[Any]:
        return [te.reduce_axis((int64(0), int64(n)), f"w{at}") for at, n in enumerate(self.extents)]

    def places(self, at: Sequence[Any], window: Sequence[Any], steps: Sequence[int]) -> tuple[Any, list[Any]]:
        """Whether an element of the window is an element of the input, and its place, clamped."""
        inside, index = [tirx.const(True, "bool")], []
        for axis, (k, step) in enumerate(zip(window, steps, strict=True)):
            out = at[len(at) - self.rank + axis]
            place = self.starts[axis](out) + k.var * step
            inside += [place >= 0, place < self.spatial[axis]]
            if self.ends is not None:
                inside.append(place < self.ends[axis](out))
            index.append(tirx.max(tirx.min(place, int64(self.spatial[axis] - 1)), int64(0)))
        return tirx.all(*inside), index


def _regular(x: Any, rank: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Windows:
    starts = [lambda out, s=s, p=p: out * s - p for s, p in zip(stride, padding, strict=True)]
    return Windows(x, rank, starts, kernel)


def _adaptive(x: Any, rank: int, output: Sequence[int]) -> Windows:
    """Window o of n over m elements is [floor(o m / n), ceil((o + 1) m / n))."""
    have = shape_of(x)[-rank:]
    starts = [lambda o, m=m, n=n: tirx.floordiv(o * m, n) for m, n in zip(have, output, strict=True)]
    ends = [lambda o, m=m, n=n: tirx.floordiv((o + 1) * m + n - 1, n) for m, n in zip(have, output, strict=True)]
    longest = [
        max((o + 1) * m // n + ((o + 1) * m % n > 0) - o * m // n for o in range(n))
        for m, n in zip(have, output, strict=True)
    ]
    return Windows(x, rank, starts, longest, ends)


def _arg_max(to: Emitter, x: Any, windows: Windows, steps: Sequence[int], shape: Sequence[int]) -> tuple[Any, Any]:
    dtype, have = dtype_of(x), windows.spatial

    def function(given: Any) -> Any:
        axes = windows.axes()
        reducer = arg_reducer(True)

        def element(*at: Any) -> Any:
            inside, index = windows.places(at, axes, steps)
            flat = int64(0)
            for place, extent in zip(index, have, strict=True):
                flat = flat * extent + place
            value = given(*at[: len(at) - windows.rank], *index)
            return reducer(
                (tirx.if_then_else(inside, flat, int64(-1)), tirx.if_then_else(inside, value, lowest(dtype))),
                axis=axes,
            )

        places, values = te.compute(tuple(map(int64, shape)), element, name="max_pool")
        return [values, places]

    found = to.te("max_pool", function, x)
    return to.emit(found[0]), to.emit(found[1])


def _max_pool(rank: int) -> Callable[..., Any]:
    def convert(
        to: Emitter,
        x: Any,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        **_: Any,
    ) -> Any:
        kernel = _each(kernel_size, rank)
        step = _each(stride, rank) if stride not in (None, [], ()) else kernel
        pad, spread = _each(padding, rank), _each(dilation, rank)
        result = to.dtype
        several = len(to.results) > 1
        if not (several and to.reads(1)) and is_float(result):
            make, have = MAXIMA[rank], shape_of(x)[-rank:]
            axes = zip(have, to.shape[-rank:], kernel, step, pad, spread, strict=True)
            # ceil_mode, which is in the result's shape: the last window may reach beyond the padding.
            after = [max((out - 1) * s + d * (k - 1) + 1 - n - p, p) for n, out, k, s, p, d in axes]
            found = _batched(
                to,
                x,
                rank,
                lambda v: make(v, pool_size=kernel, strides=step, padding=[*pad, *after], dilation=spread),
            )
            return (found, None) if several else found
        x = to.cast(x, wide(result))
        values, places = _arg_max(to, x, _regular(x, rank, kernel, step, pad), spread, to.shape)
        values = to.cast(values, result)
        return (values, places) if several else values

    return convert


for _rank in (1, 2, 3):
    converter(f"max_pool{_rank}d.default", f"max_pool{_rank}d_with_indices.default")(_max_pool(_rank))


def _adaptive_max_pool(rank: int) -> Callable[..., Any]:
    def convert(to: Emitter, x: Any, output_size: Any) -> Any:
        result = to.dtype
        x = to.cast(x, wide(result))
        windows = _adaptive(x, rank, _each(output_size, rank))
        values, places = _arg_max(to, x, windows, [1] * rank, to.shape)
        return to.cast(values, result), places

    return convert


for _rank in (2, 3):
    converter(f"adaptive_max_pool{_rank}d.default")(_adaptive_max_pool(_rank))


def _avg_pool(rank: int) -> Callable[..., Any]:
    def convert(
        to: Emitter,
        x: Any,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        kernel = _each(kernel_size, rank)
        step = _each(stride, rank) if stride not in (None, [], ()) else kernel
        pad = _each(padding, rank)
        result = to.dtype
        x = to.cast(x, result)
        if is_float(result) and not ceil_mode and divisor_override is None:
            make = MEANS[rank]
            return _batched(
                to,
                x,
                rank,
                lambda v: make(v, pool_size=kernel, strides=step, padding=pad, count_include_pad=count_include_pad),
            )
        dtype = wide(result)
        x = to.cast(x, dtype)
        windows = _regular(x, rank, kernel, step, pad)
        total = _window_sum(to, x, windows, to.shape)

        def divisor(at: Sequence[Any]) -> Any:
            """Elements of a window: those over the padded ends never count, those in the padding if they shall."""
            if divisor_override is not None:
                return int64(divisor_override)
            count = int64(1)
            for axis in range(rank):
                low = windows.starts[axis](at[len(at) - rank + axis])
                high = low + kernel[axis]
                end = windows.spatial[axis]
                if count_include_pad:
                    count = count * (tirx.min(high, int64(end + pad[axis])) - low)
                else:
                    count = count * (tirx.min(high, int64(end)) - tirx.max(low, int64(0)))
            return count

        def body(given: Any, at: Any) -> Any:
            if is_float(dtype):
                return given[0](*at) / divisor(at).astype(dtype)
            return tirx.truncdiv(given[0](*at), divisor(at).astype(dtype))

        return to.cast(to.compute("mean", body, to.shape, total), result)

    return convert


for _rank in (1, 2, 3):
    converter(f"avg_pool{_rank}d.default")(_avg_pool(_rank))


def _window_sum(to: Emitter, x: Any, windows: Windows, shape: Sequence[int]) -> Any:
    dtype = dtype_of(x)

    def body(given: Any, at: Any) -> Any:
        axes = windows.axes()
        inside, index = windows.places(at, axes, [1] * windows.rank)
        value = given[0](*at[: len(at) - windows.rank], *index)
        return te.sum(tirx.if_then_else(inside, value, tirx.const(0, dtype)), axis=axes)

    return to.compute("window_sum", body, shape, x)


def _adaptive_avg_pool(rank: int) -> Callable[..., Any]:
    def convert(to: Emitter, x: Any, output_size: Any) -> Any:
        sizes, have = _each(output_size, rank), shape_of(x)[-rank:]
        if all(m % n == 0 for m, n in zip(have, sizes, strict=True) if n):
            return _batched(to, to.cast(x, to.dtype), rank, lambda v: ADAPTIVE[rank](v, sizes))
        # Windows of several extents: loops of TVM's operator then have extents that depend on the place.
        result, dtype = to.dtype, wide(to.dtype)
        windows = _adaptive(x, rank, sizes)
        total = _window_sum(to, to.cast(x, dtype), windows, to.shape)

        def body(given: Any, at: Any) -> Any:
            count = int64(1)
            for axis, out in enumerate(at[len(at) - rank :]):
                count = count * (windows.ends[axis](out) - windows.starts[axis](out))
            return given[0](*at) / count.astype(dtype)

        return to.cast(to.compute("mean", body, to.shape, total), result)

    return convert


for _rank in (1, 2, 3):
    converter(f"_adaptive_avg_pool{_rank}d.default", f"adaptive_avg_pool{_rank}d.default")(_adaptive_avg_pool(_rank))


@converter("im2col.default")
def im2col(to: Emitter, x: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """[n, c, h, w] -> [n, c kh kw, windows]."""
    have = shape_of(x)
    kernel, spread, pad, step = (_each(each, 2) for each in (kernel_size, dilation, padding, stride))
    counts = [
        (have[-2 + axis] + 2 * pad[axis] - spread[axis] * (kernel[axis] - 1) - 1) // step[axis] + 1 for axis in range(2)
    ]
    dtype = dtype_of(x)

    def body(given: Any, at: Any) -> Any:
        row, window = at[-2], at[-1]
        channel = tirx.floordiv(row, kernel[0] * kernel[1])
        taps = tirx.floordiv(tirx.floormod(row, kernel[0] * kernel[1]), kernel[1]), tirx.floormod(row, kernel[1])
        outs = tirx.floordiv(window, counts[1]), tirx.floormod(window, counts[1])
        inside, index = [], []
        for axis in range(2):
            place = outs[axis] * step[axis] - pad[axis] + taps[axis] * spread[axis]
            inside += [place >= 0, place < have[-2 + axis]]
            index.append(tirx.max(tirx.min(place, int64(have[-2 + axis] - 1)), int64(0)))
        return tirx.if_then_else(tirx.all(*inside), given[0](*at[:-2], channel, *index), tirx.const(0, dtype))

    return to.compute("im2col", body, to.shape, x)


@converter("col2im.default")
def col2im(to: Emitter, x: Any, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """The sum of all windows' elements at their places, [n, c kh kw, windows] -> [n, c, h, w]."""
    kernel, spread, pad, step = (_each(each, 2) for each in (kernel_size, dilation, padding, stride))
    size = _each(output_size, 2)
    counts = [
        (size[axis] + 2 * pad[axis] - spread[axis] * (kernel[axis] - 1) - 1) // step[axis] + 1 for axis in range(2)
    ]
    result = to.dtype
    dtype = wide(result)

    def body(given: Any, at: Any) -> Any:
        axes = [te.reduce_axis((int64(0), int64(n)), f"k{i}") for i, n in enumerate(kernel)]
        inside, outs = [], []
        for axis in range(2):
            place = at[-2 + axis] + pad[axis] - axes[axis].var * spread[axis]
            out = tirx.floordiv(place, step[axis])
            inside += [tirx.floormod(place, step[axis]) == 0, out >= 0, out < counts[axis]]
            outs.append(tirx.max(tirx.min(out, int64(counts[axis] - 1)), int64(0)))
        row = (at[-3] * kernel[0] + axes[0].var) * kernel[1] + axes[1].var
        value = given[0](*at[:-3], row, outs[0] * counts[1] + outs[1])
        return te.sum(tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, dtype)), axis=axes)

    return to.cast(to.compute("col2im", body, to.shape, to.cast(x, dtype)), result)


@converter("max_unpool2d.default", "max_unpool3d.default")
def max_unpool(to: Emitter, x: Any, indices: Any, output_size: Any, **_: Any) -> Any:
    """Values at their places among zeros; the last axes are flattened for it."""
    rank = len(output_size)
    have = shape_of(x)
    rows, inner, outer = math.prod(have[:-rank]), math.prod(have[-rank:]), math.prod(output_size)
    values = to.reshape(x, [rows, inner])
    places = to.reshape(to.cast(indices, "int64"), [rows, inner])
    zeros = to.emit(op.zeros(relax.ShapeExpr([rows, outer]), to.dtype))
    found = to.emit(op.scatter_elements(zeros, places, values, axis=1, reduction="update"))
    return to.reshape(found, to.shape)
