"""Convolutions whose taps mostly read padding, as sums of what the taps read of the data.

A tap k of a kernel reads x[i * stride - padding + k * dilation] for every position i of the result. With a dilation near the
extent of x it reads padding for most i, and for all where it is beyond: the pooling pyramids of segmenters have dilations of
12, 24 and 36 on 28 x 28 positions. Computed as written they pad x to a multiple of its size and multiply zeros.

Taps at the ends of the kernel that read nothing else are dropped. Of what is left, where data is a small part of what is
read, every tap becomes a product with the part of x that it reads, padded to the result with zeros and added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tuner.graph.convolutions import CONVOLUTIONS
from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.tvm_compat import relax

MOST_SHARE = 0.6
"""Of what is read that is data: where more is, a convolution stays one."""
MOST_TAPS = 9
"""Products that a convolution becomes, at most."""
LEAST_SAVED_FLOPS = 5e7
"""What must be saved for more kernels to be worth starting: a tenth of a millisecond of a core."""


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """A spatial dimension of a convolution."""

    extent: int
    taps: int
    positions: int
    stride: int
    padding: int
    dilation: int

    def read(self, tap: int) -> range:
        """The positions for which a tap reads data."""
        first = -((tap * self.dilation - self.padding) // self.stride)
        last = (self.extent - 1 + self.padding - tap * self.dilation) // self.stride
        return range(max(0, first), max(0, min(self.positions, last + 1)))

    @property
    def used(self) -> list[int]:
        """Taps that read data for any position."""
        return [tap for tap in range(self.taps) if self.read(tap)]

    @property
    def share(self) -> float:
        """Of what the used taps read that is data."""
        return sum(len(self.read(tap)) for tap in self.used) / max(1, self.positions * len(self.used))


def drop_taps_of_padding(mod: Any) -> Any:
    """The module with such convolutions of main replaced. Bindings must be canonical, and channels the second axis."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for name in CONVOLUTIONS:
        for _, call in def_use.calls(name):
            if (axes := _axes(call)) is not None and _is_worth_it(call, axes):
                replacements[call] = _added_up(call, axes)
    return replace_calls(mod, replacements)


def _axes(call: Any) -> list[_Axis] | None:
    """Of a convolution of one group with channels second; else None."""
    attrs = call.attrs
    data, weight, result = static_shape(call.args[0]), static_shape(call.args[1]), static_shape(call)
    layouts = [str(layout)[:2] for layout in (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or "NC")]
    if data is None or weight is None or result is None or int(attrs.groups) != 1 or layouts != ["NC", "OI", "NC"]:
        return None
    every = zip(data[2:], weight[2:], result[2:], attrs.strides, attrs.padding, attrs.dilation, strict=False)
    return [
        _Axis(extent=s, taps=k, positions=r, stride=int(stride), padding=int(padding), dilation=int(dilation))
        for s, k, r, stride, padding, dilation in every
    ]


def _is_worth_it(call: Any, axes: Sequence[_Axis]) -> bool:
    count = math.prod(len(axis.used) for axis in axes)
    share = math.prod(axis.share * len(axis.used) / axis.taps for axis in axes)
    outputs, inputs, *_ = static_shape(call.args[1]) or (0, 0)
    batch, _, *positions = static_shape(call) or (0, 0)
    flops = 2.0 * batch * outputs * inputs * math.prod(positions) * math.prod(axis.taps for axis in axes)
    return 0 < count <= MOST_TAPS and share <= MOST_SHARE and (1 - share) * flops >= LEAST_SAVED_FLOPS


def _added_up(call: Any, axes: Sequence[_Axis]) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        x, weight = (current(argument) for argument in call.args)
        parts = [_part(builder, call, axes, taps, x, weight) for taps in _by_size(axes)]
        total = parts[0]
        for part in parts[1:]:
            total = builder.emit(relax.op.add(total, part))
        return total

    return replacement


def _by_size(axes: Sequence[_Axis]) -> Iterator[tuple[int, ...]]:
    """A tap for each dimension, those that are read for most positions first."""
    every = product(*(axis.used for axis in axes))
    yield from sorted(every, key=lambda taps: -math.prod(len(a.read(t)) for a, t in zip(axes, taps, strict=True)))


def _part(builder: Any, call: Any, axes: Sequence[_Axis], taps: Sequence[int], x: Any, weight: Any) -> Any:
    """What one tap adds to the result, in its shape."""
    begins, ends, strides, widths = list[int](), list[int](), list[int](), [0, 0, 0, 0]
    for axis, tap in zip(axes, taps, strict=True):
        at = axis.read(tap)
        begins.append(at[0] * axis.stride - axis.padding + tap * axis.dilation)
        ends.append(begins[-1] + (len(at) - 1) * axis.stride + 1)
        strides.append(axis.stride)
        widths += [at[0], axis.positions - at[-1] - 1]
    spatial = list(range(2, 2 + len(axes)))
    whole = all((b, e, s) == (0, a.extent, 1) for b, e, s, a in zip(begins, ends, strides, axes, strict=True))
    data = x if whole else builder.emit(relax.op.strided_slice(x, spatial, begins, ends, strides))
    one = builder.emit(relax.op.strided_slice(weight, spatial, [*taps], [tap + 1 for tap in taps]))
    attrs = call.attrs
    made = builder.emit(
        CONVOLUTIONS[str(call.op.name)](
            data,
            one,
            data_layout=attrs.data_layout,
            kernel_layout=attrs.kernel_layout,
            out_layout=attrs.out_layout,
            out_dtype=attrs.out_dtype or None,
        )
    )
    return builder.emit(relax.op.nn.pad(made, widths)) if any(widths) else made
